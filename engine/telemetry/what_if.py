"""What each knob could win at most, from where the time of the steps goes.

Every ceiling is Amdahl's law over the part that the knob touches: the time measured, over the time
with that part as small as the knob could make it and all else as it is. Pure Python: no torch.
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
"""Of the ceiling of speculation: four of five drafted tokens are accepted, and drafts are free."""
WORTH = 1.02
"""Less than this is nothing that a user could measure."""


class Ceiling(NamedTuple):
    """What a knob could win at most.

    setting: its name in the engine's configuration; value: what it would be set to. factor: how
    much less time a step takes, or how many more tokens come in the same time (`gains`). `loose`:
    the factor if what is unexplained of the model's time shrank with the part that the knob
    touches; None where that makes no difference. why: how it was derived, in words.
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
    """What the ceilings are made from: the costed steps, and the engine after them."""

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
        """A `Work` in each row. With the two below: hundreds of steps for every knob are too many
        for a loop that holds the interpreter."""
        return np.array([s.work for s in self.steps]).reshape(-1, len(Work._fields))

    @cached_property
    def splits(self) -> Split:
        """Whose parts are arrays with a value of each step."""
        return Split(*np.array([s.split for s in self.steps]).reshape(-1, len(Split._fields)).T)

    @cached_property
    def speeds(self) -> NDArray[np.float64]:
        return np.array([s.speed for s in self.steps])


def ceilings(situation: Situation) -> list[Ceiling]:
    """All of them, in the order in which a person would look; none without steps."""
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
    return [ceiling for ceiling in made if ceiling is not None]


# Knobs that make the counted work smaller -----------------------------------------------------


def _weights(situation: Situation, name: str, bits: float) -> Ceiling | None:
    now = _bits_per_weight(situation.snapshot)
    if bits >= now:
        return None
    factor = bits / now

    def smaller(work: Work) -> Work:
        body = work.weights - work.fixed_weights
        return work._replace(weights=work.fixed_weights + body * factor)

    share = situation.whole.shares().weights
    why = (
        f"Reading weights is {_percent(share)} of the time; {name} reads {factor:.2f} of their "
        "bytes, the output layer as it is, and the arithmetic stays."
    )
    return _of_work(situation, "quantization", "Weights", name, smaller, why)


def _kv_dtype(situation: Situation) -> Ceiling | None:
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
        f"Reading the KV cache is {_percent(share)} of the time; 8 bits are {factor:.2f} of its "
        "bytes (and hold as many more tokens)."
    )

    def smaller(work: Work) -> Work:
        return work._replace(kv=work.kv * factor)

    return _of_work(situation, "kv_cache_dtype", "KV precision", "fp8 or int8", smaller, why)


def _of_work(
    situation: Situation,
    setting: str,
    label: str,
    value: str,
    change: Callable[[Work], Work],
    why: str,
) -> Ceiling:
    """The ceiling of a knob that changes the work of every step."""
    splits, floor = situation.splits, np.asarray(situation.splits.floor)
    work = np.stack(change(Work(*situation.works.T)), axis=1)
    changed = least_times(work, situation.peaks) * situation.speeds
    saved = np.divide(changed, floor, out=np.ones_like(floor), where=floor > 0)
    before = situation.whole.total
    after = float(np.sum(changed + (splits.total - floor)))
    loose = after - float(np.sum(splits.launch * (1 - saved)))
    factor, widest = _ratio(before, after), _ratio(before, loose)
    is_wider = widest > 1.1 * factor
    return Ceiling(setting, label, value, factor, "faster", why, widest if is_wider else None)


# Knobs that change what is computed together --------------------------------------------------


def _batch_size(situation: Situation) -> Ceiling:
    config: Any = situation.snapshot.config
    places, steps = config.max_num_seqs, situation.decoding.steps
    label, setting = "Running requests", "max_num_seqs"
    running = fmean([len(s.step.entries) for s in situation.steps])
    waiting = fmean([s.step.num_waiting for s in situation.steps])
    if waiting < 0.5 or not steps:
        why = f"Nobody waits for a place: {running:.1f} of {places} are in use on average."
        return Ceiling(setting, label, "more", 1.0, "tokens/s", why)
    growth = (running + waiting) / running

    def more(work: Work) -> Work:
        return Work(
            work.weights, work.fixed_weights, work.linear * growth, work.kv * growth,
            work.attention * growth,
        )  # fmt: skip

    slower = 1 / _of_work(situation.decoding, setting, label, "", more, "").factor
    why = (
        f"{waiting:.1f} requests wait on average. If they ran too, a step would take "
        f"{slower:.2f} times as long for {growth:.2f} times the tokens: the weights are read once."
    )
    value = f"{round(running + waiting)}"
    return Ceiling(setting, label, value, max(1.0, growth / slower), "tokens/s", why)


