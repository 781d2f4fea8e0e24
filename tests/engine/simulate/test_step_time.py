"""The fit of step times: on steps whose times follow a known rule, with noise and interruptions."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.simulate.step_time import (
    EVICTING,
    KEPT,
    LEAST_STEPS,
    Measured,
    Noise,
    StepTimes,
    StepWork,
    measured,
)
from engine.snapshot import StepEntry, StepRecord

SIZE = 16


def entry(new: int, reach: int, name: str = "a") -> StepEntry:
    kind = "decode" if new == 1 else "prefill"
    return StepEntry(name, kind, new, num_context=reach, num_logits=1)


def rule(work: StepWork) -> float:
    """Memory-bound up to 8 tokens, then compute-bound; KV is read; prompts are launched."""
    by_tokens = 5e-3 + 1e-4 * max(0, work.tokens - 8) + (2e-3 if work.chunks else 0.0)
    return by_tokens + 3e-4 * work.requests + 1e-6 * work.context + 1e-7 * work.pairs


def works(count: int, seed: int = 0) -> list[StepWork]:
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        entries = [entry(1, rng.randint(10, 1500)) for _ in range(rng.randint(0, 16))]
        if not entries or rng.random() < 0.4:
            new = rng.randint(2, 500)
            entries.append(entry(new, new + rng.randint(0, 1500)))
        found.append(StepWork.of(entries, SIZE, 5))
    return found


def samples(count: int, noise: float = 0.0, seed: int = 0) -> list[Measured]:
    rng = random.Random(seed)
    return [Measured(w, rule(w) * rng.lognormvariate(0, noise)) for w in works(count, seed)]


def errors(times: StepTimes, checked: Sequence[StepWork]) -> np.ndarray:
    return np.array([times.seconds(work) / rule(work) - 1 for work in checked])


def test_the_work_of_a_step_is_counted() -> None:
    entries = [entry(1, 33, "a"), entry(1, 16, "b"), entry(3, 20, "c"), entry(2, 2, "d")]
    work = StepWork.of(entries, SIZE, 5)
    assert work == StepWork(
        tokens=7, requests=4, logits=4, context=49, chunks=2, chunk_context=22,
        # tokens at positions 17, 18, 19 attend to 18, 19, 20; those at 0, 1 to 1 and 2
        pairs=18 + 19 + 20 + 1 + 2, blocks=3 + 1 + 2 + 1, distinct=5 * SIZE,
    )  # fmt: skip


def test_a_rule_without_noise_is_found() -> None:
    times = StepTimes.fit(samples(300))
    assert np.abs(errors(times, works(200, seed=1))).max() < 0.01
    assert times.spread < 0.002


def test_noise_averages_out_and_its_size_is_known() -> None:
    times = StepTimes.fit(samples(600, noise=0.1))
    assert np.abs(errors(times, works(200, seed=1))).mean() < 0.03
    assert times.spread == pytest.approx(0.1 * 0.6745, rel=0.15)  # of a normal distribution


def test_interrupted_steps_move_nothing_and_are_not_replayed() -> None:
    plain = samples(400, noise=0.02)
    rng = random.Random(5)
    busy = [s._replace(seconds=s.seconds + 2.0) if rng.random() < 0.15 else s for s in plain]
    checked = works(200, seed=1)
    apart = errors(StepTimes.fit(busy), checked) - errors(StepTimes.fit(plain), checked)
    assert np.abs(apart).mean() < 0.01
    assert max(StepTimes.fit(busy).decode_ratios) < 3


def test_the_uncertainty_covers_the_error_of_a_sum_and_falls_with_more_steps() -> None:
    checked = works(200, seed=99)
    truth, found = sum(map(rule, checked)), []
    for seed in range(20):
        times = StepTimes.fit(samples(100, noise=0.1, seed=seed))
        error = sum(map(times.seconds, checked)) / truth - 1
        found.append(abs(error) / times.uncertainty(checked))
    assert np.median(found) < 1.5 and np.mean(np.array(found) < 3) >= 0.9
    few, many = (StepTimes.fit(samples(n, noise=0.1)).uncertainty(checked) for n in (60, 1000))
    assert many < few / 2


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(LEAST_STEPS, 60))
def test_more_work_never_takes_less_time(seed: int, count: int) -> None:
    times = StepTimes.fit(samples(count, noise=0.2, seed=seed))
    a, b = works(2, seed + 1)
    both = StepWork(*map(sum, zip(a, b, strict=True)))
    assert times.seconds(both) >= max(times.seconds(a), times.seconds(b)) - 1e-12
    assert times.uncertainty([a]) >= 0


def test_exact_rates_are_the_sum_of_their_parts() -> None:
    times = StepTimes.exact(step=1.0, token=0.5, requests=0.25, context=0.01, launch=3.0)
    work = StepWork.of([entry(1, 100), entry(5000, 5000)], SIZE, 9)
    assert times.seconds(work) == pytest.approx(4.0 + 0.5 * 5001 + 0.25 * 2 + 0.01 * 100)
    decode = StepWork.of([entry(1, 100)], SIZE, 9)
    assert times.seconds(decode) == pytest.approx(1.0 + 0.5 + 0.25 + 0.01 * 100)
    with pytest.raises(ValueError, match="rows"):
        StepTimes.exact(rows=1.0)


def test_kv_in_use_is_read_from_the_record() -> None:
    (one,) = measured([record(0, 0.0, 1.0, kv_usage=0.29)], SIZE, 100)
    assert one.work.distinct == 29 * SIZE


def test_too_few_steps_make_no_model() -> None:
    with pytest.raises(ValueError, match="15 steps"):
        StepTimes.fit(samples(LEAST_STEPS - 1))


def test_noise_repeats_the_measured_deviations_in_their_order() -> None:
    times = StepTimes.fit(samples(100, noise=0.1))
    work = StepWork.of([entry(1, 10)], SIZE, 1)
    count = len(times.decode_ratios)
    runs = [Noise(times), Noise(times)]
    first, second = ([noise.seconds(work) for _ in range(2 * count)] for noise in runs)
    assert first == second
    assert first[:count] == first[count:]
    np.testing.assert_allclose(np.array(first[:count]) / times.seconds(work), times.decode_ratios)


def record(index: int, start: float, duration: float, **changes: object) -> StepRecord:
    values: dict[str, object] = {"entries": (entry(1, 10),), "num_running": 1, "num_waiting": 0}
    return StepRecord(index, start, duration, **{**values, **changes})  # type: ignore[arg-type]


def test_a_steps_time_has_the_pause_before_it_if_requests_waited() -> None:
    steps = [
        record(0, 10.0, 0.5),
        record(1, 10.75, 0.5, num_running=0),  # a pause of 0.25 s
        record(2, 12.0, 0.5),  # nobody waited
        record(4, 13.0, 0.5),  # the step before it is not known
    ]
    assert [m.seconds for m in measured(steps, SIZE, 100)] == [0.5, 0.75, 0.5, 0.5]


def test_decode_steps_read_again_what_prompts_have_evicted() -> None:
    half = EVICTING // 2
    steps = [
        record(0, 0.0, 1.0, entries=(entry(1, 9), entry(half, half, "b"))),
        record(1, 1.0, 1.0, entries=(entry(2 * EVICTING, 2 * EVICTING),)),
        record(2, 2.0, 1.0),
        record(3, 3.0, 1.0),
    ]
    works = [one.work for one in measured(steps, SIZE, 100)]
    assert [work.evicted for work in works] == [0.0, 0.5, 1.0, KEPT]
    (later,) = measured(steps[2:3], SIZE, 100, steps[1], works[1].evicted_next)
    assert later.work.evicted == 1.0
    times = StepTimes.exact(step=1.0, evicted=4.0)
    assert [times.seconds(work) for work in works] == [1.0, 1.0, 5.0, 1.0 + 4 * KEPT]


def test_steps_with_drafts_are_left_out() -> None:
    drafted = entry(1, 10)._replace(num_draft=2)
    assert measured([record(0, 0.0, 1.0, entries=(drafted,))], SIZE, 100) == []


def test_a_replay_computes_with_python_s_floats() -> None:
    """Numpy's are slower, and no JSON."""
    works = [StepWork(n, n, n, 16 * n, 0, 0, 0, n, 16 * n) for n in range(1, 33)]
    times = StepTimes.fit([Measured(work, 1e-3 + 1e-5 * work.tokens) for work in works])
    noise = Noise(times)
    assert type(noise.seconds(works[0])) is float
    assert {type(one) for one in noise.ahead(works)} == {float}
