"""How far the answer of a sweep can be trusted. No Qt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.bench.goals import FIGURES, NAMES, Goals, level_at
from app.bench.ranking import Objective, rank
from app.bench.sweep import Point, value_words
from app.storage.intervals import half_interval, half_of_difference
from app.storage.run_records import State
from engine.config import SETTINGS
from engine.units import counted, duration_text, whole_percent

LIMIT = "max_num_seqs"
_NAMED = 2  # of points that are as fast
MIN_CORE_WAIT = 0.05
"""Share of a run. A client with a core to itself waits less than 1 %."""


def runs_text(points: Sequence[Point], rounds: int, state: State) -> str:
    """ "So far 1 of 18 runs." of a sweep that has not run whole; a search has no total."""
    words = {State.RUNNING: "So far", State.STOPPED: "Stopped after"}.get(state)
    if words is None:
        return ""
    done = sum(len(point.rounds) for point in points)
    total = sum(len(p.rounds) if p.error else max(rounds, len(p.rounds)) for p in points)
    of = f"{done:,} of " if done < total else ""
    return f"{words} {of}{counted(total, 'run')}."


def uncertain_text(point: Point, goals: Goals) -> str:
    """ "Uncertain: the 95 % interval of ITL p99 (46 ms ±9.1 ms) goes beyond the goal.
    More repetitions narrow it." of latencies that meet their goals."""
    found = []
    for name, limit in goals.limits.items():
        key = FIGURES[name]
        level = level_at(point.figures[key], goals.percentile)
        levels = (level_at(one[key], goals.percentile) for one in point.rounds)
        half = half_interval([each for each in levels if each is not None])
        if level is not None and half is not None and level <= limit < level + half:
            ms = f"{duration_text(level / 1000)} ±{duration_text(half / 1000)}"
            found.append(f"{NAMES[name]} p{goals.percentile} ({ms})")
    if not found:
        return ""
    text = f"Uncertain: the 95 % interval of {', '.join(found)} goes beyond the goal."
    return f"{text} More repetitions narrow it."


def reached(points: Sequence[Point]) -> list[Point]:
    """Without the batch limits that no batch came up to, except the lowest of them: all these
    measure the same."""
    most = _most_concurrent(points)
    limits = [point.settings[LIMIT] for point in points if LIMIT in point.settings]
    highest = min((limit for limit in limits if most is not None and limit >= most), default=None)
    return [p for p in points if highest is None or p.settings.get(LIMIT, 0) <= highest]


def unreached_text(points: Sequence[Point]) -> str:
    """Of batch limits above the largest batch that ran."""
    if len(reached(points)) == len(points):
        return ""
    most = counted(_most_concurrent(points) or 0, "request")
    return f"At most {most} ran concurrently, so higher limits were not tested: raise the load."


def _most_concurrent(points: Sequence[Point]) -> int | None:
    """Of all points with a batch limit."""
    known = [p.figures.get("max_concurrent_requests") for p in points if LIMIT in p.settings]
    return max((most for most in known if most), default=None)


def tied_text(
    best: Point, points: Sequence[Point], goals: Goals, objective: Objective
) -> str:
    """ "Not clearly faster than Concurrency 4." of points that meet the goals too and whose
    difference in throughput is within its 95 % interval (Welch); none without repetitions."""
    if objective is not Objective.THROUGHPUT:
        return ""
    key, tied = "output_tokens_per_s", []
    for point in points:
        half = half_of_difference(best.samples(key), point.samples(key))
        if point is best or half is None or not rank(point, goals)[0]:
            continue
        if best.figures[key] - point.figures[key] <= half:
            tied.append(point.label)
    more = f" and {counted(len(tied) - _NAMED, 'other')}" if len(tied) > _NAMED else ""
    return f"Not clearly faster than {', '.join(tied[:_NAMED])}{more}." if tied else ""


def beyond_text(best: Point, points: Sequence[Point], goals: Goals) -> str:
    """ "Values between 8 and 16 were not measured." of one swept number: between the best point and
    the next one, if that fails or misses the goals, or above the largest one."""
    if len(best.settings) != 1:
        return ""
    (name, value), = best.settings.items()  # fmt: skip
    is_number = lambda one: isinstance(one, int | float) and not isinstance(one, bool)
    if not is_number(value):
        return ""
    ran = [p for p in points if (p.is_measured or p.error) and is_number(p.settings[name])]
    above = [p for p in ran if p.settings[name] > value]
    following = min(above, key=lambda p: p.settings[name], default=None)
    if following is None:
        most = SETTINGS[name].maximum if name in SETTINGS else None
        has_more = most is None or value < most
        return f"Values above {value_words(name, value)} were not measured." if has_more else ""
    end = following.settings[name]
    if rank(following, goals)[0] or (isinstance(value, int) and end - value <= 1):
        return ""
    ends = " and ".join(value_words(name, one) for one in (value, end))
    return f"Values between {ends} were not measured."


def busy_text(cores: float) -> str:
    """ "Machine busy: other programs use 1.4 cores"; "" for an idle machine."""
    return f"Machine busy: other programs use {cores:.1f} cores" if cores else ""


def busy_sentence(every: Sequence[Mapping[str, Any]]) -> str:
    """`busy_text` of the busiest of some figures."""
    text = busy_text(max((figures.get("other_cores") or 0.0 for figures in every), default=0.0))
    return f"{text}." if text else ""


def late_text(every: Sequence[Mapping[str, Any]]) -> str:
    """Of the figures of a client that waited for a core."""
    most = max((figures.get("client_core_wait") or 0.0 for figures in every), default=0.0)
    if most < MIN_CORE_WAIT:
        return ""
    return (
        f"The client waited for a CPU core {whole_percent(min(most, 1.0))} of the time, so its "
        "latencies are too long. Leave it a core, or measure from another machine."
    )
