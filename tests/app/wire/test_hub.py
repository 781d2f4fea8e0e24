"""Windows on a scripted engine: who hears what, and who may what."""

from __future__ import annotations

import dataclasses
import time

import pytest

from app.clients.target import LinkState, Past
from app.server import attach_hub as hub
from app.server.options import Limits
from engine import messages as m
from engine.config import EngineConfig
from tests.app.fakes import Script
from tests.app.server.conftest import wait_until
from tests.app.wire.windows import SLOW, Bench, text_of
from tests.figures import numbers

# Who hears what --------------------------------------------------------------------------------


def test_a_window_that_comes_sees_what_is_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.server.attach_state.PAST_S", 0.01)
    lab = bench.lab(Script(replies=60, step_s=0.005))
    lab.load()
    first = bench.window(lab.server.url)
    first.ask("a", max_tokens=60)
    first.reply("a")
    wait_until(lambda: any(s.snapshot.steps for s in first.of(m.SnapshotEvent)))
    second = bench.window(lab.server.url)
    loaded = second.wait(m.Loaded)
    assert (loaded.config.model, loaded.model.path) == ("tiny", "tiny")
    snapshot = second.wait(m.SnapshotEvent).snapshot
    assert len(snapshot.steps) >= 20, "the steps of before"
    assert len(snapshot.ttft) == 1
    assert abs(snapshot.time - time.perf_counter()) < 60
    past = second.wait(Past).snapshots
    assert past[-1].time < snapshot.time
    assert max(s.num_running for s in past) == 1, "the charts of before"
    assert {s.model.path for s in past} == {"tiny"}
    kinds = [type(e) for e in second.events]
    assert kinds.index(m.Loaded) < kinds.index(Past) < kinds.index(m.SnapshotEvent)
    assert second.engine.offers == ("tiny",)


def test_without_a_model_it_sees_that_too(bench: Bench) -> None:
    lab = bench.lab()
    window = bench.window(lab.server.url)
    window.wait(m.Unloaded)
    window.ask("a")
    assert window.wait(m.RequestFailed).request_id == "a"
    lab.load()
    window.wait(m.Loaded)


def test_words_go_to_who_asked_and_ends_to_all(bench: Bench) -> None:
    lab = bench.lab()
    lab.load()
    one, other = bench.window(lab.server.url), bench.window(lab.server.url)
    other.wait(m.Loaded)
    one.ask("a", "secret words")
    direct = text_of(one.reply("a"))
    assert len(direct.split()) == 24
    (seen,) = other.reply("a")
    assert (seen.text, seen.token_ids, seen.logprobs) == ("", (), ())
    assert seen.times is not None
    one.ask("b", "reject me")
    one.wait(m.RequestFailed)
    assert not other.of(m.RequestFailed)


def test_the_server_names_the_client_whose_turn_encoding_takes(bench: Bench) -> None:
    lab = bench.lab()
    lab.load()
    one, other = bench.window(lab.server.url), bench.window(lab.server.url)
    for window, request_id in ((one, "a"), (one, "b"), (other, "c")):
        window.wait(m.Loaded)
        window.engine.submit(m.CountTokens("count", "text", client="pretended"))
        window.engine.submit(m.AddRequest(request_id, "hello", client="pretended"))
        window.reply(request_id)
    asked, counted = lab.commands(m.AddRequest), lab.commands(m.CountTokens)
    for clients in ([add.client for add in asked], [count.client for count in counted]):
        first, second, third = clients
        assert first == second != third
        assert not {"", "pretended"} & {first, third}


def test_a_cache_that_became_smaller_is_told_to_all_without_paths(bench: Bench) -> None:
    lab = bench.lab()
    lab.load()
    one = bench.window(lab.server.url)
    loaded = one.wait(m.Loaded)
    own = next(e for e in lab.events if isinstance(e, m.Loaded))
    plan = dataclasses.replace(own.plan, num_blocks=102)
    lab.engine.on_event(m.MadeRoom("128 → 102 blocks", own.model, plan))
    told = one.wait(m.MadeRoom)
    assert told == m.MadeRoom("128 → 102 blocks", loaded.model, plan)
    assert told.model.path == "tiny"
    later = bench.window(lab.server.url).wait(m.Loaded)
    assert later.plan == plan


def test_a_change_by_one_is_told_to_all_and_a_refusal_to_one(bench: Bench) -> None:
    lab = bench.lab(Script(failing_settings=("kv_cache_dtype",)))
    lab.load()
    one, other = bench.window(lab.server.url), bench.window(lab.server.url)
    one.wait(m.Loaded)
    other.wait(m.Loaded)
    one.engine.submit(m.Reconfigure({"max_num_seqs": 3}))
    for window in (one, other):
        assert window.wait(m.Reconfigured).config.max_num_seqs == 3
    one.engine.submit(m.Reconfigure({"kv_cache_dtype": "fp8"}))
    assert "not enough memory" in one.wait(m.ReconfigureFailed).error.cause
    one.engine.submit(m.Load(EngineConfig(model="tiny", max_num_seqs=5)))
    assert one.wait(m.Loaded, 2).config.max_num_seqs == 5
    assert other.wait(m.Loaded, 2).config.max_num_seqs == 5
    assert not other.of(m.ReconfigureFailed)
    assert other.of(m.LoadProgress), "the other one sees it loading"


