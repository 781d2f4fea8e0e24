"""Upper bound of the gain of each setting, from the cost breakdown of recent steps.

Each bound is Amdahl's law over the part that the setting changes: the measured time, over the time
with that part as small as the setting can make it. Pure Python: no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.hardware.peaks import Peaks
from engine.numerics.kv_dtype import NAMES as KV_NAMES
from engine.snapshot import EngineSnapshot, StepEntry
from engine.speculation.statistics import expected_tokens
from engine.telemetry.step_cost import (
    CostedStep,
    ModelCost,
    Split,
    Work,
    least_time,
    least_times,
    total,
)

ITEM_BITS: Mapping[str, int] = {"float32": 32, "bfloat16": 16, "float16": 16}
INT4_BITS = 4.25  # with a 16-bit scale and zero point for each 128 weights
DRAFT_LENGTH, DRAFT_ACCEPTANCE = 4, 0.8
"""The speculation bound assumes four of five draft tokens accepted and free drafts."""
WORTH = 1.02
"""Smaller gains are not measurable."""


class SpeedupBound(NamedTuple):
    """Upper bound of a setting's gain.

    setting: its name in EngineConfig; value: what to set. factor: the speed-up of a step, or the
    growth of throughput (`gains`). loose: the factor if launch and other time shrinks too; None
    where equal. why: the derivation.
    """

    setting: str
    label: str
    value: str
    factor: float
    gains: str
    why: str
    loose: float | None = None

    @property
    def is_worth_trying(self) -> bool:
        return max(self.factor, self.loose or 0.0) >= WORTH


@dataclass(frozen=True)
class Situation:
    """What the bounds are made from: the costed steps, and the engine after them."""

    steps: Sequence[CostedStep]
    model: ModelCost
    peaks: Peaks
    snapshot: EngineSnapshot

    @cached_property
    def whole(self) -> Split:
        """The sum of all splits."""
        return total(self.steps)

    @cached_property
    def only_decodes(self) -> list[bool]:
        """Which of the steps do nothing but decode."""
        return [all(e.kind == "decode" for e in s.step.entries) for s in self.steps]

    @cached_property
    def decoding(self) -> Situation:
        """The steps alone that do nothing but decode."""
        if all(self.only_decodes):
            return self
        chosen = [s for s, alone in zip(self.steps, self.only_decodes, strict=True) if alone]
        return dataclasses.replace(self, steps=chosen)

    @cached_property
    def works(self) -> NDArray[np.float64]:
        """A `Work` per row. Vectorized, as the two below: a loop over steps and settings would hold
        the interpreter."""
        return np.array([s.work for s in self.steps]).reshape(-1, len(Work._fields))

    @cached_property
    def splits(self) -> Split:
        """Whose parts are arrays with a value of each step."""
        return Split(*np.array([s.split for s in self.steps]).reshape(-1, len(Split._fields)).T)

    @cached_property
    def speeds(self) -> NDArray[np.float64]:
        return np.array([s.speed for s in self.steps])


def speedup_bounds(situation: Situation) -> list[SpeedupBound]:
    """One per setting, most common first; none without steps."""
    if not situation.steps:
        return []
    made = [
        _weights(situation, "int8", 8.0),
        _weights(situation, "int4", INT4_BITS),
        _kv_dtype(situation),
        _batch_size(situation),
        _prefix_caching(situation),
        _chunk_budget(situation),
        _speculation(situation),
    ]
    return [bound for bound in made if bound is not None]


# Settings that make the counted work smaller -----------------------------------------------------


def _weights(situation: Situation, name: str, bits: float) -> SpeedupBound | None:
    model = situation.snapshot.model
    now = 8.0 * model.weights_bytes / max(1, model.num_parameters)
    if bits >= now:
        return None
    factor = bits / now

    def smaller(work: Work) -> Work:
        body = work.weights - work.fixed_weights
        return work._replace(weights=work.fixed_weights + body * factor)

    share = situation.whole.shares().weights
    why = (
        f"Reading weights takes {_percent(share)} of step time. {name} reads {factor:.2f}× the "
        "bytes; LM head and compute are unchanged."
    )
    speedup, loose = _speedup(situation, smaller)
    return SpeedupBound("quantization", "Weights", name, speedup, "faster", why, loose)


def _kv_dtype(situation: Situation) -> SpeedupBound | None:
    """None where keys and values are in 8 bits already."""
    model, plan = situation.snapshot.model, situation.snapshot.memory.plan
    narrow = 8 + 16 / model.head_dim  # with a 16-bit scale for each token and head
    names = (plan.key_dtype or model.dtype, plan.value_dtype or model.dtype)
    now = sum(narrow if n in KV_NAMES else ITEM_BITS.get(n, 16) for n in names) / 2
    if narrow >= now:
        return None
    factor = narrow / now
    share = situation.whole.shares().kv
    why = (
        f"Reading the KV cache takes {_percent(share)} of step time. An 8-bit cache "
        f"needs {factor:.2f}× the bytes and stores more tokens."
    )

    def smaller(work: Work) -> Work:
        return work._replace(kv=work.kv * factor)

    speedup, loose = _speedup(situation, smaller)
    label, value = "KV cache dtype", "fp8 or int8"
    return SpeedupBound("kv_cache_dtype", label, value, speedup, "faster", why, loose)


def _speedup(
    situation: Situation, change: Callable[[Work], Work]
) -> tuple[float, float | None]:
    """Factor and loose factor of a setting that changes the work of every step."""
    splits, floor = situation.splits, np.asarray(situation.splits.floor)
    work = np.stack(change(Work(*situation.works.T)), axis=1)
    changed = least_times(work, situation.peaks) * situation.speeds
    saved = np.divide(changed, floor, out=np.ones_like(floor), where=floor > 0)
    after = float(np.sum(changed + (splits.total - floor)))
    loose = after - float(np.sum(splits.launch * (1 - saved)))
    return _factors(situation.whole.total, after, loose)


# Settings that change the batch --------------------------------------------------


def _batch_size(situation: Situation) -> SpeedupBound:
    config: Any = situation.snapshot.config
    places, steps = config.max_num_seqs, situation.decoding.steps
    label, setting = "Max running requests", "max_num_seqs"
    running = fmean([len(s.step.entries) for s in situation.steps])
    waiting = fmean([s.step.num_waiting for s in situation.steps])
    if waiting < 0.5 or not steps:
        why = f"No requests are waiting: {running:.1f} of {places} batch slots in use on average."
        return SpeedupBound(setting, label, "more batch slots", 1.0, "throughput", why)
    growth = (running + waiting) / running

    def more(work: Work) -> Work:
        return Work(
            work.weights, work.fixed_weights, work.linear * growth, work.kv * growth,
            work.attention * growth,
        )  # fmt: skip

    slower = 1 / _speedup(situation.decoding, more)[0]
    why = (
        f"{waiting:.1f} requests are waiting on average. Running them makes steps {slower:.2f}× as "
        f"long but yields {growth:.2f}× the tokens: weights are read once per step."
    )
    value = f"{round(running + waiting)}"
    return SpeedupBound(setting, label, value, max(1.0, growth / slower), "throughput", why)


def _prefix_caching(situation: Situation) -> SpeedupBound:
    """The bound: every prompt token but the last is cached."""
    config: Any = situation.snapshot.config
    before, after, loose = situation.whole.total, 0.0, 0.0
    for step, is_decode in zip(situation.steps, situation.only_decodes, strict=True):
        floor = changed = step.split.floor
        if not is_decode:
            entries = map(_without_prompt, step.step.entries)
            kept = [entry for entry in entries if entry is not None]
            if not kept:
                continue
            work = situation.model.work(kept)
            changed = min(floor, least_time(work, situation.peaks).floor * step.speed)
        whole = step.split.total - floor + changed
        after += whole
        loose += whole - (step.split.launch * (1 - changed / floor) if floor else 0.0)
    counters = situation.snapshot.counters
    rate = f", hit rate {_percent(counters.prefix_hit_rate)} so far"
    found = rate if counters.prefix_queries else ""
    state = "Enabled" if config.enable_prefix_caching else "Disabled"
    share = 1 - after / before if before else 0.0
    why = f"{state}{found}. Caching every prefix would save at most {_percent(share)} of step time."
    factor, wider = _factors(before, after, loose)
    setting, value = "enable_prefix_caching", "every prefix cached"
    return SpeedupBound(setting, "Prefix caching", value, factor, "faster", why, wider)


def _without_prompt(entry: StepEntry) -> StepEntry | None:
    if entry.kind == "decode":
        return entry
    return entry._replace(num_tokens=1, num_cached_tokens=0) if entry.num_logits else None


def _chunk_budget(situation: Situation) -> SpeedupBound:
    """The bound: prefill-only chunks merge with the next step."""
    config: Any = situation.snapshot.config
    setting, label = "max_num_batched_tokens", "Max batched tokens"
    before = situation.whole.total
    saved, count = 0.0, 0
    for step in situation.steps:
        if any(entry.num_logits for entry in step.step.entries) or not step.step.entries:
            continue
        hidden = min(step.split.weights, step.work.linear / situation.peaks.flops_per_s)
        split = step.split
        saved += split.weights - hidden + split.launch + split.python + split.queue
        count += 1
    if not count:
        why = f"No prefill-only steps at {setting} {config.max_num_batched_tokens:,}."
        return SpeedupBound(setting, label, "larger token budget", 1.0, "faster", why)
    why = (
        f"{count} of {len(situation.steps)} steps were prefill-only. Merging each with the "
        "next step saves one weight read but increases the ITL of other requests."
    )
    factor = _ratio(before, before - saved)
    return SpeedupBound(setting, label, "larger token budget", factor, "faster", why)


def _speculation(situation: Situation) -> SpeedupBound | None:
    if not situation.decoding.steps:
        return None
    rows = DRAFT_LENGTH + 1

    def verify(work: Work) -> Work:
        return work._replace(linear=work.linear * rows, attention=work.attention * rows)

    setting, label = "speculative_method", "Speculation"
    ratio = 1 / _speedup(situation.decoding, verify)[0]
    tokens = expected_tokens(DRAFT_ACCEPTANCE, DRAFT_LENGTH)
    why = (
        f"{DRAFT_LENGTH} draft tokens yield {tokens:.2f} tokens per step at "
        f"{_percent(DRAFT_ACCEPTANCE)} acceptance, ignoring drafting time. "
        f"Verification makes decode steps {ratio:.2f}× as long."
    )
    value = f"{DRAFT_LENGTH} draft tokens"
    return SpeedupBound(setting, label, value, max(1.0, tokens / ratio), "decode speed", why)


# Words ----------------------------------------------------------------------------------------


def verdict(split: Split) -> str:
    """The bottleneck: "memory-bound: weights 71 %"."""
    if split.total <= 0:
        return ""
    shares = split.shares()
    sides = {
        "memory-bound": shares.weights + shares.kv,
        "compute-bound": shares.arithmetic,
        "overhead-bound": shares.launch,
        "CPU-bound in Python": shares.python,
        "idle between steps": shares.queue,
        "draft-bound": shares.draft,
    }
    side = max(sides, key=lambda name: sides[name])
    if side == "overhead-bound":
        return f"{side}: kernel launch and other overhead {_percent(shares.launch)}"
    if side == "memory-bound":
        part, share = max(("weights", shares.weights), ("KV", shares.kv), key=lambda p: p[1])
        return f"{side}: {part} {_percent(share)}"
    return f"{side}: {_percent(sides[side])}"


def _ratio(before: float, after: float) -> float:
    return max(1.0, before / after) if after > 0 else 1.0


def _factors(before: float, after: float, loose: float) -> tuple[float, float | None]:
    """`factor` and `loose` of a bound, from seconds."""
    factor, wider = _ratio(before, after), _ratio(before, loose)
    return factor, wider if wider > 1.1 * factor else None


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
