"""Sweeps on a scripted engine whose step times are known, and the formulas of goals."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bench.axes import parse_axes
from app.bench.goals import Goals, RequestLine, parse_goals, quantile
from app.bench.load import Pace, Run
from app.bench.point_table import as_csv, as_dict, as_html, export
from app.bench.progress import Progress
from app.bench.ranking import best_under, nearest, users_under
from app.bench.record import BenchResult, answer, figures_of_side, from_run, to_run
from app.bench.sweep import (
    Axis,
    Point,
    Sweep,
    SweepCancelledError,
    Trial,
)
from app.storage.intervals import half_interval
from app.storage.run_records import State
from app.storage.run_store import RunStore
from engine.errors import ConfigError
from engine.evaluate.report import ReportError
from engine.snapshot import RequestTimes, TokenEvent
from tests.figures import numbers


class ScriptedBench:
    """Every request: TTFT 100 ms times the concurrency over the batch limit, then 9 gaps of 10 ms
    a running request. Nothing is measured, so all figures are exact."""

    def __init__(self, broken: Mapping[str, Any] | None = None, cancel_at: int = -1) -> None:
        self.broken, self.cancel_at = broken, cancel_at
        self.seen: list[tuple[dict[str, Any], Pace, int]] = []

    def measure(
        self, settings: Mapping[str, Any], pace: Pace, least: int, label: str,
        limit_s: float = math.inf,
    ) -> Run:  # fmt: skip
        if len(self.seen) == self.cancel_at:
            raise SweepCancelledError
        self.seen.append((dict(settings), pace, least))
        if settings and settings == self.broken:
            raise ConfigError("Not enough memory.", "Use less.")
        users = pace.concurrency or 1
        batch = min(users, settings.get("max_num_seqs", users))
        ttft, gap = 0.1 * users / batch, 0.01 * batch
        run = Run(num_prompt_tokens=10 * least)
        for number in range(least):
            start = 50.0 + (number // users) * (ttft + 9 * gap)
            events = tuple(TokenEvent(start + ttft + gap * i, 1) for i in range(10))
            run.requests.append(RequestTimes(start, start, events, events[-1].time))
        run.end(50.0)
        return run


def sweep(*axes: Axis, bench: ScriptedBench | None = None, **more: Any) -> Sweep:
    return Sweep(bench or ScriptedBench(), axes, Pace(8), 8, **more)


CONCURRENCY = Axis("concurrency", (1, 2, 4, 8))


def test_every_figure_of_a_point_is_exact() -> None:
    points = sweep(CONCURRENCY, rounds=2).run()
    assert [point.settings["concurrency"] for point in points] == [1, 2, 4, 8]
    for point in points:
        users = point.settings["concurrency"]
        figures, count = point.figures, 2 * max(8, 2 * users)
        duration = math.ceil(count / 2 / users) * (0.1 + 0.09 * users)
        assert figures["completed"] == count == len(point.requests)
        assert figures["ttft_ms"]["p50"] == pytest.approx(100)
        assert figures["itl_ms"]["p99"] == pytest.approx(10 * users)
        assert figures["e2e_ms"]["max"] == pytest.approx(100 + 90 * users)
        assert figures["output_tokens_per_s"] == pytest.approx(10 * count / 2 / duration)
        assert figures["requests_per_s"] == pytest.approx(count / 2 / duration)
        assert point.curves["itl"][0] == pytest.approx(10 * users)
        assert point.interval("itl_ms", "p50") == pytest.approx(0, abs=1e-9)
        assert len(point.rounds) == 2


class StallingBench(ScriptedBench):
    """Every reply of 100 tokens has gaps of 10 ms, one of 40 ms, and in the first one of 500 ms."""

    def measure(self, *args: Any, **named: Any) -> Run:
        run = Run(num_prompt_tokens=8)
        for number in range(8):
            gaps = [0.01] * 98 + [0.04]
            gaps[50] = 0.5 if number == 0 else 0.01
            times = [0.1, *(0.1 + sum(gaps[: place + 1]) for place in range(len(gaps)))]
            events = tuple(TokenEvent(time, 1) for time in times)
            run.requests.append(RequestTimes(0.0, 0.0, events, times[-1]))
        run.end(0.0)
        return run


def test_a_curve_has_the_percentiles_of_the_table() -> None:
    (point,) = sweep(Axis("concurrency", (1,)), bench=StallingBench()).run()
    for name, key in (("itl", "itl_ms"), ("ttft", "ttft_ms"), ("e2el", "e2e_ms")):
        curve, figures = point.curves[name], point.figures[key]
        for percent in (50, 90, 99, 100):
            expected = figures["max" if percent == 100 else f"p{percent}"]
            if expected is not None:
                assert curve[percent] == pytest.approx(expected)
    assert point.curves["itl"][99] == pytest.approx(40)
    assert point.curves["itl"][100] == pytest.approx(500)


def test_a_run_and_its_sweep_have_the_same_interval() -> None:
    (point,) = sweep(Axis("concurrency", (1,)), rounds=3).run()
    for one, rate in zip(point.rounds, (40.0, 50.0, 90.0), strict=True):
        one["output_tokens_per_s"] = rate
    rate = figures_of_side(point)["total_tokens_per_s"]
    assert rate.spread is not None and rate.spread > 0
    half = point.interval("output_tokens_per_s")
    assert rate.spread * rate.value == pytest.approx(half)


def test_goodput_is_the_rate_of_requests_that_meet_every_goal() -> None:
    points = sweep(CONCURRENCY).run()
    goals = Goals(itl=20.0 + 1e-6)
    rates = [point.goodput(goals) for point in points]
    every = [point.figures["requests_per_s"] for point in points]
    assert rates == pytest.approx([every[0], every[1], 0, 0])
    assert users_under(points, goals) == 2
    best = best_under(points, goals)
    assert best is not None and best.settings == {"concurrency": 2}
    assert points[0].goodput(Goals()) is None


def test_part_of_the_requests_meets_the_goal() -> None:
    point = sweep(Axis("concurrency", (1,))).run()[0]
    slow = [line._replace(ttft=500.0) for line in point.requests[:2]]
    point.requests[:2] = slow
    met = point.goodput(Goals(ttft=200))
    assert met == pytest.approx(6 / point.figures["duration_s"])


def test_which_batch_limit_for_an_itl_goal() -> None:
    """The question of the page: 50 ms of ITL is a batch of 5 here, so 4 of the swept ones."""
    points = sweep(Axis("max_num_seqs", (1, 2, 4, 8))).run()
    best = best_under(points, Goals(itl=50))
    assert best is not None and best.settings == {"max_num_seqs": 4}
    assert users_under(points, Goals(itl=50)) is None  # it is no axis
    assert "4" in answer(points, Goals(itl=50))


def test_failed_requests_are_why_a_point_meets_no_goal() -> None:
    """As of a server that goes away, with latencies before that meet it."""
    goals = Goals(itl=1e6)
    points = sweep(CONCURRENCY).run()
    for point in points:
        point.figures["failed"] = 7
    assert best_under(points, goals) is None and numbers(answer(points, goals))[-1] == 7


def test_a_goal_that_nothing_meets_has_a_nearest_point() -> None:
    points = sweep(CONCURRENCY).run()
    goals = Goals(itl=5)
    assert best_under(points, goals) is None and users_under(points, goals) is None
    near = nearest(points, goals)
    assert near is not None and near.settings == {"concurrency": 1}
    assert near.figures["itl_ms"]["p50"] == pytest.approx(10)
    assert "10 ms" in answer(points, goals)


def test_a_failed_point_is_kept_and_the_sweep_goes_on() -> None:
    bench = ScriptedBench(broken={"max_num_seqs": 2})
    points = sweep(Axis("max_num_seqs", (1, 2, 4)), bench=bench, rounds=2).run()
    assert [bool(point.error) for point in points] == [False, True, False]
    assert [len(point.rounds) for point in points] == [2, 0, 2]
    assert [settings["max_num_seqs"] for settings, _, _ in bench.seen] == [1, 2, 4, 4, 1]


def test_cancel_keeps_what_is_done() -> None:
    made = sweep(CONCURRENCY, bench=ScriptedBench(cancel_at=2))
    points = made.run()
    assert made.was_cancelled
    assert [point.is_measured for point in points] == [True, True, False, False]


def test_every_combination_with_the_loads_innermost() -> None:
    bench = ScriptedBench()
    axes = parse_axes(["concurrency=1,2", "--max-num-seqs=4,8"])
    points = sweep(*axes, bench=bench).run()
    assert [tuple(point.settings.values()) for point in points] == [(4, 1), (4, 2), (8, 1), (8, 2)]
    assert [pace.concurrency for _, pace, _ in bench.seen] == [1, 2, 1, 2]


def test_a_swept_rate_keeps_its_burstiness() -> None:
    bench = ScriptedBench()
    made = Sweep(bench, (Axis("request_rate", (2.0,)),), Pace(4, None, 0.5), 8)
    made.run()
    assert bench.seen[0][1] == Pace(None, 2.0, 0.5)


def test_progress_has_the_time_left_and_counts_every_request() -> None:
    seen: list[Progress] = []
    sweep(CONCURRENCY, progress=seen.append).run()
    assert [one.done for one in seen] == [0, 8, 16, 24] and {one.total for one in seen} == {40}
    assert seen[0].left_s is None and all(one.left_s is not None for one in seen[1:])


def test_progress_counts_the_requests_of_a_run_and_the_runs_of_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.bench.progress.TELL_S", 0.0)
    seen: list[Progress] = []

    def search(points: Sequence[Point]) -> Iterator[Trial]:
        made.on_request("prediction", 1, 8)  # no run yet
        for point in points[:2]:
            yield Trial(point)
            made.on_request("run", 3, 8)

    made = sweep(CONCURRENCY, progress=seen.append, search=search, most=2)
    made.run()
    assert [one.done for one in seen] == [0, 3, 8, 11] and {one.total for one in seen} == {20}
    assert seen[1].left_s is None and (seen[3].left_s or 0.0) <= (seen[2].left_s or 0.0)
    assert [one.run for one in seen] == [None, (3, 8)] * 2
    assert [numbers(one.label)[-2:] for one in seen] == [[1, 2], [1, 2], [2, 2], [2, 2]]


def test_the_interval_is_student_s() -> None:
    samples = [10.0, 12.0, 11.0]
    assert half_interval(samples) == pytest.approx(4.303 * statistics.stdev(samples) / 3**0.5)
    assert half_interval([1.0]) is None
    assert half_interval([float(n % 2) for n in range(100)]) == pytest.approx(2.042 * 0.0502518907)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.floats(0, 1))
def test_quantiles_are_those_of_numpy(values: list[float], q: float) -> None:
    assert quantile(sorted(values), q) == pytest.approx(float(np.quantile(values, q)), abs=1e-6)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_burstiness_keeps_the_mean_and_sets_the_spread(burstiness: float) -> None:
    times = list(islice(Pace(None, 10.0, burstiness).arrivals(1), 20_000))
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.1, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_goals_are_typed_as_vllm_s() -> None:
    assert parse_goals(["ttft:500", "itl:50"], 90) == Goals(ttft=500, itl=50, percentile=90)


@pytest.mark.parametrize("word", ["ttft", "ttft:", "ttft:-1", "tfft:5", "itl:nan", "e2el:inf"])
def test_other_goals_are_errors(word: str) -> None:
    with pytest.raises(ConfigError):
        parse_goals([word])


@pytest.mark.parametrize("texts", [
    ["concurrency="], ["concurrency=0"], ["concurrency=two"], ["model=a,b"], ["colour=1"],
    ["max_num_seqs=0"], ["concurrency=1", "concurrency=2"], ["concurrency=1", "request_rate=1"],
    ["request_rate=nan"], ["concurrency=" + ",".join(map(str, range(1, 300)))],
])  # fmt: skip
def test_other_axes_are_errors(texts: list[str]) -> None:
    with pytest.raises(ConfigError):
        parse_axes(texts)


def test_a_request_counts_its_own_percentile() -> None:
    line = RequestLine(0.0, 100.0, 200.0, 11, (10.0, 20.0, 30.0))
    assert line.tpot == pytest.approx(10)
    assert [Goals(itl=25, percentile=p).meets(line) for p in (50, 90, 99)] == [True, True, False]


def result(**more: Any) -> BenchResult:
    points = sweep(CONCURRENCY, rounds=2, **more).run()
    return BenchResult("tiny", "BF16", "Query rewriting", tuple(points), Goals(itl=20.001),
                       created="2026-01-02T03:04:05+00:00", rounds=2)  # fmt: skip


def test_a_stored_sweep_comes_back_whole(tmp_path: Path) -> None:
    made, store = result(), RunStore(tmp_path)
    kept = store.add(to_run(made))
    found = from_run(store.load(kept.id))
    assert found == made
    assert found.points[1].goodput(found.goals) == made.points[1].goodput(made.goals)
    assert kept.sides[0].figures["itl"].value == pytest.approx(0.02)
    assert len(kept.sides[0].figures["itl"].samples) == 2
    assert kept.state is State.DONE and "points" not in store.listed(kept).details


def test_a_run_is_named_after_what_it_sweeps() -> None:
    """Two sweeps of a workload are told apart in the list of earlier runs."""
    made = result()
    other = replace(made, points=(Point({"max_num_seqs": 4}),))
    assert to_run(made).name != to_run(other).name
    assert made.model in to_run(made).name and made.work in to_run(made).name


def test_the_throughput_of_a_run_is_that_of_its_table() -> None:
    """Output tokens alone, as in the runs of other kinds."""
    made = result()
    best, side = made.best, to_run(made).sides[0].figures
    assert best is not None
    assert best.figures["total_tokens_per_s"] > best.figures["output_tokens_per_s"]
    assert side["total_tokens_per_s"].value == best.figures["output_tokens_per_s"]
    assert side["total_tokens_per_s"].samples == tuple(best.samples("output_tokens_per_s"))


def test_loads_are_numbers_and_fractions_are_percent() -> None:
    for name, value, wanted in (
        ("request_rate", 2.0, "2"), ("request_rate", 0.5, "0.5"), ("concurrency", 64, "64"),
        ("gpu_memory_utilization", 0.5, "50 %"),
    ):  # fmt: skip
        point = Point({name: value})
        assert point.label.endswith(f" {wanted}"), name


def test_damaged_details_are_a_value_error() -> None:
    run = to_run(result())
    for details in ({}, {"points": 3, "goals": {}}, {"points": [{}], "goals": {}}):
        with pytest.raises(ValueError):
            from_run(type(run)("", run.kind, "m", "p", "c", details=details))


def test_exports_have_the_same_figures(tmp_path: Path) -> None:
    made = result()
    for suffix in (".json", ".csv", ".html"):
        export(made, tmp_path / f"sweep{suffix}")
    stored = json.loads((tmp_path / "sweep.json").read_text("utf-8"))
    assert stored["users_under_goal"] == 2 and stored["best"] == {"concurrency": 2}
    rates = [point.figures["requests_per_s"] for point in made.points]
    assert [point["requests_per_s"] for point in stored["points"]] == rates
    assert len(as_csv(made).splitlines()) == 1 + len(made.points)
    page = as_html(made)
    inner = page.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(inner.replace("<\\/", "</")) == json.loads(json.dumps(as_dict(made)))
    assert "http" not in page  # self-contained
    with pytest.raises(ReportError):
        export(made, tmp_path / "sweep.pdf")


def test_a_sweep_without_a_result_is_exported_too() -> None:
    empty = BenchResult("m", "p", "w", (Point({"concurrency": 1}, error="Gone."),))
    assert to_run(empty).state is State.FAILED and to_run(empty).cause == "Gone."
    assert as_html(empty) and as_csv(empty) and answer(empty.points, Goals(itl=1)) == ""
