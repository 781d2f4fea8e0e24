"""What each setting would gain, estimated from the cost breakdown of recent steps.

An estimate is a range. Its upper end is Amdahl's law over all that the setting may change: the
measured time, over the time with that part as small as the setting can make it, what it takes
beyond the peak rates included. Its lower end changes only what is certain. Where nothing can gain
more than the upper end, the estimate is a bound. Pure Python: no torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.hardware.peaks import Peaks
from engine.numerics.kv_dtype import NAMES as KV_NAMES
from engine.snapshot import EngineSnapshot
from engine.telemetry.step_cost import (
    CostedStep,
    ModelCost,
    Split,
    Work,
    least_time,
    least_times,
    total,
)
from engine.units import factor_text, percent_text, precision_name, speculative_name

QUANTIZED = ("int8", "int4", "nf4", "fp8")
ITEM_BITS: Mapping[str, int] = {"float32": 32, "bfloat16": 16, "float16": 16}
INT8_BITS, INT4_BITS = 8.0, 4.25  # with a 16-bit scale and zero point for each 128 weights
DRAFT_LENGTH = 4
WORTH = 1.02
"""Smaller gains are not measurable."""
CERTAIN, POSSIBLE, SLACK = 0.7, 1.4, 1.1
"""Of a saving that was computed from measured kernels, and of the gain: the products of a model are
not those of the measurement."""


class GainEstimate(NamedTuple):
    """What a setting would gain: a factor between `low` and `high` (at least 1).

    setting: its name in EngineConfig; value: what to set. gains: what becomes larger ("faster",
    "throughput"). why: the derivation. is_bound: no gain exceeds `high`. is_on: it is set already.
    """

    setting: str
    label: str
    value: str
    low: float
    high: float
    gains: str
    why: str
    is_bound: bool = False
    is_on: bool = False

    @property
    def is_worth_trying(self) -> bool:
        return not self.is_on and self.high >= WORTH

    @property
    def text(self) -> str:
        """ "1.15× to 1.42× faster"; "Up to 2.00× throughput"; "Enabled"; "No gain expected"."""
        if self.is_on:
            return "Enabled"
        if self.high < WORTH:
            return "No gain expected"
        low, high = factor_text(self.low), factor_text(self.high)
        if self.is_bound:
            return f"Up to {high} {self.gains}"
        return f"About {high} {self.gains}" if low == high else f"{low} to {high} {self.gains}"


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
    def decoding(self) -> Situation:
        """The steps alone that do nothing but decode."""
        chosen = [s for s in self.steps if s.batch.only_decodes]
        return self if len(chosen) == len(self.steps) else dataclasses.replace(self, steps=chosen)

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
    def rows(self) -> NDArray[np.float64]:
        """Tokens that each step computed."""
        return np.array([s.batch.counts.tokens for s in self.steps], dtype=float)

    @cached_property
    def speeds(self) -> NDArray[np.float64]:
        return np.array([s.speed for s in self.steps])


def gain_estimates(situation: Situation) -> list[GainEstimate]:
    """One per setting, most common first; none without steps."""
    if not situation.steps:
        return []
    made = [
        _weights(situation, "int8", INT8_BITS),
        _weights(situation, "int4", INT4_BITS),
        _kv_dtype(situation),
        _batch_size(situation),
        _prefix_caching(situation),
        _chunk_budget(situation),
        _speculation(situation),
    ]
    return [one for one in made if one is not None]


# Settings that make the counted work smaller -----------------------------------------------------


def _weights(situation: Situation, name: str, bits: float) -> GainEstimate | None:
    """None where the checkpoint is quantized already, in another format or in fewer bits."""
    config: Any = situation.snapshot.config
    model = situation.snapshot.model
    setting, label, value = "quantization", "Weights", precision_name(name)
    current = getattr(config, setting, "none")
    if current == name:
        why = f"The weights are {value} already."
        return GainEstimate(setting, label, name, 1.0, 1.0, "faster", why, is_on=True)
    now = 8.0 * model.weights_bytes / max(1, model.num_parameters)
    if bits >= now:
        return None
    ratio = bits / now

    def smaller(work: Work) -> Work:
        body = work.weights - work.fixed_weights
        return work._replace(weights=work.fixed_weights + body * ratio)

    whole = situation.whole
    low, high = _range(situation, smaller, ratio)
    share = percent_text(whole.shares().weights)
    before = current if current in QUANTIZED else "none"
    kernels = _kernel_saving(situation, before, name, now, bits)
    if kernels is None:
        why = (
            f"Reading weights takes {share} of step time. {value} reads {factor_text(ratio)} the "
            "bytes; LM head and compute are unchanged."
        )
        return GainEstimate(setting, label, name, low, high, "faster", why)
    saved, possible, quotient = kernels
    low = _factor(whole.total, whole.total - min(CERTAIN * saved, saved / CERTAIN))
    high = _factor(whole.total, whole.total - min(POSSIBLE * saved, possible))
    high = max(1.0, SLACK * high if saved > 0 else high)
    why = (
        f"Linear layers with {value} weights take {factor_text(quotient)} the time, as measured "
        "with the kernels of this machine. LM head, attention and the rest are unchanged."
    )
    return GainEstimate(setting, label, name, min(low, high), high, "faster", why)


def _kernel_saving(
    situation: Situation, before: str, after: str, bits_before: float, bits_after: float
) -> tuple[float, float, float] | None:
    """From measured rates of the kernels, None without: seconds that the linear layers would take
    less in all steps; the same if all of the model's time that may be theirs is; their time after
    over that before."""
    old = _seconds_per_weight(situation, before, bits_before)
    new = _seconds_per_weight(situation, after, bits_after)
    if old is None or new is None:
        return None
    count = situation.model.flops_per_token / 2
    splits = situation.splits
    fixed = situation.works[:, 1] / situation.peaks.read_bytes_per_s * situation.speeds
    # no more than the model's time without what is not a linear layer for certain
    available = np.maximum(0.0, splits.floor + splits.launch - splits.kv - fixed)
    linear = np.minimum(count * old, available)
    saved = float(np.sum(linear * (1 - new / old)))
    total = float(np.sum(linear))
    possible = float(np.sum(available * (1 - new / old)))
    return saved, possible, (total - saved) / total if total else 1.0


def _seconds_per_weight(
    situation: Situation, method: str, bits: float
) -> NDArray[np.float64] | None:
    """In each step: the longer of computing, on all threads, and reading at the peak rate."""
    peaks = situation.peaks
    known = sorted((r.rows, r.seconds) for r in peaks.weight_rates if r.method == method)
    if not known:
        return None
    rows, seconds = np.array(known).T
    threads = peaks.num_threads if situation.snapshot.model.device == "cpu" else 1
    computed = np.interp(np.log(np.maximum(1.0, situation.rows)), np.log(rows), seconds / threads)
    beyond = np.maximum(1.0, situation.rows / rows[-1])  # compute-bound from there on
    return np.maximum(computed * beyond, bits / 8 / peaks.read_bytes_per_s)


def _kv_dtype(situation: Situation) -> GainEstimate | None:
    model, plan = situation.snapshot.model, situation.snapshot.memory.plan
    setting, label, value = "kv_cache_dtype", "KV cache dtype", "FP8 or INT8"
    narrow = 8 + 16 / model.head_dim  # with a 16-bit scale for each token and head
    names = (plan.key_dtype or model.dtype, plan.value_dtype or model.dtype)
    now = sum(narrow if n in KV_NAMES else ITEM_BITS.get(n, 16) for n in names) / 2
    if narrow >= now:
        why = "The KV cache is in 8 bits already."
        return GainEstimate(setting, label, value, 1.0, 1.0, "faster", why, is_on=True)
    factor = narrow / now
    why = (
        f"Reading the KV cache takes {percent_text(situation.whole.shares().kv)} of step time. An "
        f"8-bit cache needs {factor_text(factor)} the bytes and stores more tokens."
    )

    def smaller(work: Work) -> Work:
        return work._replace(kv=work.kv * factor)

    _, high = _range(situation, smaller)
    return GainEstimate(setting, label, value, 1.0, high, "faster", why)


def _range(
    situation: Situation, change: Callable[[Work], Work], ratio: float | None = None
) -> tuple[float, float]:
    """Of a setting that makes the work of every step smaller: with all other time unchanged, and
    with the model's time beyond the peaks times `ratio` (None: in proportion to what is counted)
    as if all of it belonged to what the setting changes."""
    splits, floor = situation.splits, np.asarray(situation.splits.floor)
    changed = _changed(situation, change)
    kept = np.divide(changed, floor, out=np.ones_like(floor), where=floor > 0)
    after = float(np.sum(changed + (splits.total - floor)))
    least = after - float(np.sum(splits.launch * (1 - (kept if ratio is None else ratio))))
    return _ratio(situation.whole.total, after), _ratio(situation.whole.total, least)


def _changed(situation: Situation, change: Callable[[Work], Work]) -> NDArray[np.float64]:
    """Counted seconds of every step with changed work."""
    work = np.stack(change(Work(*situation.works.T)), axis=1)
    return least_times(work, situation.peaks) * situation.speeds


def _slower(
    situation: Situation, change: Callable[[Work], Work], growth: float
) -> tuple[float, float]:
    """How many times as long steps take with `growth` times the rows: if only what is counted
    grows, and if all but reading the weights does, products as the kernels were measured."""
    splits, floor = situation.splits, np.asarray(situation.splits.floor)
    changed = _changed(situation, change)
    least = float(np.sum(changed + (splits.total - floor)))
    rest = splits.total - floor - splits.queue
    most = least + float(np.sum(rest)) * (growth - 1)
    before = situation.whole.total
    return (least / before, most / before) if before else (1.0, 1.0)


# Settings that change the batch --------------------------------------------------


def _batch_size(situation: Situation) -> GainEstimate:
    config: Any = situation.snapshot.config
    places, steps = config.max_num_seqs, situation.decoding.steps
    label, setting = "Max running requests", "max_num_seqs"
    running = fmean([len(s.step.entries) for s in situation.steps])
    waiting = fmean([s.step.num_waiting for s in situation.steps])
    if waiting < 0.5 or not steps:
        why = f"No requests are waiting: {running:.1f} of {places} batch slots in use on average."
        return GainEstimate(setting, label, "more batch slots", 1.0, 1.0, "throughput", why)
    growth = (running + waiting) / running

    def more(work: Work) -> Work:
        return Work(
            work.weights, work.fixed_weights, work.linear * growth, work.kv * growth,
            work.attention * growth,
        )  # fmt: skip

    slower, slowest = _slower(situation.decoding, more, growth)
    why = (
        f"{waiting:.1f} requests are waiting on average. Running them makes steps "
        f"{factor_text(slower)} as long or longer but yields {factor_text(growth)} the tokens: "
        "weights are read once per step."
    )
    value = f"{round(running + waiting)}"
    low, high = growth / max(slowest, slower), growth / slower
    return GainEstimate(setting, label, value, min(low, high), max(1.0, high), "throughput", why)


def _prefix_caching(situation: Situation) -> GainEstimate:
    """The bound: every prompt token but the last is cached."""
    config: Any = situation.snapshot.config
    before, after = situation.whole.total, 0.0
    for step in situation.steps:
        split, least = step.split, step.batch.least
        if step.batch.only_decodes:
            after += split.total
            continue
        if not least.tokens:
            continue
        work = situation.model.work_of(least)
        counted = min(split.floor, least_time(work, situation.peaks).floor * step.speed)
        left = least.tokens / max(1, step.batch.counts.tokens)
        # what it takes beyond the peak rates shrinks with the tokens, and no faster
        after += counted + split.launch * left + split.python + split.queue + split.draft
    counters = situation.snapshot.counters
    rate = f", hit rate {percent_text(counters.prefix_hit_rate)} so far"
    found = rate if counters.prefix_queries else ""
    is_on = bool(config.enable_prefix_caching)
    state = "Enabled" if is_on else "Disabled"
    share = percent_text(1 - after / before if before else 0.0)
    why = f"{state}{found}. Caching every prefix would save at most {share} of step time."
    setting, value = "enable_prefix_caching", "every prefix cached"
    high = 1.0 if is_on else _ratio(before, after)
    return GainEstimate(
        setting, "Prefix caching", value, 1.0, high, "faster", why, is_bound=True, is_on=is_on
    )


def _chunk_budget(situation: Situation) -> GainEstimate:
    """The bound: whole prompts in one step, at the peak rates. The cost of reading the weights, and
    all time beyond the peak rates, is spread over so many tokens that it is counted as zero. Tokens
    decoded beside prompts join other decode steps."""
    config: Any = situation.snapshot.config
    setting, label = "max_num_batched_tokens", "Max batched tokens"
    after, count = 0.0, 0
    for step in situation.steps:
        if step.batch.only_decodes:
            after += step.split.total
            continue
        count += step.batch.has_parts
        work = step.work._replace(weights=0.0, fixed_weights=0.0)
        after += min(least_time(work, situation.peaks).floor * step.speed, step.split.total)
    if not count:
        why = f"No prompt was split at {config.max_num_batched_tokens:,} max batched tokens."
        return GainEstimate(setting, label, "larger token budget", 1.0, 1.0, "faster", why)
    why = (
        f"{count} of {len(situation.steps)} steps computed part of a prompt. Whole prompts in one "
        "step read the weights less often, but increase the ITL of other requests."
    )
    high = _ratio(situation.whole.total, after)
    return GainEstimate(
        setting, label, "larger token budget", 1.0, high, "faster", why, is_bound=True
    )


def _speculation(situation: Situation) -> GainEstimate | None:
    """From no draft token accepted to all of them, drafted in no time."""
    config: Any = situation.snapshot.config
    setting, label, value = "speculative_method", "Speculation", f"{DRAFT_LENGTH} draft tokens"
    method = getattr(config, setting, "off")
    if method != "off":
        why = f"Speculation uses {speculative_name(method)} already."
        return GainEstimate(setting, label, value, 1.0, 1.0, "decode speed", why, is_on=True)
    if not situation.decoding.steps:
        return None
    rows = DRAFT_LENGTH + 1

    def verify(work: Work) -> Work:
        return work._replace(linear=work.linear * rows, attention=work.attention * rows)

    slower, slowest = _slower(situation.decoding, verify, rows)
    most = factor_text(rows / slower)
    why = (
        f"Verifying {DRAFT_LENGTH} draft tokens makes decode steps {factor_text(slower)} as long "
        f"or longer. A step yields 1 to {rows} tokens: the gain depends on how many are accepted "
        f"and is at most {most}."
    )
    low, high = 1 / max(slower, slowest), max(1.0, rows / slower)
    return GainEstimate(setting, label, value, low, high, "decode speed", why, is_bound=True)


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
        return f"{side}: kernel launch and other overhead {percent_text(shares.launch)}"
    if side == "memory-bound":
        part, share = max(("weights", shares.weights), ("KV", shares.kv), key=lambda p: p[1])
        return f"{side}: {part} {percent_text(share)}"
    return f"{side}: {percent_text(sides[side])}"


def _ratio(before: float, after: float) -> float:
    return max(1.0, before / after) if after > 0 else 1.0


def _factor(before: float, after: float) -> float:
    return before / after if after > 0 and before > 0 else 1.0


# After a change ---------------------------------------------------------------------------------


class MeasuredGain(NamedTuple):
    """What a setting gained when it was changed: a factor, and its relative uncertainty."""

    factor: float
    noise: float = 0.0


def corrected(estimate: GainEstimate, measured: MeasuredGain | None) -> GainEstimate:
    """The estimate, widened to what was measured for this machine, model and setting."""
    if measured is None or estimate.is_on or not 0 < measured.factor < math.inf:
        return estimate
    least, most = measured.factor * (1 - measured.noise), measured.factor * (1 + measured.noise)
    why = f"{estimate.why} Measured here: {factor_text(measured.factor)}"
    if least > estimate.high:
        why += ", more than estimated; the range includes it now."
        return estimate._replace(high=max(1.0, most), why=why, is_bound=False)
    if most < estimate.low:
        why += ", less than estimated; the range includes it now."
        return estimate._replace(low=least, why=why)
    return estimate._replace(why=f"{why}, as estimated.")
