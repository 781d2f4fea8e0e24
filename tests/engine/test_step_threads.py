"""The number of threads of a step: what is found by trying, what others leave, what is set."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import psutil
import pytest
import torch
from hypothesis import given

from engine.assembly import assemble
from engine.config import EngineConfig
from engine.errors import LoadCancelled
from engine.llm_engine import LLMEngine
from engine.model_runner import ModelRunner
from engine.sampling_params import SamplingParams
from engine.threads.crowding import INTERVAL_S, Accounts, Crowding, Used, keeping_busy
from engine.threads.free_cores import while_loading
from engine.threads.search import (
    AS_FAST,
    COST,
    FASTER,
    LONGEST_PAUSE_S,
    Search,
    Trial,
    counts,
)
from engine.threads.step_threads import LARGE, StepThreads
from tests.engine.speculation.test_exactness import Scripted
from tests.engine.tiny_models import make_prompts

Duration = Callable[[int], float]


class Runs:
    """Steps of one kind, whose durations depend on the number of threads."""

    def __init__(self, most: int, place: int | None = None) -> None:
        sizes = counts(most)
        self.search = Search(sizes, len(sizes) - 1 if place is None else place)
        self.most, self.now = most, 0.0
        self.used: list[int] = []

    def run(self, steps: int, duration: Duration) -> list[int]:
        """The numbers of threads of these steps."""
        begin = len(self.used)
        for _ in range(steps):
            count = self.search.count(self.now, self.most)
            seconds = duration(count)
            self.now += seconds
            self.search.learn(count, seconds, self.now)
            self.used.append(count)
        return self.used[begin:]


def even(times: dict[int, float]) -> Duration:
    return times.__getitem__


@pytest.mark.parametrize(
    ("most", "expected"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (6, (1, 2, 4, 6)),
     (16, (1, 2, 4, 8, 16)), (0, (0,))],
)  # fmt: skip
def test_the_counts_that_are_tried(most: int, expected: tuple[int, ...]) -> None:
    assert counts(most) == expected


@pytest.mark.parametrize("usual", [0.002, 0.05])
@pytest.mark.parametrize("best", [1, 2, 4, 8])
def test_the_fastest_count_is_found_from_either_end(best: int, usual: float) -> None:
    sizes = counts(8)
    times = {n: usual * 1.5 ** abs(sizes.index(n) - sizes.index(best)) for n in sizes}
    for place in (0, 3):
        runs = Runs(8, place)
        runs.run(4_000, even(times))
        assert runs.search.best == best
        assert runs.run(400, even(times)).count(best) > 300


def test_of_equally_fast_counts_the_fewest_threads_are_taken() -> None:
    runs = Runs(8)
    runs.run(300, even({1: 0.004, 2: 0.002, 4: 0.002, 8: 0.002}))
    assert runs.search.best == 2


def test_fewer_threads_that_are_slower_are_not_taken_and_more_that_gain_nothing_neither() -> None:
    runs = Runs(2)
    runs.run(3_000, even({1: 0.002 * AS_FAST * 1.02, 2: 0.002}))
    assert runs.search.best == 2
    runs = Runs(2, 0)
    runs.run(3_000, even({1: 0.002, 2: 0.002 * FASTER * 1.02}))
    assert runs.search.best == 1


def test_one_stray_interruption_decides_nothing() -> None:
    rare = iter([0.150])

    def with_one(count: int) -> float:
        return next(rare, 0.002) if count == 2 and runs.now > 0.012 else {1: 0.003, 2: 0.002}[count]

    runs = Runs(2)
    runs.run(200, with_one)
    assert runs.search.best == 2


def test_interruptions_that_are_the_rule_count() -> None:
    """Two threads on two cores beside a busy program: every few steps one stands still."""
    draw = random.Random(1)

    def beside(count: int) -> float:
        return 0.003 if count == 1 else draw.choice([0.002, 0.002, 0.008, 0.030])

    runs = Runs(2)
    runs.run(300, beside)
    assert runs.search.best == 1


def test_what_has_changed_is_noticed_soon_and_both_ways() -> None:
    idle = even({1: 0.010, 2: 0.006})
    crowded = even({1: 0.011, 2: 0.050})
    runs = Runs(2)
    runs.run(20_000, idle)  # long enough for trials to have become rare
    assert runs.search.best == 2
    began = runs.now
    while runs.search.best == 2:
        runs.run(1, crowded)
    assert runs.now - began < 30
    began = runs.now
    while runs.search.best == 1:
        runs.run(1, idle)
    assert runs.now - began < 120


@given(st.floats(1.05, 4), st.floats(1.05, 4), st.floats(0.001, 0.2), st.integers(0, 2))
def test_trials_cost_little(fewer: float, more: float, usual: float, place: int) -> None:
    """All that is lost by trying, over the time of the steps, once the best count is taken."""
    times = {1: usual * fewer, 2: usual, 4: usual * more}
    runs = Runs(4, place)
    runs.run(200, even(times))
    if runs.search.best != 2:
        return  # 5 % more than the best is not always worth a change
    began, index = runs.now, len(runs.used)
    runs.run(3_000, even(times))
    lost = sum(times[count] - usual for count in runs.used[index:])
    assert lost <= (runs.now - began) / COST + 8 * usual * (max(fewer, more) - 1) * 2


def test_a_server_that_computes_alike_for_days_goes_on_with_trials() -> None:
    runs = Runs(2)
    times = {1: 0.010, 2: 0.006}
    runs.run(100, even(times))
    for _ in range(2_000):
        runs.now += LONGEST_PAUSE_S
        assert 1 in runs.run(24, even(times)), "there is a trial after each pause"
    assert runs.search.best == 2


def test_a_trial_takes_turns_and_does_not_count_the_step_after_a_change() -> None:
    trial = Trial(2, 1, is_short=True)
    turns = []
    while not trial.is_over:
        turns.append(trial.count)
        is_first = len(turns) == 1 or turns[-2] != turns[-1]
        trial.add(9.0 if is_first else {1: 0.5, 2: 1.0}[turns[-1]])
    assert turns == [2] * 6 + [1] * 12 + [2] * 6
    assert trial.ratio == pytest.approx(0.5)
    assert trial.cost_s == 0


def test_no_more_threads_than_allowed_and_a_trial_ends_with_that() -> None:
    runs = Runs(4)
    runs.run(20, even({1: 0.1, 2: 0.06, 4: 0.03}))
    search = runs.search
    for _ in range(50):
        assert search.count(runs.now, 1) == 1
        search.learn(1, 5.0, runs.now)
    assert search.best == 4, "what was computed with fewer than allowed says nothing of it"
    assert search.count(runs.now, 4) == 4


@pytest.mark.parametrize(("fewer", "found"), [(0.010, 4), (0.020, 7)])
def test_beside_a_program_that_keeps_a_core_fewer_are_tried_too(fewer: float, found: int) -> None:
    """What is left is none of the counts, and less than where the search begins."""
    runs = Runs(8)
    runs.most = 7
    times = even({1: 0.08, 2: 0.04, 4: fewer, 7: 0.010, 8: 0.009})
    runs.run(300, times)
    assert runs.run(400, times).count(found) > 300
    runs.most = 8
    runs.run(10_000, times)
    assert runs.search.best == 8, "with all cores free again"


def test_a_trial_does_not_go_on_after_a_pause() -> None:
    """A reply ends in the middle of one; in the next, an hour later, all steps are slower."""
    runs = Runs(2)
    before, after = {1: 0.004, 2: 0.003}, {1: 0.008, 2: 0.006}
    while 1 not in runs.run(1, even(before)):
        pass
    runs.run(2, even(before))
    runs.now += 3600
    used = runs.run(12, even(after))
    assert used[0] == 2, "it begins anew, with what is taken for best"
    runs.run(200, even(after))
    assert runs.search.best == 2


# -- what other programs use ---------------------------------------------------------------------


class Machine:
    """Accounts of a machine on which time is told by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.all = self.own = 1000.0
        self.looks = 0

    def pass_(self, seconds: float, others: float, own: float = 1.0) -> None:
        self.now += seconds
        self.all += seconds * (others + own)
        self.own += seconds * own

    def read(self) -> Used:
        self.looks += 1
        return Used(self.all, self.own)

    def clock(self) -> float:
        return self.now


