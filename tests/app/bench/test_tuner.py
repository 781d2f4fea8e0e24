"""The search on a scripted engine: how near the best setting, in how many runs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from typing import Any

import pytest

from app.bench.goals import Goals
from app.bench.load import EngineRun, Pace, Run
from app.bench.point_table import as_dict
from app.bench.ranking import Objective, best_under, memory_of, nearest, pareto, rank
from app.bench.record import BenchResult, from_run, to_run
from app.bench.sweep import Axis, Point, Sweep, SweepCancelledError
from app.bench.tuner import Tuner, most_trials, noise_of
from engine.errors import ConfigError
from engine.snapshot import RequestTimes, TokenEvent

AXES = (
    Axis("max_num_seqs", (1, 2, 4, 8, 16, 32)),
    Axis("max_num_batched_tokens", (32, 64, 128, 256, 512)),
    Axis("enable_prefix_caching", (False, True)),
    Axis("block_size", (8, 16, 64)),
)
GOALS = Goals(itl=41, percentile=50)
USERS, TOKENS = 32, 5


def gap_of(settings: Mapping[str, Any]) -> float:
    """Seconds of a step: larger with the batch, and with prompts beside it."""
    prompt = settings["max_num_batched_tokens"] * (2e-5 if settings["enable_prefix_caching"]
                                                   else 4e-5)  # fmt: skip
    return 5e-3 + 2e-3 * settings["max_num_seqs"] + prompt + 1e-5 * abs(settings["block_size"] - 16)


def first_of(settings: Mapping[str, Any]) -> float:
    """Seconds of a prompt: many small steps take longer than a large one."""
    steps = 512 / settings["max_num_batched_tokens"]
    return 0.02 + 4e-3 * steps + (0.0 if settings["enable_prefix_caching"] else 0.05)


def rate_of(settings: Mapping[str, Any]) -> float:
    """Tokens per second."""
    return settings["max_num_seqs"] * TOKENS / (first_of(settings) + 4 * gap_of(settings))


class NoisyBench:
    """Rounds of `max_num_seqs` requests at once; each run is slower or faster as a whole."""

    def __init__(self, seed: int, noise: float = 0.03, broken: Mapping[str, Any] | None = None):
        self.rng, self.noise, self.broken = random.Random(seed), noise, broken
        self.seen: list[dict[str, Any]] = []
        self.gap = gap_of
        self.memory: Mapping[int, int] = {}  # bytes of the KV cache by block size
        self.limits: list[float] = []
        self.cancel_at = -1
        self.cancelled: type[BaseException] = SweepCancelledError

    def measure(
        self, settings: Mapping[str, Any], pace: Pace, least: int, label: str,
        limit_s: float = math.inf,
    ) -> Run:  # fmt: skip
        if len(self.seen) == self.cancel_at:
            raise self.cancelled
        self.seen.append(dict(settings))
        self.limits.append(limit_s)
        if self.broken and self.broken.items() <= settings.items():
            raise ConfigError("Not enough memory.", "Use less.")
        slow = math.exp(self.rng.gauss(0, self.noise))
        first, gap = slow * first_of(settings), slow * self.gap(settings)
        run, batch = EngineRun(weights_bytes=100), settings["max_num_seqs"]
        run.kv_cache_bytes = self.memory.get(settings["block_size"], 0)
        run.observed.peak_kv_usage = batch / 32
        for number in range(least):
            start = (number // batch) * (first + (TOKENS - 1) * gap)
            if start <= limit_s:
                events = tuple(TokenEvent(start + first + gap * i, 1) for i in range(TOKENS))
                run.requests.append(RequestTimes(start, start, events, events[-1].time))
        run.end(0.0)
        return run


NUM_POINTS = math.prod(len(axis.values) for axis in AXES)
EVERY = [
    dict(zip([axis.name for axis in AXES], values, strict=True))
    for values in itertools.product(*(axis.values for axis in AXES))
]
BEST = max(rate_of(one) for one in EVERY if 1e3 * gap_of(one) <= 41)


def search(bench: NoisyBench, goals: Goals = GOALS, **more: Any) -> Sweep:
    most = most_trials(NUM_POINTS)
    tuner = Tuner(AXES, goals, most, **more)
    return Sweep(bench, AXES, Pace(USERS), USERS, search=tuner, most=most)


@pytest.mark.slow
def test_within_3_percent_of_the_best_in_a_quarter_of_the_runs() -> None:
    found = 0
    for seed in range(20):
        bench = NoisyBench(seed)
        best = best_under(search(bench).run(), GOALS)
        assert best is not None and len(bench.seen) <= NUM_POINTS / 4
        found += rate_of(best.settings) >= 0.97 * BEST and 1e3 * gap_of(best.settings) <= 42.23
    assert found >= 19


def test_a_prediction_is_where_the_search_begins() -> None:
    order = lambda points: sorted(points, key=lambda point: -rate_of(point.settings))
    bench = NoisyBench(0)
    search(bench, guess=order).run()
    expected = sorted(EVERY, key=lambda one: -rate_of(one))[:3]
    assert bench.seen[:3] == expected


def test_a_search_that_found_nothing_begins_anew_far_away() -> None:
    def gap(settings: Mapping[str, Any]) -> float:
        """Least, but not low enough, at 32 requests; low enough at 2 and fewer alone."""
        num_seqs = settings["max_num_seqs"]
        return gap_of(settings) if num_seqs <= 2 else 0.1 - 1e-3 * num_seqs

    most_first = lambda points: sorted(points, key=lambda point: -point.settings["max_num_seqs"])
    for seed in range(5):
        bench = NoisyBench(seed)
        bench.gap = gap
        best = best_under(search(bench, guess=most_first).run(), GOALS)
        assert best is not None and best.settings["max_num_seqs"] == 2
        assert rate_of(best.settings) >= 0.9 * max(
            rate_of(one) for one in EVERY if one["max_num_seqs"] == 2
        )


def test_live_settings_change_before_those_that_rebuild_the_cache() -> None:
    bench = NoisyBench(0, noise=0.0)
    search(bench).run()
    changed = next(i for i, one in enumerate(bench.seen) if one["block_size"] != 16)
    assert len({one["max_num_seqs"] for one in bench.seen[:changed]}) > 1
    assert {one["enable_prefix_caching"] for one in bench.seen[:changed]} == {False, True}


def test_a_run_that_cannot_come_near_the_best_ends_early() -> None:
    met = [one for one in EVERY if 1e3 * gap_of(one) <= 41]
    fast, slow = max(met, key=rate_of), min(met, key=rate_of)
    guess = lambda points: [p for one in (fast, slow) for p in points if p.settings == one]
    bench = NoisyBench(0, noise=0.0)
    points = {str(point.settings): point for point in search(bench, guess=guess).run()}
    assert bench.limits[0] == math.inf
    best, cut = points[str(fast)], points[str(slow)]
    rate = best.figures["requests_per_s"]
    assert bench.limits[1] == pytest.approx(2 * USERS / (0.8 * rate))
    assert 0 < len(cut.requests) < 2 * USERS


def test_failed_points_are_kept_and_not_tried_again() -> None:
    bench = NoisyBench(0, broken={"max_num_seqs": 16})
    points = search(bench).run()
    failed = [point for point in points if point.error]
    tried = [one for one in bench.seen if one["max_num_seqs"] == 16]
    assert failed and len(tried) == len(failed)
    best = best_under(points, GOALS)
    assert best is not None and best.settings["max_num_seqs"] != 16


@pytest.mark.parametrize("cancelled", [SweepCancelledError, KeyboardInterrupt])
def test_a_cancelled_search_keeps_its_runs(cancelled: type[BaseException]) -> None:
    bench = NoisyBench(0)
    bench.cancel_at, bench.cancelled = 3, cancelled
    made = search(bench)
    assert sum(point.is_measured for point in made.run()) == 3 and made.was_cancelled


def test_a_goal_that_nothing_meets_has_a_nearest_point() -> None:
    goals = Goals(itl=1, percentile=50)
    points = search(NoisyBench(0, noise=0.0), goals).run()
    assert best_under(points, goals) is None
    near = nearest(points, goals)
    least = min(map(gap_of, EVERY))
    assert near is not None and gap_of(near.settings) == pytest.approx(least)


def test_the_noise_is_measured_by_repetitions() -> None:
    for noise in (0.0, 0.1):
        points = search(NoisyBench(1, noise)).run()
        assert max(len(point.rounds) for point in points) > 1
        rates = [point.samples("output_tokens_per_s") for point in points]
        assert (noise_of(rates) > 0.03) == (noise > 0.03)


def test_no_point_is_faster_and_nearer_than_a_pareto_point() -> None:
    points = search(NoisyBench(0)).run()
    excess = lambda point: GOALS.excess(point.figures)
    chosen = pareto(points, excess)
    assert best_under(points, GOALS) in chosen
    key = lambda point: (point.figures["output_tokens_per_s"], -(GOALS.excess(point.figures) or 0))
    known = [key(point) for point in points if point.is_measured]
    for point in chosen:
        rate, under = key(point)
        assert not any(r >= rate and u >= under and (r, u) != (rate, under) for r, u in known)
    result = BenchResult("tiny", "BF16", "work", tuple(points), GOALS)
    assert as_dict(result)["pareto"] == [point.settings for point in chosen]
    assert pareto([Point({"block_size": 8})], excess) == []


def test_the_least_memory_under_the_goals_is_found() -> None:
    """Half of the KV cache is in use at a batch of 16: the smallest batch needs least, and of the
    block sizes 64."""
    bench = NoisyBench(0, noise=0.0)
    bench.memory = {8: 8000, 16: 6400, 64: 3200}
    points = search(bench, objective=Objective.MEMORY).run()
    best = best_under(points, GOALS, Objective.MEMORY)
    assert best is not None and memory_of(best) == pytest.approx(100 + 3200 / 32)
    assert (best.settings["max_num_seqs"], best.settings["block_size"]) == (1, 64)
    assert set(bench.limits) == {math.inf}  # a slow run may be the smallest
    assert len(bench.seen) <= NUM_POINTS / 4


def test_goodput_counts_the_requests_that_meet_the_goals_and_not_the_others() -> None:
    points = search(NoisyBench(0, noise=0.0)).run()
    known = [point for point in points if point.is_measured]
    fast = max(known, key=lambda point: point.figures["requests_per_s"])
    fast.requests[0] = fast.requests[0]._replace(ttft=1e6)
    goals = Goals(ttft=1e5, percentile=99)
    fast.figures["ttft_ms"] = fast.figures["ttft_ms"] | {"max": 1e6}
    assert not rank(fast, goals)[0]
    met, rate = rank(fast, goals, Objective.GOODPUT)
    wanted = (len(fast.requests) - 1) / fast.figures["duration_s"]
    assert met and rate == pytest.approx(wanted)


def test_an_objective_is_stored_with_its_best_point() -> None:
    bench = NoisyBench(0, noise=0.0)
    bench.memory = {8: 8000, 16: 6400, 64: 3200}
    points = tuple(search(bench).run())
    made = BenchResult("tiny", "BF16", "work", points, GOALS, objective=Objective.MEMORY)
    assert made.best is best_under(points, GOALS, Objective.MEMORY)
    found = from_run(to_run(made))
    assert found == made and as_dict(found)["best"] == made.best.settings
