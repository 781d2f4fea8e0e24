"""The server itself: who may call, where it listens, how it ends, and what it counts."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.server.call import new_call_id, origin_of, request_id_of
from app.server.engine_client import EngineClient
from app.server.options import Limits, ServerOptions
from app.server.reply import ChatShape
from app.server.server import ApiServer, ServerStartError
from engine.errors import ConfigError, ErrorInfo, NumericalError
from engine.heartbeat import Pulse
from engine.messages import (
    Abort,
    AddRequest,
    Command,
    EngineCrashed,
    Loaded,
    OutputEvent,
    Recovered,
    RequestFailed,
    Stalled,
    Unloaded,
)
from engine.snapshot import FinishReason
from tests.app.server.conftest import Served, wait_until
from tests.app.server.test_bad_input import CHAT, COMPLETIONS, USER, call

ASK = {"prompt": [5, 6, 7], "max_tokens": 5}


class Puppet:
    """A server whose engine does what the test says. `url` and `engine_client` as in Served."""

    def __init__(self, served: Served, options: ServerOptions) -> None:
        self.commands: list[Command] = []
        self.engine_client = EngineClient(self.commands.append)
        self.server = ApiServer(self.engine_client, options)
        assert served.engine_client.config is not None
        assert served.engine_client.model is not None
        self.loaded = Loaded(served.engine_client.config, served.engine_client.model, None)  # type: ignore[arg-type]
        self.engine_client.on_event(self.loaded)
        self.server.start()

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def added(self) -> list[str]:
        return [c.request_id for c in self.commands if isinstance(c, AddRequest)]

    def say(self, text: str, finish: FinishReason | None = None, error: Any = None) -> None:
        event = OutputEvent(
            self.added[-1], text, (1,), 0.0, 0, 3, 0, finish_reason=finish, error=error
        )
        self.engine_client.on_event(event)


@pytest.fixture
def puppet(served: Served) -> Iterator[Callable[..., Puppet]]:
    made: list[Puppet] = []

    def make(**options: Any) -> Puppet:
        made.append(Puppet(served, ServerOptions(**{"port": 0, "grace_s": 0.2, **options})))
        return made[-1]

    yield make
    for one in made:
        assert one.server.stop()


def later(served: Any, path: str, body: Any) -> Any:
    """The answer to a call that goes on meanwhile."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call, served, path, body)
    pool.shutdown(wait=False)
    return future


def open_stream(served: Any) -> tuple[bytes, Any]:
    """The first line of a streamed chat, and the answer that goes on."""
    request = urllib.request.Request(
        served.url + CHAT, json.dumps({"messages": USER, "stream": True}).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    answer = urllib.request.urlopen(request, timeout=120)
    return answer.readline(), answer


# -- who may call -----------------------------------------------------------------------------


def test_a_key_is_wanted_everywhere_but_for_health(puppet: Any) -> None:
    served = puppet(api_key="s3cret")
    assert call(served, "/health").status == 200
    for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
        missing = call(served, path)
        assert (missing.status, missing.error["code"]) == (401, "invalid_api_key")
        assert missing.headers["WWW-Authenticate"] == "Bearer"
    for wrong in ("s3cret", "Basic s3cret", "Bearer", "Bearer s3cre", "Bearer s3cret2", "Bearer é"):
        assert call(served, "/v1/models", Authorization=wrong).status == 401
    assert call(served, "/v1/models", Authorization="Bearer s3cret").status == 200
    named = {"Authorization": "Bearer s3cret", "Host": "models.example"}
    assert call(served, "/v1/models", **named).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "models.example"])
def test_others_need_a_key_or_the_users_word(host: str) -> None:
    with pytest.raises(ConfigError, match="--allow-unauthenticated"):
        ServerOptions(host=host)
    assert not ServerOptions(host=host, api_key="k").is_open
    assert ServerOptions(host=host, allow_unauthenticated=True).is_open


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.5.5.5"])
def test_this_machine_needs_none(host: str) -> None:
    assert not ServerOptions(host=host).is_open


@pytest.mark.parametrize(
    "wrong",
    [{"port": 70000}, {"api_key": ""}, {"api_key": " k"}, {"api_key": "schlüssel"},
     {"cors_origins": ("localhost",)}],
)  # fmt: skip
def test_impossible_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ServerOptions(**wrong)


