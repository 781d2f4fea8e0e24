"""What each setting would gain, estimated from the cost breakdown of recent steps.

An estimate is a range. Its upper end is Amdahl's law over all that the setting may change: the
measured time, over the time with that part as small as the setting can make it, what it takes
beyond the peak rates included. Its lower end changes only what is certain. Where nothing can gain
more than the upper end, the estimate is a bound. Pure Python: no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from engine.numerics.kv_dtype import NAMES as KV_NAMES
from engine.telemetry.gain import DECODE, THROUGHPUT, GainEstimate
from engine.telemetry.kernel_times import (
    CERTAIN,
    POSSIBLE,
    QUANTIZED,
    kernel_saving,
    more_with_rows,
)
from engine.telemetry.situation import Situation, range_of, slower_by, times_faster
from engine.telemetry.step_cost import Work, least_time
from engine.units import factor_text, percent_text, precision_name, speculative_name

ITEM_BITS: Mapping[str, int] = {"float32": 32, "bfloat16": 16, "float16": 16}
INT8_BITS, INT4_BITS = 8.0, 4.25  # with a 16-bit scale and zero point for each 128 weights
DRAFT_LENGTH = 4
SLACK = 1.1
"""Of a gain that was computed from measured kernels."""


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
        return GainEstimate(setting, label, name, 1.0, 1.0, THROUGHPUT, why, is_on=True)
    now = 8.0 * model.weights_bytes / max(1, model.num_parameters)
    if bits >= now:
        return None
    ratio = bits / now

    def smaller(work: Work) -> Work:
        body = work.weights - work.fixed_weights
        return work._replace(weights=work.fixed_weights + body * ratio)

    whole = situation.whole
    low, high = range_of(situation, smaller, ratio)
    share = percent_text(whole.shares().weights)
    before = current if current in QUANTIZED else "none"
    kernels = kernel_saving(situation, before, name, now, bits)
    if kernels is None:
        why = (
            f"Reading weights takes {share} of step time. {value} reads {factor_text(ratio)} the "
            "bytes; LM head and compute are unchanged."
        )
        return GainEstimate(setting, label, name, low, high, THROUGHPUT, why)
    least, most, possible, quotient = kernels
    low = _factor(whole.total, whole.total - min(CERTAIN * least, least / CERTAIN))
    high = _factor(whole.total, whole.total - min(POSSIBLE * most, possible))
    high = max(1.0, SLACK * high if most > 0 else high)
    why = (
        f"Linear layers with {value} weights take {factor_text(quotient)} the time, as measured "
        "with the kernels of this machine. LM head, attention and the rest are unchanged."
    )
    return GainEstimate(setting, label, name, min(low, high), high, THROUGHPUT, why)


def _factor(before: float, after: float) -> float:
    return before / after if after > 0 and before > 0 else 1.0


def _kv_dtype(situation: Situation) -> GainEstimate | None:
    model, plan = situation.snapshot.model, situation.snapshot.memory.plan
    setting, label, value = "kv_cache_dtype", "KV cache dtype", "INT8"
    narrow = 8 + 16 / model.head_dim  # with a 16-bit scale for each token and head
    names = (plan.key_dtype or model.dtype, plan.value_dtype or model.dtype)
    now = sum(narrow if n in KV_NAMES else ITEM_BITS.get(n, 16) for n in names) / 2
    if narrow >= now:
        why = "The KV cache is in 8 bits already."
        return GainEstimate(setting, label, value, 1.0, 1.0, THROUGHPUT, why, is_on=True)
    factor = narrow / now
    why = (
        f"Reading the KV cache takes {percent_text(situation.whole.shares().kv)} of step time. An "
        f"8-bit cache needs {factor_text(factor)} the bytes and stores more tokens."
    )

    def smaller(work: Work) -> Work:
        return work._replace(kv=work.kv * factor)

    _, high = range_of(situation, smaller)
    return GainEstimate(setting, label, value, 1.0, high, THROUGHPUT, why)


# Settings that change the batch --------------------------------------------------


def _batch_size(situation: Situation) -> GainEstimate:
    config: Any = situation.snapshot.config
    places, decoding = config.max_num_seqs, situation.decoding
    label, setting = "Max running requests", "max_num_seqs"
    running = fmean([len(s.step.entries) for s in situation.steps])
    waiting = fmean([s.step.num_waiting for s in situation.steps])
    if waiting < 0.5 or not decoding.steps:
        why = f"No requests are waiting: {running:.1f} of {places} batch slots in use on average."
        return GainEstimate(setting, label, "more batch slots", 1.0, 1.0, THROUGHPUT, why)
    growth = (running + waiting) / running

    def more(work: Work) -> Work:
        return Work(
            work.weights, work.fixed_weights, work.linear * growth, work.kv * growth,
            work.attention * growth,
        )  # fmt: skip

    slower, slowest = slower_by(decoding, more, growth, more_with_rows(decoding, growth))
    # prompts are computed as before, or in fewer and larger steps
    before, own = situation.whole.total, decoding.whole.total
    low = _factor(before, own * max(slowest, slower) / growth + before - own)
    high = _factor(before, own * slower / growth + _prompts_at_peak(situation))
    why = (
        f"{waiting:.1f} requests are waiting on average. Running them makes steps "
        f"{factor_text(slower)} as long or longer but yields {factor_text(growth)} the tokens: "
        "weights are read once per step."
    )
    value = f"{round(running + waiting)}"
    return GainEstimate(setting, label, value, min(low, high), max(1.0, high), THROUGHPUT, why)


def _prefix_caching(situation: Situation) -> GainEstimate:
    """The bound: every prompt token but the last is cached. What is left of successive steps is
    computed in one step, up to the token budget: it reads the weights once."""
    config: Any = situation.snapshot.config
    before, after = situation.whole.total, 0.0
    joined = 0  # tokens of the step that others join
    for step in situation.steps:
        split, least = step.split, step.batch.least
        if step.batch.only_decodes:
            after += split.total
            joined = 0
            continue
        if not least.tokens:
            continue
        work = situation.model.work_of(least)
        joins = joined > 0 and joined + least.tokens <= config.max_num_batched_tokens
        joined = joined + least.tokens if joins else least.tokens
        if joins:
            work = work._replace(weights=0.0, fixed_weights=0.0)
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
    high = 1.0 if is_on else times_faster(before, after)
    return GainEstimate(
        setting, "Prefix caching", value, 1.0, high, THROUGHPUT, why, is_bound=True, is_on=is_on
    )


def _chunk_budget(situation: Situation) -> GainEstimate:
    """The bound: whole prompts in one step, at the peak rates. The cost of reading the weights, and
    all time beyond the peak rates, is spread over so many tokens that it is counted as zero. Tokens
    decoded beside prompts join other decode steps."""
    config: Any = situation.snapshot.config
    setting, label = "max_num_batched_tokens", "Max batched tokens"
    count = sum(s.batch.has_parts for s in situation.steps if not s.batch.only_decodes)
    if not count:
        why = f"No prompt was split at {config.max_num_batched_tokens:,} max batched tokens."
        return GainEstimate(setting, label, "larger token budget", 1.0, 1.0, THROUGHPUT, why)
    why = (
        f"{count} of {len(situation.steps)} steps computed part of a prompt. Whole prompts in one "
        "step read the weights less often, but increase the ITL of other requests."
    )
    after = situation.decoding.whole.total + _prompts_at_peak(situation)
    high = times_faster(situation.whole.total, after)
    return GainEstimate(
        setting, label, "larger token budget", 1.0, high, THROUGHPUT, why, is_bound=True
    )


def _prompts_at_peak(situation: Situation) -> float:
    """Seconds of the steps that compute prompts, without reading the weights."""
    found = 0.0
    for step in situation.steps:
        if not step.batch.only_decodes:
            work = step.work._replace(weights=0.0, fixed_weights=0.0)
            found += min(least_time(work, situation.peaks).floor * step.speed, step.split.total)
    return found


def _speculation(situation: Situation) -> GainEstimate | None:
    """From no draft token accepted to all of them, drafted in no time."""
    config: Any = situation.snapshot.config
    setting, label, value = "speculative_method", "Speculation", f"{DRAFT_LENGTH} draft tokens"
    method = getattr(config, setting, "off")
    if method != "off":
        why = f"Speculation uses {speculative_name(method)} already."
        return GainEstimate(setting, label, value, 1.0, 1.0, DECODE, why, is_on=True)
    if not situation.decoding.steps:
        return None
    rows = DRAFT_LENGTH + 1

    def verify(work: Work) -> Work:
        return work._replace(linear=work.linear * rows, attention=work.attention * rows)

    more = more_with_rows(situation.decoding, rows)
    slower, slowest = slower_by(situation.decoding, verify, rows, more)
    most = factor_text(rows / slower)
    why = (
        f"Verifying {DRAFT_LENGTH} draft tokens makes decode steps {factor_text(slower)} as long "
        f"or longer. A step yields 1 to {rows} tokens: the gain depends on how many are accepted "
        f"and is at most {most}."
    )
    low, high = 1 / max(slower, slowest), max(1.0, rows / slower)
    return GainEstimate(setting, label, value, low, high, DECODE, why, is_bound=True)
