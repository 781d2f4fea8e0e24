"""What the reply inspector shows: phases of the latency, KV blocks, drafts. No Qt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.messages import OutputEvent
from engine.snapshot import BlockSnapshot, EngineSnapshot, LastBlocks, RequestTimes
from widgets.tokens.record import TokenRecord


class Prompt(NamedTuple):
    """Tokens of the prompt, and those of them that came from the prefix cache. is_served: sent to
    another server, which reports no steps."""

    num_tokens: int = 0
    num_cached: int = 0
    is_served: bool = False


class Phases(NamedTuple):
    """Seconds of a request; None: not there yet, or not reported. They add up: queue, prefill and
    decode to the end of the last token, and the rest of `e2e` is the engine's last step. ttft: also
    where its parts are not reported."""

    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None
    e2e: float | None = None
    ttft: float | None = None

    @classmethod
    def of(cls, times: RequestTimes, now: float) -> Phases:
        """`now`: on the clock of `times`; the end so far of a phase that is not over."""
        end = now if times.finished is None else times.finished
        scheduled, first = times.first_scheduled, times.first_token
        e2e, decode = end - times.arrival, None if first is None else times.tokens[-1].time - first
        if scheduled is None:
            return cls(e2e if first is None else None, None, decode, e2e, times.ttft_s)
        prefill = (end if first is None else first) - scheduled
        return cls(scheduled - times.arrival, prefill, decode, e2e, times.ttft_s)


class OwnBlocks(NamedTuple):
    """The KV blocks of one request in token order: tokens in each, and requests that use it."""

    block_size: int
    fill: NDArray[np.int32]
    ref_count: NDArray[np.int32]

    @property
    def num_blocks(self) -> int:
        return len(self.fill)

    @property
    def num_shared(self) -> int:
        return int(np.count_nonzero(self.ref_count > 1))

    @classmethod
    def of(cls, blocks: BlockSnapshot, request_id: str) -> OwnBlocks:
        """Raises ValueError for a request without blocks."""
        table = list(blocks.tables[blocks.owners.index(request_id)])
        return cls(blocks.block_size, blocks.fill[table], blocks.ref_count[table])

    @classmethod
    def of_ended(cls, blocks: LastBlocks) -> OwnBlocks:
        starts = np.arange(len(blocks.ref_count)) * blocks.block_size
        fill = np.clip(blocks.num_tokens - starts, 0, blocks.block_size).astype(np.int32)
        return cls(blocks.block_size, fill, np.array(blocks.ref_count, np.int32))

    def as_snapshot(self, request_id: str) -> BlockSnapshot:
        """As a cache that has nothing else, for the block map."""
        count = self.num_blocks
        return BlockSnapshot(
            self.block_size, (request_id,), np.zeros(count, np.int32), self.ref_count, self.fill,
            np.zeros(count, np.bool_), (tuple(range(count)),),
        )  # fmt: skip


class Drafts(NamedTuple):
    """Draft tokens of a reply."""

    num_accepted: int
    num_rejected: int

    @classmethod
    def of(cls, records: Sequence[TokenRecord]) -> Drafts:
        accepted = sum(record.is_draft for record in records)
        return cls(accepted, sum(len(record.rejected) for record in records))


class BlockHistory:
    """The last KV blocks of each reply: a request that ended has none any more. They come with its
    end; where no end was reported, the last snapshot has them. `is_reply`: whether a request is
    one; others are not kept."""

    def __init__(self, is_reply: Callable[[str], bool]) -> None:
        self._is_reply = is_reply
        self._last: BlockSnapshot | None = None
        self._time = 0.0  # of the last snapshot
        self._kept: dict[str, OwnBlocks] = {}
        self._ended: dict[str, float] = {}  # when; a continued reply runs again under its id

    def take(self, snapshot: EngineSnapshot) -> None:
        """Cheap: blocks are copied once, when their request has left the cache."""
        before, now = self._last, snapshot.blocks
        for gone in set(before.owners if before else ()) - set(now.owners):
            if before is not None and self._is_reply(gone) and self._is_running(gone):
                self._kept[gone] = OwnBlocks.of(before, gone)
        self._last, self._time = now, snapshot.time

    def end(self, event: OutputEvent) -> bool:
        """Keep the blocks of a reply that ends with `event`; whether it has any."""
        if event.blocks is None or not self._is_reply(event.request_id):
            return False
        self._kept[event.request_id] = OwnBlocks.of_ended(event.blocks)
        self._ended[event.request_id] = event.time
        return True

    def _is_running(self, request_id: str) -> bool:
        """Whether the last snapshot has its current blocks: one from before its end does not."""
        if self._last is None or request_id not in self._last.owners:
            return False
        return self._time > self._ended.get(request_id, -math.inf)

    def of(self, request_id: str) -> OwnBlocks | None:
        if self._last is not None and self._is_running(request_id):
            return OwnBlocks.of(self._last, request_id)
        return self._kept.get(request_id)
