"""Latency goals: goodput, and the largest load that meets them. No Qt.

Goodput is the rate of requests that meet every goal (Zhong et al., DistServe, OSDI 2024; vLLM's
`bench serve --goodput`). A request's own ITL counts at the percentile of the goals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.errors import ConfigError
from engine.snapshot import RequestTimes
from engine.units import counted, duration_text

PERCENTILES = (50, 90, 99)
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}
"""vLLM's names of goals, and their titles."""
FIGURES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_ms", "e2el": "e2e_ms"}
"""The figure of each goal."""
MAX_MS = 1e9


class RequestLine(NamedTuple):
    """A request of a run: milliseconds, `start` from the run's begin. itl: its own gaps at
    `PERCENTILES`; empty for one token."""

    start: float
    ttft: float
    e2el: float
    num_tokens: int
    itl: tuple[float, ...]

    @classmethod
    def of(cls, times: RequestTimes, began: float) -> RequestLine:
        ttft, e2e = times.ttft_s or 0.0, times.e2e_s or 0.0
        gaps = sorted(times.itl_s)
        itl = tuple(1e3 * quantile(gaps, q / 100) for q in PERCENTILES) if gaps else ()
        start = 1e3 * (times.arrival - began)
        return cls(start, 1e3 * ttft, 1e3 * e2e, times.num_output_tokens, itl)

    @property
    def tpot(self) -> float:
        return (self.e2el - self.ttft) / (self.num_tokens - 1) if self.num_tokens > 1 else 0.0


def quantile(ordered: Sequence[float], q: float) -> float:
    """Of sorted values, linear between the nearest ranks (numpy's default method)."""
    rank = q * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


@dataclass(frozen=True, slots=True)
class Goals:
    """Upper limits in milliseconds; None: no goal. `percentile`: one of `PERCENTILES`."""

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None
    e2el: float | None = None
    percentile: int = 99

    @property
    def limits(self) -> dict[str, float]:
        found = ((name, getattr(self, name)) for name in NAMES)
        return {name: limit for name, limit in found if limit is not None}

    @property
    def tail(self) -> str:
        """The percentile that is shown beside p50: that of the goals, else p99."""
        return f"p{self.percentile}" if self.limits and self.percentile > 50 else "p99"

    def meets(self, request: RequestLine) -> bool:
        """Whether a request meets every goal."""
        place = PERCENTILES.index(self.percentile)
        own = {
            "ttft": request.ttft, "tpot": request.tpot, "e2el": request.e2el,
            "itl": request.itl[place] if request.itl else 0.0,
        }  # fmt: skip
        return all(own[name] <= limit for name, limit in self.limits.items())

    def excess(self, figures: Mapping[str, Any]) -> float | None:
        """The largest ratio of a latency to its goal: at most 1 meets all; None without a goal or
        a completed request. Where there are too few samples for the percentile, the largest
        counts."""
        found = [
            level / limit
            for name, limit in self.limits.items()
            if (level := level_at(figures[FIGURES[name]], self.percentile)) is not None
        ]
        return max(found, default=None)

    def missed(self, figures: Mapping[str, Any]) -> str:
        """Why it misses: "3 failed requests", else the goal that is exceeded most: "ITL p99 61 ms";
        "" without one."""
        if failed := figures.get("failed"):
            return counted(failed, "failed request")
        found = [
            (level / limit, name, level)
            for name, limit in self.limits.items()
            if (level := level_at(figures[FIGURES[name]], self.percentile))
        ]
        if not found:
            return ""
        _, name, level = max(found)
        return f"{NAMES[name]} p{self.percentile} {duration_text(level / 1000)}"

    def __str__(self) -> str:
        return ", ".join(
            f"{NAMES[name]} p{self.percentile} ≤ {duration_text(limit / 1000)}"
            for name, limit in self.limits.items()
        )


def level_at(summary: Mapping[str, Any], percentile: int) -> float | None:
    """A percentile of a latency; its maximum where there are too few samples for it."""
    found = summary[f"p{percentile}"]
    level: float | None = summary["max"] if found is None else found
    return level


def parse_goals(words: Iterable[str], percentile: int = 99) -> Goals:
    """From "ttft:500", "itl:50" in milliseconds, as vLLM's --goodput. Raises ConfigError."""
    limits: dict[str, float] = {}
    for word in words:
        name, colon, text = word.partition(":")
        try:
            limit = float(text)
        except ValueError:
            limit = math.nan
        if name not in NAMES or not colon or not 0 < limit <= MAX_MS:
            raise ConfigError(
                f"--goodput {word}: expected NAME:MILLISECONDS.",
                f"Names: {', '.join(NAMES)}. Example: --goodput ttft:500 itl:50.",
            )
        limits[name] = limit
    return Goals(**limits, percentile=percentile)


