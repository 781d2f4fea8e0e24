"""The ladder: a load on each rung, and the users under the goals: the largest concurrency that
meets them. No Qt, no torch.

A rung is kept if it serves at least as many users as the kept rungs so far, no slower than the
fastest of these beyond the noise, and without losing too much quality. Others are shown and left
out of those above. So the last kept rung is the best one, but for the noise. A rung that fails is
kept as failed; a cancelled ladder keeps the rungs that are done.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.bench.goals import Goals
from app.bench.ladder_bench import AtRung, LadderBench
from app.bench.ladder_words import most_paid
from app.bench.load import EngineRun, Pace, Run
from app.bench.progress import Progress, Reporter
from app.bench.ranking import nearest, users_under
from app.bench.rungs import PRECISIONS, Quality, Rung, State, clear_of
from app.bench.sweep import (
    Axis,
    Point,
    Search,
    Sweep,
    SweepCancelledError,
    error_words,
)
from app.bench.users import USERS, users_search
from engine.errors import ConfigError, InferdeckError, UnsupportedModelError
from engine.hardware.peaks import Peaks
from engine.telemetry.step_cost import Split, cost_step, pause_between, total
from engine.units import change_text, counted

QUALITY_LIMIT = 0.01
"""Increase of perplexity that is accepted."""
CONFIRM = 2
"""Runs of a rung and the one below, in turn, before it is left out, or has paid most; of the last
kept rung, whose users are the answer."""
KNOWN = 2
"""Measured rungs after which the time left is known; the first one, a longer search, is none."""
RATE = "output_tokens_per_s"


@dataclass(slots=True)
class Ladder:
    """Measures `rungs` under `goals` in their order. `num_requests`: of the workload. `peaks`: of
    the machine; without them no rung has a `split`."""

    bench: LadderBench
    rungs: list[Rung]
    goals: Goals
    num_requests: int
    peaks: Peaks | None = None
    rounds: int = 1
    quality_limit: float = QUALITY_LIMIT
    users: tuple[int, ...] = USERS
    progress: Callable[[Progress], None] = lambda progress: None
    was_cancelled: bool = False
    _took: list[float] = field(default_factory=list)
    _number: int = 0  # of the current rung
    _began: float = 0.0
    _reporter: Reporter = field(init=False)

    def __post_init__(self) -> None:
        self._reporter = Reporter(self.progress)

    def on_request(self, stage: str, done: int, count: int) -> None:
        """For a runner's `progress`."""
        self._reporter.on_request(done, count)

    def run(self) -> list[Rung]:
        """All rungs; those not reached are waiting."""
        base: Rung | None = None
        try:
            for number, rung in enumerate(self.rungs):
                self._number, self._began = number, time.perf_counter()
                if rung.state is not State.SKIPPED:
                    self._measure(rung, base)
                if rung.state is State.MEASURED and base is not None:
                    self._took.append(time.perf_counter() - self._began)
                if rung.is_kept:
                    base = rung
            self._confirm()
        except (SweepCancelledError, KeyboardInterrupt):
            self.was_cancelled = True
        return self.rungs

    def _measure(self, rung: Rung, base: Rung | None) -> None:
        first = {} if base is not None else self.rungs[0].changes
        rung.settings = {**first, **(base.settings if base else {}), **rung.changes}
        self._tell(rung.title)
        try:
            self.bench.apply(rung.settings)
            sweep = self._search(rung, base)
            if sweep.was_cancelled:
                raise SweepCancelledError
        except (InferdeckError, OSError, ValueError) as problem:
            is_refusal = isinstance(problem, ConfigError | UnsupportedModelError)
            rung.state = State.SKIPPED if is_refusal and rung.best is None else State.FAILED
            rung.reason = error_words(problem)
            return
        if rung.best is None:
            rung.state = State.FAILED
            rung.reason = next((point.error for point in sweep.points if point.error), "")
            return
        rung.state = State.MEASURED
        try:
            rung.quality = self._quality(rung)
        except (InferdeckError, OSError, ValueError) as problem:
            rung.note = f"Quality not measured: {error_words(problem)}"
        rung.reason = self._worse(rung, base)
        rung.is_kept = not rung.reason

    def _search(self, rung: Rung, base: Rung | None) -> Sweep:
        known = base.best.settings["concurrency"] if base and base.best else self.users[0]
        start = self.users.index(known)
        search = users_search(self.goals, start, self.rounds)
        sweep = self._sweep(rung, self.users, search)
        points = sweep.run()
        rung.users = users_under(points, self.goals) or 0
        at = {point.settings["concurrency"]: point for point in points if point.is_measured}
        rung.best = at.get(rung.users) or nearest(points, self.goals)
        rung.same = at.get(known) if base is not None else None
        found = {id(point): point for point in (rung.best, rung.same) if point is not None}
        rung.rates = [point.samples(RATE) for point in found.values()]
        full = [
            point.figures["max_concurrent_requests"] for users, point in at.items()
            if point.figures.get("max_concurrent_requests", users) < users
        ]  # fmt: skip
        rung.room = max(full, default=None)
        rung.below = base.key if base is not None else ""
        if rung.best is not None:
            rung.split = split_of(sweep.runs_of(rung.best), self.peaks)
        return sweep

    def _quality(self, rung: Rung) -> Quality | None:
        if not any(name in rung.changes for name in PRECISIONS) or rung is self.rungs[0]:
            return None
        self._tell(f"{rung.title}, quality")
        names = (*PRECISIONS, "quantization_head")
        first = self.rungs[0].changes
        reference = {name: first[name] for name in names if name in first}
        return self.bench.quality(reference, {n: rung.settings[n] for n in reference})

    def _worse(self, rung: Rung, base: Rung | None) -> str:
        """Why it is not kept; "" if it is."""
        lost = rung.quality.perplexity_change if rung.quality else 0.0
        if lost > self.quality_limit:
            return f"Perplexity {change_text(lost)}."
        if base is None or base.best is None or rung.users > base.users:
            return ""
        users = base.best.settings["concurrency"]
        if rung.same is None or not rung.same.is_measured:
            return f"It fails at {counted(users, 'user')}."
        best = self._fastest(base)
        assert best.best is not None
        pairs, again = [(best.best, rung.same)], list[Sweep]()
        seems_worse = bool(self._compared(pairs, best, users))
        for before, now in self._in_turn(best, rung, users) if seems_worse else ():
            pairs.append((before.points[0], now.points[0]))
            best.rates[0] += before.points[0].samples(RATE)
            rung.rates[-1] += now.points[0].samples(RATE)
            again.append(now)
        worse = self._compared(pairs, best, users)
        if again and not worse:
            runs = f"{CONFIRM:,} more runs of each, in turn"
            rung.note = f"{rung.note} As good as {best.title} in {runs}.".strip()
            if rung.users < base.users:
                self._use(rung, users, again)
        return worse

    def _confirm(self) -> None:
        """The rung that paid most runs again, in turn with the one below: luck pays once. So does
        the next, where it did not pay, and the last kept one, whose users are the answer."""
        seen: set[str] = set()
        self._number = len(self.rungs)
        self._took.clear()  # how many runs are left is not known
        while (rung := most_paid(self.rungs)) is not None and rung.key not in seen:
            seen.add(rung.key)
            rung.doubt = self._doubt(rung)
        kept = [rung for rung in self.rungs if rung.is_kept]
        if kept and (last := kept[-1]).users > kept[0].users and last.key not in seen:
            points = [self._again(last, last.users).points[0] for _ in range(CONFIRM)]
            last.missed = self._missed_again(last.users, points)
            last.note = f"{last.note} {last.missed}".strip()

    def _doubt(self, rung: Rung) -> str:
        """Why more runs do not show its gain; "" if they do."""
        below = next(one for one in self.rungs if one.key == rung.below)
        assert rung.best is not None
        users = rung.best.settings["concurrency"]
        turns = self._in_turn(below, rung, users)
        pairs = [(before.points[0], now.points[0]) for before, now in turns]
        if rung.users > below.users:
            before, now = ([self._excess(pair[side]) for pair in pairs] for side in (0, 1))
            rung.missed = self._missed_again(users, [pair[1] for pair in pairs])
            if rung.missed:
                within = 1 + clear_of(self.rungs)
                if min(now) > within or min(before) <= min(now) * within:
                    return rung.missed
                rung.note = f"{rung.note} {rung.missed}".strip()  # by noise, far from that below
            too = f"{below.title} serves {counted(users, 'user')} too, in {CONFIRM:,} more runs."
            return too if max(before) <= 1 else ""
        for pair in pairs:
            for one, point in zip((below, rung), pair, strict=True):
                one.rates[0] += point.samples(RATE)
        ratio = statistics.median(_rate(now) / (_rate(was) or math.inf) for was, now in pairs)
        change = f"Tokens/s {change_text(ratio - 1)} in {CONFIRM:,} more runs of each, in turn."
        return change if ratio <= 1 + clear_of(self.rungs) else ""

    def _missed_again(self, users: int, points: Sequence[Point]) -> str:
        """That none of some more runs met the goals; "" if one did."""
        best = min(points, key=self._excess)
        if self._excess(best) <= 1:
            return ""
        at = f"In {counted(len(points), 'more run')} with {counted(users, 'user')}"
        return f"{at} the goals were missed: {self._miss(best)}."

    def _fastest(self, base: Rung) -> Rung:
        """Of the kept rungs with the users and the load of `base`, so that small losses do not
        add up."""
        load = lambda rung: (rung.users, rung.best and rung.best.settings)
        same = (rung for rung in self.rungs if rung.is_kept and load(rung) == load(base))
        return max(same, key=lambda rung: rung.rate)

    def _use(self, rung: Rung, users: int, again: Sequence[Sweep]) -> None:
        """The load of the rung below, at which most runs meet the goals."""
        last = next(sweep for sweep in reversed(again) if self._excess(sweep.points[0]) <= 1)
        rung.users, rung.best = users, last.points[0]
        rung.rates.reverse()  # those at `users` are of the best load now
        rung.split = split_of(last.runs_of(rung.best), self.peaks)

    def _compared(self, pairs: Sequence[tuple[Point, Point]], best: Rung, users: int) -> str:
        """Why the second ones are worse than those of `best`, by their medians; "" if they are
        not."""
        excess, rate = (
            [statistics.median(of(pair[side]) for pair in pairs) for side in (0, 1)]
            for of in (self._excess, _rate)
        )
        at = counted(users, "user")
        clear = clear_of(self.rungs)
        if excess[1] > (1.0 if best.users else max(1.0, excess[0]) * (1 + clear)):
            ordered = sorted((pair[1] for pair in pairs), key=self._excess)
            return f"{self._miss(ordered[len(ordered) // 2])} at {at}."
        change = rate[1] / rate[0] - 1 if rate[0] else 0.0
        slower = f"Tokens/s {change_text(change)} against {best.title} at {at}."
        return slower if change < -clear else ""

    def _miss(self, point: Point) -> str:
        """What keeps a point from the goals."""
        return self.goals.missed(point.figures) if point.is_measured else "No request completed"

    def _excess(self, point: Point) -> float:
        is_whole = point.is_measured and not point.figures["failed"]
        excess = self.goals.excess(point.figures) if is_whole else None
        return math.inf if excess is None else excess

    def _in_turn(self, below: Rung, rung: Rung, users: int) -> list[tuple[Sweep, Sweep]]:
        both = lambda: (self._again(below, users), self._again(rung, users))
        return [both() for _ in range(CONFIRM)]

    def _again(self, rung: Rung, users: int) -> Sweep:
        sweep = self._sweep(rung, (users,))
        sweep.run()
        if sweep.was_cancelled:
            raise SweepCancelledError
        return sweep

    def _sweep(self, rung: Rung, users: tuple[int, ...], search: Search | None = None) -> Sweep:
        bench = AtRung(self.bench, rung.settings, lambda n: self._tell(f"{rung.title}, {n}"))
        axes = (Axis("concurrency", users),)
        return Sweep(bench, axes, Pace(), self.num_requests, search=search, most=1)

    def _tell(self, label: str) -> None:
        """The time left is that of so many mean rungs, less that of the current one so far."""
        number, left = self._number, None
        if len(self._took) >= KNOWN:
            later = sum(rung.state is State.WAITING for rung in self.rungs[number + 1 :])
            each = statistics.fmean(self._took)
            left = later * each + max(0.0, each - (time.perf_counter() - self._began))
        self._reporter.begin(Progress(label, number, len(self.rungs), left, "rungs"))


def _rate(point: Point) -> float:
    return point.figures[RATE] or 0.0 if point.is_measured else 0.0


def split_of(runs: Sequence[Run], peaks: Peaks | None) -> Split | None:
    """Where the time of all steps went."""
    costed = []
    for run in runs:
        if peaks is None or not isinstance(run, EngineRun) or run.cost is None:
            return None
        before = None
        for step in run.observed.steps:
            costed.append(cost_step(step, pause_between(before, step), run.cost, peaks))
            before = step
    return total(costed) if costed else None