def test_pages_of_a_named_origin_may_call(puppet: Any) -> None:
    page = "http://localhost:3000"
    served = puppet(cors_origins=(page,))
    answer = call(served, "/v1/models", Origin=page)
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == page
    assert "X-Ignored-Fields" in answer.headers["Access-Control-Expose-Headers"].split(", ")
    preflight = urllib.request.Request(
        served.url + CHAT, method="OPTIONS",
        headers={"Origin": page, "Access-Control-Request-Method": "POST"},
    )  # fmt: skip
    with urllib.request.urlopen(preflight, timeout=120) as response:
        assert response.status == 200
    other = call(served, "/v1/models", Origin="http://localhost:4000")
    assert other.status == 403
    assert "Access-Control-Allow-Origin" not in other.headers


def test_being_open_is_logged(puppet: Any, caplog: pytest.LogCaptureFixture) -> None:
    puppet(host="0.0.0.0", allow_unauthenticated=True)
    assert "--allow-unauthenticated" in caplog.text


# -- what the engine may do -------------------------------------------------------------------


def test_without_a_model_it_says_so_and_when_to_come_back(puppet: Any) -> None:
    served = puppet()
    served.engine_client.on_event(Unloaded())
    for path, body in (("/health", None), ("/v1/models", None), (COMPLETIONS, ASK)):
        answer = call(served, path, body)
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
        assert "No model" in answer.error["message"]
    served.engine_client.on_event(served.loaded)
    assert call(served, "/health").status == 200


def test_a_crash_ends_whole_replies_and_streams_with_its_cause(puppet: Any) -> None:
    served = puppet()
    whole = later(served, COMPLETIONS, ASK)
    wait_until(lambda: len(served.added) == 1)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(open_stream, served)
        wait_until(lambda: len(served.added) == 2)
        served.say("Hel")
        first, stream = opening.result(120)  # the stream has begun
    error = ErrorInfo("RuntimeError: boom", "Restart it.")
    served.engine_client.on_event(EngineCrashed(error, "trace"))
    answer = whole.result(120)
    assert answer.status == 500
    assert answer.error["message"] == "RuntimeError: boom Restart it."
    assert "trace" not in answer.body.decode()
    with stream:
        lines = (first + stream.read()).decode().strip().split("\n\n")
    assert json.loads(lines[0][6:])["choices"][0]["delta"]["content"] == "Hel"
    assert "boom" in json.loads(lines[1][6:])["error"]["message"]
    assert lines[2] == "data: [DONE]"
    assert served.engine_client.num_in_flight == 0
    assert call(served, "/health").status == 503


@pytest.mark.parametrize("panic", [RuntimeError, BaseException, SystemExit])
def test_a_reply_that_cannot_be_written_is_an_error_object(
    puppet: Any, monkeypatch: pytest.MonkeyPatch, panic: type[BaseException]
) -> None:
    def fail(*args: Any) -> Any:
        raise panic("inside")

    monkeypatch.setattr(ChatShape, "_choice", fail)
    served = puppet()
    for stream in (False, True):
        count = len(served.added)
        reply = later(served, CHAT, {"messages": USER, "stream": stream})
        wait_until(lambda: len(served.added) > count)  # noqa: B023
        served.say("x", FinishReason.LENGTH)
        answer = reply.result(120)
        body = answer.body.decode()
        assert answer.status == (200 if stream else 500) and "inside" not in body
        if stream:
            first, done = body.strip().split("\n\n")
            assert done == "data: [DONE]"
            body = first.removeprefix("data: ")
        assert json.loads(body)["error"]["type"] == "server_error"
    assert served.engine_client.num_in_flight == 0 and served.server.is_running


def test_a_failed_request_is_a_500_with_its_cause(puppet: Any) -> None:
    served = puppet()
    reply = later(served, COMPLETIONS, ASK)
    wait_until(lambda: served.added)
    served.say("", FinishReason.ERROR, NumericalError("NaN logits.", "Use float32.").info())
    answer = reply.result(120)
    assert answer.status == 500
    assert answer.error["message"] == "NaN logits. Use float32."


def test_a_model_that_goes_in_that_moment_is_a_503(puppet: Any) -> None:
    served = puppet()
    reply = later(served, COMPLETIONS, ASK)
    wait_until(lambda: served.added)
    served.engine_client.on_event(Unloaded())
    info = ErrorInfo("No model is loaded.", "Open a model first.", "InvalidRequestError")
    served.engine_client.on_event(RequestFailed(served.added[0], info))
    assert reply.result(120).status == 503


