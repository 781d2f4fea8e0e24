"""One source of figures: what belongs to an epoch, where it is cut, what is said of it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.snapshot import Counters, EngineSnapshot, Sample, StepRecord, ThreadFigures
from tests.widgets.synthetic import CONFIG, MODEL, requests, snapshot
from widgets.live.figures import header_values
from widgets.live.metric_store import RATE_S, SPAN_S, MetricStore, memory_parts, memory_used
from widgets.live.statistics import FEW, Figures
from widgets.live.totals import PercentileLine, RunningTotal, later

OTHER = CONFIG.replace(max_num_seqs=3)


def at(time: float, *ttft_ms: float, since: float = 0.0, **changes: Any) -> EngineSnapshot:
    """A snapshot at `time` with TTFT samples that ended at `time`."""
    samples = tuple(Sample(time, ms / 1e3) for ms in ttft_ms)
    return replace(snapshot(time, ttft=samples), settings_since=since, **changes)


def fed(*snapshots: EngineSnapshot) -> MetricStore:
    store = MetricStore()
    for one in snapshots:
        store.update(one)
    return store


# Epochs ---------------------------------------------------------------------------------------


def test_nothing_measured_is_nothing_shown() -> None:
    store = MetricStore()
    assert store.latency("ttft").p50 is None and store.rate("out", 5.0) is None
    assert store.prefix_hits() is None and store.epoch is None and store.began == math.inf
    store.update(at(10.0, since=9.0))
    assert store.latency("ttft").num_samples == 0 and store.latency("ttft").since == 9.0


def test_a_change_cuts_what_is_shown_and_leaves_a_ghost() -> None:
    store = fed(at(10.0, 60, 63, 66, since=5.0))
    assert store.latency("ttft").p50 == 63
    # one snapshot with samples from both sides of the change, and one across it
    late = (Sample(19.0, 0.05), Sample(20.5, 1.2), Sample(23.0, 1.5))
    changed = at(23.5, since=20.0, config=OTHER)
    store.update(replace(changed, ttft=late))
    shown = store.latency("ttft")
    assert (shown.num_samples, shown.p50, shown.since) == (1, 1500, 20.0)
    assert store.latency("ttft", 19.5).num_samples == 4
    before = store.before("ttft")
    assert before is not None and before.p50 == pytest.approx(61.5)
    earlier = store.epoch_at(19.5)
    assert earlier is not None and earlier.end == 20.0


def test_a_value_that_was_stepped_through_leaves_no_ghost() -> None:
    store = fed(at(10.0, 60, since=5.0), at(21.0, 900, since=20.0, config=OTHER))
    store.update(at(23.0, 500, since=22.0))
    before = store.before("ttft")
    assert before is not None and before.p50 == 60  # 900 ms held for 2 s
    held = fed(at(10.0, 60, since=5.0), at(21.0, 900, since=20.0, config=OTHER))
    held.update(at(31.0, 500, since=30.0))
    before = held.before("ttft")
    assert before is not None and before.p50 == 900


def test_the_same_settings_applied_again_are_a_change() -> None:
    store = fed(at(10.0, 60, since=5.0), at(20.0, 50, since=15.0))
    assert store.latency("ttft").p50 == 50 and len(store._epochs) == 2
    store.update(at(21.0, 70, since=15.01))  # the clock of a server that was reached again
    assert store.latency("ttft").p50 == 60 and len(store._epochs) == 2


def test_a_change_that_is_not_timed_starts_with_the_snapshot_that_shows_it() -> None:
    store = fed(at(10.0, 60), at(20.0, 1000, config=OTHER))
    assert store.latency("ttft").num_samples == 0
    store.update(at(21.0, 900, config=OTHER))
    assert store.latency("ttft").p50 == 900


def test_another_model_shows_nothing_of_the_one_before() -> None:
    store = fed(at(10.0, 73_556, since=-100.0))
    store.end()
    assert store.epoch is None and store.latency("ttft").p50 is None
    assert {value.text for value in header_values(store, 11.0).values()} == {"–"}
    store.update(at(30.0, since=29.0, model=replace(MODEL, path="/models/other")))
    values = header_values(store, 30.0)
    assert values["ttft"].text == values["itl"].text == values["output"].text == "–"
    assert store.before("ttft") is None
    store.update(at(40.0, since=39.0))  # the first one again
    before = store.before("ttft")
    assert before is not None and before.p50 == 73_556


def test_a_load_that_was_refused_changes_nothing() -> None:
    store = fed(at(10.0, 60, since=5.0))
    store.end()
    store.update(at(12.0, 62, since=5.0))
    assert store.latency("ttft").num_samples == 2 and len(store._epochs) == 1


def test_another_engines_past_does_not_disturb_the_order() -> None:
    store = fed(at(10.0, 60, since=5.0))
    store.end()
    other = replace(MODEL, path="/elsewhere")
    store.update(at(4.0, 7, since=1.0, model=other))
    samples = (Sample(3.0, 1), Sample(11, 0.5))
    store.update(replace(at(11.0, since=1.0, model=other), ttft=samples))
    shown = store.latency("ttft")
    assert shown.num_samples == 1 and shown.since == pytest.approx(10.0)
    assert (np.diff(store.rings["ttft"].times) >= 0).all()


EVENTS = st.lists(
    st.tuples(st.floats(0.01, 30.0), st.floats(0.001, 40.0), st.booleans()), min_size=1, max_size=60
)


@given(EVENTS, st.integers(1, 7))
def test_a_sample_counts_in_the_epoch_in_which_it_began_and_ended(
    events: list[tuple[float, float, bool]], merged: int
) -> None:
    """However many states are merged into one that is shown."""
    time, changes, samples, pending = 100.0, [100.0], [], []
    store = MetricStore()
    store.update(at(100.0, since=100.0))
    for number, (gap, value, is_change) in enumerate(events):
        time += gap
        if is_change and pending:  # states with different settings are not merged
            store.update(replace(at(time, since=changes[-1]), ttft=tuple(pending)))
            pending.clear()
        if is_change:
            changes.append(time)
            store.update(at(time, since=time))
        else:
            pending.append(Sample(time, value))
            samples.append(Sample(time, value))
        if number % merged == 0:
            store.update(replace(at(time, since=changes[-1]), ttft=tuple(pending)))
            pending.clear()
    store.update(replace(at(time + 1, since=changes[-1]), ttft=tuple(pending)))
    bounds = [*changes, math.inf]
    for start, end in itertools.pairwise(bounds):
        own = [s for s in samples if start <= s.time < end and s.time - s.value >= start]
        found = store.latency("ttft", min(end - 1e-9, time + 1))
        own = [s.value * 1e3 for s in own if s.time > own[-1].time - SPAN_S]
        assert found.num_samples == len(own)
        if own:
            assert found.p50 == pytest.approx(float(np.median(own)))
            assert found.largest == pytest.approx(max(own))
    ring = store.rings["ttft"]
    assert len(ring) == len(samples)  # all are tokens, also those of no epoch


def test_after_a_change_three_samples_are_enough_for_the_shown_p50() -> None:
    """Old samples do not weigh on it, and the line of the charts follows within two seconds."""
    store = fed(*(at(t, 60, since=1.0) for t in np.arange(2.0, 60.0, 0.5)))
    for time, ms in ((62.0, 1500), (64.0, 1600), (66.0, 1700)):
        store.update(at(time, ms, since=60.0, config=OTHER))
    assert store.latency("ttft").p50 == 1600
    store.update(at(66.5, since=60.0, config=OTHER))
    times, values = store.line("ttft").p50.times, store.line("ttft").p50.values
    assert values[times <= 68.0][-1] == 1600
    between = values[(times >= 60.0) & (times < 62.0)]
    assert np.isnan(between).all()


# Statistics -----------------------------------------------------------------------------------


def test_p99_needs_a_hundred_samples() -> None:
    few, enough = Figures.of(np.arange(99.0)), Figures.of(np.arange(100.0))
    assert few.p99 is None and few.largest == few.high == 98 and few.num_samples == 99
    assert enough.p99 is not None and enough.high == enough.p99
    assert Figures.of(np.empty(0)) == Figures() == Figures.of(np.array([math.nan]))
    many = Figures.of(np.arange(1001.0))
    assert (many.p50, many.p99) == (500.0, 990.0)


def test_figures_are_of_the_minute_before_the_newest_sample() -> None:
    store = fed(at(5.0, 500, since=1.0), at(50.0, 100, since=1.0), at(100.0, 300, since=1.0))
    for now in (100.0, 130.0, 1000.0):  # idle: it stays what it was
        shown = store.latency("ttft", now)
        assert (shown.num_samples, shown.p50, shown.newest) == (2, 200, 100.0)
    assert store.latency("ttft", 60.0).p50 == 300  # as it was shown then


def test_few_samples_and_age_are_said() -> None:
    store = fed(at(5.0, *[50] * (FEW - 1), since=1.0))
    value = header_values(store, 6.0)["ttft"]
    assert store.latency("ttft").is_few and not value.is_firm and str(FEW - 1) in value.few
    store.update(at(6.0, 50, since=1.0))
    value = header_values(store, 7.0)["ttft"]
    assert value.is_firm and value.few == ""
    old = header_values(store, 6.0 + 3 * 60)["ttft"]
    assert not old.is_firm and old.text == value.text and "3" in old.more


def test_a_busy_machine_is_said() -> None:
    busy, calm = ThreadFigures(2, 1, 1, 1.25), ThreadFigures(2, 2, 2, 0.1)
    samples = [50.0] * FEW
    store = fed(*(at(t, *samples, since=1.0, threads=busy) for t in (2.0, 3.0)))
    value = header_values(store, 3.0)["ttft"]
    assert store.latency("ttft").other_cores == 1.25 and not value.is_firm and "1.2" in value.more
    for t in range(4, 40):
        store.update(at(float(t), *samples, since=1.0, threads=calm))
    assert not store.latency("ttft").is_busy_machine
    assert store.figures(1.5, 3.0)["ttft"].is_busy_machine
    assert not store.figures(5.0, 39.0)["ttft"].is_busy_machine


# Totals ---------------------------------------------------------------------------------------


def counted(
    time: float, out: int, hits: int = 0, queries: int = 0, **changes: Any
) -> EngineSnapshot:
    counters = Counters(prompt_tokens=out, generation_tokens=out, prefix_queries=queries,
                        prefix_hits=hits)  # fmt: skip
    return replace(at(time, **changes), counters=counters)


def test_rates_start_anew_at_a_change_and_come_to_rest() -> None:
    store = fed(*(counted(t, int(100 * t), since=1.0) for t in np.arange(1.0, 10.25, 0.25)))
    assert store.rate("out", 10.0) == pytest.approx(100)
    for t in np.arange(10.25, 16.0, 0.25):
        store.update(counted(t, int(1000 + 20 * (t - 10)), since=10.0, config=OTHER))
    assert store.rate_at("out", 12) == pytest.approx(20, rel=0.1)
    assert store.rate("out", 16.0) == pytest.approx(20, rel=0.1)
    assert store.rate("out", 16.0 + RATE_S + 2) == 0
    store.update(counted(40.0, 1115, since=39.0))
    assert store.rate("out", 50.0) is None


def test_a_window_that_is_late_shows_the_last_rate_of_running_requests() -> None:
    running = requests(2, 0)
    times = np.arange(1.0, 10.25, 0.25)
    store = fed(*(counted(t, int(100 * t), since=1.0, requests=running) for t in times))
    for late in (0.0, 2.0, 6.0, 9.5):
        assert store.rate("out", 10.0 + late) == pytest.approx(100)
    assert store.rate("out", 21.0) is None
    for t in np.arange(21.0, 25.0, 0.25):  # the seconds in between come with the snapshots
        store.update(counted(t, int(100 * t), since=1.0, requests=running))
    assert store.rate("out", 25.0) == pytest.approx(100)
    store.update(counted(25.5, 2550, since=1.0))  # idle: nothing more comes
    assert store.rate("out", 40.0) == 0


def test_an_idle_minute_does_not_thin_the_next_tokens() -> None:
    total = RunningTotal()
    total.add(0.0, 50)
    total.add(60.0, 60)
    assert total.at(58.9) == 0 and total.at(60.0) == 10 and total.at(1e9) == 10
    total.add(61.0, 4)  # the engine was started again
    assert total.between(60.0, 61.0) == 4
    total.restart()
    total.add(62.0, 1000)
    assert total.at(70.0) == 14
    assert total.grew_until(70.0) == 61.0


def test_all_that_a_fresh_engine_counted_counts() -> None:
    step = StepRecord(0, 1.0, 0.1, (), 1, 0)
    first = replace(counted(2.0, 30, 10, 40, since=0.5), step_index=2, steps=(step, step))
    store = fed(first)
    share = store.prefix_hits()
    assert share is not None and share.rate == pytest.approx(0.25) and share.num_tokens == 40
    assert fed(replace(first, step_index=9)).prefix_hits() is None  # of which time is not known


def test_requests_count_where_they_are_completed_whatever_they_waited_for() -> None:
    """Those that arrived before a change have no latency of either side."""
    done = lambda time, n, **changes: replace(
        at(time, **changes), counters=Counters(finished={"stop": n, "length": n, "abort": 9 * n})
    )
    store = fed(done(0.0, 0), done(9.5, 20), done(10.0, 20), done(10.5, 20, config=OTHER))
    store.update(replace(done(20.0, 26, config=OTHER), ttft=(Sample(20.0, 15.0),)))
    assert (store.completed(0.0, 10.0), store.completed(10.0, 20.0)) == (40, 12)


def test_prefix_hits_are_of_the_last_minute_in_the_epoch() -> None:
    store = fed(*(counted(float(t), 0, h, q, since=1.0) for t, h, q in
                  ((1, 0, 1000), (30, 30, 1100), (100, 110, 1200), (130, 210, 1300))))  # fmt: skip
    share = store.prefix_hits()
    assert share is not None and share.rate == pytest.approx(0.9) and share.num_tokens == 200
    store.update(counted(140.0, 0, 210, 1300, since=139.0))
    assert store.prefix_hits() is None
    store.update(counted(141.0, 0, 210, 1350, since=139.0))
    assert store.prefix_hits() == (0.0, 50, 141.0)


# Lines and bounds -----------------------------------------------------------------------------


def test_a_line_does_not_depend_on_how_often_it_is_asked() -> None:
    times = np.linspace(0.2, 20, 400)

    def run(asked: list[float]) -> list[tuple[float, float]]:
        store = MetricStore()
        store.update(at(0.0, since=-1.0))
        line = PercentileLine(lambda t: store.latency("itl", t), SPAN_S)
        store.update(replace(at(25.0, since=-1.0), itl=tuple(
            Sample(t, 1e-3 * n) for n, t in enumerate(times.tolist()))))  # fmt: skip
        for until in asked:
            line.advance(0.2, until)
        return list(zip(*later(line.p50, -1.0), strict=True))

    often, once = run([0.1 * i for i in range(250)]), run([24.9])
    assert often == once and once[0][0] == 0.5 and once[-1][0] == 24.5
    assert dict(once)[10.0] == pytest.approx(np.median(np.arange(400.0)[times <= 10.0]), abs=1)


def test_a_line_catches_up_with_bounded_work() -> None:
    store = fed(at(1.0, 5, since=0.5))
    line = PercentileLine(lambda t: store.latency("ttft", t), SPAN_S)
    line.advance(1.0, 2.0)
    line.advance(1.0, 100_000.0)
    caught_up = later(line.p50, 2.0)[0]
    assert 60 <= len(caught_up) <= 121
    assert caught_up[0] >= 100_000.0 - 1201 and caught_up[-1] >= 100_000.0 - 11


def test_a_day_is_bounded() -> None:
    store = MetricStore()
    for n in range(6000):
        time, since = 10.0 * n + 1, 500.0 * (n // 50)
        sample = (Sample(time, 0.03),) * 30
        store.update(replace(at(time, since=since + 0.5), ttft=sample, itl=sample))
    assert len(store._epochs) == 64 and len(store._memo) <= 16
    assert all(len(ring) <= ring.capacity for ring in store.rings.values())
    assert store.complete_since == store.rings["ttft"].times[0]


# Ranges ---------------------------------------------------------------------------------------


def test_long_latencies_are_in_seconds() -> None:
    value = header_values(fed(at(50.0, 24_640, since=1.0)), 50.0)["ttft"]
    assert (value.text, value.unit) == ("24.6", "s")
    value = header_values(fed(at(50.0, 1_640, since=1.0)), 50.0)["ttft"]
    assert (value.text, value.unit) == ("1.64", "s")
    value = header_values(fed(at(50.0, 940, since=1.0)), 50.0)["ttft"]
    assert (value.text, value.unit) == ("940", "")


def test_a_far_shorter_latency_beside_seconds_has_its_own_unit() -> None:
    for low, text in ((3.0, "3.0 ms / 1.93"), (440.0, "0.440 / 1.93")):
        samples = [Sample(50.0, ms / 1e3) for ms in [low] * 100 + [1930.0] * 4]
        value = header_values(fed(replace(at(50.0, since=1.0), itl=tuple(samples))), 50.0)["itl"]
        assert (value.text, value.unit) == (text, "s")


def test_blocks_without_tokens_are_told_where_they_take_memory() -> None:
    seen = at(5.0, since=1.0)
    blocks = snapshot(5.0, num_used=1000).blocks
    fill = np.where(np.arange(len(blocks.fill)) < 40, 16, 0).astype(np.int32)
    size = seen.memory.plan.bytes_per_block
    rest = seen.memory.process - seen.memory.weights
    held = replace(seen.memory, kv_used=1000 * size, other=rest - 40 * size)
    seen = replace(seen, memory=held, blocks=replace(blocks, fill=fill))
    parts = memory_parts(seen)
    assert parts["kv_used"] == 40 * size and parts["kv_reserved"] == 0
    assert sum(parts.values()) == memory_used(seen) == seen.memory.process
    process = held.weights + held.kv_cache + 7
    whole = replace(held, process=process, other=7)
    parts = memory_parts(replace(seen, memory=whole))
    assert parts["kv_reserved"] == held.kv_cache - 40 * size and parts["other"] == 7
