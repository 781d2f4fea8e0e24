"""Time breakdown of the engine's recent steps. No Qt."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from statistics import fmean, median

from engine.hardware.peaks import Peaks
from engine.snapshot import EngineSnapshot, StepRecord
from engine.telemetry.gain import GainEstimate
from engine.telemetry.situation import Situation
from engine.telemetry.step_cost import (
    CostedStep,
    ModelCost,
    Split,
    Work,
    cost_step,
    model_cost,
    pause_between,
    verdict,
)
from engine.telemetry.what_if import gain_estimates
from engine.units import (
    bandwidth_text,
    bytes_text,
    compute_text,
    counted,
    duration_with,
    figure,
    operations_text,
    percent_text,
    precision_name,
)
from widgets.plot.parts_bar import Part

MOST_STEPS = 200
"""Steps to average: seconds of a large model, one second of a small one."""
MOST_ENTRIES = 8192
"""Maximum sum of requests over these steps: large batches need fewer steps."""


class Chosen(StrEnum):
    """Which steps are averaged."""

    ALL = "all steps"
    DECODE = "decode-only steps"
    PREFILL = "steps with prefill"

    def takes(self, step: StepRecord) -> bool:
        if self is Chosen.ALL:
            return True
        is_decode = all(entry.kind == "decode" for entry in step.entries)
        return is_decode is (self is Chosen.DECODE)


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """Of `num_steps` steps: mean split in seconds, median step time, mean work of a step, the
    bottleneck, and the estimated gain per setting. speed: measured over predicted time of the
    model's operations; below 1 the peaks are too low."""

    num_steps: int
    split: Split
    median: float
    speed: float
    work: Work
    verdict: str
    estimates: tuple[GainEstimate, ...]


class StepTracker:
    """Collects the steps of snapshots; `breakdown` computes on demand."""

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
        """Add new steps. Steps with earlier settings are dropped; so are peaks of another device.
        Where the time of the change is not reported, the steps that come with it are dropped too.
        """
        before, self._snapshot = self._snapshot, snapshot
        machine = snapshot.model.device_name
        has_moved = before is not None and before.model.device_name != machine
        if has_moved and self.peaks is not None and self.peaks.machine != machine:
            self.peaks = None
        since = snapshot.settings_since
        if before is not None and _settings(before) != _settings(snapshot):
            self._steps.clear()
            if not since:
                return
        self._steps.extend(step for step in snapshot.steps if step.start >= since)
        while self._steps and self._steps[0].start < since:
            self._steps.popleft()
        self._drop_oldest()

    def clear(self) -> None:
        self._steps.clear()
        self._known = {}
        self._snapshot = None
        self.peaks = None

    def split(self, step: StepRecord) -> Split | None:
        """Time split of one step; None without peaks."""
        if self._snapshot is None or self.peaks is None:
            return None
        return cost_step(step, 0.0, model_cost(self._snapshot), self.peaks).split

    def _drop_oldest(self) -> None:
        """Keep at most MOST_ENTRIES, but at least one step."""
        over = sum(len(step.entries) for step in self._steps) - MOST_ENTRIES
        while over > 0 and len(self._steps) > 1:
            over -= len(self._steps.popleft().entries)

    def _costed(self, model: ModelCost, peaks: Peaks) -> list[CostedStep]:
        """Costs of the newest steps, cached."""
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

    def breakdown(self, chosen: Chosen = Chosen.ALL) -> StepBreakdown | None:
        """The breakdown; None without peaks or steps of the chosen kind."""
        snapshot, peaks = self._snapshot, self.peaks
        if snapshot is None or peaks is None:
            return None
        model = model_cost(snapshot)
        costed = [s for s in self._costed(model, peaks) if chosen.takes(s.step)]
        if not costed:
            return None
        situation = Situation(costed, model, peaks, snapshot)
        whole = situation.whole
        return StepBreakdown(
            num_steps=len(costed),
            split=Split(*(part / len(costed) for part in whole)),
            median=median(step.split.total for step in costed),
            speed=fmean(step.speed for step in costed),
            work=_mean_work(costed),
            verdict=verdict(whole),
            estimates=tuple(gain_estimates(situation.usual)),
        )


def _settings(snapshot: EngineSnapshot) -> tuple[object, ...]:
    """Settings and device: steps with others are not comparable."""
    return snapshot.model.device_name, snapshot.config


def _mean_work(costed: list[CostedStep]) -> Work:
    columns = zip(*(step.work for step in costed), strict=True)
    return Work(*(sum(column) / len(costed) for column in columns))


PARTS = (
    ("Reading weights", "weights", "weights", "time to read the weights at peak bandwidth"),
    ("Reading KV cache", "kv_used", "kv", "time to read all KV blocks in use at peak bandwidth"),
    ("Compute", "arithmetic", "arithmetic", "compute time not overlapped with memory reads"),
    ("Kernel launch and other", "launch", "launch",
     "remaining forward-pass time: kernel launches, small ops, kernels below peak"),
    ("Python", "python", "python", "measured time for scheduling, sampling and output processing"),
    ("Drafting", "draft", "draft", "measured time for the draft model or n-gram lookup"),
    ("Between steps", "queued", "queue", "measured idle time before the next step"),
)  # fmt: skip
_SHORT = (("weights", "weights"), ("KV", "kv"), ("compute", "arithmetic"),
          ("kernel launch and other", "launch"), ("Python", "python"))  # fmt: skip
_TRUSTED = 0.9
FASTER = (
    "Steps exceed these peaks: the weights fit in the CPU cache, or the machine was busy during "
    "the measurement."
)


def parts_of(split: Split) -> list[Part]:
    shares = split.shares()
    return [
        Part(
            label, color, getattr(shares, key),
            (ms(getattr(split, key)), percent_text(getattr(shares, key))), tip,
        )
        for label, color, key, tip in PARTS
    ]  # fmt: skip


def counted_text(breakdown: StepBreakdown) -> str:
    """Bytes and operations per step, and the achieved bandwidth."""
    work, split = breakdown.work, breakdown.split
    model_s = split.floor + split.launch
    rate = (work.weights + work.kv) / model_s if model_s else 0.0
    return (
        f"Per step: {bytes_text(work.weights)} weights, {bytes_text(work.kv)} KV "
        f"({bandwidth_text(rate)}), {operations_text(work.linear + work.attention)}"
    )


def ms(seconds: float) -> str:
    return duration_with(seconds, "ms")


def peaks_text(peaks: Peaks, speed: float) -> str:
    day = datetime.fromtimestamp(peaks.measured_at)
    when = f"today at {day:%H:%M}" if day.date() == date.today() else f"{day:%Y-%m-%d}"
    remarks = []
    if peaks.is_disturbed:
        remarks.append(f"Measured while the machine was busy ({figure(peaks.busy_cores)} cores)")
    if speed <= _TRUSTED:
        remarks.append(FASTER.rstrip("."))
    return ". ".join([
        f"Peaks: {bandwidth_text(peaks.read_bytes_per_s)}, {compute_text(peaks.flops_per_s)} "
        f"in {precision_name(peaks.dtype)}, {counted(peaks.num_threads, 'thread')}, "
        f"measured {when}",
        *remarks,
    ])  # fmt: skip


def split_text(split: Split) -> str:
    """ "weights 71 %, KV 9 %, kernel launch and other 12 %"; shares below 1 % are omitted."""
    shares = split.shares()
    parts = ((short, getattr(shares, key)) for short, key in _SHORT)
    return ", ".join(f"{short} {percent_text(share)}" for short, share in parts if share >= 0.005)
