"""Replays of recorded loads, against the same load on a scripted engine of known step times."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine.errors import ConfigError
from engine.sampling_params import SamplingParams
from engine.simulate.engine import SimulatedEngine
from engine.simulate.replay import replay
from engine.simulate.traffic import Load, Traffic
from engine.snapshot import EngineSnapshot
from tests.engine.simulate.scripted import KNOWN, like, serve, watched
from tests.tiers import first_fast
from tests.widgets import synthetic

CHANGES: list[dict[str, Any]] = [
    {}, {"max_num_seqs": 3}, {"max_num_seqs": 12}, {"max_num_batched_tokens": 48},
    {"batching": "static"}, {"enable_prefix_caching": False}, {"enable_chunked_prefill": False},
    {"block_size": 32}, {"kv_cache_memory_bytes": 150 * synthetic.PLAN.bytes_per_block},
]  # fmt: skip


def figures(snapshots: Iterator[EngineSnapshot], since: float = 0.0) -> dict[str, float]:
    """Of the samples after `since`."""
    found = list(snapshots)
    ttft = [one.value for s in found for one in s.ttft if one.time > since]
    itl = [one.value for s in found for one in s.itl if one.time > since]
    return {
        "itl p50": float(np.median(itl)),
        "ttft p50": float(np.median(ttft)),
        "ttft p99": float(np.percentile(ttft, 99)),
        "tokens": float(len(itl) + len(ttft)),
    }


def apart(one: dict[str, float], other: dict[str, float]) -> float:
    return max(abs(one[name] / value - 1) for name, value in other.items())


@pytest.fixture(scope="module")
def arriving() -> Traffic:
    return watched(serve(SimulatedEngine(like(), KNOWN), 20.0, None, rate=6.0))


@pytest.fixture(scope="module")
def steady() -> Traffic:
    return watched(serve(SimulatedEngine(like(), KNOWN), 22.0, 6))


@pytest.mark.parametrize("change", first_fast(3, CHANGES), ids=str)
def test_arrivals_are_replayed_at_other_settings(arriving: Traffic, change: dict[str, Any]) -> None:
    """Within 1 % of the engine itself, from steps with the settings before; exactly where the
    times of steps are known, of sizes too that were not measured."""
    load = arriving.load()
    assert load.concurrency is None
    truth = figures(serve(SimulatedEngine(like(), KNOWN, **change), 20.0, None, rate=6.0))
    exact = figures(replay(like(), KNOWN, load, change))
    assert apart(exact, truth) < 1e-3
    predicted = figures(replay(like(), arriving.times(), load, change))
    assert apart(predicted, truth) < (0.03 if "max_num_batched_tokens" in change else 0.01)


@pytest.mark.parametrize(
    "change", first_fast(1, [{"max_num_seqs": 3}, {}, {"batching": "static"}]), ids=str
)
def test_a_closed_loop_sends_as_fast_as_it_is_served(
    steady: Traffic, change: dict[str, Any]
) -> None:
    load = steady.load(seconds=18.0)
    assert load.concurrency == 6 and load.gap_s < 0.01
    assert sum(sent.num_done > 0 for sent in load.requests) >= 5  # in flight when it began
    predicted = figures(replay(like(), steady.times(), load, change), load.start + 3)
    real = SimulatedEngine(like(), KNOWN, **change)
    truth = figures(serve(real, 22.0, 6), load.start + 3)
    # the requests are not the same ones, and the slowest of some hundred differs
    assert apart(predicted, {name: truth[name] for name in truth if "99" not in name}) < 0.03


def test_what_was_in_flight_and_cached_at_the_start_goes_on(arriving: Traffic) -> None:
    """With the settings as they are, the second half of the load alone is predicted as it was."""
    load = arriving.load(seconds=10.0)
    assert load.start == pytest.approx(arriving.load().end - 10.0)
    assert any(sent.num_done for sent in load.requests)
    predicted = figures(replay(like(), arriving.times(), load, {}), load.start)
    snapshots = serve(SimulatedEngine(like(), KNOWN), 20.0, None, rate=6.0)
    assert apart(predicted, figures(snapshots, load.start)) < 0.01


def test_a_replay_is_the_same_each_time(arriving: Traffic) -> None:
    runs = [list(replay(like(), arriving.times(), arriving.load(), {})) for _ in range(2)]
    assert [s.steps for s in runs[0]] == [s.steps for s in runs[1]]
    times = [s.time for s in runs[0]]
    assert times == sorted(times) and times[-1] >= arriving.load().end


def test_lengths_that_are_not_known_yet_are_expected_from_the_others() -> None:
    """From max_tokens where replies end there; from longer replies where they end before."""
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    for stops_at, expected in ((None, {40}), (25, {25})):
        engine, traffic, lengths = SimulatedEngine(like(), KNOWN), Traffic(), dict[str, int]()
        while engine.now() < 6.0:
            while len(lengths) < 4:
                lengths[engine.add_request([len(lengths)] * 20, params)] = 0
            for event in engine.step():
                lengths[event.request_id] += len(event.token_ids)
                if event.finish_reason is not None:
                    del lengths[event.request_id]
                elif lengths[event.request_id] == stops_at:
                    engine.abort(event.request_id)
            traffic.update(engine.snapshot())
        sent = traffic.load().requests
        assert len(sent) > 50 and {one.num_output for one in sent} == expected


@pytest.mark.parametrize("count", [1, 3])
def test_too_little_load_says_so(count: int) -> None:
    engine = SimulatedEngine(like(), KNOWN)
    traffic = Traffic()
    for _ in range(count):
        engine.add_request(list(range(10)), SamplingParams(max_tokens=2000, ignore_eos=True))
    while engine.now() < 7.0:
        engine.step()
    traffic.update(engine.snapshot())
    with pytest.raises(ConfigError, match=f"have {count}"):
        traffic.load()


def test_steps_at_other_settings_of_their_time_are_forgotten() -> None:
    traffic = watched(serve(SimulatedEngine(like(), KNOWN), 2.0, 4))
    snapshot = traffic.snapshot
    assert snapshot is not None and len(traffic.samples()) > 50
    live = dataclasses.replace(snapshot, steps=(), config=snapshot.config.replace(max_num_seqs=2))
    traffic.update(live)
    assert len(traffic.samples()) > 50
    changed = dataclasses.replace(live, config=live.config.replace(quantization="int8"))
    traffic.update(changed)
    with pytest.raises(ConfigError, match="there are 0"):
        traffic.times()


def test_speculation_is_refused(arriving: Traffic) -> None:
    drafting = like(speculative_method="ngram")
    load = Load(0.0, 1.0, ())
    with pytest.raises(ConfigError, match="Speculative"):
        next(replay(drafting, KNOWN, load, {}))


def test_requests_from_before_the_first_snapshot_are_replayed_too() -> None:
    """Also those of recordings that have no arrivals: from the states of the requests."""
    snapshots = list(serve(SimulatedEngine(like(), KNOWN), 14.0, 6))
    unfinished = {request.request_id for request in snapshots[-1].requests}
    whole, late, older = Traffic(), Traffic(), Traffic()
    for snapshot in snapshots:
        whole.update(snapshot)
        if snapshot.time > 4.0:
            late.update(snapshot)
        older.update(dataclasses.replace(snapshot, arrivals=()))
    expected = {one.arrival.request_id: one for one in whole.load(seconds=8.0).requests}
    for traffic in (late, older):
        load = traffic.load(seconds=8.0)
        assert load.concurrency == 6
        found = {one.arrival.request_id: one for one in load.requests}
        ended = [name for name in expected if name in found and name not in unfinished]
        assert len(ended) > 20
        for name in ended:
            assert found[name].num_output == expected[name].num_output
            assert found[name].num_done == expected[name].num_done
            assert found[name].arrival.time == expected[name].arrival.time
    assert late.load(seconds=8.0).requests[10:] == whole.load(seconds=8.0).requests[10:]
