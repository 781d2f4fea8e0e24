"""Latencies of replies, as their client measures them: tokens by the reads that brought them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

from engine.snapshot import Sample, TokenEvent


@dataclass(slots=True)
class Gap:
    """Before the `num_tokens` tokens of one read, which may be several events."""

    time: float
    seconds: float
    num_tokens: int


@dataclass(slots=True)
class Samples:
    """Latencies since they were last taken, and tokens of all our requests."""

    ttft: list[Sample] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    finished: dict[str, int] = field(default_factory=dict)

    def take(self) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
        """Of TTFT and of ITL."""
        ttft, gaps = tuple(self.ttft), tuple(self.gaps)
        self.ttft.clear()
        self.gaps.clear()
        one = lambda gap: (Sample(gap.time, gap.seconds / gap.num_tokens),) * gap.num_tokens
        return ttft, tuple(chain.from_iterable(map(one, gaps)))


def add_tokens(events: list[TokenEvent], at: float, count: int) -> None:
    """What arrives in one read is one event: the times between are not known, and a client that
    waits for a core reads a whole reply at once. Zero would be a latency that nobody measured."""
    if events and events[-1].time == at:
        events[-1] = TokenEvent(at, events[-1].num_tokens + count)
    else:
        events.append(TokenEvent(at, count))


def with_late_tokens(events: list[TokenEvent], count: int) -> list[TokenEvent]:
    """Tokens that became known at the end only, spread evenly over the events."""
    if not count or not events:
        return events
    each, over = divmod(count, len(events))
    return [
        event._replace(num_tokens=event.num_tokens + each + (place < over))
        for place, event in enumerate(events)
    ]
