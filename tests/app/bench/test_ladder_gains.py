"""Which rung paid, and whether more runs confirm it, on a scripted engine (`ladder_script`)."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.bench.goals import Goals
from app.bench.ladder_record import from_run, to_run
from app.bench.ladder_words import answer, gain, is_noise, most_paid, why
from app.bench.load import EngineRun
from app.bench.rungs import CLEAR, clear_of
from app.bench.users import USERS
from engine.errors import ConfigError
from tests.app.bench.ladder_script import (
    GOALS,
    MEASURED,
    ScriptedLadder,
    by_key,
    climb,
    result_of,
)
from tests.figures import numbers
from tests.tiers import examples


def test_why_a_rung_paid_has_its_figures() -> None:
    ladder = climb()
    told = {rung.key: why(rung, ladder.rungs) for rung in ladder.rungs}
    # 8 of 16 ms at 6 users; batches of 3 and of 6; 8 of 26 ms at 16 users; 10 of 40 drafts
    for key, parts in {
        "naive": ["50 %"], "continuous": ["6 users", "3", "6"], "paged": ["6 requests"],
        "prefix": ["0 %"], "weights": ["31 %", "800 B → 400 B"], "kv": ["160 B → 160 B"],
        "drafts": ["25 %", "2"],
    }.items():  # fmt: skip
        assert all(part in told[key] for part in parts), told[key]
    found = by_key(ladder)
    assert "×" not in told["weights"]  # 8 of 26 ms become 4: no more than the share explains
    fast = ScriptedLadder()
    fast.disturb = lambda run: 0.5 if fast.applied.get("quantization") == "int8" else 1.0
    disturbed = climb(fast)
    assert "×" in why(by_key(disturbed)["weights"], disturbed.rungs)
    assert gain(found["paged"], ladder.rungs)[0] == gain(found["kv"], ladder.rungs)[0] == 2.0
    assert gain(found["drafts"], ladder.rungs)[0] == 0.75
    words = answer(ladder.rungs, GOALS)
    paid = max(("paged", "kv"), key=lambda key: gain(found[key], ladder.rungs))
    assert "6 → 32 (5.33×)" in words and found[paid].title in words


def test_a_technique_that_is_not_used_did_not_pay() -> None:
    """Without hits of the cache, and reads of the KV cache of 2 % of a step, more users are noise.
    A rung that is no faster is within the noise, too."""
    ladder = climb()
    found = by_key(ladder)
    assert [key for key in MEASURED if is_noise(found[key], ladder.rungs)] == ["prefix"]
    prefix = why(found["prefix"], ladder.rungs)
    assert {0, 12, 16} <= set(numbers(prefix))
    split = found["weights"].split
    assert split is not None
    few = dataclasses.replace(found["weights"], split=split._replace(kv=0.02, launch=0.98))
    rungs = [few if rung.key == "weights" else rung for rung in ladder.rungs]
    assert is_noise(found["kv"], rungs) and "16 → 32" in why(found["kv"], rungs)
    assert f": {found['paged'].title}." in answer(rungs, GOALS)
    only = [found["naive"], dataclasses.replace(found["prefix"], below="naive")]
    assert found["prefix"].title not in answer(only, GOALS)
    slow = dataclasses.replace(found["kv"], users=16, best=found["weights"].best)
    both = [found["weights"], slow]
    assert is_noise(slow, both)
    assert numbers(why(slow, both))[-2:] == [round(100 * clear_of(both), 1), 0]


@settings(max_examples=examples(30), deadline=None)
@given(share=st.floats(0.0, 0.3), rounds=st.integers(2, 6))
def test_noise_is_the_spread_of_repeated_runs(share: float, rounds: int) -> None:
    """Every second run is slower by `share`: the noise is that spread, as it is stored too."""
    bench = ScriptedLadder()
    bench.disturb = lambda run: 1 + share * (run % 2)
    ladder = climb(bench, users=(1,), rounds=rounds)
    clear = clear_of(ladder.rungs)
    spread = statistics.stdev([1 / (1 + share * (run % 2)) for run in range(60)])
    if spread > CLEAR:
        assert CLEAR < clear < 4 * spread
    elif share == 0:
        assert clear < CLEAR / 2
    assert clear_of(from_run(to_run(result_of(ladder))).rungs) == pytest.approx(clear)
    weights = by_key(ladder)["weights"]
    faster = gain(weights, ladder.rungs)[1] - 1
    if weights.is_kept:
        is_lucky = bool(weights.doubt)
        assert is_noise(weights, ladder.rungs) is (is_lucky or faster <= clear)


def test_a_gain_within_the_spread_did_not_pay() -> None:
    """INT8 weights are 1.3 times as fast, where runs differ by more than that."""
    ladder = climb(users=(1,))
    found = by_key(ladder)
    assert not is_noise(found["weights"], ladder.rungs)
    found["prefix"].rates = [[60.0, 100.0, 140.0, 100.0]]
    assert is_noise(found["weights"], ladder.rungs)
    assert found["weights"].title not in answer(ladder.rungs, GOALS)


@pytest.mark.parametrize("users", [(1,), USERS])
@pytest.mark.parametrize("lucky", [False, True])
def test_what_paid_most_is_run_again(users: tuple[int, ...], lucky: bool) -> None:
    """In turn with the rung below. The runs of a lucky one are slow then."""
    bench = ScriptedLadder()
    is_again = lambda: {one["speculative_method"] for one in (bench.now[0], bench.applied)} == {
        "off", "ngram"
    }  # fmt: skip
    first = climb(users=users)
    paid = most_paid(first.rungs)
    assert paid is not None and paid.best is not None and paid.users in (1, 32)
    below = next(one for one in first.rungs if one.key == paid.below)
    is_paid = lambda: bench.now[0] == {**paid.settings, "max_num_seqs": paid.users}
    bench.disturb = lambda run: 1.5 if lucky and is_again() and is_paid() else 1.0
    found = by_key(ladder := climb(bench, users=users))[paid.key]
    if not lucky:
        turns = [{**one.settings, "max_num_seqs": paid.users} for one in (below, paid)]
        assert bench.seen[-4:] == [(settings, paid.users) for settings in turns] * 2
    assert bool(found.doubt) is lucky is is_noise(found, ladder.rungs)
    assert (most_paid(ladder.rungs) is found) is not lucky
    assert (f": {found.title}." in answer(ladder.rungs, GOALS)) is not lucky
    assert found.doubt in why(found, ladder.rungs)
    stored = from_run(to_run(result_of(ladder))).rungs
    assert [rung.doubt for rung in stored] == [rung.doubt for rung in ladder.rungs]


@pytest.mark.parametrize("is_narrow", [True, False])
def test_a_rung_that_misses_by_noise_paid_where_the_one_below_is_far(is_narrow: bool) -> None:
    """With as many users the rung below misses the goals by much more."""
    paid = most_paid(climb().rungs)
    assert paid is not None and paid.best is not None and paid.users > 6
    excess = GOALS.excess(paid.best.figures)
    assert excess is not None and excess <= 1
    bench, missed = ScriptedLadder(), 1 + (CLEAR / 2 if is_narrow else 3 * CLEAR)
    own = {**paid.settings, "max_num_seqs": paid.users}
    bench.disturb = lambda run: (
        missed / excess if bench.now[0] == own and bench.seen.count(bench.now) > 1 else 1.0
    )
    found = by_key(ladder := climb(bench))[paid.key]
    assert (most_paid(ladder.rungs) is found) is is_narrow is not bool(found.doubt)
    assert bool(found.note) is is_narrow


class _Hits(ScriptedLadder):
    """Whose prefix cache is used."""

    def measure(self, *args: Any, **more: Any) -> EngineRun:
        run = super().measure(*args, **more)
        run.observed.prefix_hits = 50 * args[0]["enable_prefix_caching"]
        return run


@pytest.mark.parametrize("lucky", [False, True])
def test_the_users_of_the_answer_are_confirmed(lucky: bool) -> None:
    """In runs of the last kept rung, where another one paid most."""
    goals = Goals(ttft=80.0, itl=26.5, percentile=50)
    bench = _Hits()
    is_last = lambda: bench.now[0]["kv_cache_dtype"] == "int8" and bench.now[1] == 24
    is_again = lambda: bench.now in bench.seen
    bench.disturb = lambda run: 1.5 if lucky and is_last() and is_again() else 1.0

    def refuse(settings: Mapping[str, Any]) -> None:
        if settings["speculative_method"] != "off":
            raise ConfigError("No drafts.")

    bench.refuse = refuse
    found = by_key(ladder := climb(bench, goals=goals))
    last, words = found["kv"], answer(ladder.rungs, goals)
    assert most_paid(ladder.rungs) is found["prefix"] and last.users == 24
    assert bool(last.missed) is lucky and last.is_kept
    assert bench.seen[-2:] == [({**last.settings, "max_num_seqs": 24}, 24)] * 2
    if lucky:
        assert last.missed in words and last.missed in why(last, ladder.rungs)
        assert numbers(last.missed)[:2] == [2, 24]


def test_a_rung_that_only_raises_the_throughput_paid() -> None:
    ladder = climb(users=(1,))
    found = by_key(ladder)
    assert {gain(rung, ladder.rungs)[0] for rung in ladder.rungs} == {1.0}
    assert max(ladder.rungs, key=lambda rung: gain(rung, ladder.rungs)) is found["weights"]
    assert f": {found['weights'].title}." in answer(ladder.rungs, GOALS)


def test_continuous_batching_that_serves_more_users_is_used() -> None:
    """Even where static batches were as full with as many users as they could serve."""
    rung = (ladder := climb(users=(1,))).rungs[1]
    before = why(rung, ladder.rungs)
    more = dataclasses.replace(rung, users=2)
    words = why(more, [ladder.rungs[0], more])
    assert "1 user" in words and "1 user" not in before
