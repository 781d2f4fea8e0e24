"""The number for a step, and for loading: what is set, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from engine.config import EngineConfig
from engine.hardware.idle_cores import FreeCores
from engine.hardware.step_threads import LARGE, StepThreads, while_loading
from tests.engine.hardware.machine import Machine

Duration = Callable[[int], float]


class Threads:
    """`StepThreads` of a machine that is told by hand, and what it set."""

    def __init__(
        self, most: int, cores: int, weights_bytes: int = 2**40, **settings: object
    ) -> None:
        self.machine = Machine()
        self.running: int | None = None
        self.set: list[int] = []
        self.config = EngineConfig(num_threads=most, device="cpu").replace(**settings)
        self.threads = StepThreads(
            self.config, weights_bytes, self.machine.clock,
            num_cores=cores, read=self.machine.read, running=lambda: self.running,
            apply=self.set.append,
        )  # fmt: skip

    def step(self, tokens: int, seconds: Duration = lambda count: 0.01, others: float = 0.0) -> int:
        count = self.threads.begin(tokens, self.machine.now)
        assert self.set[-1] == count
        duration = seconds(count)
        self.machine.pass_(duration, others)
        self.threads.ended(duration, self.machine.now)
        return count


def test_large_steps_take_the_cores_that_others_leave() -> None:
    threads = Threads(4, 4)
    assert [threads.step(LARGE) for _ in range(100)] == [4] * 100
    beside = [threads.step(LARGE, others=1.0) for _ in range(100)]
    assert beside[-1] == 3 and 2 not in beside
    assert [threads.step(LARGE, others=9.0) for _ in range(100)][-1] == 1
    assert [threads.step(LARGE) for _ in range(100)][-1] == 4


def test_a_prompt_takes_cores_that_others_have_just_left() -> None:
    threads = Threads(4, 4)
    threads.machine.pass_(1.5, others=3.0)
    threads.running = 3
    assert threads.step(LARGE) == 1
    threads.running = 1
    assert threads.step(LARGE) == 3
    assert threads.step(1) == 1, "small steps are for the search"
    threads.running = 0
    assert threads.step(LARGE) == 4
    threads.running = 9
    assert [threads.step(LARGE) for _ in range(200)][-1] == 4, "nobody has used any since"


def test_the_number_does_not_swing_with_every_look() -> None:
    threads = Threads(2, 2)
    seen = [threads.step(LARGE, others=0.45 + 0.1 * (n // 60 % 2)) for n in range(2_000)]
    assert sum(a != b for a, b in pairwise(seen)) <= 1


def test_logical_cores_beside_the_physical_ones_are_room_for_others() -> None:
    threads = Threads(8, 16)
    assert {threads.step(LARGE, others=7.0) for _ in range(200)} == {8}


def test_small_steps_are_searched_by_their_size_and_begin_with_what_is_known() -> None:
    threads = Threads(2, 2)
    for _ in range(100):
        threads.step(1, {1: 0.002, 2: 0.002}.__getitem__)
    assert threads.step(1) == 1
    assert threads.step(3) == 1, "a new size begins with what the next one found"
    for _ in range(400):
        threads.step(12, {1: 0.004, 2: 0.002}.__getitem__)
    assert threads.step(12, lambda count: 0.002) == 2 and threads.step(1) == 1
    figures = threads.threads.figures()
    assert figures is not None and figures.most == 2 and figures.used == 1
    assert [tuple(found) for found in figures.found] == [(1, 1, 1), (2, 3, 1), (8, 15, 2)]
    assert figures.others == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("megabytes", "first"), [(0, 1), (18, 1), (40, 2), (70, 4), (120, 4), (200, 6), (20_000, 6)]
)
def test_a_small_model_begins_with_few_threads(megabytes: int, first: int) -> None:
    threads = Threads(6, 6, weights_bytes=megabytes * 10**6)
    assert threads.step(1) == first
    assert threads.step(LARGE) == 6


def test_switched_off_all_threads_compute_everything() -> None:
    threads = Threads(2, 2, adaptive_threads=False)
    assert {threads.step(1, {1: 0.001, 2: 0.009}.__getitem__, others=2.0) for _ in range(99)} == {2}
    assert threads.machine.looks <= 1, "nobody asks the system then"
    threads.threads.update(threads.config.replace(adaptive_threads=True))
    for _ in range(300):
        threads.step(1, {1: 0.001, 2: 0.009}.__getitem__)
    assert threads.step(1) == 1
    threads.threads.update(threads.config)
    assert threads.set[-1] == 2


def test_a_gpu_is_left_alone() -> None:
    set_: list[int] = []
    config = EngineConfig(num_threads=4, device="cuda:0")
    threads = StepThreads(config, None, lambda: 0.0, apply=set_.append)
    assert threads.begin(1, 0.0) == 0
    threads.ended(1.0, 1.0)
    threads.rest()
    assert set_ == [] and threads.figures() is None


def load(most: int, busy: Sequence[float]) -> tuple[list[int], list[str]]:
    """What is set while a model loads, one report of progress for each of `busy`, which says what
    others use until then; and what was reported."""
    machine, set_, told = Machine(), [], []
    free = FreeCores(most, machine.clock, num_cores=4, read=machine.read)
    looks = iter(busy)
    free.others = lambda now: next(looks)  # type: ignore[method-assign]
    progress = while_loading(
        lambda stage, done, total: told.append(f"{stage} {done}/{total}"), most,
        free=free, apply=set_.append, wait=lambda seconds: None,
    )  # fmt: skip
    for number in range(len(busy) - 1):
        progress("Reading", number, len(busy) - 1)
    return set_, told


def test_a_model_is_loaded_by_as_many_threads_as_find_a_core() -> None:
    set_, told = load(4, [1.0, 1.0, 3.0, 0.1])
    assert set_ == [3, 1, 4]
    assert told == ["Reading 0/3", "Reading 1/3", "Reading 2/3"]
    assert load(1, [9.0]) == ([1], [])
