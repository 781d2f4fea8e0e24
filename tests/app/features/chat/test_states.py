"""The state of a request in words: each reason with its numbers, and no number that was not
measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.features.chat.states import MEASURED_TOKENS, EngineNow, PrefillRate, state_text
from app.link.change_watch import Applying
from engine.config import Change
from engine.messages import Reconfigured
from engine.snapshot import (
    BlockSnapshot,
    EngineSnapshot,
    Part,
    ReportedLoad,
    RequestSnapshot,
    RequestState,
    RequestTimes,
    StepEntry,
    StepRecord,
)
from tests.figures import numbers
from tests.widgets.synthetic import CONFIG, snapshot

OTHERS = 4


def request(
    state: RequestState, computed: int = 0, prompt: int = 1204, output: int = 0, blocks: int = 0
) -> RequestSnapshot:
    times = RequestTimes(0.0)
    return RequestSnapshot("me", state, prompt, 0, computed, output, blocks, 0, times)


def now(
    own: RequestSnapshot,
    num_running: int = OTHERS,
    num_used: int = 0,
    **settings: object,
) -> EngineSnapshot:
    found = snapshot(1.0, num_running=num_running, num_used=num_used)
    config = replace(CONFIG, **settings)  # type: ignore[arg-type]
    return replace(found, requests=(*found.requests, own), config=config)


def text(found: EngineSnapshot, **more: object) -> str:
    return state_text("me", EngineNow(found, **more))  # type: ignore[arg-type]


def test_a_request_that_decodes_or_is_unknown_waits_for_nothing() -> None:
    decoding = request(RequestState.RUNNING, computed=1210, output=7)
    assert text(now(decoding)) == ""
    assert state_text("other", EngineNow(now(decoding))) == "" == state_text("me", EngineNow())


@pytest.mark.parametrize(
    ("settings", "num_used", "told"),
    [
        ({"max_num_seqs": OTHERS}, 10, [OTHERS, OTHERS]),
        ({"max_num_seqs": 64}, 1150, [2, 1152, 76]),
        ({"max_num_seqs": 64, "kv_allocation": "contiguous"}, 1071, [93]),
    ],
)
def test_what_a_waiting_request_lacks_is_said_in_numbers(
    settings: dict[str, object], num_used: int, told: list[int]
) -> None:
    for state in (RequestState.WAITING, RequestState.PREEMPTED):
        found = text(now(request(state), num_used=num_used, **settings))
        assert numbers(found) == told
        assert found.startswith("preempted" if state is RequestState.PREEMPTED else "waiting")


def test_requests_ahead_are_counted_where_blocks_would_do() -> None:
    own = request(RequestState.PREEMPTED, prompt=17, output=34)
    found = now(own, num_used=1142, max_num_seqs=64)
    assert numbers(text(found)) == [10, 1152]
    first = replace(own, request_id="first", num_prompt_tokens=900)
    running = tuple(r for r in found.requests if r.request_id != "me")
    both = replace(found, requests=(*running, first, own))
    assert numbers(text(both)) == [10, 1152, 1]
    assert numbers(text(replace(both, requests=(*running, own, first)))) == [10, 1152]


def test_a_slot_that_is_free_for_one_step_is_no_lack_of_blocks() -> None:
    """A request has ended, and the next step admits the first in line."""
    own = request(RequestState.WAITING, prompt=17)
    found = now(own, num_used=100, max_num_seqs=OTHERS + 1)
    assert "next step" in text(found) and numbers(text(found)) == []
    first = replace(own, request_id="first")
    running = tuple(r for r in found.requests if r.request_id != "me")
    second = text(replace(found, requests=(*running, first, own)))
    assert "batch slot" in second and numbers(second) == [OTHERS, OTHERS + 1, 1]


def test_a_static_batch_that_is_closed_is_the_reason() -> None:
    found = now(request(RequestState.WAITING), batching="static")
    held = text(found, held_back=frozenset(["me"]))
    assert "static batch" in held and numbers(held) == [OTHERS]
    assert "static batch" not in text(found)


@given(st.integers(0, 1204), st.integers(0, 50))
def test_progress_of_a_prefill_and_of_a_recomputation(computed: int, output: int) -> None:
    found = text(now(request(RequestState.RUNNING, computed, output=output)))
    total = 1204 + output
    if total - computed <= (1 if output else 0):
        assert found == ""
    else:
        assert numbers(found) == [computed, total]
        assert found.startswith("recomputing" if output else "prefill")


def test_a_pause_says_what_is_recomputed_and_an_estimate_only_if_measured() -> None:
    own = request(RequestState.RUNNING, computed=572, prompt=560, output=13)
    applying = Applying(Change.CACHE_REBUILD, 0.0, "Block size 16 → 32", {"me": 573, "b": 27})
    unmeasured = text(now(own), applying=applying)
    assert "rebuilding the cache" in unmeasured and numbers(unmeasured) == [573]
    measured = text(now(own), applying=applying, prefill_rate=50.0)
    assert numbers(measured) == [573, 12]
    new = now(own).config
    rebuilt = applying._replace(answer=Reconfigured(new, Change.CACHE_REBUILD, 0.7))
    before = replace(now(own), config=new.replace(block_size=32))  # the snapshot is late
    assert "cache rebuilt" in text(before, applying=rebuilt)
    assert numbers(text(before, applying=rebuilt)) == [573]
    waiting = replace(own, state=RequestState.PREEMPTED, num_computed_tokens=0)
    assert numbers(text(now(waiting), applying=rebuilt)) == [573]
    assert numbers(text(now(replace(waiting, state=RequestState.RUNNING)), applying=rebuilt)) == [
        0, 573,
    ]  # fmt: skip
    other = applying._replace(tokens={"b": 27})
    assert text(now(own), applying=other) == ""
    reload = applying._replace(change=Change.RELOAD)
    assert "reloading the model" in text(now(own), applying=reload)


def test_another_server_reports_its_load_at_most() -> None:
    own = request(RequestState.WAITING, blocks=-1)
    found = replace(now(own), missing=frozenset(Part))
    assert text(found) == ""
    told = replace(found, told=ReportedLoad(12, 3, None))
    assert numbers(text(told)) == [12, 3]


@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 8), st.floats(0.001, 2.0))))
def test_the_prefill_rate_is_that_of_steps_that_prefill(
    steps: list[tuple[int, int, float]],
) -> None:
    rate = PrefillRate()
    assert rate.tokens_per_s is None
    for index, (prefill, decode, seconds) in enumerate(steps):
        entries = (StepEntry("a", "prefill", prefill), StepEntry("b", "decode", decode))
        rate.take([StepRecord(index, 0.0, seconds, entries, 2, 0)])
    mostly = [(prefill, seconds) for prefill, decode, seconds in steps if prefill > decode]
    if sum(tokens for tokens, _ in mostly) < MEASURED_TOKENS:
        assert rate.tokens_per_s is None
    else:
        lowest = min(tokens / seconds for tokens, seconds in mostly)
        highest = max(tokens / seconds for tokens, seconds in mostly)
        assert rate.tokens_per_s is not None
        assert lowest <= rate.tokens_per_s * 1.000001 and rate.tokens_per_s <= highest * 1.000001
    rate.clear()
    assert rate.tokens_per_s is None


def test_every_state_of_every_engine_has_words_or_none() -> None:
    empty = BlockSnapshot(16, (), *(np.zeros(0, np.int32) for _ in range(4)))  # type: ignore[arg-type]
    for state in RequestState:
        for kind in ("paged", "contiguous"):
            found = now(request(state), num_running=0, kv_allocation=kind)
            assert "None" not in text(replace(found, blocks=empty))
