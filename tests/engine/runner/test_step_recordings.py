"""What is recorded of scripted steps, and when; those that cannot be recorded are launched."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.attention.interface import attend
from engine.batch.batch import Batch, Span, pack
from engine.kernels.cpu.library import heard_by_listeners
from engine.kernels.cpu.workspace import Workspace, workspace
from engine.runner import recording
from engine.runner.recording import StepRecordings, can_record, launched_first


class _Backend:
    """Attention that nobody asks for."""

    nbytes = 0

    def begin_step(self, batch: Batch) -> None:
        pass

    def forward(self, *_: object) -> Tensor:
        raise AssertionError

    attend = clear_blocks = forward


def decode(*tokens: int) -> Batch:
    return pack([Span([token], 3, [0], 1) for token in tokens], 8)


def recordings(compute: Callable[[Tensor], Tensor]) -> StepRecordings:
    backend: Any = _Backend()
    return StepRecordings(lambda batch: compute(batch.input_ids), backend, torch.float32)


def prompt(*tokens: int) -> Batch:
    return pack([Span(list(tokens), 0, [0, 1], 1)], 8)


def logits(made: StepRecordings, *tokens: int) -> list[float]:
    """Of a step that is recorded at the latest when it comes the second time."""
    found = made.execute(decode(*tokens))
    if found is None:
        found = made.execute(decode(*tokens))
    assert found is not None
    return found.flatten().tolist()


def test_copies_that_look_like_views_are_repeated() -> None:
    """A reshape may be either; in-place operations and those without an `out` too."""

    def compute(ids: Tensor) -> Tensor:
        wide = torch.stack((ids.float(), -ids.float()))
        wide.add_(torch.roll(wide, 1, 0), alpha=2.0)
        return wide.t().reshape(-1) + torch.ones(4)

    made = recordings(compute)
    for tokens in ((1, 2), (5, 3), (1, 2)):
        expected: list[float] = compute(torch.tensor(tokens)).tolist()
        assert logits(made, *tokens) == expected


@pytest.mark.parametrize(
    "compute",
    [
        lambda ids: ids * int(ids.max()),
        lambda ids: ids if torch.equal(ids, ids + 0) else -ids,
        lambda ids: ids[ids > 2],
        lambda ids: ids.nonzero(),
    ],
    ids=["item", "equal", "mask", "nonzero"],
)
def test_a_step_that_reads_numbers_is_launched(compute: Callable[[Tensor], Tensor]) -> None:
    made = recordings(compute)
    for _ in range(2):
        assert made.fits(decode(2)) and made.execute(decode(2)) is None
    assert made.problem and not made.fits(decode(2))


def test_what_takes_too_much_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = recordings(lambda ids: ids.repeat(100))
    assert len(logits(made, 1)) == 100 and made.nbytes == 800
    monkeypatch.setattr(recording, "MOST_BYTES", 2000)
    logits(made, 1, 2)
    assert made.nbytes == 1600, "the older one had to go"
    assert logits(made, 7) == [7] * 100
    assert logits(made, 1, 2, 3) == [1, 2, 3] * 100 and made.problem
    assert made.nbytes <= 2000 and made.fits(decode(1, 2)) and not made.fits(decode(1, 2, 3))


def test_a_prompt_that_takes_too_much_memory_is_recorded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "MOST_BYTES", 10)
    computed: list[int] = []

    def compute(ids: Tensor) -> Tensor:
        computed.append(len(ids))
        return ids + 1

    made = recordings(compute)
    before = launched_first(torch.float32)
    found = [made.execute(prompt(1, 2)) is None for _ in range(before + 3)]
    assert found == [True] * before + [False, True, True], "one result, which was listened to"
    assert computed == [2] and made.problem and made.fits(decode(1, 2))


def test_results_follow_each_other_in_the_same_memory() -> None:
    """Each as long as the step refers to it, by a view of it too."""

    def compute(ids: Tensor) -> Tensor:
        first = (ids * 2).view(1, -1)
        total = ids
        for _ in range(10):
            total = total + 1
        return total + first[0]

    made = recordings(compute)
    for tokens in ((1, 2), (5, 3), (7, 9)):
        expected: list[float] = compute(torch.tensor(tokens)).tolist()
        assert logits(made, *tokens) == expected
    assert made.nbytes == 3 * 16, "the first, and two that take turns"


def test_recorded_calls_have_the_present_thread_count_and_memory_for_it() -> None:
    """Whatever attention, which is not recorded, asks for between them."""
    used: list[tuple[int, int, int]] = []

    class Backend(_Backend):
        def forward(self, layer: int, q: Tensor, *_: object) -> Tensor:
            workspace(1 << 16)
            return q + 1

    @heard_by_listeners
    def compiled(space: Workspace, address: ctypes.c_void_p, threads: ctypes.c_int32) -> None:
        ctypes.memset(address, 1, (1 << 10) + threads.value * (1 << 17))
        used.append((threads.value, address.value or 0, space.size))

    def compute(batch: Batch) -> Tensor:
        hidden = batch.input_ids.float()
        options: Any = None
        for layer in range(3):
            space = workspace(1 << 10, 1 << 17)
            compiled(space, space.address, space.threads)
            hidden = attend(layer, hidden, hidden, hidden, options)
        return hidden

    backend: Any = Backend()
    space, before = Workspace(), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        made = recording.Recording(compute, backend, decode(1, 2), space)
        for count in (3, 1, 2):
            used.clear()
            torch.set_num_threads(count)
            assert made.replay(decode(3, 5)).tolist() == [6, 8]
            assert {threads for threads, _, _ in used} == {count} and len(used) == 3
            assert all(address == space.address.value for _, address, _ in used)
            assert all(size >= (1 << 16) + count * (1 << 17) for _, _, size in used)
    finally:
        torch.set_num_threads(before)
    assert workspace() is not space


def test_a_workspace_that_found_no_memory_asks_for_less_again() -> None:
    space = Workspace()
    space.prepare(1000)
    with pytest.raises(MemoryError):
        space.prepare(1 << 60)
    space.prepare(2000)
    assert 2000 <= space.size < 1 << 20 and (space.address.value or 0) % 64 == 0


def test_numbers_that_come_once_are_launched() -> None:
    """Of requests; a prompt is recorded once some of its length have come, at any time."""
    made = recordings(lambda ids: ids + 1)
    for tokens in ((1,), (1, 2), (1,), (1, 2, 3)):
        assert made.execute(decode(*tokens)) is None and not made.nbytes
    assert made.execute(decode(4, 5, 6)) is not None and made.nbytes == 24
    for tokens in [(1, 2), (1, 2, 3)] * launched_first(torch.float32):
        assert made.execute(prompt(*tokens)) is None
    assert made.execute(prompt(5, 6)) is not None and len(made) == 2


def test_what_cannot_be_recorded_of_prompts_leaves_decode_steps_alone() -> None:
    made = recordings(lambda ids: ids + (int(ids.max()) if len(ids) > 1 else 1))
    for _ in range(launched_first(torch.float32) + 1):
        assert made.fits(prompt(1, 2)) and made.execute(prompt(1, 2)) is None
    assert made.problem and not made.fits(prompt(1, 2))
    assert logits(made, 4) == [5]


def test_large_steps_several_prompts_and_mixtures_are_launched() -> None:
    made = recordings(lambda ids: ids + 1)
    assert made.fits(decode(*range(recording.MOST_ROWS)))
    assert not made.fits(decode(*range(recording.MOST_ROWS + 1)))
    assert made.fits(pack([Span(range(recording.MOST_TOKENS), 0, range(99), 1)], 8))
    assert not made.fits(pack([Span(range(recording.MOST_TOKENS + 1), 0, range(99), 1)], 8))
    assert not made.fits(pack([Span([1, 2], 0, [0], 1), Span([1], 0, [1], 1)], 8))
    mixture = nn.Module()
    mixture.experts = nn.ModuleList([nn.Linear(2, 2)])
    assert can_record(nn.Linear(2, 2)) and not can_record(nn.Sequential(mixture))