def test_others_are_what_is_used_less_our_own() -> None:
    machine = Machine()
    crowding = Crowding(machine.clock, machine.read)
    assert crowding.others(machine.now) is None
    machine.pass_(0.2, others=1.5, own=1.9)
    assert crowding.others(machine.now) == pytest.approx(1.5)
    machine.pass_(INTERVAL_S, others=0.0)
    assert crowding.others(machine.now) == pytest.approx(0.0, abs=1e-9)


def test_it_looks_rarely_and_soon_again_after_a_pause() -> None:
    machine = Machine()
    crowding = Crowding(machine.clock, machine.read)
    for _ in range(1000):
        machine.pass_(0.01, others=0.0)
        crowding.others(machine.now)
    assert machine.looks <= 2 + 10 / INTERVAL_S
    machine.pass_(60, others=0.5)  # nothing was computed
    assert crowding.others(machine.now) == pytest.approx(0.5, abs=0.01)
    machine.pass_(0.15, others=2.0)
    assert crowding.others(machine.now) == pytest.approx(2.0)


def test_where_the_system_tells_nothing_nothing_is_said() -> None:
    def refused() -> Used:
        raise psutil.AccessDenied

    crowding = Crowding(lambda: 0.0, refused)
    assert crowding.others(10.0) is None and crowding.others(20.0) is None


