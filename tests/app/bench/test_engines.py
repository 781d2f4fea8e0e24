"""Engines as the axis of a sweep: who measures, their changes from the first, exports."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from app.bench.axes import parse_axes
from app.bench.differences import differences
from app.bench.engine_changes import baseline
from app.bench.engines import OWN, EnginesBench, Reached
from app.bench.goals import Goals
from app.bench.load import Pace, Run
from app.bench.point_table import as_csv, as_dict, as_html, as_text, failures_text, lines
from app.bench.progress import Progress
from app.bench.record import BenchResult, from_run, to_run
from app.bench.runner import Plan
from app.bench.sweep import COLUMNS, Point, Sweep, SweepCancelledError
from app.bench.workload import fixed
from app.clients.target import Target
from engine.errors import ConfigError
from engine.snapshot import RequestTimes, TokenEvent
from tests.app.bench.test_client import COMPLETIONS, paced
from tests.app.clients.conftest import ScriptedServer, server

__all__ = ["server"]
GAPS = {"Inferdeck": (0.01, 0.01), "vLLM": (0.02, 0.022), "SGLang": (0.005, 0.005)}
"""Seconds between tokens in each round."""


class Engines:
    """A request at a time, whose first token takes ten gaps."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def measure(
        self, settings: Mapping[str, Any], pace: Pace, least: int, label: str,
        limit_s: float = math.inf,
    ) -> Run:  # fmt: skip
        name = settings["engine"]
        gap = GAPS[name][self.seen.count(name)]
        self.seen.append(name)
        if name == "SGLang":
            raise ConfigError("No GPU.", "Use one.")
        run = Run(num_prompt_tokens=least)
        for number in range(least):
            start = number * 20 * gap
            events = tuple(TokenEvent(start + gap * (10 + i), 1) for i in range(11))
            run.requests.append(RequestTimes(start, start, events, events[-1].time))
        run.end(0.0)
        return run


def compared() -> tuple[Engines, BenchResult]:
    engines = Engines()
    points = Sweep(engines, parse_axes(["engine=Inferdeck,vLLM,SGLang"]), Pace(1), 4, 2).run()
    return engines, BenchResult("starter", "fp32", "16 in", tuple(points), rounds=2)


def test_rounds_of_engines_alternate() -> None:
    assert compared()[0].seen == ["Inferdeck", "vLLM", "SGLang", "vLLM", "Inferdeck"]


def test_failed_points_are_told_with_the_first_cause() -> None:
    result = compared()[1]
    own, other, broken = result.points
    assert "No GPU." in failures_text(result) and broken.label in failures_text(result)
    assert not failures_text(replace(result, points=(own, other)))
    assert " 2 more " in failures_text(replace(result, points=(broken,) * 3))


def test_a_change_is_from_the_first_engine_with_its_interval() -> None:
    result = compared()[1]
    own, other, broken = result.points
    assert baseline(own, result.points) is None and baseline(other, result.points) is own
    assert broken.error and not broken.is_measured
    place = [key for key, _, _, _ in COLUMNS].index("output_tokens_per_s")
    found = differences(own, other)[place]
    assert found is not None and found.half is not None
    shown = [point.figures["output_tokens_per_s"] for point in (own, other)]
    assert found.change == pytest.approx(shown[1] / shown[0] - 1)  # of the rows above
    assert [line.is_change for line in lines(result)] == [False, False, True, False]
    assert str(found) in lines(result)[2].texts


def test_a_change_is_at_the_same_load() -> None:
    axes = parse_axes(["concurrency=1,2", "engine=Inferdeck,vLLM"])
    names = ("concurrency", "engine")
    points = [Point({"engine": e, "concurrency": c}) for e in axes[0].values for c in (1, 2)]
    assert [axis.name for axis in axes] == list(reversed(names))
    assert [baseline(point, points) for point in points] == [None, None, *points[:2]]


def test_the_table_and_the_exports_have_the_changes() -> None:
    result = compared()[1]
    text = result.answer
    assert text in as_text(result) and text in as_html(result)
    assert to_run(result).details["answer"] == text
    rows = list(csv.DictReader(io.StringIO(as_csv(result))))
    found = differences(result.points[0], result.points[1])[0]
    assert found is not None and rows[0]["ttft_ms.p50.change"] == "" and str(found) in text
    assert float(rows[1]["ttft_ms.p50.change"]) == found.change
    stored = as_dict(result)["points"]
    assert stored[0]["change"] == {} and stored[1]["change"]["ttft_ms.p50"]["half"] == found.half
    assert as_csv(from_run(to_run(result))) == as_csv(result)


def test_goals_name_the_engine_that_meets_them() -> None:
    text = replace(compared()[1], goals=Goals(itl=15)).answer
    assert text.startswith("Engine Inferdeck") and "vLLM" in text


@pytest.mark.parametrize("texts", [
    ["engine=a,b", "max_num_seqs=1,2"], ["engine="], ["engine=a", "engine=b"],
])  # fmt: skip
def test_axes_that_do_not_go_together(texts: list[str]) -> None:
    with pytest.raises(ConfigError):
        parse_axes(texts)


def test_names_with_commas_are_separated_by_semicolons() -> None:
    assert parse_axes(["engine=Inferdeck; vLLM, 2 GPUs"])[0].values == ("Inferdeck", "vLLM, 2 GPUs")


PLAN = Plan(fixed(4, 3, 2), Pace(1), num_warmups=0)


def test_each_engine_is_measured_by_its_own_bench(server: ScriptedServer) -> None:
    server.replica().answers[COMPLETIONS] = paced
    asked: list[str] = []

    def reach(name: str) -> Reached:
        asked.append(name)
        return Reached(server.target)

    own = Engines()
    own.measure = lambda settings, *rest: asked.append(OWN) or Run()  # type: ignore[method-assign]
    told: list[Progress] = []
    bench = EnginesBench(own, reach, PLAN, told.append)
    bench.show(Progress("now", 1, 2, None))
    bench.measure({"engine": OWN}, Pace(1), 2, "")
    for _ in range(2):
        run = bench.measure({"engine": "vLLM"}, Pace(1), 2, "")
        assert len(run.requests) == 2
    assert asked == [OWN, "vLLM", "vLLM"]
    assert told[-1].label == "now" and {one.done for one in told} == {1}
    with pytest.raises(ConfigError):
        EnginesBench(None, reach, PLAN).measure({"engine": OWN}, Pace(1), 2, "")


def test_a_server_is_left_after_the_request_that_runs(server: ScriptedServer) -> None:
    server.replica().answers[COMPLETIONS] = paced
    reach = lambda name: Reached(Target(server.target.base_url))
    bench = EnginesBench(None, reach, PLAN, is_over=lambda: bool(server.asked))
    with pytest.raises(SweepCancelledError):
        bench.measure({"engine": "vLLM"}, Pace(1), 50, "")
    assert len(server.asked) == 1
