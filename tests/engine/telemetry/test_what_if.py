"""What a setting would gain: a range that holds whatever a step really costs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.hardware.peaks import Peaks, WeightRate
from engine.snapshot import StepEntry, StepRecord
from engine.telemetry.gain import DECODE as DECODE_RATE
from engine.telemetry.gain import THROUGHPUT, GainEstimate, MeasuredGain, corrected
from engine.telemetry.situation import Situation
from engine.telemetry.step_cost import ModelCost, Work, least_time
from engine.telemetry.what_if import gain_estimates
from tests.engine.telemetry.test_step_cost import (
    COST,
    DECODE,
    MODEL,
    PEAKS,
    costed,
    prefill,
    snapshot,
    step,
    steps,
)

RATES = tuple(
    WeightRate(method, rows, seconds * (1 + rows / 64))
    for method, seconds in (("none", 8e-11), ("int8", 4e-11), ("int4", 3e-11))
    for rows in (1, 4, 16, 64)
)
WITH_RATES = dataclasses.replace(PEAKS, weight_rates=RATES)


def situation(*records: StepRecord, peaks: Peaks = PEAKS, **changes: Any) -> Situation:
    return Situation(costed(records), COST, peaks, snapshot(**changes))


def configured(**values: object) -> Any:
    return type("Config", (), {**vars(type(snapshot().config)), **values})()


def by_value(made: Sequence[GainEstimate]) -> dict[str, GainEstimate]:
    return {one.value: one for one in made}


def by_setting(made: Sequence[GainEstimate]) -> dict[str, GainEstimate]:
    return {one.setting: one for one in made}


def smaller(work: Work, factor: float) -> Work:
    body = work.weights - work.fixed_weights
    return work._replace(weights=work.fixed_weights + body * factor)


costs = st.floats(1.0, 20.0)  # times what the peak rates allow
overheads = st.floats(0.0, 1.0)


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=4), costs, costs, overheads)
def test_without_rates_the_range_holds_for_every_cost_of_a_byte(
    contexts: list[int], per_weight: float, per_kv: float, overhead: float
) -> None:
    """Weights and cache are read at any rate below the peak, beside time that does not change."""
    entries = [StepEntry("r", "decode", 1, num_context=n, num_logits=1) for n in contexts]
    work = COST.work(entries)

    def model_s(work: Work) -> float:
        read = work.weights * per_weight + work.kv * per_kv
        return read / PEAKS.read_bytes_per_s + overhead

    before = model_s(work) + 0.003
    made = by_value(gain_estimates(situation(step(*entries, model_s=model_s(work)))))
    for name, bits in (("int8", 8), ("int4", 4.25)):
        gained = before / (model_s(smaller(work, bits / 16)) + 0.003)
        assert made[name].low <= gained * 1.01 and gained <= made[name].high * 1.01


@given(st.integers(1, 64), st.floats(0.75, 1.35), overheads, st.sampled_from([1, 2, 4]))
def test_with_rates_the_range_holds_while_kernels_are_near_their_measurement(
    rows: int, off: float, overhead: float, threads: int
) -> None:
    """However many of the threads compute a product: small matrices are not divided."""
    entries = [DECODE] * rows
    work = COST.work(entries)
    kv = work.kv / PEAKS.read_bytes_per_s
    fixed = work.fixed_weights / PEAKS.read_bytes_per_s

    def model_s(method: str, bits: float) -> float:
        known = [r for r in RATES if r.method == method]
        logs = [math.log(r.rows) for r in known]
        rates = [r.seconds / min(threads, PEAKS.num_threads) for r in known]
        rate = np.interp(math.log(rows), logs, rates)
        rate = max(float(rate), bits / 8 / PEAKS.read_bytes_per_s)
        return COST.flops_per_token / 2 * rate * off + kv + fixed + overhead

    record = step(*entries, model_s=model_s("none", 16))
    made = by_value(gain_estimates(situation(record, peaks=WITH_RATES)))
    for name, bits in (("int8", 8), ("int4", 4.25)):
        gained = (model_s("none", 16) + 0.003) / (model_s(name, bits) + 0.003)
        assert made[name].low <= gained * 1.01 and gained <= made[name].high * 1.01


@given(
    st.integers(1, 8), st.integers(1, 24), st.floats(0.8, 1.3), overheads, st.sampled_from([1, 2])
)
def test_the_range_of_a_larger_batch_holds_while_kernels_are_near_their_measurement(
    rows: int, waiting: int, off: float, overhead: float, threads: int
) -> None:
    """Kernels that compute few rows far below the peak rate, as on a CPU without matrix units."""
    rates = tuple(
        WeightRate("none", n, seconds) for n, seconds in ((1, 1e-10), (4, 1.1e-10), (16, 3.4e-10),
                                                          (64, 1.3e-9))
    )  # fmt: skip
    peaks = dataclasses.replace(PEAKS, weight_rates=rates)

    def model_s(count: int) -> float:
        work = COST.work([DECODE] * count)
        logs, seconds = [math.log(r.rows) for r in rates], [r.seconds / threads for r in rates]
        rate = max(float(np.interp(math.log(count), logs, seconds)), 2 / peaks.read_bytes_per_s)
        read = (work.kv + work.fixed_weights) / peaks.read_bytes_per_s
        return COST.flops_per_token / 2 * rate * off + read + overhead

    record = dataclasses.replace(
        step(*[DECODE] * rows, model_s=model_s(rows)), num_waiting=waiting
    )
    made = by_setting(gain_estimates(situation(record, peaks=peaks)))["max_num_seqs"]
    growth = (rows + waiting) / rows
    gained = growth * (model_s(rows) + 0.003) / (model_s(rows + waiting) + 0.003)
    assert made.low <= gained * 1.01 and gained <= made.high * 1.01


def test_prompts_keep_their_time_in_a_larger_batch() -> None:
    """A load of long prompts gains less from more batch slots than one of replies."""
    decode = dataclasses.replace(step(DECODE, model_s=0.1), num_waiting=7)
    prompt = dataclasses.replace(step(prefill(500, 500), model_s=4.0), num_waiting=7)
    alone, mixed = (
        by_setting(gain_estimates(situation(*records)))["max_num_seqs"]
        for records in ((decode, decode), (decode, decode, prompt))
    )
    assert mixed.high < alone.high and mixed.low < 1.1 < alone.low


def test_the_gain_of_a_small_model_in_float32_is_within_the_range() -> None:
    """256 wide, 2 threads: products of one row, 73 us each, are not divided among the threads. The
    model took 4.2 ms of a step, with int4 1.6 ms."""
    small = dataclasses.replace(
        MODEL, dtype="float32", num_layers=8, hidden_size=256, num_heads=4, num_kv_heads=2,
        head_dim=64, num_parameters=4_461_824, weights_bytes=18_109_440, vocab_size=2048,
        num_lookup_parameters=0, output_bytes=2_097_152,
    )  # fmt: skip
    cost = ModelCost.of(small, kv_bytes_per_token=16_384.0)
    rates = (WeightRate("none", 1, 4.8e-10), WeightRate("int4", 1, 5.1e-11))
    peaks = dataclasses.replace(PEAKS, read_bytes_per_s=13e9, weight_rates=rates)
    records = [step(DECODE._replace(num_context=70), model_s=0.0042)]
    now = dataclasses.replace(snapshot(), model=small)
    made = by_value(gain_estimates(Situation(costed(records, cost), cost, peaks, now)))
    gained = (0.0042 + 0.003) / (0.0016 + 0.003)
    assert made["int4"].low <= gained <= made["int4"].high


@given(st.lists(steps, min_size=1, max_size=6), st.sampled_from([PEAKS, WITH_RATES]))
def test_a_range_is_ordered_and_its_end_never_a_loss(
    records: list[StepRecord], peaks: Peaks
) -> None:
    for one in gain_estimates(situation(*records, peaks=peaks)):
        assert 0 < one.low <= one.high and one.high >= 1.0 and one.why and one.text
        assert math.isfinite(one.high)
        assert not (one.is_on and one.high > 1)


@given(st.floats(0.01, 2.0), st.floats(1.0, 3.0))
def test_the_more_a_step_spends_beside_reading_the_less_is_certain(
    model_s: float, longer: float
) -> None:
    near, far = (
        by_value(gain_estimates(situation(step(DECODE, model_s=seconds))))["int4"]
        for seconds in (0.05 + model_s, 0.05 + model_s * longer)
    )
    assert far.low <= near.low + 1e-9


def test_fewer_bits_gain_more() -> None:
    at_peak = least_time(COST.work([DECODE]), PEAKS).floor
    made = by_value(gain_estimates(situation(step(DECODE, model_s=at_peak))))
    work = COST.work([DECODE])
    body = (work.weights - work.fixed_weights) / PEAKS.read_bytes_per_s
    before = at_peak + 0.003
    expected = before / (before - body * (1 - 4.25 / 16))
    assert (made["int4"].low, made["int4"].high) == pytest.approx((expected, expected))
    assert made["int4"].high > made["int8"].high > 1.5
    assert not made["INT8"].is_worth_trying


def test_a_kernel_that_is_slower_gains_nothing() -> None:
    slow = tuple(r._replace(seconds=9 * r.seconds) if r.method == "int4" else r for r in RATES)
    peaks = dataclasses.replace(PEAKS, weight_rates=slow)
    made = by_value(gain_estimates(situation(step(DECODE, model_s=0.2), peaks=peaks)))
    assert made["int4"].low < 1 == made["int4"].high
    assert made["int8"].is_worth_trying and not made["int4"].is_worth_trying


def test_a_setting_that_is_on_promises_nothing() -> None:
    on = configured(
        quantization="int8", speculative_method="ngram", enable_prefix_caching=True
    )  # fmt: skip
    plan = dataclasses.replace(snapshot().memory.plan, key_dtype="int8", value_dtype="int8")
    memory = dataclasses.replace(snapshot().memory, plan=plan)
    seen = Situation(
        costed([step(DECODE, model_s=0.2)]), COST, PEAKS,
        dataclasses.replace(snapshot(), config=on, memory=memory),
    )  # fmt: skip
    made = gain_estimates(seen)
    for one in made:
        is_on = one.value == "int8" or one.setting in (
            "kv_cache_dtype", "enable_prefix_caching", "speculative_method",
        )  # fmt: skip
        assert one.is_on is is_on
        assert (one.text == "Enabled") is is_on
        assert not (is_on and one.is_worth_trying)


def test_a_narrower_cache_gains_what_is_left_of_it() -> None:
    reading = StepEntry("a", "decode", 1, num_context=100_000, num_logits=1)
    at_peak = least_time(COST.work([reading]), PEAKS).floor
    found = {}
    for keys, values in (("", ""), ("bfloat16", "bfloat16"), ("int8", "bfloat16"), ("int8", "fp8")):
        seen = snapshot()
        plan = dataclasses.replace(seen.memory.plan, key_dtype=keys, value_dtype=values)
        memory = dataclasses.replace(seen.memory, plan=plan)
        made = gain_estimates(situation(step(reading, model_s=at_peak), memory=memory))
        found[keys, values] = by_setting(made)["kv_cache_dtype"]
    plain, half = found["bfloat16", "bfloat16"], found["int8", "bfloat16"]
    assert found["", ""] == plain
    kv = COST.work([reading]).kv / PEAKS.read_bytes_per_s
    narrow = (8 + 16 / 64) / 16
    assert plain.high == pytest.approx((at_peak + 0.003) / (at_peak + 0.003 - kv * (1 - narrow)))
    assert 1 < half.high < plain.high
    assert found["int8", "fp8"].is_on


def test_more_requests_gain_only_while_some_wait() -> None:
    crowd = step(*[DECODE] * 4)
    calm = by_setting(gain_estimates(situation(crowd)))["max_num_seqs"]
    assert calm.high == 1.0 and "4.0 of 16" in calm.why
    queued = dataclasses.replace(crowd, num_waiting=4)
    busy = by_setting(gain_estimates(situation(queued)))["max_num_seqs"]
    assert 1 <= busy.low <= busy.high <= 2.0 and busy.high > 1.5


def test_a_larger_budget_gains_only_where_prompts_were_split() -> None:
    whole = by_setting(gain_estimates(situation(step(prefill(100, 100)))))
    assert whole["max_num_batched_tokens"].high == 1.0
    split = situation(step(prefill(16, 16, logits=0)), step(prefill(16, 32)))
    budget = by_setting(gain_estimates(split))["max_num_batched_tokens"]
    assert budget.high > 1.3 and budget.is_bound and budget.why.startswith("1 of 2 steps")


def test_prefix_caching_gains_at_most_the_prompts() -> None:
    off = configured(enable_prefix_caching=False)
    for record, is_large in ((step(DECODE), False), (step(prefill(2000, 2000), model_s=4.0), True)):
        seen = dataclasses.replace(snapshot(), config=off)
        made = gain_estimates(Situation(costed([record]), COST, PEAKS, seen))
        one = by_setting(made)["enable_prefix_caching"]
        assert one.is_bound and (one.high > 2) is is_large


def test_cached_prompts_of_successive_steps_run_in_one() -> None:
    """So far as the token budget allows: each step more reads the weights once more."""
    records = [step(prefill(500, 500), model_s=2.0) for _ in range(4)]
    after = {}
    for budget in (1, 2, 4):
        config = configured(enable_prefix_caching=False, max_num_batched_tokens=budget)
        seen = dataclasses.replace(snapshot(), config=config)
        made = gain_estimates(Situation(costed(records), COST, PEAKS, seen))
        after[budget] = 4 * 2.003 / by_setting(made)["enable_prefix_caching"].high
    weights_s = COST.work(records[0].entries).weights / PEAKS.read_bytes_per_s
    assert after[1] - after[2] == pytest.approx(2 * weights_s, rel=0.1)
    assert after[2] - after[4] == pytest.approx(weights_s, rel=0.1)


estimates = st.builds(
    lambda low, more: GainEstimate("s", "S", "v", low, max(1.0, low * more), THROUGHPUT, "Why."),
    st.floats(0.2, 3.0), st.floats(1.0, 3.0),
)  # fmt: skip
measured = st.builds(MeasuredGain, st.floats(0.1, 10.0), st.floats(0.0, 0.3))


@given(estimates, measured)
def test_an_estimate_includes_what_was_measured_and_says_so(
    one: GainEstimate, gain: MeasuredGain
) -> None:
    found = corrected(one, gain)
    least, most = gain.factor * (1 - gain.noise), gain.factor * (1 + gain.noise)
    assert found.low <= most * (1 + 1e-9) and least <= found.high * (1 + 1e-9)
    assert found.low <= one.low and found.high >= one.high and found.why != one.why
    was_missed = most < one.low or least > one.high
    assert ((found.low, found.high) != (one.low, one.high)) is was_missed
    again = corrected(found._replace(why=one.why), gain)
    assert (again.low, again.high) == pytest.approx((found.low, found.high))
    assert corrected(one, None) == one


@pytest.mark.parametrize("low", (0.3, 1.1, 3.14))
@pytest.mark.parametrize("gains", (THROUGHPUT, DECODE_RATE))
def test_a_gain_says_of_what(low: float, gains: str) -> None:
    one = GainEstimate("s", "S", "v", low, 3.14, gains, "Why.")
    assert one.text.endswith(gains) and one._replace(is_bound=True).text.endswith(gains)


def test_one_slow_step_does_not_widen_the_estimates() -> None:
    usual = [step(DECODE, start=0.06 * number) for number in range(30)]
    slow = step(DECODE, start=1.8, model_s=8.0)
    plain, disturbed = situation(*usual), situation(*usual, slow)
    assert disturbed.usual.whole == pytest.approx(plain.whole)
    assert gain_estimates(disturbed.usual) == gain_estimates(plain)
    half = situation(*usual, *[slow] * 15)
    assert half.usual is half and plain.usual is plain
