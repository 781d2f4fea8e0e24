"""A sweep: the same workload at several loads or settings, each repeated. No Qt.

    axes      max_num_seqs = 4, 8    concurrency = 1, 2, 4
    points    (4, 1) (4, 2) (4, 4) (8, 1) (8, 2) (8, 4)
    rounds    all points, then all again in reverse, so that drift affects them equally

A search chooses its points itself instead. A point that fails keeps its error, and the sweep
continues; a cancelled sweep keeps its completed runs.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from app.bench.goals import Goals, RequestLine, quantile
from app.bench.load import EngineRun, Pace, Run
from app.bench.progress import Progress, Reporter
from app.bench.report import memory_figures, observed_figures, request_figures
from app.storage.intervals import half_interval
from engine.config import SETTINGS
from engine.errors import InferdeckError, describe
from engine.units import setting_text

LOADS = ("concurrency", "request_rate")
ENGINE = "engine"
"""The axis of engines, by name; their settings are their own."""
AXES = {"concurrency": "Concurrency", "request_rate": "Request rate", ENGINE: "Engine"}
NO_SETTINGS = tuple(AXES)
"""Axes that are no settings of our engine."""
COLUMNS = (
    ("ttft_ms", "p50", "TTFT p50", "ms"), ("ttft_ms", "p99", "TTFT p99", "ms"),
    ("itl_ms", "p50", "ITL p50", "ms"), ("itl_ms", "p99", "ITL p99", "ms"),
    ("e2e_ms", "p50", "E2E p50", "ms"),
    ("output_tokens_per_s", "", "Output", "tok/s"), ("requests_per_s", "", "Requests", "req/s"),
)  # fmt: skip
"""Figure, statistic, title and unit. A p99 of under 100 samples is a maximum."""
TURNS = 2
"""Requests of a run for each concurrent one, at least: else the load ends while it still rises."""
CURVE = tuple(range(101))
"""Percentiles of the latency curves: every one, or a line from p98 to the maximum would pass far
above the p99 between them."""


def columns_for(goals: Goals) -> tuple[tuple[str, str, str, str], ...]:
    """`COLUMNS` with the percentile of the goals: what meets them can be seen in the table."""
    found = []
    for key, statistic, title, unit in COLUMNS:
        own = statistic
        if statistic == "p99":
            own = goals.tail
        elif key == "e2e_ms" and goals.e2el is not None:
            own = f"p{goals.percentile}"
        found.append((key, own, title.replace(statistic, own) if statistic else title, unit))
    return tuple(found)


class SweepCancelledError(Exception):
    """The user ended the sweep."""


class Axis(NamedTuple):
    """`name`: one of `NO_SETTINGS` or an engine setting."""

    name: str
    values: tuple[Any, ...]


def axis_title(name: str) -> str:
    return AXES.get(name) or SETTINGS[name].label


def value_words(axis: str, value: Any) -> str:
    """A load is a number; settings that are fractions are shown in percent."""
    return f"{value:,g}" if axis in LOADS else setting_text(value)


def in_words(settings: Mapping[str, Any]) -> str:
    """ "Max running requests 8, Block size 16"."""
    return ", ".join(f"{axis_title(n)} {value_words(n, v)}" for n, v in settings.items())


class Bench(Protocol):
    """What runs one point: an engine or a server."""

    def measure(
        self, settings: Mapping[str, Any], pace: Pace, least: int, label: str,
        limit_s: float = math.inf,
    ) -> Run:
        """Apply settings and run the workload once, with at least so many requests; after
        `limit_s` no more are sent."""


@dataclass(slots=True)
class Point:
    """`settings`: value by axis. `rounds`: the figures of each repetition; `figures`: of all
    together; `curves`: latencies in ms from p0 to p100, evenly (older records have every second
    percentile), by "ttft", "itl", "e2el". `predicted`: figures, before it was run; empty where they
    are not."""

    settings: dict[str, Any]
    rounds: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    requests: list[RequestLine] = field(default_factory=list)
    curves: dict[str, list[float]] = field(default_factory=dict)
    error: str = ""
    predicted: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """ "Concurrency 8, Max running requests 4"."""
        return in_words(self.settings)

    @property
    def is_measured(self) -> bool:
        return bool(self.figures) and self.figures["completed"] > 0

    def goodput(self, goals: Goals) -> float | None:
        """Requests per second that meet every goal; None without a goal."""
        if not goals.limits or not self.is_measured:
            return None
        met = sum(goals.meets(request) for request in self.requests)
        return met / self.figures["duration_s"] if self.figures["duration_s"] else None

    def samples(self, key: str, statistic: str = "") -> list[float]:
        """A figure of each repetition that has it."""
        found = (one[key][statistic] if statistic else one[key] for one in self.rounds)
        return [value for value in found if value is not None]

    def interval(self, key: str, statistic: str = "") -> float | None:
        """Half of the 95 % confidence interval of a figure's mean over the repetitions."""
        return half_interval(self.samples(key, statistic))


def figure_of(point: Point, key: str, statistic: str) -> float | None:
    """A figure of `COLUMNS`; of a p99 without enough samples the maximum."""
    return level_of(point.figures, key, statistic) if point.is_measured else None


