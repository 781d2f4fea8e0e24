"""Steps that are kept for long: what their requests did lies in arrays.

Ten thousand steps of 256 requests are 2.5 million tuples. Python's collector visits every one of
them when it looks for cycles: the whole program stood still for 0.7 s. It does not look into
arrays, which also take less room.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from engine.snapshot.steps import StepEntry, StepRecord

_NUMBERS = (
    "num_tokens", "num_cached_tokens", "num_draft", "num_accepted", "num_context", "num_logits",
)  # fmt: skip
assert StepEntry._fields == ("request_id", "kind", *_NUMBERS, "is_resumed")


class PackedEntries(Sequence[StepEntry]):
    """Equal to the tuple that it was made of; an entry is made again when it is asked for.

    request_ids: str [n]; is_prefill, is_resumed: bool [n]; `numbers(name)`: int32 [n].
    """

    __slots__ = ("_numbers", "is_prefill", "is_resumed", "request_ids")

    def __init__(self, entries: Sequence[StepEntry]) -> None:
        ids, kinds, *numbers, resumed = zip(*entries, strict=True) if entries else [()] * 9
        self.request_ids: tuple[str, ...] = ids
        self.is_prefill = np.array(list(map("prefill".__eq__, kinds)), np.bool_)
        self.is_resumed = np.array(resumed, np.bool_)
        self._numbers = np.array(numbers, np.int32)

    def numbers(self, name: str) -> NDArray[np.int32]:
        return self._numbers[_NUMBERS.index(name)]

    def of(self, request_id: str) -> StepEntry | None:
        """What this request did; None if it took no part."""
        if request_id not in self.request_ids:
            return None
        return self._entry(self.request_ids.index(request_id))

    def _entry(self, place: int) -> StepEntry:
        kind = "prefill" if self.is_prefill[place] else "decode"
        numbers: list[Any] = self._numbers[:, place].tolist()
        return StepEntry._make(
            (self.request_ids[place], kind, *numbers, bool(self.is_resumed[place]))
        )

    def __len__(self) -> int:
        return len(self.request_ids)

    def __iter__(self) -> Iterator[StepEntry]:
        kinds = ["prefill" if one else "decode" for one in self.is_prefill.tolist()]
        columns: list[list[Any]] = [*self._numbers.tolist(), self.is_resumed.tolist()]
        return map(StepEntry, self.request_ids, kinds, *columns)

    @overload
    def __getitem__(self, place: int) -> StepEntry: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[StepEntry, ...]: ...
    def __getitem__(self, place: int | slice) -> StepEntry | tuple[StepEntry, ...]:
        if isinstance(place, slice):
            return tuple(self)[place]
        return self._entry(range(len(self))[place])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (tuple, PackedEntries)):
            return NotImplemented
        return tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


def packed(step: StepRecord) -> StepRecord:
    """The same step for keeping: its entries are `PackedEntries`."""
    if not isinstance(step.entries, tuple):
        return step
    return dataclasses.replace(step, entries=cast("Any", PackedEntries(step.entries)))


def unpacked(step: StepRecord) -> StepRecord:
    """The same step for reading all of it: its entries are a tuple."""
    if isinstance(step.entries, tuple):
        return step
    return dataclasses.replace(step, entries=tuple(step.entries))


def entry_of(step: StepRecord, request_id: str) -> StepEntry | None:
    """What a request did in a step; None if it took no part."""
    entries: Any = step.entries
    if isinstance(entries, PackedEntries):
        return entries.of(request_id)
    return next((e for e in entries if e.request_id == request_id), None)