def test_accounts_that_were_told_and_end_are_forgotten() -> None:
    machine = Machine()
    told = iter([Used(1.0, 0.0), Used(3.0, 0.0)])

    def read() -> Used:
        try:
            return next(told)
        except StopIteration:
            raise OSError("gone") from None

    crowding = Crowding(machine.clock, read)
    assert crowding.others(101.0) == pytest.approx(2.0)
    assert crowding.others(110.0) is None and crowding.latest is None


def test_other_work_of_this_program_counts_for_engines_of_other_threads() -> None:
    machine = Machine()
    crowding = Crowding(machine.clock, machine.read)
    assert crowding.others(machine.now) is None
    machine.pass_(0.2, others=0.25)
    begun, done = threading.Event(), threading.Event()

    def work() -> None:
        with keeping_busy(3):
            begun.set()
            done.wait(30)

    worker = threading.Thread(target=work)
    worker.start()
    assert begun.wait(30)
    assert crowding.others(machine.now) == pytest.approx(3.25)
    assert crowding.latest == pytest.approx(3.25)
    done.set()
    worker.join()
    assert crowding.others(machine.now) == pytest.approx(0.25)
    with keeping_busy(2):
        assert crowding.others(machine.now) == pytest.approx(0.25), "an engine's own work"


def test_the_machine_s_own_accounts_count_this_process() -> None:
    accounts = Accounts()
    before = accounts.read()
    while accounts.read().own - before.own < 0.2:
        sum(range(10_000))
    after = accounts.read()
    assert after.all - before.all >= 0.1, "ticks are of 10 ms"


# -- both together -------------------------------------------------------------------------------