def test_token_ids_name_the_model_that_they_are_for(puppet: Any) -> None:
    served = puppet()
    reply = later(served, COMPLETIONS, ASK)
    wait_until(lambda: served.added)
    assert served.commands[-1].model == served.loaded.model.path
    served.say("x", FinishReason.LENGTH)
    assert reply.result(120).status == 200


def test_the_limit_of_reply_tokens(puppet: Any) -> None:
    served = puppet(limits=Limits(max_output_tokens=4))
    assert call(served, COMPLETIONS, ASK).error["param"] == "max_tokens"
    reply = later(served, CHAT, {"messages": USER})
    wait_until(lambda: served.added)
    assert served.commands[-1].params.max_tokens == 4
    served.say("x", FinishReason.LENGTH)
    assert reply.result(120).status == 200


# -- where it listens, and how it ends --------------------------------------------------------


def test_a_port_in_use_is_named_with_the_remedy(served: Served, puppet: Any) -> None:
    port = served.address[1]
    with pytest.raises(ServerStartError, match=f"{port}.*--port"):
        ApiServer(EngineClient(lambda command: None), ServerOptions(port=port)).start()
    with pytest.raises(ServerStartError, match=r"no\.such\.host\.invalid"):
        ApiServer(
            EngineClient(lambda c: None), ServerOptions(host="no.such.host.invalid", api_key="k")
        ).start()


def test_a_stop_lets_replies_finish_and_refuses_new_ones(puppet: Any) -> None:
    served = puppet(grace_s=60.0)  # it ends as soon as the reply does
    reply = later(served, COMPLETIONS, ASK)
    wait_until(lambda: served.added)
    stopping = threading.Thread(target=served.server.stop)
    stopping.start()
    wait_until(lambda: served.engine_client.is_closing)
    served.say("done", FinishReason.LENGTH)
    answer = reply.result(120)
    assert answer.status == 200
    assert json.loads(answer.body)["choices"][0]["text"] == "done"
    stopping.join(120)
    assert not served.server.is_running
    with pytest.raises(OSError, match="refused"):
        call(served, "/health")


def test_a_stop_aborts_what_takes_too_long_and_it_can_start_again(puppet: Any) -> None:
    served = puppet(grace_s=0.1)
    reply = later(served, COMPLETIONS, ASK)
    wait_until(lambda: served.added)
    served.say("half")
    stopping = threading.Thread(target=served.server.stop)
    stopping.start()
    wait_until(lambda: any(isinstance(command, Abort) for command in served.commands))
    served.say("", FinishReason.ABORT)
    answer = json.loads(reply.result(120).body)
    assert answer["choices"][0]["text"] == "half"
    assert answer["choices"][0]["finish_reason"] == "abort"
    stopping.join(120)
    assert not served.server.is_running
    served.server.start()
    assert call(served, "/health").status == 200


# -- what it counts, and how its requests are called ------------------------------------------


