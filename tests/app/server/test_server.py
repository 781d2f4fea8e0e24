"""The server itself: who may call, where it listens, and how it ends."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.server.engine_client import EngineClient
from app.server.options import Limits, ServerOptions
from app.server.reply import ChatShape
from app.server.server import ApiServer, ServerStartError
from engine.errors import ConfigError, ErrorInfo, NumericalError
from engine.messages import (
    Abort,
    AddRequest,
    Command,
    EngineCrashed,
    Loaded,
    OutputEvent,
    RequestFailed,
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