def test_requests_of_two_windows_do_not_mix(bench: Bench) -> None:
    lab = bench.lab()
    lab.load()
    one, other = bench.window(lab.server.url), bench.window(lab.server.url)
    for number in range(6):
        one.ask(f"one-{number}")
        other.ask(f"other-{number}")
    for window, name in ((one, "one"), (other, "other")):
        for number in range(6):
            reply = window.reply(f"{name}-{number}")
            assert [t for e in reply for t in e.token_ids] == list(range(1, 25))
    one.ask("same", max_tokens=20_000)
    wait_until(lambda: "same" in lab.engine_client.foreign)
    other.ask("same")
    assert other.wait(m.RequestFailed).error.cause


def test_loading_can_be_cancelled_over_the_line(bench: Bench) -> None:
    lab = bench.lab(Script(load_steps=1000, load_step_s=0.01), models=("/models/other",))
    window = bench.window(lab.server.url)
    window.wait(m.Unloaded)
    window.engine.submit(m.Load(EngineConfig(model="other")))
    window.wait(m.LoadProgress)
    window.engine.cancel_load()
    assert window.wait(m.LoadFailed).cancelled


# Who may what ----------------------------------------------------------------------------------


def test_a_path_from_a_window_reaches_no_file(bench: Bench) -> None:
    lab = bench.lab(models=("/models/other",))
    lab.load()
    window = bench.window(lab.server.url)
    window.wait(m.Loaded)
    for wanted in ("/etc", "/models/tiny", "../tiny", "", "other/"):
        count = len(window.of(m.LoadFailed))
        window.engine.submit(m.Load(EngineConfig(model=wanted)))
        failed = window.wait(m.LoadFailed, count + 1)
        assert "tiny" in failed.error.remedy
        assert failed.serving == "tiny"
    window.engine.submit(m.Reconfigure({"speculative_model": "/etc/passwd"}))
    assert "/etc/passwd" in window.wait(m.ReconfigureFailed).error.cause
    assert [c.config.model for c in lab.commands(m.Load)] == ["/models/tiny"]
    assert not lab.commands(m.Reconfigure)
    window.engine.submit(m.Load(EngineConfig(model="other")))
    assert window.wait(m.Loaded, 2).config.model == "other"
    assert lab.commands(m.Load)[-1].config.model == "/models/other"


def test_a_part_of_the_window_itself_takes_paths(bench: Bench) -> None:
    lab = bench.lab(trusts_paths=True)
    window = bench.window(lab.server.url)
    window.wait(m.Unloaded)
    window.engine.submit(m.Load(EngineConfig(model="/models/any")))
    assert window.wait(m.Loaded).config.model == "/models/any"
    assert window.engine.offers is None


def test_windows_may_be_let_in_to_look_and_ask_alone(bench: Bench) -> None:
    lab = bench.lab(Script(step_s=0.01, replies=100_000), allows_control=False)
    lab.load()
    window, other = bench.window(lab.server.url), bench.window(lab.server.url)
    window.wait(m.Loaded)
    other.ask("of-another", max_tokens=100_000)
    wait_until(lambda: other.outputs("of-another"))
    assert not window.engine.may_control
    sent = len(lab.engine.commands)
    window.engine.submit(m.Load(EngineConfig(model="tiny")))
    window.engine.submit(m.Unload())
    window.engine.submit(m.Reconfigure({"max_num_seqs": 2}))
    window.engine.submit(m.MeasurePeaks())
    window.engine.submit(m.ProfileSteps(4))
    window.engine.submit(m.Abort("of-another"))
    window.engine.submit(m.Abort("of-nobody"))
    window.engine.cancel_load()
    assert "--no-control" in window.wait(m.LoadFailed, 2).error.cause
    assert "--no-control" in window.wait(m.ReconfigureFailed).error.cause
    assert "--no-control" in window.wait(m.PeaksMeasured).why_not
    assert "--no-control" in window.wait(m.StepsProfiled).why_not
    assert window.wait(m.RequestFailed).request_id == "of-another"
    assert len(lab.engine.commands) == sent
    window.ask("mine", max_tokens=100_000)
    wait_until(lambda: window.outputs("mine"))
    window.engine.submit(m.Abort("mine"))
    wait_until(lambda: lab.commands(m.Abort) == [m.Abort("mine")])


def test_the_queue_has_the_limit_of_every_client(bench: Bench) -> None:
    lab = bench.lab(SLOW, limits=Limits(max_queued=0, max_output_tokens=1000))
    lab.load()
    window = bench.window(lab.server.url)
    for number in range(17):  # max_num_seqs is 16
        window.ask(f"r-{number}", max_tokens=1000)
    failed = window.wait(m.RequestFailed)
    assert failed.request_id == "r-16"
    window.ask("long", max_tokens=2000)
    assert "1,000" in window.wait(m.RequestFailed, 2).error.cause


def test_windows_have_a_number(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_WINDOWS", 1)
    lab = bench.lab()
    first = bench.window(lab.server.url)
    first.wait_link(LinkState.LIVE)
    second = bench.window(lab.server.url)
    assert numbers(second.wait_link(LinkState.CLOSED).words) == [1]
