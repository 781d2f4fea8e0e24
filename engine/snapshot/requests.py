"""A request in a snapshot: state, tokens and times."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np

BACKGROUND = "background-"
"""Requests whose id begins so serve no user: their latencies are not sampled."""


class RequestState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(StrEnum):
    STOP = "stop"  # EOS, a stop token or a stop string
    LENGTH = "length"  # max_tokens, or the end of the context
    ABORT = "abort"
    ERROR = "error"


class TokenEvent(NamedTuple):
    """One output event: `num_tokens` tokens that became visible together at `time`."""

    time: float
    num_tokens: int


Row = TypeVar("Row", bound=tuple[Any, ...])


class PackedRows(Sequence[Row]):
    """Named tuples in arrays, for long-lived records; equal to the tuple of them. A few hundred
    replies are half a million tuples, which Python's garbage collector would visit one by one."""

    __slots__ = ()
    _make: Callable[..., Row]

    @abstractmethod
    def _columns(self, place: slice) -> Iterable[Sequence[Any]]: ...

    def __iter__(self) -> Iterator[Row]:
        return map(self._make, *self._columns(slice(None)))

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, place: int | slice) -> Row | tuple[Row, ...]:
        if isinstance(place, slice):
            return tuple(map(self._make, *self._columns(place)))
        place = range(len(self))[place]
        return self[place : place + 1][0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (tuple, PackedRows)):
            return NotImplemented
        return tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


class PackedTokens(PackedRows[TokenEvent]):
    """Output events of a request that has ended."""

    __slots__ = ("_counts", "_times")
    _make = TokenEvent

    def __init__(self, events: Iterable[TokenEvent]) -> None:
        rows = tuple(events)
        self._times = np.array([event.time for event in rows], np.float64)
        self._counts = np.array([event.num_tokens for event in rows], np.int64)

    @property
    def num_tokens(self) -> int:
        return int(self._counts.sum())

    def __len__(self) -> int:
        return len(self._times)

    def _columns(self, place: slice) -> Iterable[Sequence[Any]]:
        return self._times[place].tolist(), self._counts[place].tolist()


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """The times of a request. `tokens`: one entry per output event; a tuple, and `PackedTokens`
    once the request has ended."""

    arrival: float
    first_scheduled: float | None = None
    tokens: Sequence[TokenEvent] = ()
    finished: float | None = None

    @property
    def first_token(self) -> float | None:
        return self.tokens[0].time if self.tokens else None

    @property
    def num_output_tokens(self) -> int:
        if isinstance(self.tokens, PackedTokens):
            return self.tokens.num_tokens
        return sum(event.num_tokens for event in self.tokens)

    @property
    def queue_s(self) -> float | None:
        """Arrival to the first step that computed something of it."""
        return None if self.first_scheduled is None else self.first_scheduled - self.arrival

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def itl_s(self) -> list[float]:
        """Gaps between successive output events; an event of n tokens counts n times gap / n.

        Between two definitions: AIPerf's ITL is one mean for each request, (end to end - TTFT) /
        (n - 1), which hides stalls (docs/metrics-reference.md). vLLM's `bench serve` has the gaps
        between chunks, of any number of tokens, so that chunks that arrive together are zeros
        (vllm/benchmarks/lib/endpoint_request_func.py). The mean of this one is AIPerf's where the
        first event has one token."""
        gaps: list[float] = []
        for before, event in zip(self.tokens, self.tokens[1:], strict=False):
            gaps += [(event.time - before.time) / event.num_tokens] * event.num_tokens
        return gaps

    @property
    def e2e_s(self) -> float | None:
        return None if self.finished is None else self.finished - self.arrival

    @property
    def tpot_s(self) -> float | None:
        """(end to end - TTFT) / (n - 1); None for fewer than two output events."""
        e2e, ttft = self.e2e_s, self.ttft_s
        if len(self.tokens) < 2 or e2e is None or ttft is None:
            return None
        return (e2e - ttft) / (self.num_output_tokens - 1)


class Arrival(NamedTuple):
    """A request as it was queued at `time`, and the most tokens that its reply can have. `prefix`:
    a number for each full block of `block_size` prompt tokens: two prompts that begin alike begin
    with the same numbers. They are random otherwise, and tell nothing of the tokens."""

    request_id: str
    time: float
    num_prompt_tokens: int
    max_output_tokens: int
    block_size: int
    prefix: tuple[int, ...] = ()


class LastBlocks(NamedTuple):
    """The KV blocks of a request at its end, in token order: `num_tokens` are stored in them;
    `ref_count`: requests that used each."""

    block_size: int
    num_tokens: int
    ref_count: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """A request's state. num_blocks, num_preemptions: -1 if not reported."""

    request_id: str
    state: RequestState
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    num_blocks: int
    num_preemptions: int
    times: RequestTimes
    finish_reason: FinishReason | None = None
