"""Our names for what servers tell of themselves, and the form of the tables that find it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine.snapshot import Part


class Figure(StrEnum):
    """Gauges of now, and counters since the server was started."""

    RUNNING = "requests running"
    WAITING = "requests waiting"
    KV_USAGE = "KV usage"  # 0 to 1
    PROMPT_TOKENS = "prompt tokens"
    GENERATION_TOKENS = "generated tokens"
    PREFIX_QUERIES = "prefix queries"  # in tokens or blocks: the share of hits is what counts
    PREFIX_HITS = "prefix hits"
    PREEMPTIONS = "preemptions"
    DRAFT_ROUNDS = "draft rounds"
    DRAFTED = "drafted tokens"
    ACCEPTED = "accepted drafts"
    ROUND_LENGTH = "tokens a round"


GAUGES = frozenset((Figure.RUNNING, Figure.WAITING, Figure.KV_USAGE, Figure.ROUND_LENGTH))


class Latency(StrEnum):
    """Histograms, in seconds."""

    TTFT = "TTFT"
    ITL = "ITL"
    ENGINE_TTFT = "TTFT, engine"  # until the step that made the token, without its way out


PARTS: Mapping[Part, tuple[Figure, ...]] = {
    Part.QUEUE: (Figure.RUNNING, Figure.WAITING),
    Part.KV_USAGE: (Figure.KV_USAGE,),
    Part.TOKENS: (Figure.GENERATION_TOKENS,),
    Part.PREFIX_CACHE: (Figure.PREFIX_QUERIES, Figure.PREFIX_HITS),
    Part.PREEMPTIONS: (Figure.PREEMPTIONS,),
    Part.SPECULATION: (Figure.DRAFTED, Figure.ACCEPTED, Figure.ROUND_LENGTH),
}
"""What each part of a snapshot is made of; one figure that is told is enough for it."""

NEVER_TOLD = frozenset(
    (Part.MODEL, Part.SETTINGS, Part.REQUESTS, Part.BLOCKS, Part.STEPS, Part.MEMORY)
)
"""What no server of another make tells."""


class Combine(StrEnum):
    """What to do with several series of one name (data-parallel ranks, sources)."""

    SUM = "sum"
    MEAN = "mean"  # of fractions


@dataclass(frozen=True, slots=True)
class Names:
    """The names that a figure has had, the newest first: the first that is there counts. Each may
    be several, joined by +, whose values are added. A colon and an underscore are the same."""

    names: tuple[str, ...]
    combine: Combine = Combine.SUM


def names(*found: str) -> Names:
    return Names(found)


def share(*found: str) -> Names:
    return Names(found, Combine.MEAN)


@dataclass(frozen=True, slots=True)
class Table:
    """Where a dialect's figures are on its page of metrics. itl_is_mean: its ITL histogram holds
    one mean per request, not every gap. hits_are_tokens: its prompt tokens include those that its
    prefix hits count. only: labels that a sample must have where it has them."""

    figures: Mapping[Figure, Names] = field(default_factory=dict)
    latencies: Mapping[Latency, Names] = field(default_factory=dict)
    itl_is_mean: bool = False
    hits_are_tokens: bool = False
    only: Mapping[str, str] = field(default_factory=dict)
