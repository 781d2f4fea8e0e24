"""Server detection: each type by the pages it serves, and what is no model server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.clients import http as fetch
from app.clients.errors import TargetError
from app.clients.probe import probe
from app.clients.target import ServerType, Target
from tests.app.clients.conftest import PAGES, Exchange, ScriptedServer


def page(file: str) -> str:
    return (PAGES / file).read_text()


def test_vllm(server: ScriptedServer) -> None:
    server.models("vllm", "meta-llama/Llama-3.1-8B", "sql-lora", max_model_len=8192)
    server.answers |= {"/version": {"version": "0.12.0"}, "/metrics": page("vllm_0.12.txt")}
    found = probe(server.target)
    assert found.server_type is ServerType.VLLM
    assert (found.version, found.max_model_len, found.has_metrics) == ("0.12.0", 8192, True)
    assert found.models == ("meta-llama/Llama-3.1-8B", "sql-lora")
    assert 0 < found.round_trip_s < 60


def test_vllm_without_metrics(server: ScriptedServer) -> None:
    server.models("vllm", "m")
    found = probe(server.target)
    assert (found.version, found.max_model_len, found.has_metrics) == ("", None, False)


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_sglang(server: ScriptedServer, path: str) -> None:
    server.models("sglang", "m", max_model_len=4096)
    server.answers |= {path: {"model_path": "m", "version": "0.5.3"}}
    found = probe(server.target)
    assert (found.server_type, found.version) == (ServerType.SGLANG, "0.5.3")
    assert found.max_model_len == 4096
    assert not found.has_metrics  # it was started without --enable-metrics


def test_tensorrt_llm(server: ScriptedServer) -> None:
    server.models("tensorrt_llm", "m")
    server.answers |= {
        "/version": {"version": "1.3.0"},
        "/prometheus/metrics": page("tensorrt_llm_1.3.txt"),
    }
    found = probe(server.target)
    assert (found.server_type, found.version, found.has_metrics) == (
        ServerType.TENSORRT_LLM, "1.3.0", True,
    )  # fmt: skip


def test_tensorrt_llm_with_iterations_alone(server: ScriptedServer) -> None:
    server.models("tensorrt_llm", "m")
    server.answers["/metrics"] = page("tensorrt_llm_iterations.json")
    assert probe(server.target).has_metrics


INFO = {"model_id": "bigscience/bloom", "version": "3.3.5", "max_total_tokens": 2048,
        "router": "text-generation-router"}  # fmt: skip


def test_tgi_names_the_model_as_its_owner(server: ScriptedServer) -> None:
    server.models("bigscience/bloom", "bigscience/bloom")
    server.answers |= {"/info": INFO, "/metrics": page("tgi_3.txt")}
    found = probe(server.target)
    assert (found.server_type, found.version, found.max_model_len, found.has_metrics) == (
        ServerType.TGI, "3.3.5", 2048, True,
    )  # fmt: skip


def test_tgi_before_it_had_a_list_of_models(server: ScriptedServer) -> None:
    server.answers["/info"] = INFO
    assert probe(server.target).models == ("bigscience/bloom",)


def test_llama_cpp(server: ScriptedServer) -> None:
    server.models("llamacpp", "gpt-oss", meta={"n_ctx_train": 131072})
    server.answers["/props"] = {
        "default_generation_settings": {"n_ctx": 4096}, "build_info": "b8681-Debian",
        "total_slots": 4,
    }  # fmt: skip
    server.answers["/slots"] = [{"id": 0, "is_processing": False}]
    found = probe(server.target)
    assert (found.server_type, found.version, found.max_model_len, found.has_metrics) == (
        ServerType.LLAMA_CPP, "b8681-Debian", 4096, True,
    )  # fmt: skip


def test_ours(server: ScriptedServer) -> None:
    server.models("inferdeck", "starter", max_model_len=2048)
    server.answers |= {"/version": {"version": "0.1.0"}, "/metrics": page("vllm_0.12.txt")}
    found = probe(server.target)
    assert (found.server_type, found.version) == (ServerType.INFERDECK, "0.1.0")
    assert found.has_metrics


def test_one_that_is_too_busy_to_report_is_asked_again(server: ScriptedServer) -> None:
    server.models("vllm", "m")
    is_over = threading.Event()
    server.answers |= {"/version": {}, "/metrics": lambda exchange: is_over.wait()}
    try:
        assert probe(server.target, timeout_s=1.0).has_metrics
    finally:
        is_over.set()


def test_a_renamed_owner_is_found_by_its_metrics(server: ScriptedServer) -> None:
    server.models("my-company", "m")
    server.answers |= {"/metrics": page("vllm_0.8.txt"), "/version": {"version": "0.8.5"}}
    found = probe(server.target)
    assert (found.server_type, found.version) == (ServerType.VLLM, "0.8.5")


def test_plain_openai(server: ScriptedServer) -> None:
    server.models("system", "gpt-x", "gpt-y", context_window=128_000)
    server.answers["/metrics"] = "# something else\nrequests_total 5\n"
    found = probe(server.target)
    assert (found.server_type, found.version, found.max_model_len, found.has_metrics) == (
        ServerType.OPENAI, "", 128_000, False,
    )  # fmt: skip


def test_a_prefix_in_the_path_is_kept(server: ScriptedServer) -> None:
    server.models("vllm", "m")
    server.answers["/llm/v1/models"] = server.answers.pop("/v1/models")
    assert probe(Target(f"http://{server.host}/llm/")).models == ("m",)


def test_the_key_is_sent(server: ScriptedServer) -> None:
    def check(exchange: Exchange) -> None:
        if exchange.headers.get("authorization") != "Bearer k-1":
            exchange.send(401, {"error": {"message": "Incorrect API key", "type": "auth"}})
        else:
            exchange.send(200, {"data": [{"id": "m", "owned_by": "vllm"}]})

    server.answers["/v1/models"] = check
    assert probe(Target(f"http://{server.host}", "k-1")).models == ("m",)
    with pytest.raises(TargetError, match=r"API key \(401\)"):
        probe(Target(f"http://{server.host}"))
    with pytest.raises(TargetError, match=r"401.*Incorrect API key"):
        probe(Target(f"http://{server.host}", "wrong"))
    with pytest.raises(TargetError):
        probe(Target(f"http://{server.host}", "clé\n"))


# -- what is no server of models --------------------------------------------------------------


def sends(status: int, value: Any, kind: str = "", *headers: str) -> Callable[[Exchange], None]:
    return lambda exchange: exchange.send(status, value, kind, headers)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (sends(200, "<!DOCTYPE html><p>Router</p>", "text/html"), "HTML"),
        (sends(404, "<html>not here", "text/html"), "HTML"),
        (sends(200, {"hello": "world"}), "JSON without"),
        (sends(200, [1, 2]), "JSON without"),
        (sends(200, "hello"), "non-JSON"),
        (sends(200, b"\x89PNG\r\n\0\1\2"), "non-JSON"),
        (sends(404, {"detail": "Not Found"}), "404.*Not Found"),
        (sends(301, "", "", "location: https://elsewhere/v1/models"), "https://elsewhere"),
        (sends(403, {"message": "no"}), "API key"),
        (sends(500, {"error": "out of memory"}), "500.*out of memory"),
        (sends(503, {"error": {"message": "Loading model"}}), "503.*Loading model"),
        (sends(429, {"detail": [{"msg": "slow down"}]}), "429.*slow down"),
    ],
)  # fmt: skip
def test_something_else_answers(
    server: ScriptedServer, answer: Callable[[Exchange], None], said: str
) -> None:
    server.answers["/v1/models"] = answer
    with pytest.raises(TargetError, match=said) as caught:
        probe(server.target)
    assert caught.value.remedy
    assert server.host in caught.value.cause


@pytest.fixture
def raw() -> Iterator[Callable[[bytes], Target]]:
    """A port that answers every connection with some bytes."""
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def listen(data: bytes) -> Target:
        made = socket.create_server(("127.0.0.1", 0))
        sockets.append(made)

        def serve() -> None:
            try:
                while True:
                    client, _ = made.accept()
                    with client:
                        client.recv(65536)
                        client.sendall(data)
            except OSError:
                pass  # closed

        threads.append(threading.Thread(target=serve, name="raw server"))
        threads[-1].start()
        return Target(f"http://127.0.0.1:{made.getsockname()[1]}")

    yield listen
    for one in sockets:
        one.shutdown(socket.SHUT_RDWR)
        one.close()
    for thread in threads:
        thread.join(10)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "HTTP response"),
        (b"\x15\x03\x01\x00\x02\x02\x16", "not an HTTP server"),  # a TLS alert
        (b"", "HTTP response"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{", "mid-response"),
    ],
)
def test_other_services(raw: Callable[[bytes], Target], data: bytes, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        probe(raw(data), timeout_s=30)


def test_https_where_http_is_spoken(server: ScriptedServer) -> None:
    with pytest.raises(TargetError, match="HTTPS"):
        probe(Target(f"https://{server.host}"))


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(TargetError, match="Connection refused") as caught:
        probe(Target(f"http://127.0.0.1:{port}"))
    assert not caught.value.is_final  # it may come


def test_no_such_host() -> None:
    with pytest.raises(TargetError, match=r"'nowhere\.invalid'"):
        probe(Target("http://nowhere.invalid:8000"))


def test_no_answer_in_time(server: ScriptedServer) -> None:
    release = threading.Event()
    server.answers["/v1/models"] = lambda exchange: (release.wait(10), None)[1]
    began = time.perf_counter()
    with pytest.raises(TargetError, match="in time"):
        probe(server.target, timeout_s=0.3)
    assert time.perf_counter() - began < 5
    release.set()


def test_an_answer_without_end(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MOST_BYTES", 1000)
    server.answers["/v1/models"] = "x" * 5000
    with pytest.raises(TargetError, match="1000 B"):
        probe(server.target)


def test_odd_values_in_the_list_do_no_harm(server: ScriptedServer) -> None:
    server.answers["/v1/models"] = {
        "data": [None, 5, {"id": ""}, {"id": 7, "owned_by": None, "max_model_len": "x"}]
    }
    found = probe(server.target)
    assert (found.server_type, found.models) == (ServerType.OPENAI, ("7",))
    assert found.max_model_len is None
