"""A step in a snapshot: its requests, their tokens, and where the time went."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from engine.snapshot.requests import PackedRows


class StepEntry(NamedTuple):
    """The work of one request in one step.

    kind: "prefill" (also recomputation after a preemption) or "decode". `num_tokens`: its own
    tokens that were computed; `num_cached_tokens`: tokens skipped by a prefix hit at admission in
    this step; `num_draft`: verified drafts, `num_accepted` of them accepted. `num_context`: tokens
    whose K and V the step attended over, its own and the drafts included; `num_logits`: computed
    rows of logits. `is_resumed`: the first step after a preemption.
    """

    request_id: str
    kind: str
    num_tokens: int
    num_cached_tokens: int = 0
    num_draft: int = 0
    num_accepted: int = 0
    num_context: int = 0
    num_logits: int = 0
    is_resumed: bool = False

    @property
    def num_computed(self) -> int:
        """Tokens that went through the model: its own, and the drafts to verify."""
        return self.num_tokens + self.num_draft


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One engine step: when, how long, which requests, and where the time went.

    entries: a tuple, or an equal `PackedEntries` for long-lived records. held_back: requests that
    waited although a batch slot was free, because of static batching. kv_usage: share of the KV
    blocks in use during the step, including requests that ended with it; None if not recorded
    (older recordings). num_threads: on the CPU; 0 on a GPU, or if not recorded.
    """

    index: int
    start: float
    duration: float
    entries: tuple[StepEntry, ...]
    num_running: int
    num_waiting: int
    preempted: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    schedule_s: float = 0.0
    draft_s: float = 0.0
    model_s: float = 0.0
    sample_s: float = 0.0
    commit_s: float = 0.0
    held_back: tuple[str, ...] = ()
    kv_usage: float | None = None
    num_threads: int = 0

    @property
    def end(self) -> float:
        return self.start + self.duration

    @property
    def num_prefill_tokens(self) -> int:
        return sum(e.num_tokens for e in self.entries if e.kind == "prefill")

    @property
    def num_decode_tokens(self) -> int:
        return sum(e.num_tokens for e in self.entries if e.kind == "decode")

    @property
    def num_cached_tokens(self) -> int:
        return sum(e.num_cached_tokens for e in self.entries)

    @property
    def num_resumed(self) -> int:
        return sum(e.is_resumed for e in self.entries)


_NUMBERS = (
    "num_tokens", "num_cached_tokens", "num_draft", "num_accepted", "num_context", "num_logits",
)  # fmt: skip
assert StepEntry._fields == ("request_id", "kind", *_NUMBERS, "is_resumed")


class PackedEntries(PackedRows[StepEntry]):
    """A step's entries in arrays. request_ids: str [n]; is_prefill, is_resumed: bool [n];
    `numbers(name)`: int32 [n]."""

    __slots__ = ("_numbers", "is_prefill", "is_resumed", "request_ids")
    _make = StepEntry

    def __init__(self, entries: Sequence[StepEntry]) -> None:
        ids, kinds, *numbers, resumed = zip(*entries, strict=True) if entries else [()] * 9
        self.request_ids: tuple[str, ...] = ids
        self.is_prefill = np.array(list(map("prefill".__eq__, kinds)), np.bool_)
        self.is_resumed = np.array(resumed, np.bool_)
        self._numbers = np.array(numbers, np.int32)

    @classmethod
    def of_decodes(cls, request_ids: tuple[str, ...], context: NDArray[np.int64]) -> PackedEntries:
        """One token of each request, which attends over `context` [n] tokens."""
        packed = cls.__new__(cls)
        packed.request_ids = request_ids
        packed.is_prefill = packed.is_resumed = np.zeros(len(context), np.bool_)
        packed._numbers = np.zeros((len(_NUMBERS), len(context)), np.int32)
        packed._numbers[_NUMBERS.index("num_tokens")] = 1
        packed._numbers[_NUMBERS.index("num_context")] = context
        packed._numbers[_NUMBERS.index("num_logits")] = 1
        return packed

    def numbers(self, name: str) -> NDArray[np.int32]:
        return self._numbers[_NUMBERS.index(name)]

    def __len__(self) -> int:
        return len(self.request_ids)

    def _columns(self, place: slice) -> Iterable[Sequence[Any]]:
        kinds = ["prefill" if one else "decode" for one in self.is_prefill[place].tolist()]
        numbers = self._numbers[:, place].tolist()
        return self.request_ids[place], kinds, *numbers, self.is_resumed[place].tolist()


FEW_ENTRIES = 4
"""Not worth packing: arrays of so few numbers are larger, and made for several stores."""


def packed(step: StepRecord) -> StepRecord:
    """The same step for storage: with `PackedEntries` if it has more than a few entries."""
    if not isinstance(step.entries, tuple) or len(step.entries) <= FEW_ENTRIES:
        return step
    return dataclasses.replace(step, entries=cast("Any", PackedEntries(step.entries)))


def unpacked(step: StepRecord) -> StepRecord:
    """The same step with a tuple of entries, for reading all of them."""
    if isinstance(step.entries, tuple):
        return step
    return dataclasses.replace(step, entries=tuple(step.entries))


def entry_of(step: StepRecord, request_id: str) -> StepEntry | None:
    """The entry of a request in a step; None if it took no part."""
    entries: Any = step.entries
    if isinstance(entries, PackedEntries):
        ids = entries.request_ids
        return entries[ids.index(request_id)] if request_id in ids else None
    return next((e for e in entries if e.request_id == request_id), None)
