"""The ladder on a scripted engine with known step times (`ladder_script`)."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.bench.goals import Goals
from app.bench.ladder import Ladder
from app.bench.ladder_bench import EngineLadder
from app.bench.ladder_record import as_csv, as_dict, as_html, as_text, export, from_run, to_run
from app.bench.ladder_words import answer, why
from app.bench.load import Pace
from app.bench.progress import Progress
from app.bench.rungs import (
    NAIVE,
    Choices,
    Quality,
    State,
    first_rung_problem,
    rungs_of,
    settings_of,
)
from app.bench.sweep import Axis, Sweep, SweepCancelledError
from app.bench.users import USERS, users_search
from app.features.runs.verdicts import headline
from app.storage.run_records import Kind
from app.storage.run_records import State as RunState
from app.storage.run_store import RunStore
from engine.config import EngineConfig
from engine.errors import ConfigError, OutOfMemoryError
from tests.app.bench.ladder_script import (
    GOALS,
    MEASURED,
    QUALITY,
    TOKENS,
    ScriptedLadder,
    by_key,
    climb,
    first_of,
    gap_of,
    rate_of,
    result_of,
    users_of,
)
from tests.app.fake_engine import MODEL
from tests.figures import numbers
from tests.tiers import examples
from tests.widgets import synthetic


def test_every_figure_of_every_rung_is_exact() -> None:
    ladder = climb()
    assert [rung.key for rung in ladder.rungs] == MEASURED
    for rung in ladder.rungs:
        assert rung.state is State.MEASURED and rung.users == users_of(rung.settings)
        assert rung.best is not None and rung.split is not None
        figures, users = rung.best.figures, rung.users
        gap = gap_of(rung.settings, users)
        assert figures["ttft_ms"]["p50"] == pytest.approx(1e3 * first_of(rung.settings, users))
        assert figures["itl_ms"]["p50"] == pytest.approx(1e3 * gap)
        assert rung.rate == pytest.approx(rate_of(rung.settings, users))
        weights = 400 if rung.settings["quantization"] == "int8" else 800
        assert figures["memory_bytes"] == pytest.approx(weights + 10 * users)
        assert rung.split.shares().weights == pytest.approx(weights / 1e5 / gap)
    assert [rung.users for rung in ladder.rungs] == [6, 6, 12, 16, 16, 32, 24]


def test_cost_is_the_price_of_an_hour_over_its_tokens() -> None:
    result = result_of(climb())
    for rung in result.rungs:
        assert result.cost(rung) == pytest.approx(1.8 / (3600 * rung.rate) * 1e6)
    assert dataclasses.replace(result, price=None).cost(result.rungs[0]) is None


def test_each_rung_adds_to_the_kept_ones_and_a_worse_one_is_left_out() -> None:
    ladder = climb()
    assert [rung.key for rung in ladder.rungs if not rung.is_kept] == ["drafts"]
    last = by_key(ladder)["kv"]
    assert last.settings == {
        **NAIVE, "batching": "continuous", "kv_allocation": "paged",
        "enable_prefix_caching": True, "quantization": "int8", "kv_cache_dtype": "int8",
    }  # fmt: skip
    assert result_of(ladder).tuned == {**last.settings, "max_num_seqs": 32}


def test_a_rung_that_is_left_out_is_not_in_the_next_ones() -> None:
    """INT8 weights lose more than is allowed: the next rungs are of the weights before."""
    bench = ScriptedLadder()
    bench.lost = Quality(0.02, 1e-3, 0.95, 500)
    ladder = climb(bench)
    found = by_key(ladder)
    assert not found["weights"].is_kept and "2 %" in found["weights"].reason
    assert found["kv"].settings["quantization"] == "auto"
    assert found["drafts"].settings["kv_cache_dtype"] == "auto"


def test_quality_is_against_the_first_rung() -> None:
    bench = ScriptedLadder()
    climb(bench)
    first = {"quantization": "auto", "kv_cache_dtype": "auto", "quantization_head": "none"}
    assert bench.compared == [
        (first, {**first, "quantization": "int8"}),
        (first, {**first, "quantization": "int8", "kv_cache_dtype": "int8"}),
    ]


def test_all_users_run_at_once_and_the_search_is_short() -> None:
    bench = ScriptedLadder()
    ladder = climb(bench)
    assert all(changes["max_num_seqs"] == users for changes, users in bench.seen)
    assert len(bench.seen) <= 8 * len(ladder.rungs)


@settings(max_examples=examples(60), deadline=None)
@given(limit=st.integers(5, 400).map(lambda ms: ms + 0.25), start=st.integers(0, len(USERS) - 1))
def test_the_search_finds_the_largest_load_from_any_start(limit: float, start: int) -> None:
    goals, bench = Goals(itl=limit, percentile=50), ScriptedLadder()
    at = lambda changes, pace, *rest: bench.measure({**NAIVE, **changes}, pace, *rest)
    runner = type("Runner", (), {"measure": staticmethod(at)})()
    sweep = Sweep(runner, (Axis("concurrency", USERS),), Pace(), 1,
                  search=users_search(goals, start), most=1)  # fmt: skip
    met = [
        p.settings["concurrency"] for p in sweep.run()
        if p.is_measured and (goals.excess(p.figures) or math.inf) <= 1
    ]  # fmt: skip
    wanted = min(users_of(NAIVE, goals), 192)  # of more, memory runs out
    assert max(met, default=0) == wanted


@pytest.mark.slow
def test_one_disturbed_run_does_not_change_the_users() -> None:
    quiet = [rung.users for rung in climb().rungs]
    for number in range(0, 24, 3):
        bench = ScriptedLadder()
        bench.disturb = lambda run, number=number: 1.5 if run == number else 1.0
        assert [rung.users for rung in climb(bench).rungs] == quiet


def test_runs_in_turn_overrule_a_disturbed_search() -> None:
    """All runs of continuous batching with 6 users are slow, until they alternate with naive."""
    bench, left = ScriptedLadder(), [2]
    is_met = lambda: bench.applied["batching"] == "continuous" and left[0] > 0

    def disturb(run: int) -> float:
        if bench.now[1] != 6 or not is_met():
            return 1.0
        left[0] -= 1
        return 1.9

    bench.disturb = disturb
    rung = by_key(climb(bench))["continuous"]
    assert left == [0] and rung.is_kept and rung.users == 6
    assert rung.best is not None and rung.best.figures["itl_ms"]["p50"] == pytest.approx(16)
    assert rung.rates[0][-1] == pytest.approx(rung.rate)  # of the same load


def test_a_rung_that_serves_fewer_users_is_left_out() -> None:
    """INT8 weights exceed the goal by less than noise, and are as fast at 16 users."""
    bench = ScriptedLadder()
    bench.disturb = lambda run: 1.19 if bench.now[0]["quantization"] == "int8" else 1.0
    found = by_key(ladder := climb(bench, goals=Goals(ttft=170.0, itl=26.1, percentile=50)))
    weights, before = found["weights"], found["prefix"]
    assert before.users == 16 and weights.users < 16 and not weights.is_kept
    words = why(weights, ladder.rungs)
    assert "16 users" in words and {26.2, 50} <= set(numbers(words))
    assert found["kv"].settings["quantization"] == "auto" and found["kv"].below == "prefix"


def test_small_losses_do_not_add_up() -> None:
    """Each of two rungs is 4 % slower than the one below it."""
    bench = ScriptedLadder()

    def disturb(run: int) -> float:
        now = bench.now[0]
        if not now["enable_prefix_caching"]:
            return 1.04 if now["kv_allocation"] == "paged" else 1.0
        return 1.15

    bench.disturb = disturb
    found = by_key(climb(bench, users=(1,)))
    assert found["paged"].is_kept and found["prefix"].rate / found["paged"].rate > 0.95
    assert not found["prefix"].is_kept and found["continuous"].title in found["prefix"].reason
    assert numbers(found["prefix"].reason) == [7.7, 1]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.floats(0.0, 0.3))
def test_the_last_kept_rung_serves_the_most_users(seed: int, share: float) -> None:
    bench, noise = ScriptedLadder(), random.Random(seed)
    bench.disturb = lambda run: 1 + share * noise.random()
    ladder = climb(bench)
    kept = [rung for rung in ladder.rungs if rung.is_kept]
    assert kept[-1].users == max(rung.users for rung in ladder.rungs)
    assert [rung.users for rung in kept] == sorted(rung.users for rung in kept)


def test_a_goal_that_nothing_meets_has_the_nearest_load() -> None:
    goals = Goals(itl=1.0, percentile=50)
    ladder = climb(goals=goals)
    assert {rung.users for rung in ladder.rungs} == {0}
    best = ladder.rungs[0].best
    assert best is not None and best.settings == {"concurrency": 1}
    words = answer(ladder.rungs, goals)
    assert "INT8" in words and "6.5 ms" in words
    for rung in ladder.rungs[1:]:
        rung.is_kept = False
    assert answer(ladder.rungs, goals) == words


def test_a_refused_rung_is_skipped_and_a_failing_one_is_kept_as_failed() -> None:
    def refuse(changes: Mapping[str, Any]) -> None:
        if changes["quantization"] == "int8":
            raise ConfigError("INT8 is not supported.", "Use INT4.")
        if changes["kv_cache_dtype"] == "int8":
            raise OutOfMemoryError("Out of memory: 3 GiB.")

    bench = ScriptedLadder()
    bench.refuse = refuse
    found = by_key(climb(bench))
    assert found["weights"].state is State.SKIPPED and "INT4" in found["weights"].reason
    assert found["kv"].state is State.FAILED and "3 GiB" in found["kv"].reason
    assert found["drafts"].state is State.MEASURED and found["drafts"].below == "prefix"


def test_a_quantized_checkpoint_has_no_rung_of_weights() -> None:
    model = dataclasses.replace(MODEL, quantization="AWQ")
    states = {r.key: r.state for r in rungs_of(EngineConfig(model="m"), model, Choices())}
    assert states.pop("weights") is State.SKIPPED and set(states.values()) == {State.WAITING}


def test_the_user_s_precisions_and_drafts_are_the_rungs() -> None:
    config = EngineConfig(
        model="m", quantization="int4", kv_cache_dtype="fp8", speculative_method="draft_model",
        speculative_model="/d",
    )  # fmt: skip
    model = dataclasses.replace(MODEL, quantization="int4")  # at load
    changes = [rung.changes for rung in rungs_of(config, model, Choices.of(config))]
    assert changes[4:] == [
        {"quantization": "int4"}, {"kv_cache_dtype": "fp8"},
        {"speculative_method": "draft_model", "speculative_model": "/d"},
    ]  # fmt: skip
    names = settings_of(rungs_of(config, model, Choices.of(config)))
    assert {"max_num_seqs", "kv_cache_memory_bytes", "speculative_model", *NAIVE} == set(names)


def test_quality_that_cannot_be_measured_does_not_end_the_ladder() -> None:
    class NoText(ScriptedLadder):
        def quality(self, *_: Any) -> Quality | None:
            raise OutOfMemoryError("Out of memory: 5 GiB.")

    rung = by_key(climb(NoText()))["weights"]
    assert rung.is_kept and rung.quality is None and "5 GiB" in rung.note


@pytest.mark.parametrize("cancelled", [SweepCancelledError, KeyboardInterrupt])
def test_cancel_keeps_the_rungs_that_are_done(cancelled: type[BaseException]) -> None:
    class Cancelled(ScriptedLadder):
        def apply(self, changes: Mapping[str, Any]) -> None:
            if changes["enable_prefix_caching"]:
                raise cancelled

    ladder = climb(Cancelled())
    assert ladder.was_cancelled
    states = [rung.state for rung in ladder.rungs]
    assert states == [State.MEASURED] * 3 + [State.WAITING] * 4
    run = to_run(result_of(ladder, state=RunState.STOPPED))
    assert run.state is RunState.STOPPED and len(run.sides) == 3
    assert " 3 of 7 " in run.details["answer"]


def test_a_ladder_stopped_in_its_first_rung_has_an_answer() -> None:
    class Cancelled(ScriptedLadder):
        def apply(self, changes: Mapping[str, Any]) -> None:
            raise SweepCancelledError

    result = result_of(climb(Cancelled()), state=RunState.STOPPED)
    assert " 0 of 7 " in result.answer and as_text(result) == result.answer
    assert not to_run(result).sides


def test_progress_has_the_time_left_after_three_rungs() -> None:
    """The first one searches longer than the others, and is not counted."""
    seen: list[Progress] = []
    climb(progress=seen.append)
    assert {one.total for one in seen} == {7} and seen[-1].done == 7
    assert [one.done for one in seen] == sorted(one.done for one in seen)
    assert {one.done for one in seen if one.left_s is None} == {0, 1, 2, 7}
    assert {one.done for one in seen if one.left_s is not None} == {3, 4, 5, 6}


def test_progress_counts_the_requests_of_a_run_and_not_rungs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.bench.progress.TELL_S", 0.0)
    seen: list[Progress] = []
    bench = ScriptedLadder()

    def disturb(run: int) -> float:
        ladder.on_request("run", 3, 8)
        return 1.0

    bench.disturb = disturb
    config = EngineConfig(model="m")
    ladder = Ladder(bench, rungs_of(config, MODEL, Choices()), GOALS, 4, progress=seen.append)
    ladder.run()
    within = [one for one in seen if one.run is not None]
    assert len(within) == len(bench.seen) and {one.run for one in within} == {(3, 8)}
    assert {one.done for one in within} == set(range(8))  # 7: the one that paid most again
    assert numbers(str(within[0]))[-4:] == [3, 8, 0, 7]


def test_a_stored_ladder_comes_back_whole(tmp_path: Path) -> None:
    made, store = result_of(climb()), RunStore(tmp_path)
    kept = store.add(to_run(made))
    assert kept.kind is Kind.LADDER and len(kept.sides) == 7
    assert [side.figures["users"].value for side in kept.sides] == [r.users for r in made.rungs]
    assert kept.sides[4].figures["kl_mean"].value == QUALITY.kl
    found = from_run(store.load(kept.id))
    assert as_csv(found) == as_csv(made) and found.answer == made.answer
    assert found.rungs[5].best is not None and not found.rungs[5].best.requests
    for details in ({}, {"rungs": 3, "goals": {}}, {"rungs": [{}], "goals": {}}):
        with pytest.raises(ValueError):
            from_run(dataclasses.replace(kept, details=details))


def test_the_leading_figures_of_a_run_are_those_of_the_last_kept_rung(tmp_path: Path) -> None:
    made = result_of(climb())
    listed = RunStore(tmp_path).add(to_run(made))
    kept = [rung for rung in made.rungs if rung.is_kept]
    assert kept[-1] is made.rungs[-2] and numbers(headline(listed))[-1] == round(kept[-1].rate)
    none = dataclasses.replace(listed, details={"best_side": 9})
    assert numbers(headline(none))[-1] == round(made.rungs[-1].rate)


def test_exports_have_the_same_figures(tmp_path: Path) -> None:
    made = result_of(climb())
    for suffix in (".json", ".csv", ".html"):
        export(made, tmp_path / f"ladder{suffix}")
    stored = json.loads((tmp_path / "ladder.json").read_text("utf-8"))
    assert [rung["users"] for rung in stored["rungs"]] == [r.users for r in made.rungs]
    rates = [rung["output_tokens_per_s"] for rung in stored["rungs"]]
    assert rates == [rung.rate for rung in made.rungs]
    assert len(as_csv(made).splitlines()) == 8
    page = as_html(made)
    inner = page.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(inner.replace("<\\/", "</")) == json.loads(json.dumps(as_dict(made)))
    assert "http" not in page and page.count("<rect") == 14
    assert page.count('fill="#e69f00"') == 1  # noise: the prefix cache
    assert "Memory" in as_text(made) and TOKENS == 10


def test_the_cache_is_small_while_the_quality_is_measured() -> None:
    """And as before afterwards, also where that fails."""
    seen: list[Any] = []

    class Engine:
        config = EngineConfig(model="m", kv_cache_memory_bytes=2**30)
        model_info = MODEL
        plan = type("Plan", (), {"block_bytes_in_all": 100})()

    class Runner:
        measure = None
        reconfigure = staticmethod(seen.append)

    def fail(candidate: EngineConfig, reference: EngineConfig) -> Quality | None:
        seen.append((candidate.quantization, reference.quantization))
        assert candidate.kv_cache_memory_bytes is None
        raise OutOfMemoryError("none")

    bench: Any = EngineLadder(Engine(), Runner(), fail)  # type: ignore[arg-type]
    with pytest.raises(OutOfMemoryError):
        bench.quality({"quantization": "none"}, {"quantization": "int8"})
    key = "kv_cache_memory_bytes"
    assert seen == [{key: 6400}, ("int8", "none"), {key: 2**30}]


def test_unquantized_weights_that_do_not_fit_are_known_before() -> None:
    snapshot = synthetic.snapshot(0.0)
    plan = dataclasses.replace(synthetic.PLAN, limit=10 * 2**30, activations=2**30)
    model = dataclasses.replace(snapshot.model, num_parameters=5 * 2**30, dtype="bfloat16")
    config = EngineConfig(model="m", quantization="int4")
    assert {10, 9} <= set(numbers(first_rung_problem(config, model, plan)))
    assert not first_rung_problem(config.replace(quantization="auto"), model, plan)
    assert not first_rung_problem(config, dataclasses.replace(model, num_parameters=2**30), plan)