def metric_values(served: Any) -> dict[str, float]:
    text = call(served, "/metrics").body.decode()
    return {
        sample.name
        + "".join(
            f"|{sample.labels[k]}" for k in ("finished_reason", "le") if k in sample.labels
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_agree_with_the_snapshot(served: Served) -> None:
    for i in range(3):
        assert (
            call(served, COMPLETIONS, {**ASK, "prompt": list(range(40)), "seed": i}).status == 200
        )
    served.wait_idle()

    def all_counted() -> bool:
        """Snapshots come now and then, events at once: the last one may know two of three."""
        assert served.last is not None
        finished = sum(served.last.counters.finished.values())
        return finished == metric_values(served)["vllm:e2e_request_latency_seconds_count"]

    wait_until(all_counted)
    counters = served.wait_idle().counters
    wait_until(
        lambda: metric_values(served)["vllm:generation_tokens_total"] == counters.generation_tokens
    )
    now = metric_values(served)
    assert now["vllm:prompt_tokens_total"] == counters.prompt_tokens + counters.cached_prompt_tokens
    assert now["vllm:prefix_cache_queries_total"] == counters.prefix_queries
    assert now["vllm:prefix_cache_hits_total"] == counters.prefix_hits > 0
    assert now["vllm:num_preemptions_total"] == counters.preemptions
    for reason in FinishReason:
        assert now[f"vllm:request_success_total|{reason}"] == counters.finished.get(reason, 0)
    done = sum(counters.finished.values())
    assert now["vllm:e2e_request_latency_seconds_count"] == done
    assert now["vllm:request_prompt_tokens_count"] == done
    assert now["vllm:request_generation_tokens_sum"] == counters.generation_tokens
    assert now["vllm:time_to_first_token_seconds_count"] == done
    assert now["vllm:inter_token_latency_seconds_count"] == counters.generation_tokens - done
    assert now["vllm:inter_token_latency_seconds_bucket|+Inf"] == counters.generation_tokens - done
    assert "vllm:inter_token_latency_seconds_bucket|0.001" in now
    assert now["vllm:num_requests_running"] == now["vllm:num_requests_waiting"] == 0


def test_health_tells_a_stuck_engine(puppet: Callable[..., Puppet]) -> None:
    made = puppet()
    assert json.loads(call(made, "/health").body) == {"status": "ok"}
    made.engine_client.on_event(Stalled("step of 9 tokens", 6.0))
    wait_until(lambda: call(made, "/health").status == 503)
    body = json.loads(call(made, "/health").body)
    assert body["error"]["code"] == "engine_stuck"
    assert body["doing"] == "step of 9 tokens" and body["seconds_since_beat"] == 6
    made.engine_client.on_event(Recovered(7.0))
    wait_until(lambda: call(made, "/health").status == 200)


@pytest.mark.parametrize(
    ("pulse", "status"),
    [
        (Pulse("", 0.0), 200), (Pulse("step", 4.0), 200),
        (Pulse("step", 9.0, is_stuck=True), 503), (Pulse("", 0.0, is_alive=False), 503),
    ],
)  # fmt: skip
def test_health_and_metrics_give_the_heartbeat(
    pulse: Pulse, status: int, puppet: Callable[..., Puppet]
) -> None:
    made = puppet()
    made.engine_client.pulse = lambda: pulse
    answer = call(made, "/health")
    body = json.loads(answer.body)
    assert answer.status == status and body["seconds_since_beat"] == pulse.seconds
    assert body["doing"] == (pulse.doing or "idle")
    assert heartbeat_ages(made) == [pulse.seconds]
    made.engine_client.pulse = lambda: None
    assert heartbeat_ages(made) == [], "not reported"


def heartbeat_ages(made: Puppet) -> list[float]:
    page = call(made, "/metrics").body.decode()
    samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
    return [s.value for s in samples if s.name == "inferdeck:engine_heartbeat_age_seconds"]


def test_metrics_carry_vllms_labels(served: Served) -> None:
    families = text_string_to_metric_families(call(served, "/metrics").body.decode())
    samples = [sample for family in families for sample in family.samples]
    labels = [(s.labels["model_name"], s.labels["engine"]) for s in samples]
    assert set(labels) == {("Demo model", "0")}
    other = call(served, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert other.body.endswith(b"# EOF\n")


def test_requests_are_told_from_chats(served: Served) -> None:
    call_id = new_call_id("chatcmpl")
    name = f"Chat API {call_id[9:13]}"
    assert origin_of(request_id_of(call_id, 0, 1)) == name
    assert origin_of(request_id_of(call_id, 2, 3)) == f"{name}-2"
    assert (origin_of(new_call_id("cmpl")) or "").startswith("Completions API ")
    assert origin_of("load-12") is None
    assert origin_of("6f1c2d3e-0000") is None


def test_the_time_to_the_first_token_is_told_from_the_engines_part(served: Served) -> None:
    """From the first bytes of a request, however slowly the rest comes, until the client has the
    token on its way."""
    names = "vllm:time_to_first_token_seconds", "inferdeck:engine_time_to_first_token_seconds"

    def sums() -> list[float]:
        now = metric_values(served)
        assert now[f"{names[0]}_count"] == now[f"{names[1]}_count"]
        return [now[f"{name}_sum"] for name in names]

    served.wait_idle()
    before = sums()
    body = json.dumps({**ASK, "stream": True}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(served.address, 120) as client:
        client.sendall(head.encode())
        time.sleep(0.25)
        client.sendall(f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        first = client.recv(65536)
        assert b"200 OK" in first and b"data: {" in first  # head and token come in one piece
        while client.recv(65536):
            pass
    served.wait_idle()
    wait_until(lambda: sums()[1] > before[1])
    whole, engine = (now - then for now, then in zip(sums(), before, strict=True))
    assert whole >= engine >= 0.25
