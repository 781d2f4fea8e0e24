"""vLLM's traces: recorded spans, hostile ones, and the receiver of the window."""

from __future__ import annotations

import asyncio
import struct
import urllib.request
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.clients.target import Target, Traced
from app.clients.traces import Span, read_spans, receive
from app.managed.command import free_port
from engine.messages import OutputEvent
from tests.app.clients.conftest import PAGES, ScriptedServer, server
from tests.app.clients.test_foreign_engine import drive, vllm

__all__ = ["drive", "server", "vllm"]
RECORDED = (PAGES / "vllm_0.32_spans.bin").read_bytes()


def message(number: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    size = bytes((len(body) & 127 | 128, len(body) >> 7))
    return bytes((number << 3 | 2,)) + size + body


def attribute(name: str, value: bytes) -> bytes:
    return message(9, message(1, name.encode()), message(2, value))


def text(value: str) -> bytes:
    return message(1, value.encode())


def double(value: float) -> bytes:
    return b"\x21" + struct.pack("<d", value)


def spans(name: bytes, prefill: bytes) -> bytes:
    found = attribute("gen_ai.request.id", name)
    found += attribute("gen_ai.latency.time_in_model_prefill", prefill)
    return message(1, message(2, message(2, message(5, b"llm_request"), found)))


def send(port: int, body: bytes) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/traces", body, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(answer.status)


def test_recorded_spans_of_requests_are_read_and_others_passed_over() -> None:
    found = list(read_spans(RECORDED))
    assert found and all(one.request_id and 0 < one.prefill_s < 60 for one in found)
    assert list(read_spans(spans(text("a"), double(0.25)))) == [Span("a", 0.25)]


def test_a_completion_has_the_number_of_its_prompt_in_its_span() -> None:
    """Recorded of the reply with the id cmpl-ae368cd53b593ead."""
    (found,) = read_spans((PAGES / "vllm_0.32_completion_span.bin").read_bytes())
    assert found.request_id == "cmpl-ae368cd53b593ead-0" and 0 < found.prefill_s < 1


@pytest.mark.parametrize("body", [
    spans(text("a"), double(float("nan"))), spans(text("a"), double(-1.0)),
    spans(text("a"), text("0.1")), spans(double(1.0), double(1.0)), spans(b"", b""), b"",
])  # fmt: skip
def test_what_is_no_time_of_a_request_is_passed_over(body: bytes) -> None:
    assert list(read_spans(body)) == []


@given(st.binary(max_size=200) | st.integers(0, len(RECORDED)).map(lambda end: RECORDED[:end]))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with suppress(ValueError):
        assert all(isinstance(one, Span) for one in read_spans(body))


@pytest.mark.parametrize("sent", [
    b"GET / HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: 99999999\r\n\r\n",
    b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n\x0a\x7f", b"x" * 20_000, b"half",
])  # fmt: skip
def test_what_is_no_exporter_is_hung_up_on_and_the_next_is_served(sent: bytes) -> None:
    found: list[Span] = []
    port = free_port()

    async def go() -> None:
        task = asyncio.create_task(receive(port, found.append))
        async with asyncio.timeout(20):
            while True:
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    break
                except OSError:
                    await asyncio.sleep(0)
            writer.write(sent)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
            await asyncio.to_thread(send, port, spans(text("a"), double(0.5)))
        task.cancel()

    asyncio.run(go())
    assert found == [Span("a", 0.5)]


@pytest.mark.parametrize("suffix", ["", "-0"])  # of a chat, of a completion
def test_a_reply_gets_its_first_step_from_its_span(
    vllm: ScriptedServer, drive: Any, suffix: str
) -> None:
    target = Target(vllm.target.base_url, traces_port=free_port())
    driver = drive(target)
    driver.ask("r")
    ended = driver.finished("r")
    assert ended.times is not None and ended.times.first_scheduled is None
    first = ended.times.first_token
    assert first is not None
    prefill = (first - ended.times.arrival) / 2
    send(target.traces_port, spans(text("of another client"), double(0.0)))
    for _ in range(2):  # the second is of nobody any more
        send(target.traces_port, spans(text(f"c{suffix}"), double(prefill)))
    traced = driver.wait(Traced)
    assert traced.request_id == "r" and driver.all(Traced) == [traced]
    assert traced.times.tokens == ended.times.tokens
    assert traced.times.queue_s == pytest.approx(prefill)
    assert len([one for one in driver.all(OutputEvent) if one.finish_reason]) == 1


def test_a_prefill_longer_than_the_reply_took_begins_with_it(
    vllm: ScriptedServer, drive: Any
) -> None:
    target = Target(vllm.target.base_url, traces_port=free_port())
    driver = drive(target)
    driver.ask("r")
    driver.finished("r")
    send(target.traces_port, spans(text("c"), double(1e6)))
    assert driver.wait(Traced).times.queue_s == 0.0
