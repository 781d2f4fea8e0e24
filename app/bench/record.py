"""A sweep or search as a result, in words and as a stored run. No Qt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from app.bench.doubt import (
    beyond_text,
    busy_sentence,
    late_text,
    reached,
    runs_text,
    tied_text,
    uncertain_text,
    unreached_text,
)
from app.bench.engine_changes import engines_in_words
from app.bench.goals import Goals
from app.bench.ranking import Objective, best_under, memory_of, nearest, users_under
from app.bench.sweep import ENGINE, Point, axis_title, columns_for
from app.storage.run_records import Kind, Measured, RunRecord, RunSide, State
from engine.units import bytes_text, rate_text

NO_GOALS = Goals()


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A sweep with what it ran. `work`: workload and arrivals in words; `state` of the run."""

    model: str
    precision: str
    work: str
    points: tuple[Point, ...]
    goals: Goals = NO_GOALS
    state: State = State.DONE
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    rounds: int = 1
    objective: Objective = Objective.THROUGHPUT

    @property
    def best(self) -> Point | None:
        """The best point under the goals."""
        if not self.goals.limits:
            return None
        return best_under(reached(self.points), self.goals, self.objective)

    @property
    def answer(self) -> str:
        """Which point meets the goals, and how far that can be trusted; how engines differ."""
        points = reached(self.points)
        text = answer(points, self.goals, self.objective)
        engines = engines_in_words(self.points)
        if not text or not self.goals.limits:
            return " ".join(filter(None, (engines or text, self.machine)))
        unreached = unreached_text([point for point in self.points if point.is_measured])
        more = [unreached, runs_text(self.points, self.rounds, self.state)]
        if (best := self.best) is not None:
            ties = tied_text(best, points, self.goals, self.objective)
            is_whole = self.state is State.DONE and not unreached
            beyond = beyond_text(best, points, self.goals) if is_whole else ""
            more = [self._doubt(best, points), ties, beyond, *more]
        return " ".join(filter(None, (text, *more, engines, self.machine)))

    def _doubt(self, best: Point, points: Sequence[Point]) -> str:
        """Of a best point whose interval goes beyond a goal; with the best one of those whose
        intervals do not."""
        text = uncertain_text(best, self.goals)
        if not text:
            return ""
        repeated = [point for point in points if len(point.rounds) > 1]
        certain = [point for point in repeated if not uncertain_text(point, self.goals)]
        safe = best_under(certain, self.goals, self.objective)
        return text if safe is None else f"{text} Within the goals at 95 %: {safe.label}."

    @property
    def machine(self) -> str:
        """What else ran on the machine, where it matters."""
        every = [point.figures for point in self.points]
        return " ".join(filter(None, (busy_sentence(every), late_text(every))))

    @property
    def columns(self) -> tuple[tuple[str, str, str, str], ...]:
        """Of its table, as `sweep.COLUMNS`."""
        return columns_for(self.goals)

    @property
    def axes(self) -> list[str]:
        return list(self.points[0].settings) if self.points else []

    @property
    def goal_shown(self) -> str:
        """The goal that charts and predictions show: the first one that is set, else ITL."""
        order = ["itl", "ttft", "e2el", "tpot"]
        return next(iter(sorted(self.goals.limits, key=order.index)), "itl")


_BEST = {
    Objective.THROUGHPUT: "is the fastest that meets",
    Objective.GOODPUT: "has the highest goodput under",
    Objective.MEMORY: "uses the least memory that meets",
}


def answer(
    points: Sequence[Point], goals: Goals, objective: Objective = Objective.THROUGHPUT
) -> str:
    """Which point meets the goals, in a sentence; the nearest one where none does."""
    if not any(point.is_measured for point in points):
        return ""
    if not goals.limits:
        return "Set a goal to see which point meets it."
    best = best_under(points, goals, objective)
    if best is None:
        near = nearest(points, goals)
        closest = f" Nearest: {near.label} ({goals.missed(near.figures)})." if near else ""
        return f"No point meets {goals}.{closest}"
    same = [point for point in points if point.settings.get(ENGINE) == best.settings.get(ENGINE)]
    users = users_under(same, goals)
    rate = best.goodput(goals)
    parts = [rate_text(best.figures["output_tokens_per_s"]), f"goodput {rate_text(rate, 'req/s')}"]
    if objective is Objective.MEMORY and (used := memory_of(best)) is not None:
        parts.insert(0, bytes_text(used))
    text = f"{best.label} {_BEST[objective]} {goals}: {', '.join(parts)}."
    return text if users is None else f"{text} Users under the goal: {users}."


def to_run(result: BenchResult) -> RunRecord:
    """The run of a sweep; its figures are those of the best point under the goals, else of the
    one with the highest throughput."""
    points = result.points
    best = best_under(reached(points), result.goals, result.objective) or max(
        (point for point in points if point.is_measured),
        key=lambda point: point.figures["output_tokens_per_s"], default=None,
    )  # fmt: skip
    sides = () if best is None else (RunSide(best.label, figures_of_side(best)),)
    failed = next((point.error for point in points if point.error), "")
    state = State.FAILED if best is None and failed else result.state
    details = {
        "work": result.work, "answer": result.answer,
        "rounds": result.rounds, "goals": msgspec.to_builtins(result.goals),
        "objective": result.objective.value,
        "points": msgspec.to_builtins(list(points)),
    }  # fmt: skip
    return RunRecord(
        "", Kind.BENCH, result.model, result.precision, result.created, sides, state,
        cause=failed if state is State.FAILED else "",
        name=", ".join((result.model, result.work, *map(axis_title, result.axes))),
        details=details,
    )  # fmt: skip


def from_run(run: RunRecord) -> BenchResult:
    """The sweep that `to_run` stored. Raises ValueError for damaged details."""
    details = run.details
    try:
        points = msgspec.convert(details["points"], tuple[Point, ...])
        goals = msgspec.convert(details["goals"], Goals)
        objective = Objective(details.get("objective", Objective.THROUGHPUT))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a sweep: {error!r}") from error
    work, rounds = str(details.get("work", "")), int(details.get("rounds", 1))
    return BenchResult(
        run.model, run.precision, work, points, goals, run.state, run.created, rounds,
        objective,
    )


def figures_of_side(point: Point) -> dict[str, Measured]:
    figures = point.figures
    found: dict[str, Measured] = {}
    for key, of in (("ttft", "ttft_ms"), ("itl", "itl_ms")):
        if (value := figures[of]["p50"]) is not None:
            samples = tuple(1e-3 * sample for sample in point.samples(of, "p50"))
            found[key] = Measured(1e-3 * value, samples)
    if (rate := figures["output_tokens_per_s"]) is not None:  # as in all kinds of runs
        found["total_tokens_per_s"] = Measured(rate, tuple(point.samples("output_tokens_per_s")))
    return found
