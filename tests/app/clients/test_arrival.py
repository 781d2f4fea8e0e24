"""Events that arrive in one read: a stream of vLLM, recorded where both cores were busy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.bench.client import run_client
from app.bench.load import Pace
from app.bench.workload import BenchRequest
from app.clients.calls import make_call
from app.clients.latencies import Samples
from app.clients.replies import Reply
from app.clients.socket_clock import TimedProtocol, TimedStream
from app.clients.stream import Streamer
from app.clients.target import ServerType, Target, parse_address
from engine.messages import OutputEvent, RequestFailed
from engine.sampling_params import SamplingParams
from engine.snapshot import TokenEvent
from tests.app.clients.conftest import PAGES, chat_chunk

RECORDED = json.loads((PAGES / "vllm_0.32_stream.json").read_text())
"""Milliseconds and bytes of each read."""
COUNTS = [data.count('"choices":[{') for _, data in RECORDED]
URL = "http://127.0.0.1:1/v1"
CALL = make_call(ServerType.VLLM, "m", (1, 2), SamplingParams(max_tokens=12))


class Reads(httpx.AsyncBaseTransport, httpx.AsyncByteStream):
    """A connection on which each read arrives at the recorded time."""

    def __init__(self, reads: list[Any]) -> None:
        self._reads, self._stream = reads, TimedStream(TimedProtocol(), 0.0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(
            200, headers={"content-type": "text/event-stream"}, stream=self,
            extensions={"network_stream": self._stream},
        )  # fmt: skip

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for milliseconds, data in self._reads:
            self._stream.read_at = milliseconds / 1e3
            for event in data.split("\n\n")[:-1]:  # each is a chunk of HTTP
                yield f"{event}\n\n".encode()


def streamer(reads: list[Any]) -> Streamer:
    made = Streamer(Target(URL), parse_address(URL))
    made.client = httpx.AsyncClient(transport=Reads(reads))
    return made


def read(reads: list[Any]) -> tuple[list[OutputEvent | RequestFailed], Samples]:
    """What the window shows of it."""
    events: list[OutputEvent | RequestFailed] = []
    samples = Samples()
    asyncio.run(Reply("r", CALL, 0.0, samples, events.append).run(streamer(reads)))
    return events, samples


def test_tokens_of_one_read_share_the_time_that_it_took() -> None:
    assert max(COUNTS) > 1 and sum(COUNTS) == 12
    events, samples = read(RECORDED)
    last = events[-1]
    assert isinstance(last, OutputEvent) and last.times is not None
    assert [event.num_tokens for event in last.times.tokens] == COUNTS
    gaps = last.times.itl_s
    assert len(gaps) == 11 and min(gaps) > 0.004
    assert sum(gaps) == pytest.approx((RECORDED[-1][0] - RECORDED[0][0]) / 1e3)
    ttft, itl = samples.take()
    assert len(ttft) == 1 and [sample.value for sample in itl] == pytest.approx(gaps)


def test_a_reply_in_one_read_has_no_itl() -> None:
    events, samples = read([[50.0, "".join(data for _, data in RECORDED)]])
    last = events[-1]
    assert isinstance(last, OutputEvent) and last.times is not None
    assert last.times.tokens == (TokenEvent(0.05, 12),)
    assert (last.times.itl_s, last.times.tpot_s, samples.take()[1]) == ([], None, ())


def test_a_benchmark_counts_as_the_window_does() -> None:
    requests = [BenchRequest((1, 2), 12, 12)]
    run = asyncio.run(run_client(streamer(RECORDED), requests, lambda _: CALL, Pace()))
    assert [event.num_tokens for event in run.requests[0].tokens] == COUNTS


def test_tokens_that_the_usage_adds_are_spread_over_all_reads() -> None:
    """Of a server that counts nothing before the end."""
    chunks = [chat_chunk("a"), chat_chunk("b"), chat_chunk("c", "stop")]
    usage = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 9}}
    one, two, three, four = (f"data: {json.dumps(chunk)}\n\n" for chunk in (*chunks, usage))
    events, samples = read([[10.0, one], [20.0, two + three + four + "data: [DONE]\n\n"]])
    last = events[-1]
    assert isinstance(last, OutputEvent) and last.times is not None
    assert sum(event.num_tokens for event in last.times.tokens) == 9
    assert samples.num_output_tokens == 9 and len(last.times.tokens) == 2
