"""Clients that vanish, read slowly, send half a request, or come in crowds: nobody else notices,
and the engine is idle and its blocks are free afterwards."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.sampling_params import SamplingParams
from tests.app.server.conftest import LIMITS, TIGHT, Served, wait_until

NUM_STREAMS = 200
LONG = {"prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": True, "stream": True}


@pytest.fixture
def connect(served: Served) -> Iterator[Any]:
    yield from connections(served)


@pytest.fixture
def connect_strict(strict: Served) -> Iterator[Any]:
    yield from connections(strict)


def connections(served: Served) -> Iterator[Any]:
    """A maker of sockets to `served`, which are closed afterwards."""
    opened = []

    def make(receive_buffer: int = 0) -> socket.socket:
        made = socket.socket()
        if receive_buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.settimeout(120)
        made.connect(served.address)
        opened.append(made)
        return made

    yield make
    for one in opened:
        one.close()


def post(path: str, body: Any, *headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
            f"Content-Length: {len(data)}", *headers]  # fmt: skip
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


def read_all(sock: socket.socket) -> bytes:
    """Until the server closes the connection."""
    data = b""
    while part := sock.recv(65536):
        data += part
    return data


def error_of(raw: bytes) -> Any:
    """The error object of a response."""
    return json.loads(raw.partition(b"\r\n\r\n")[2])["error"]


def events(raw: bytes) -> list[Any]:
    """The events of a streamed answer with chunked encoding, [DONE] checked and left out."""
    _, _, rest = raw.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body, rest = body + rest[:length], rest[length + 2 :]
    lines = [line for line in body.decode().split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.mark.slow
def test_parallel_streams_are_what_direct_runs_give(served: Served, connect: Any) -> None:
    # A draw that lies within rounding of the border between two tokens may fall to either side
    # with other batch mates (see engine.kernels.linear): these prompts and seeds have none.
    kinds = [i % 100 for i in range(NUM_STREAMS)]
    prompts = [tuple(range(10 + kind, 30 + 2 * kind)) for kind in kinds]
    params = [
        SamplingParams(max_tokens=8 + i % 9, ignore_eos=True, seed=kind, temperature=i % 2)
        for i, kind in enumerate(kinds)
    ]
    before = served.wait_idle().counters.generation_tokens

    def ask(i: int) -> socket.socket:
        body = {
            "prompt": list(prompts[i]), "max_tokens": 8 + i % 9, "ignore_eos": True, "stream": True,
            "seed": kinds[i], "temperature": i % 2, "return_token_ids": True,
        }  # fmt: skip
        sock: socket.socket = connect()
        sock.sendall(post("/v1/completions", body, "Connection: close"))
        return sock

    def read(sock: socket.socket) -> list[int]:
        found = events(read_all(sock))
        assert len({event["id"] for event in found}) == 1
        ends = [event["choices"][0]["finish_reason"] for event in found]
        assert ends == [None] * (len(ends) - 1) + ["length"]
        return [token for event in found for token in event["choices"][0]["token_ids"]]

    open_streams = [ask(i) for i in range(NUM_STREAMS)]  # all of them before any is read
    streamed = [read(sock) for sock in open_streams]
    counted = served.wait_idle().counters.generation_tokens - before
    assert counted == sum(map(len, streamed))
    assert streamed == served.direct(prompts, params)


def test_clients_that_vanish_while_they_wait_or_read(served: Served, connect: Any) -> None:
    before = served.wait_idle().counters.finished.get("abort", 0)
    count = 90  # more than the engine runs at once
    sockets = [connect() for _ in range(count)]
    for sock in sockets:
        sock.sendall(post("/v1/completions", LONG))
    wait_until(lambda: served.last is not None and served.last.num_waiting > 0)
    wait_until(lambda: served.engine_client.num_in_flight == count)
    for i, sock in enumerate(sockets):
        if i % 2:  # half of them with a reset
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
    assert served.wait_idle().counters.finished["abort"] == before + count


@pytest.mark.slow
def test_a_slow_reader_holds_up_nobody_and_gets_everything(served: Served, connect: Any) -> None:
    body = {**LONG, "logprobs": 20, "max_tokens": 300, "n": 4, "return_token_ids": True}
    slow = connect(receive_buffer=2048)
    slow.sendall(post("/v1/completions", body, "Connection: close"))
    first = slow.recv(512)
    quick = connect()
    quick.sendall(post("/v1/completions", {**LONG, "max_tokens": 30}, "Connection: close"))
    assert len(events(read_all(quick))) >= 2
    while served.engine_client.num_in_flight:  # it reads less than is written
        first += slow.recv(8192)
        time.sleep(0.05)
    found = events(first + read_all(slow))
    for index in range(4):
        choices = [e["choices"][0] for e in found if e["choices"][0]["index"] == index]
        assert sum(len(choice["token_ids"]) for choice in choices) == 300
        assert sum(len(choice["logprobs"]["tokens"]) for choice in choices) == 300
        assert choices[-1]["finish_reason"] == "length"
    assert len(found) < 4 * 300  # what waited was merged


@pytest.mark.slow
def test_a_reader_that_takes_nothing_is_cut_off(strict: Served, connect_strict: Any) -> None:
    before = strict.wait_idle().counters.finished.get("abort", 0)
    sock = connect_strict(receive_buffer=2048)
    body = {**LONG, "logprobs": 20, "n": 16}
    sock.sendall(post("/v1/completions", body))
    wait_until(lambda: strict.engine_client.num_in_flight == 16)
    assert strict.wait_idle().counters.finished["abort"] == before + 16


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        pytest.param(  # half a head
            b"POST /v1/completions HTTP/1.1\r\nHost: loc", b"408", marks=pytest.mark.slow
        ),
        (post("/v1/completions", b'{"prompt": "a')[:-6], b"408"),  # half a body
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 4 + b"\r\n\r\n", b"400"),  # TLS
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000, b"431"),
        (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
         b"Transfer-Encoding: chunked\r\n\r\nnot a size\r\n", b"400"),
        (post("/tokenize", {"prompt": "x" * LIMITS.max_body_bytes}), b"413"),
        (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
         b"Transfer-Encoding: chunked\r\n\r\n" + (b"4000\r\n" + b"[" * 0x4000 + b"\r\n") * 20,
         b"413"),
    ],
)  # fmt: skip
def test_half_and_oversized_requests_end(
    connect_strict: Any, sent: bytes, answer: bytes, strict: Served
) -> None:
    sock = connect_strict()
    sock.sendall(sent)
    received = read_all(sock)
    assert received.split(b" ", 2)[1] == answer
    assert set(error_of(received)) == {"message", "type", "param", "code"}
    assert strict.engine_client.num_in_flight == 0


@pytest.mark.slow
def test_more_connections_than_allowed_are_told_so(connect_strict: Any) -> None:
    held = [connect_strict() for _ in range(TIGHT.max_connections)]
    extra = connect_strict()
    answer = read_all(extra)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1" in answer
    assert b"too_many_connections" in answer
    for sock in held:  # they say nothing, and are closed for it
        assert sock.recv(1) == b""


def test_a_full_queue_says_429(connect: Any, served: Served) -> None:
    body = {**LONG, "prompt": [[5, 6]] * 64, "n": 4, "stream": False}  # 256 of 264 places
    first = connect()
    first.sendall(post("/v1/completions", body))
    wait_until(lambda: served.engine_client.num_in_flight == 256)
    second = connect()
    second.sendall(post("/v1/completions", {**LONG, "n": 10}, "Connection: close"))
    answer = read_all(second)
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 1" in answer.lower()
    assert b"queue_full" in answer
    first.close()
    served.wait_idle()


def test_many_threads_at_once_leave_nothing_behind(served: Served, connect: Any) -> None:
    """Short calls, some cut off: the books agree in the end."""
    before = sum(t.name == "server" for t in threading.enumerate())

    def call(i: int) -> None:
        sock = connect()
        sock.sendall(post("/v1/completions", {**LONG, "max_tokens": 5}, "Connection: close"))
        if i % 3:
            read_all(sock)
        else:
            sock.close()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(call, range(60)))
    served.wait_idle()
    assert sum(t.name == "server" for t in threading.enumerate()) == before