def level_of(figures: Mapping[str, Any], key: str, statistic: str) -> float | None:
    found = figures[key]
    if not statistic:
        return None if found is None else float(found)
    level = found[statistic]
    return found["max"] if level is None else level


class Trial(NamedTuple):
    """One run of a point; it ends early once it cannot reach so many requests per second."""

    point: Point
    least_rate: float = 0.0


Search = Callable[[Sequence[Point]], Iterator[Trial]]
"""Chooses the next of the points by what those before have measured."""


def all_in_turn(points: Sequence[Point], rounds: int) -> Iterator[Trial]:
    for number in range(rounds):
        yield from map(Trial, points if number % 2 == 0 else reversed(points))


def least_requests(num_requests: int, pace: Pace) -> int:
    """Of a run of a workload with so many."""
    return max(num_requests, TURNS * (pace.concurrency or 0))


@dataclass(slots=True)
class Sweep:
    """Runs the points of `axes` with `bench`, `rounds` times. `pace`: of axes that are settings.
    `burstiness`: of a swept rate. `num_requests`: of the workload. `search`: instead of
    rounds, with at most `most` runs."""

    bench: Bench
    axes: tuple[Axis, ...]
    pace: Pace
    num_requests: int
    rounds: int = 1
    progress: Callable[[Progress], None] = lambda progress: None
    search: Search | None = None
    most: int = 0
    points: list[Point] = field(init=False)
    was_cancelled: bool = False
    _runs: dict[int, list[Run]] = field(default_factory=dict)
    _reporter: Reporter = field(init=False)

    def __post_init__(self) -> None:
        self._reporter = Reporter(self.progress)
        names = [axis.name for axis in self.axes]
        values = itertools.product(*(axis.values for axis in self.axes))
        self.points = [Point(dict(zip(names, some, strict=True))) for some in values]

    def run(self) -> list[Point]:
        """All points; those not reached have no figures."""
        runs = self.most or self.rounds * len(self.points)
        total = round(runs * statistics.fmean(map(self._count, self.points)))
        began, done = 0.0, 0
        search = self.search or functools.partial(all_in_turn, rounds=self.rounds)
        try:
            for number, trial in enumerate(search(self.points), 1):
                began = began or time.perf_counter()  # after a search has predicted its points
                elapsed = time.perf_counter() - began
                left = elapsed * (total - done) / done if done else None
                label = trial.point.label
                if self.search is not None:
                    label = f"{label}, run {number:,} of at most {self.most:,}"
                self._reporter.begin(Progress(label, done, total, left))
                if not trial.point.error:
                    self._run_point(trial)
                done += self._count(trial.point)
        except (SweepCancelledError, KeyboardInterrupt):
            self.was_cancelled = True
        return self.points

    def runs_of(self, point: Point) -> list[Run]:
        return self._runs.get(id(point), [])

    def _count(self, point: Point) -> int:
        return least_requests(self.num_requests, self._pace(point))

    def on_request(self, stage: str, done: int, count: int) -> None:
        """For a runner's `progress`; does nothing before the first run."""
        self._reporter.on_request(done, count)

    def _pace(self, point: Point) -> Pace:
        own = {name: value for name, value in point.settings.items() if name in LOADS}
        if "request_rate" in own:
            return self.pace._replace(**{"concurrency": None} | own)
        return self.pace._replace(**{"request_rate": None} | own) if own else self.pace

    def _run_point(self, trial: Trial) -> None:
        point = trial.point
        settings = {name: v for name, v in point.settings.items() if name not in LOADS}
        label = f"{point.label}, run {len(point.rounds) + 1}"
        pace, count = self._pace(point), self._count(point)
        limit_s = count / trial.least_rate if trial.least_rate else math.inf
        try:
            run = self.bench.measure(settings, pace, count, label, limit_s)
        except (InferdeckError, OSError, ValueError) as problem:
            point.error = error_words(problem)
            return
        runs = self._runs.setdefault(id(point), [])
        runs.append(run)
        point.rounds.append(request_figures([run]))
        began = min((request.arrival for request in run.requests), default=0.0)
        point.requests += [RequestLine.of(request, began) for request in run.requests]
        point.figures = request_figures(runs)
        if engine_runs := [one for one in runs if isinstance(one, EngineRun)]:
            point.figures |= observed_figures(engine_runs) | memory_figures(engine_runs)
        point.curves = _curves(runs)
        if not run.requests:
            point.error = point.figures["error"] or "No request completed."


def error_words(problem: BaseException) -> str:
    error = describe(problem)
    return f"{error.cause} {error.remedy}".strip()


def _curves(runs: Sequence[Run]) -> dict[str, list[float]]:
    requests = [request for run in runs for request in run.requests]
    values: dict[str, list[float | None]] = {
        "ttft": [request.ttft_s for request in requests],
        "itl": [gap for request in requests for gap in request.itl_s],
        "e2el": [request.e2e_s for request in requests],
    }
    curves = {}
    for name, found in values.items():
        known = sorted(1e3 * value for value in found if value is not None)
        curves[name] = [quantile(known, q / 100) for q in CURVE] if known else []
    return curves