class Threads:
    """`StepThreads` of a machine that is told by hand, and what it set."""

    def __init__(
        self, most: int, cores: int, weights_bytes: int = 2**40, **settings: object
    ) -> None:
        self.machine = Machine()
        self.set: list[int] = []
        self.config = EngineConfig(num_threads=most, device="cpu").replace(**settings)
        self.threads = StepThreads(
            self.config, weights_bytes, self.machine.clock,
            crowding=Crowding(self.machine.clock, self.machine.read),
            num_cores=cores, apply=self.set.append,
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
    threads = StepThreads(config, 2**40, lambda: 0.0, apply=set_.append)
    assert threads.begin(1, 0.0) == 0
    threads.ended(1.0, 1.0)
    threads.rest()
    assert set_ == [] and threads.figures() is None


def load(most: int, busy: Sequence[float]) -> tuple[list[int], list[str]]:
    """What is set while a model loads, one report of progress for each of `busy`, which says what
    others use until then; and what was reported."""
    machine, set_, told = Machine(), [], []
    crowding = Crowding(machine.clock, machine.read)
    looks = iter(busy)
    crowding.others = lambda now: next(looks)  # type: ignore[method-assign]
    progress = while_loading(
        lambda stage, done, total: told.append(f"{stage} {done}/{total}"), most,
        crowding=crowding, num_cores=4, apply=set_.append, wait=lambda seconds: None,
    )  # fmt: skip
    for number in range(len(busy) - 1):
        progress("Reading", number, len(busy) - 1)
    return set_, told


def test_a_model_is_loaded_by_as_many_threads_as_find_a_core() -> None:
    set_, told = load(4, [1.0, 1.0, 3.0, 0.1])
    assert set_ == [3, 1, 4]
    assert told == ["Reading 0/3", "Reading 1/3", "Reading 2/3"]
    assert load(1, [9.0]) == ([1], [])


# -- in the engine -------------------------------------------------------------------------------


@pytest.fixture
def threads_put_back() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("ends", ["loaded", "cancelled"])
def test_after_loading_all_threads_are_there_again(
    ends: str, make_engine: Callable[..., LLMEngine], threads_put_back: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """On a GPU nobody sets a number after that; a thread that begins later takes it over."""
    config = make_engine(num_threads=1).config.replace(num_threads=2)
    monkeypatch.setattr("engine.threads.free_cores.FreeCores.count", lambda self, now: 1)
    during = set()

    def progress(stage: str, done: int, total: int) -> None:
        during.add(torch.get_num_threads())

    torch.set_num_threads(1)
    if ends == "loaded":
        assemble(config, progress)
    else:
        with pytest.raises(LoadCancelled):
            assemble(config, progress, lambda: True)
    assert during == {1} and torch.get_num_threads() == 2


def test_tokens_do_not_depend_on_it_and_every_step_says_its_number(
    make_engine: Callable[..., LLMEngine],
    threads_put_back: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trials at every turn: a search that finds each count best as soon as it was tried."""
    monkeypatch.setattr("engine.threads.search.AS_FAST", 1e9)
    monkeypatch.setattr("engine.threads.search.FASTER", 1e9)
    monkeypatch.setattr("engine.threads.search.PAUSE_S", 0.0)
    monkeypatch.setattr("engine.threads.search.COST", 0)
    prompts = make_prompts((3, 40, 90))
    params = SamplingParams(max_tokens=60, temperature=0.8, seed=3, ignore_eos=True)
    found = {}
    for is_adaptive in (True, False):
        engine = make_engine(num_threads=2, adaptive_threads=is_adaptive)
        found[is_adaptive] = [o.token_ids for o in engine.generate(prompts, params)]
        used = {step.num_threads for step in engine.snapshot().steps}
        assert used == ({1, 2} if is_adaptive else {2})
        engine.reconfigure(adaptive_threads=False)
        assert torch.get_num_threads() == 2
    assert found[True] == found[False]


def test_engines_of_one_thread_each_have_their_number(
    make_engine: Callable[..., LLMEngine],
    threads_put_back: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever another one set meanwhile, a step is computed by as many as it says."""
    engines = [make_engine(num_threads=n, adaptive_threads=False) for n in (2, 1)]
    forward, used = ModelRunner.execute_eagerly, []

    def counted(*arguments: Any, **named: Any) -> Any:
        used.append(torch.get_num_threads())
        return forward(*arguments, **named)

    monkeypatch.setattr(ModelRunner, "execute_eagerly", counted)
    for engine in engines:
        engine.add_request([5, 6, 7], SamplingParams(max_tokens=3, ignore_eos=True))
    for _ in range(3):
        for engine in engines:
            engine.step()
    assert used == [2, 1] * 3
    assert [{step.num_threads for step in e.snapshot().steps} for e in engines] == [{2}, {1}]


def test_a_step_is_as_large_as_with_its_drafts(
    make_engine: Callable[..., LLMEngine],
    threads_put_back: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine(
        num_threads=2, speculative_method="ngram", num_speculative_tokens=4,
        speculative_adaptive=False,
    )  # fmt: skip
    begin, execute = StepThreads.begin, ModelRunner.execute
    told: list[int] = []
    computed: list[int] = []

    def counting(self: StepThreads, num_tokens: int, *arguments: Any, **named: Any) -> int:
        told.append(num_tokens)
        return begin(self, num_tokens, *arguments, **named)

    def computing(self: ModelRunner, batch: Any, *arguments: Any, **named: Any) -> Any:
        computed.append(batch.num_tokens)
        return execute(self, batch, *arguments, **named)

    monkeypatch.setattr(StepThreads, "begin", counting)
    monkeypatch.setattr(ModelRunner, "execute", computing)
    prompt = [5, 6, 7]
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    (plain,) = engine.generate([prompt], params)
    engine.use_proposer(Scripted([prompt + plain.token_ids], 0.0))
    engine.generate([prompt], params)
    assert told == computed and max(computed) == 5


def test_steps_that_are_launched_ahead_try_nothing_and_say_their_number(
    make_engine: Callable[..., LLMEngine],
    threads_put_back: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the CPU one is computed within the time of another: neither has a duration of its own."""
    monkeypatch.setattr("engine.threads.crowding.Crowding.others", lambda self, now: None)
    engine = make_engine(num_threads=2)
    engine.looks_ahead = True
    for count in (3, 30):
        engine.generate([[5, 6, 7]], SamplingParams(max_tokens=count, ignore_eos=True))
    snapshot = engine.snapshot()
    assert [step.num_threads for step in snapshot.steps] == [2] * 33
    assert snapshot.threads is not None and snapshot.threads.found == ()
