"""The last steps of the engine, and where their time went. No Qt."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median

from engine.ceilings import Ceiling, Situation, ceilings, verdict
from engine.peaks import Peaks
from engine.snapshot import EngineSnapshot, StepRecord
from engine.step_cost import (
    CostedStep,
    ModelCost,
    Split,
    Work,
    cost_step,
    model_cost,
    pause_between,
)

MOST_STEPS = 200
"""Of which the account is the mean: seconds of a large model, one second of a small one."""
MOST_ENTRIES = 8192
"""Of them together: where hundreds of requests run, fewer steps say as much."""

PRECISION = (
    "dtype", "quantization", "quantization_group_size", "quantization_head", "kv_cache_dtype",
)  # fmt: skip


class Chosen(StrEnum):
    """Which of the steps count."""

    ALL = "all steps"
    DECODE = "steps that only decode"
    PREFILL = "steps with prefill"

    def takes(self, step: StepRecord) -> bool:
        if self is Chosen.ALL:
            return True
        is_decode = all(entry.kind == "decode" for entry in step.entries)
        return is_decode is (self is Chosen.DECODE)


@dataclass(frozen=True, slots=True)
class Account:
    """Of `num_steps` steps: the mean split in seconds, the median of a step's time (which one
    disturbed step does not move), the mean work of one in bytes and operations, what limits them
    in words, and what each knob could win. speed: how much of the time that was counted the
    model's operations took; below 1 the peaks are too low for them. exchange: of the model's time,
    the mean seconds in which the first rank of several waited for the others and added up."""

    num_steps: int
    split: Split
    median: float
    speed: float
    work: Work
    verdict: str
    ceilings: tuple[Ceiling, ...]
    exchange: float = 0.0


class StepAccount:
    """Feed it with every snapshot; `account` works it out when somebody looks."""

    def __init__(self) -> None:
        self.peaks: Peaks | None = None
        self._steps: deque[StepRecord] = deque(maxlen=MOST_STEPS)
        self._snapshot: EngineSnapshot | None = None
        self._known: dict[int, CostedStep] = {}  # by the identity of their steps
        self._known_for: tuple[ModelCost, Peaks] | None = None

    @property
    def has_steps(self) -> bool:
        return bool(self._steps)

    def update(self, snapshot: EngineSnapshot) -> None:
        """Steps in another precision, of other devices or of another number of ranks or stages say
        nothing of those of now: they are forgotten, with those that came with the news of it, and
        peaks that are not theirs."""
        before, self._snapshot = self._snapshot, snapshot
        machine = snapshot.model.device_name
        has_moved = before is not None and before.model.device_name != machine
        if has_moved and self.peaks is not None and self.peaks.machine != machine:
            self.peaks = None
        if has_moved or (before is not None and _made_of(before) != _made_of(snapshot)):
            self._steps.clear()
            self._known = {}
            return
        self._steps.extend(snapshot.steps)
        self._drop_oldest()

    def clear(self) -> None:
        """Another model: steps of the one before say nothing of it."""
        self._steps.clear()
        self._known = {}
        self._snapshot = None
        self.peaks = None

    def split(self, step: StepRecord) -> Split | None:
        """Where the time of one step went; None without peaks."""
        if self._snapshot is None or self.peaks is None:
            return None
        return cost_step(step, 0.0, model_cost(self._snapshot), self.peaks).split

    def _drop_oldest(self) -> None:
        """Keep as many of the last steps as MOST_ENTRIES allows; one at least."""
        over = sum(len(step.entries) for step in self._steps) - MOST_ENTRIES
        while over > 0 and len(self._steps) > 1:
            over -= len(self._steps.popleft().entries)

    def _costed(self, model: ModelCost, peaks: Peaks) -> list[CostedStep]:
        """The newest steps. What was worked out the last time is not worked out again."""
        known = self._known if self._known_for == (model, peaks) else {}
        made: dict[int, CostedStep] = {}
        before: StepRecord | None = None
        for step in self._steps:
            one = known.get(id(step))
            if one is None or one.step is not step:
                one = cost_step(step, pause_between(before, step), model, peaks)
            made[id(step)], before = one, step
        self._known, self._known_for = made, (model, peaks)
        return list(made.values())

    def account(self, chosen: Chosen = Chosen.ALL) -> Account | None:
        """None without peaks, or without a step of the kind chosen."""
        snapshot, peaks = self._snapshot, self.peaks
        if snapshot is None or peaks is None:
            return None
        model = model_cost(snapshot)
        costed = [s for s in self._costed(model, peaks) if chosen.takes(s.step)]
        if not costed:
            return None
        situation = Situation(costed, model, peaks, snapshot)
        whole = situation.whole
        return Account(
            num_steps=len(costed),
            split=Split(*(part / len(costed) for part in whole)),
            median=median(step.split.total for step in costed),
            speed=fmean(step.speed for step in costed),
            work=_mean_work(costed),
            verdict=verdict(whole),
            ceilings=tuple(ceilings(situation)),
            exchange=fmean(one.step.exchange_s for one in costed),
        )


def _made_of(snapshot: EngineSnapshot) -> tuple[object, ...]:
    """Ranks, stages and precision."""
    config = snapshot.config  # an engine elsewhere, or a recording, may not tell all of it
    several = snapshot.model.num_ranks, snapshot.model.num_stages
    return *several, *(getattr(config, name, None) for name in PRECISION)


def _mean_work(costed: list[CostedStep]) -> Work:
    columns = zip(*(step.work for step in costed), strict=True)
    return Work(*(sum(column) / len(costed) for column in columns))