def _prefix_caching(situation: Situation) -> Ceiling:
    """At most all prompt tokens but the last of each prompt are found."""
    config: Any = situation.snapshot.config
    before, after, loose = situation.whole.total, 0.0, 0.0
    for step, is_decode in zip(situation.steps, situation.only_decodes, strict=True):
        if is_decode:
            after += step.split.total
            loose += step.split.total
            continue
        kept = [left for entry in step.step.entries if (left := _without_prompt(entry)) is not None]
        if kept:
            work = situation.model.work(kept)
            floor = step.split.floor
            changed = min(floor, least_time(work, situation.peaks).floor * step.speed)
            whole = step.split.total - floor + changed
            after += whole
            loose += whole - (step.split.launch * (1 - changed / floor) if floor else 0.0)
    counters = situation.snapshot.counters
    rate = f" (hits so far: {_percent(counters.prefix_hit_rate)} of prompt tokens)"
    found = rate if counters.prefix_queries else ""
    state = "It is on" if config.enable_prefix_caching else "It is off"
    share = 1 - after / before if before else 0.0
    why = (
        f"{state}{found}. Computing prompt tokens is {_percent(share)} of the time: so much is "
        "left to win if every one of them had been seen before."
    )
    factor, widest = _ratio(before, after), _ratio(before, loose)
    return Ceiling(
        "enable_prefix_caching", "Prefix caching", "all found", factor, "faster", why,
        widest if widest > 1.1 * factor else None,
    )  # fmt: skip


def _without_prompt(entry: StepEntry) -> StepEntry | None:
    if entry.kind == "decode":
        return entry
    return entry._replace(num_tokens=1, num_cached_tokens=0) if entry.num_logits else None


def _chunk_budget(situation: Situation) -> Ceiling:
    """Chunks that no other request needed would be computed with the next one of their prompt."""
    config: Any = situation.snapshot.config
    setting, label = "max_num_batched_tokens", "Token budget"
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
        why = f"No step was spent on a part of a prompt alone: {config.max_num_batched_tokens:,} "
        why += "tokens a step are enough."
        return Ceiling(setting, label, "larger", 1.0, "faster", why)
    why = (
        f"{count} of {len(situation.steps)} steps computed nothing but a part of a prompt. Joined "
        "with the steps after them they would read the weights once less each; gaps between the "
        "tokens of other requests would grow."
    )
    return Ceiling(setting, label, "larger", _ratio(before, before - saved), "faster", why)


def _speculation(situation: Situation) -> Ceiling | None:
    if not situation.decoding.steps:
        return None
    rows = DRAFT_LENGTH + 1

    def verify(work: Work) -> Work:
        return work._replace(linear=work.linear * rows, attention=work.attention * rows)

    setting, label = "speculative_method", "Speculation"
    ratio = 1 / _of_work(situation.decoding, setting, label, "", verify, "").factor
    tokens = expected_tokens(DRAFT_ACCEPTANCE, DRAFT_LENGTH)
    why = (
        f"A draft that costs nothing and is right {_percent(DRAFT_ACCEPTANCE)} of the time gives "
        f"{tokens:.2f} tokens a step for {DRAFT_LENGTH} drafted; verifying them makes a step of "
        f"decoding {ratio:.2f} times as long."
    )
    value = f"{DRAFT_LENGTH} drafted"
    return Ceiling(setting, label, value, max(1.0, tokens / ratio), "decoding", why)


# Words ----------------------------------------------------------------------------------------


def verdict(split: Split) -> str:
    """What limits the steps, in one line: "memory-bound: weights 71 %"."""
    if split.total <= 0:
        return ""
    shares = split.shares()
    sides = {
        "memory-bound": shares.weights + shares.kv,
        "bound by arithmetic": shares.arithmetic,
        "neither memory nor arithmetic": shares.launch,
        "bound by Python": shares.python,
        "waiting between steps": shares.queue,
        "bound by drafting": shares.draft,
    }
    side = max(sides, key=lambda name: sides[name])
    if side == "neither memory nor arithmetic":
        return f"{side}: launch and rest {_percent(shares.launch)}"
    if side == "memory-bound":
        part, share = max(("weights", shares.weights), ("KV", shares.kv), key=lambda p: p[1])
        return f"{side}: {part} {_percent(share)}"
    return f"{side}: {_percent(sides[side])}"


def _bits_per_weight(snapshot: EngineSnapshot) -> float:
    model = snapshot.model
    return 8.0 * model.weights_bytes / max(1, model.num_parameters)


def _ratio(before: float, after: float) -> float:
    return max(1.0, before / after) if after > 0 else 1.0


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
