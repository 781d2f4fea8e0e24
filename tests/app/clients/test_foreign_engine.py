"""ForeignEngine: commands in, events out, whatever the server does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from app.clients import watch
from app.clients.engine import ForeignEngine
from app.clients.probe import probe
from app.clients.target import LinkChanged, LinkState, Remark, ServerType, Target
from engine.config import EngineConfig
from engine.messages import (
    Abort,
    AddRequest,
    BlockInspected,
    CountTokens,
    InspectBlock,
    Load,
    Loaded,
    LoadFailed,
    MeasurePeaks,
    OutputEvent,
    PeaksMeasured,
    Reconfigure,
    ReconfigureFailed,
    RequestFailed,
    SnapshotEvent,
    TokensCounted,
    Unload,
)
from engine.sampling_params import SamplingParams
from engine.snapshot import FinishReason, Part, RequestState
from tests.app.clients.conftest import PAGES, Exchange, ScriptedServer, chat_chunk, usage

T = TypeVar("T")
CHAT = "/v1/chat/completions"
PROMPT = ({"role": "user", "content": "hi"},)


class Driver:
    """A foreign engine and what it said."""

    def __init__(self, target: Target, **given: Any) -> None:
        self.events: list[Any] = []
        self.engine = ForeignEngine(self.events.append, target, **given)
        self.engine.start()

    def all(self, kind: type[T]) -> list[T]:
        return [event for event in list(self.events) if isinstance(event, kind)]

    def wait(self, kind: type[T], when: Callable[[T], Any] = lambda event: True) -> T:
        deadline = time.monotonic() + 60
        while True:
            for event in self.all(kind):
                if when(event):
                    return event
            assert time.monotonic() < deadline, f"no such {kind.__name__}: {self.events[-5:]}"
            time.sleep(0.005)

    def wait_link(self, state: LinkState, after: int = 0) -> LinkChanged:
        return self.wait(
            LinkChanged, lambda event: event.state is state and self.events.index(event) >= after
        )

    def ask(self, request_id: str = "r", **params: Any) -> None:
        self.engine.submit(AddRequest(request_id, PROMPT, SamplingParams(**params)))

    def finished(self, request_id: str = "r") -> OutputEvent:
        return self.wait(OutputEvent, lambda e: e.request_id == request_id and e.finish_reason)

    def text(self, request_id: str = "r") -> str:
        return "".join(e.text for e in self.all(OutputEvent) if e.request_id == request_id)


@pytest.fixture
def drive(server: ScriptedServer) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def begin(target: Target | None = None, **given: Any) -> Driver:
        made.append(Driver(target or server.target, **given))
        return made[-1]

    yield begin
    for driver in made:
        assert driver.engine.stop()


@pytest.fixture
def vllm(server: ScriptedServer) -> ScriptedServer:
    server.models("vllm", "m", "m-lora", max_model_len=4096)
    server.answers |= {
        "/version": {"version": "0.12.0"},
        "/metrics": (PAGES / "vllm_0.12.txt").read_text(),
        "/tokenize": {"count": 3, "tokens": [1, 2, 3]},
        CHAT: lambda exchange: exchange.stream(
            chat_chunk("Hel"), chat_chunk("lo"), chat_chunk(finish="stop"),
            {"choices": [], "usage": usage(12, 4, cached=8)}, "[DONE]",
        ),
    }  # fmt: skip
    return server


def test_it_connects_and_says_what_serves(vllm: ScriptedServer, drive: Any) -> None:
    driver = drive()
    loaded = driver.wait(Loaded)
    assert (loaded.config.model, loaded.config.max_model_len) == ("m", 4096)
    assert loaded.model.name == "m"
    states = [event.state for event in driver.all(LinkChanged)]
    assert states == [LinkState.CONNECTING, LinkState.LIVE]
    assert driver.engine.is_alive()


def test_a_probe_need_not_be_repeated(vllm: ScriptedServer, drive: Any) -> None:
    found = probe(vllm.target)
    vllm.seen.clear()
    drive(probe=found, model="m-lora").wait(Loaded, lambda event: event.config.model == "m-lora")
    assert "/version" not in [path for path, _ in vllm.seen]


def test_a_reply_is_events_of_an_engine(vllm: ScriptedServer, drive: Any) -> None:
    driver = drive()
    before = time.perf_counter()
    driver.ask()
    last = driver.finished()
    assert driver.text() == "Hello"
    assert last.finish_reason is FinishReason.STOP
    assert (last.num_prompt_tokens, last.num_cached_tokens) == (12, 8)
    firsts = [event for event in driver.all(OutputEvent) if event.is_first]
    assert [event.text for event in firsts] == ["Hel"]
    assert last.times is not None
    assert last.times.ttft_s is not None and last.times.ttft_s > 0
    assert before <= last.times.arrival <= last.times.tokens[0].time <= last.time
    assert last.times.num_output_tokens == 4  # what the usage says, not the number of pieces
    assert sum(len(event.token_ids) for event in driver.all(OutputEvent)) == 4


def test_snapshots_tell_what_the_metrics_do(vllm: ScriptedServer, drive: Any) -> None:
    driver = drive()
    snapshot = driver.wait(SnapshotEvent).snapshot
    assert (snapshot.num_running, snapshot.num_waiting, snapshot.kv_usage) == (3, 2, 0.25)
    assert snapshot.counters.generation_tokens == 340
    assert snapshot.counters.prompt_tokens == 1200 - 480
    assert snapshot.counters.prefix_hit_rate == 0.4
    assert Part.STEPS in snapshot.missing and Part.KV_USAGE not in snapshot.missing


def test_latencies_are_measured_here(vllm: ScriptedServer, drive: Any) -> None:
    driver = drive()
    driver.ask()
    last = driver.finished()
    driver.wait(SnapshotEvent, lambda event: event.snapshot.ttft)
    samples = [s for event in driver.all(SnapshotEvent) for s in event.snapshot.ttft]
    assert last.times is not None
    assert [sample.value for sample in samples] == [last.times.ttft_s]


def test_requests_show_while_they_run(vllm: ScriptedServer, drive: Any) -> None:
    go_on = threading.Event()

    def slow(exchange: Exchange) -> None:
        exchange.begin()
        exchange.write(b": queued\n\n")
        go_on.wait(60)
        exchange.events(chat_chunk("x", usage=usage(5, 1)), chat_chunk(finish="stop"))

    vllm.answers[CHAT] = slow
    driver = drive()
    driver.ask()
    row = driver.wait(SnapshotEvent, lambda event: event.snapshot.requests).snapshot.requests[0]
    assert (row.request_id, row.state) == ("r", RequestState.WAITING)
    go_on.set()
    driver.finished()
    driver.wait(
        SnapshotEvent, lambda e: e is driver.all(SnapshotEvent)[-1] and not e.snapshot.requests
    )


def test_abort_hangs_up(vllm: ScriptedServer, drive: Any) -> None:
    def endless(exchange: Exchange) -> None:
        exchange.begin()
        while not vllm.hung_up.is_set():
            exchange.events(chat_chunk("x "))
            time.sleep(0.01)

    vllm.answers[CHAT] = endless
    driver = drive()
    driver.ask()
    driver.wait(OutputEvent, lambda event: event.is_first)
    driver.engine.submit(Abort("unknown"))
    driver.engine.submit(Abort("r"))
    last = driver.finished()
    assert last.finish_reason is FinishReason.ABORT
    assert last.times is not None and last.times.tokens
    assert vllm.hung_up.wait(60)


def test_a_reply_that_is_cut_keeps_its_text(vllm: ScriptedServer, drive: Any) -> None:
    vllm.answers[CHAT] = lambda exchange: exchange.stream(chat_chunk("so far"))
    driver = drive()
    driver.ask()
    failed = driver.wait(RequestFailed)
    assert "after 1 tokens" in failed.error.cause
    assert driver.text() == "so far"
    last = driver.finished()
    assert (last.finish_reason, last.error) == (FinishReason.ERROR, failed.error)


def test_a_refused_request_fails_alone(vllm: ScriptedServer, drive: Any) -> None:
    vllm.answers[CHAT] = lambda exchange: exchange.send(400, {"error": {"message": "too long"}})
    driver = drive()
    driver.ask()
    assert "too long" in driver.wait(RequestFailed).error.cause
    assert driver.all(LinkChanged)[-1].state is LinkState.LIVE


def test_what_is_not_taken_is_said_once(server: ScriptedServer, drive: Any) -> None:
    server.models("someone", "m")
    server.answers[CHAT] = lambda exchange: exchange.stream(chat_chunk("x", "stop"))
    driver = drive()
    for name in ("a", "b"):
        driver.ask(name, top_k=5)
        driver.finished(name)
    (remark,) = driver.all(Remark)
    assert remark.words.startswith("OpenAI-compatible") and "top_k" in remark.words


def test_what_cannot_be_done_from_here_is_said(vllm: ScriptedServer, drive: Any) -> None:
    driver = drive()
    loaded = driver.wait(Loaded)
    driver.engine.submit(Reconfigure({"max_num_seqs": 4}))
    refused = driver.wait(ReconfigureFailed)
    assert refused.config == loaded.config
    assert "vLLM" in refused.error.remedy
    driver.engine.submit(InspectBlock(3))
    assert driver.wait(BlockInspected).details is None
    driver.engine.submit(MeasurePeaks())
    assert "vLLM" in driver.wait(PeaksMeasured).why_not
    driver.engine.submit(Unload())
    assert driver.wait(LoadFailed).serving == "m"
    driver.engine.submit(AddRequest("b", PROMPT, begin_with=(1, 2)))
    assert driver.wait(RequestFailed).error.cause


def test_another_model_of_the_server(vllm: ScriptedServer, drive: Any) -> None:
    driver = drive()
    driver.wait(Loaded)
    driver.engine.submit(Load(EngineConfig(model="m-lora")))
    driver.wait(Loaded, lambda event: event.config.model == "m-lora")
    driver.engine.submit(Load(EngineConfig(model="/some/folder")))
    failed = driver.wait(LoadFailed)
    assert (failed.serving, "m, m-lora" in failed.error.remedy) == ("m-lora", True)


def test_tokens_are_counted_where_the_server_can(vllm: ScriptedServer, drive: Any) -> None:
    driver = drive()
    driver.engine.submit(CountTokens("k", "some text"))
    assert driver.wait(TokensCounted).num_tokens == 3
    assert ("/tokenize", {"model": "m", "prompt": "some text", "add_special_tokens": False}) in (
        vllm.seen
    )
    del vllm.answers["/tokenize"]
    driver.engine.submit(CountTokens("later", "some text"))
    assert driver.wait(TokensCounted, lambda event: event.key == "later").num_tokens is None


# -- the line ---------------------------------------------------------------------------------


def test_a_wrong_address_ends_it(server: ScriptedServer, drive: Any) -> None:
    server.answers["/v1/models"] = "<html>a router's page"
    driver = drive()
    failed = driver.wait(LoadFailed)
    assert failed.error.cause
    closed = driver.all(LinkChanged)[-1]
    assert closed.state is LinkState.CLOSED and closed.words
    driver.ask()  # it is answered all the same
    assert driver.wait(RequestFailed).error == failed.error


def test_no_address_at_all(drive: Any) -> None:
    driver = drive(Target("ftp://host"))
    assert "ftp://" in driver.wait(LoadFailed).error.cause


def test_a_model_that_is_not_served(vllm: ScriptedServer, drive: Any) -> None:
    driver = drive(model="other")
    assert "'other'" in driver.wait(LoadFailed).error.cause
    assert driver.all(LinkChanged)[-1].state is LinkState.CLOSED


def test_a_server_that_loads_on_demand_is_asked_for_what_it_does_not_list(
    server: ScriptedServer, drive: Any
) -> None:
    """As `transformers serve` does, which lists what its cache holds."""
    server.models("somebody")
    assert drive().wait(LoadFailed).error.cause
    driver = drive(model="/models/any")
    assert driver.wait(Loaded).config.model == "/models/any"
    assert driver.wait_link(LinkState.LIVE)


def test_it_waits_for_a_server_that_starts(vllm: ScriptedServer, drive: Any) -> None:
    models = vllm.answers["/v1/models"]
    vllm.answers["/v1/models"] = lambda exchange: exchange.send(503, {"error": "loading"})
    driver = drive()
    waiting = driver.wait_link(LinkState.RECONNECTING)
    assert "503" in waiting.words
    driver.ask()  # kept until then
    vllm.answers["/v1/models"] = models
    assert driver.finished().finish_reason is FinishReason.STOP


def test_connecting_can_be_given_up(vllm: ScriptedServer, drive: Any) -> None:
    vllm.answers["/v1/models"] = lambda exchange: exchange.send(503, {"error": "loading"})
    driver = drive()
    driver.wait_link(LinkState.RECONNECTING)
    driver.engine.cancel_load()
    assert driver.wait(LoadFailed).cancelled
    assert driver.all(LinkChanged)[-1].state is LinkState.CLOSED


def test_a_lost_server_comes_back_with_another_model(vllm: ScriptedServer, drive: Any) -> None:
    metrics = vllm.answers["/metrics"]
    driver = drive()
    driver.wait(Loaded)
    vllm.answers["/metrics"] = lambda exchange: exchange.send(502, {"error": "gateway"})
    lost = driver.wait_link(LinkState.RECONNECTING)
    assert "(502" in lost.words
    num_before = len(driver.events)
    vllm.models("vllm", "new", max_model_len=10)
    vllm.answers["/metrics"] = metrics
    driver.wait(Loaded, lambda event: event.config.model == "new")
    driver.wait_link(LinkState.LIVE, after=num_before)


def test_metrics_that_hang_are_said_once_and_replies_go_on(
    vllm: ScriptedServer, drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.2)
    monkeypatch.setattr(watch, "SILENCE_S", 0.3)
    metrics = vllm.answers["/metrics"]
    driver = drive()
    driver.wait(SnapshotEvent, lambda event: Part.QUEUE not in event.snapshot.missing)
    vllm.answers["/metrics"] = lambda exchange: time.sleep(0.5)
    assert "/metrics" in driver.wait(Remark).words
    driver.wait(SnapshotEvent, lambda event: Part.QUEUE in event.snapshot.missing)
    driver.ask()
    assert driver.finished().finish_reason is FinishReason.STOP
    vllm.answers["/metrics"] = metrics
    num_before = len(driver.events)
    driver.wait(
        SnapshotEvent,
        lambda event: driver.events.index(event) >= num_before
        and Part.QUEUE not in event.snapshot.missing,
    )
    assert len(driver.all(Remark)) == 1
    assert driver.all(LinkChanged)[-1].state is LinkState.LIVE


def test_stop_hangs_up_and_leaves_the_server_alone(vllm: ScriptedServer, drive: Any) -> None:
    def endless(exchange: Exchange) -> None:
        exchange.begin()
        while not vllm.hung_up.is_set():
            exchange.write(b": waiting\n\n")
            time.sleep(0.01)

    vllm.answers[CHAT] = endless
    driver = drive()
    driver.ask()
    driver.wait(SnapshotEvent, lambda event: event.snapshot.requests)
    assert driver.engine.stop()
    assert driver.finished().finish_reason is FinishReason.ABORT
    assert vllm.hung_up.wait(60)
    driver.ask("late")  # and nothing happens
    assert probe(vllm.target).server_type is ServerType.VLLM


def test_stop_before_start_ends_it_too(vllm: ScriptedServer) -> None:
    engine = ForeignEngine(lambda event: None, vllm.target)
    assert engine.stop()
    engine.start()
    engine.join(10)
    assert not engine.is_alive()
