"""What is wrong with a request's frame is answered by an error object that arrives."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from app.server import connection
from app.server.attach_hub import Hub
from app.server.attach_session import Session
from app.server.engine_client import EngineClient
from app.server.options import ServerOptions
from app.server.unsupported import HARMLESS, IGNORED_HEADER
from app.wire.codec import OPTIONAL
from app.wire.protocol import MAX_WINDOWS, STREAM_PATH, VERSION, Hello, ProtocolError, read_frame
from engine import messages as m
from tests.app.server.conftest import LIMITS, Served
from tests.app.server.test_abuse import connect, connect_strict, error_of, post, read_all

__all__ = ["connect", "connect_strict"]

ALL = tuple(OPTIONAL.values())
HEAD = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def status_of(raw: bytes) -> int:
    return int(raw.split(b" ", 2)[1])


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("size", [2, 100])
def test_a_client_that_sends_everything_first_reads_its_413(
    connect: Any, is_chunked: bool, size: int
) -> None:
    part, count = b"[" * 65_536, size * 16  # megabytes
    sock = connect()
    if is_chunked:
        sock.sendall(CHUNKED)
        for _ in range(count):
            sock.sendall(b"10000\r\n" + part + b"\r\n")
        sock.sendall(b"0\r\n\r\n")
    else:
        sock.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % (count * len(part)))
        for _ in range(count):
            sock.sendall(part)
    received = read_all(sock)
    error = error_of(received)
    assert status_of(received) == 413 and error["code"] == "request_too_large"
    assert f"{LIMITS.max_body_bytes:,}" in error["message"]


def test_a_client_that_expects_a_go_ahead_is_refused_at_once(connect: Any) -> None:
    sock = connect()
    sock.sendall(HEAD + b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n")
    began = time.monotonic()
    received = read_all(sock)
    assert status_of(received) == 413 and time.monotonic() - began < 5


def test_a_client_that_never_stops_is_cut_off(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "DRAIN_S", 0.2)
    sock = connect()
    sock.sendall(CHUNKED)
    deadline = time.monotonic() + 60
    with pytest.raises(ConnectionError):
        while time.monotonic() < deadline:
            sock.sendall(b"10000\r\n" + b"[" * 65_536 + b"\r\n")


BODY = b"7\r\n{\"a\":1}\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HEAD + b"Content-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n" + BODY, 400),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n"
         b"Transfer-Encoding: chunked\r\n\r\n" + BODY, 400),
        (HEAD + b"Content-Length: 7\r\nContent-Length: 8\r\n\r\n{\"a\":1}", 400),
        (HEAD + b"Content-Length: -7\r\n\r\n{\"a\":1}", 400),
        (HEAD + b"Content-Length: 7x\r\n\r\n{\"a\":1}", 400),
        (HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + BODY, 501),
        (CHUNKED + b"-7\r\n{\"a\":1}\r\n0\r\n\r\n", 400),
        (CHUNKED + b"FFFFFFFFFFFFFFFFFFFFFFFFF\r\n", 400),
        (CHUNKED + b"7\r\n{\"a\":1}XX0\r\n\r\n", 400),
        (HEAD + b"X: a\r\n" * 12_000, 431),
        (HEAD + b"X\x00: a\r\n\r\n", 400),
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"PUT /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
    ],
)  # fmt: skip
def test_malformed_frames_are_error_objects(connect: Any, sent: bytes, status: int) -> None:
    sock = connect()
    sock.sendall(sent)
    received = read_all(sock)
    error = error_of(received)
    assert status_of(received) == status
    assert set(error) == {"message", "type", "param", "code"} and error["code"]
    assert "bytearray" not in error["message"]


SOCKET = f"GET {STREAM_PATH} HTTP/1.1".encode()
UPGRADE = (
    b"\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\n"
)
KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (SOCKET + UPGRADE, 400),
        (SOCKET + UPGRADE + KEY * 2, 400),
        (SOCKET + UPGRADE + b"Sec-WebSocket-Key: short\r\n", 400),
        (SOCKET + UPGRADE.replace(b"13", b"7") + KEY, 400),
        (SOCKET + UPGRADE + KEY + b"X: a\r\n" * 200, 400),
        (b"GET /nowhere HTTP/1.1" + UPGRADE + KEY + b"Connection: close\r\n", 404),
    ],
)
def test_a_handshake_that_fails_is_an_error_object(connect: Any, sent: bytes, status: int) -> None:
    sock = connect()
    sock.sendall(sent + b"\r\n")
    received = read_all(sock)
    assert status_of(received) == status
    assert set(error_of(received)) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("key", [b"", KEY])
def test_other_paths_answer_a_handshake_as_a_call(connect: Any, key: bytes) -> None:
    sock = connect()
    sock.sendall(b"GET /v1/models HTTP/1.1" + UPGRADE + key + b"Connection: close\r\n\r\n")
    assert status_of(read_all(sock)) == 200


# Fields that would change the text ---------------------------------------------------------------

SAMPLING = [
    ("typical_p", 0.5), ("dry_multiplier", 0.8), ("mirostat", 2),
    ("xtc_probability", 0.5), ("epsilon_cutoff", 0.1), ("eta_cutoff", 0.1), ("top_a", 0.2),
    ("tfs_z", 0.9), ("repeat_penalty", 1.2), ("no_repeat_ngram_size", 3), ("n_predict", 5),
    ("num_beams", 2), ("guided_regex", "a*"), ("grammar", "root ::= x"), ("json_schema", {}),
    ("response_format", {"type": "json_schema"}), ("dynatemp_range", 0.5),
    ("options", {"temperature": 0}),
]  # fmt: skip
MESSAGES = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
PROMPT = {"prompt": "a", "max_tokens": 1}


def call(sock: Any, path: str, body: Any) -> bytes:
    sock.sendall(post(path, body, "Connection: close"))
    return read_all(sock)


@pytest.mark.parametrize(("name", "value"), SAMPLING)
def test_a_field_that_would_change_the_text_is_refused_by_name(
    connect: Any, name: str, value: Any
) -> None:
    for path, body in (("/v1/completions", PROMPT), ("/v1/chat/completions", MESSAGES)):
        received = call(connect(), path, {**body, name: value})
        error = error_of(received)
        assert (status_of(received), error["param"]) == (400, name)
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("neutral", [{"typical_p": 1.0}, {"mirostat": 0, "xtc_probability": 0.0},
                                     {"repeat_penalty": 1}, {"dry_multiplier": 0}])  # fmt: skip
def test_neutral_values_pass(connect: Any, neutral: Any) -> None:
    received = call(connect(), "/v1/completions", {**PROMPT, **neutral})
    assert status_of(received) == 200 and IGNORED_HEADER.lower().encode() not in received.lower()


@pytest.mark.parametrize("stream", [False, True])
def test_ignored_fields_are_named_in_the_reply(connect: Any, stream: bool) -> None:
    ignored = {"reasoning_effort", "enable_thinking", "samplers", "a_field"}
    given = dict.fromkeys((*ignored, *(HARMLESS - {"parallel_tool_calls"})), "x")
    body = {**PROMPT, **given, "evil\r\nSet-Cookie: a": 1, "stream": stream}
    received = call(connect(), "/v1/completions", body)
    head = received.partition(b"\r\n\r\n")[0].decode().lower()
    (line,) = (one for one in head.split("\r\n") if one.startswith(IGNORED_HEADER.lower()))
    named = set(line.partition(": ")[2].split(", "))
    assert status_of(received) == 200
    assert named == {*ignored, "1 more"} and "set-cookie" not in head


LLAMA_CPP = {
    "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
    "xtc_probability": 0, "xtc_threshold": 0.1, "mirostat": 0, "mirostat_tau": 5,
    "mirostat_eta": 0.1, "dynatemp_range": 0, "dynatemp_exponent": 1, "repeat_penalty": 1,
    "repeat_last_n": 64, "min_keep": 0, "typical_p": 1, "top_n_sigma": -1, "n_predict": -1,
    "samplers": ["penalties", "dry", "top_k", "top_p", "temperature"],
}  # fmt: skip
"""What its clients always send."""
COMPANIONS = {
    "dry_base": {"dry_multiplier": 0.8}, "xtc_threshold": {"xtc_probability": 0.1},
    "mirostat_tau": {"mirostat": 2}, "dynatemp_exponent": {"dynatemp_range": 0.5},
    "repeat_last_n": {"presence_penalty": 0.5},
}  # fmt: skip


def test_fields_that_another_one_turns_off_are_ignored_and_named() -> None:
    from app.server.bodies import CompletionBody

    given = {**PROMPT, **LLAMA_CPP}
    CompletionBody.read(given)
    assert set(CompletionBody.unknown(given)) == {
        "dry_base", "dry_allowed_length", "dry_penalty_last_n", "xtc_threshold", "mirostat_tau",
        "mirostat_eta", "dynatemp_exponent", "repeat_last_n", "samplers",
    }  # fmt: skip


@pytest.mark.parametrize("name", COMPANIONS)
def test_fields_that_another_one_turns_on_are_refused(name: str) -> None:
    from app.server.bodies import CompletionBody

    main = COMPANIONS[name]
    refusing = {one.name for one in CompletionBody.refused if one.has_effect({**LLAMA_CPP, **main})}
    assert refusing - set(main) >= {name}


# Windows -----------------------------------------------------------------------------------------


def test_windows_that_lost_their_connection_make_room(served: Served) -> None:
    async def scene() -> None:
        hub = Hub(served.engine_client, served.server.options)

        def attached() -> Session:
            session, _ = hub.open(Hello(VERSION))
            session.was_ready = True
            return session

        first = [attached() for _ in range(MAX_WINDOWS)]
        with pytest.raises(ProtocolError, match=str(MAX_WINDOWS)):
            attached()
        for session in first[3:6]:
            hub.cut(session)
        first[3].requests.add("runs")
        attached()
        assert first[4].is_ended and not first[3].is_ended and not first[5].is_ended
        attached(), attached()
        assert first[5].is_ended and first[3].is_ended and hub.num_windows == MAX_WINDOWS
        with pytest.raises(ProtocolError):
            attached()
        first[0].was_ready = False  # still in its greeting
        attached()
        assert first[0].is_ended

    listener = served.engine_client.listener
    asyncio.run(scene())
    served.engine_client.listener = listener


@pytest.mark.parametrize(("reads", "kinds"), [((), ["unloaded"]), (ALL, ["unloaded", *ALL])])
def test_a_window_gets_the_optional_events_that_it_reads(
    reads: tuple[str, ...], kinds: list[str]
) -> None:
    """Windows of version 0.1 name none."""

    async def scene() -> list[str]:
        hub = Hub(EngineClient(lambda command: None), ServerOptions(port=0))
        session, _ = hub.open(Hello(VERSION, reads=reads))
        hub.on_event(m.Stalled("step", 6.0))
        hub.on_event(m.Recovered(7.0))
        return [kind for kind, _ in read_frame(session.frame()).messages]

    assert asyncio.run(scene()) == kinds


def test_a_resumed_window_gets_what_it_reads_now() -> None:
    async def scene() -> list[str]:
        hub = Hub(EngineClient(lambda command: None), ServerOptions(port=0))
        session, _ = hub.open(Hello(VERSION))
        hub.on_event(m.Stalled("step", 6.0))
        again, welcome = hub.open(Hello(VERSION, session=session.id, reads=ALL))
        assert again is session and welcome.resumed
        hub.on_event(m.Recovered(7.0))
        return [kind for kind, _ in read_frame(session.frame()).messages]

    assert asyncio.run(scene()) == ["unloaded", "recovered"]


def test_sixteen_broken_lines_lock_nobody_out(served: Served) -> None:
    from websockets.sync.client import connect as attach

    from app.wire.protocol import STREAM_PATH, Welcome, encode, read_answer

    url = served.url.replace("http", "ws") + STREAM_PATH
    for _ in range(MAX_WINDOWS + 2):
        with attach(url) as socket:
            socket.send(encode(Hello(VERSION)))
            answer = socket.recv(timeout=20)
            assert isinstance(answer, bytes) and isinstance(read_answer(answer), Welcome)
            socket.socket.close()


def test_no_field_is_in_two_lists() -> None:
    from app.server.bodies import ChatBody, CompletionBody

    for kind in (ChatBody, CompletionBody):
        names = [*(one.name for one in kind.refused), *kind.ignored, *kind.__struct_fields__]
        assert len(names) == len(set(names)), json.dumps(sorted(names))
