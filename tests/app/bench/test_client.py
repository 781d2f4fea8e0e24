"""Measuring a server as its client: timing, counting, and the server's own figures beside."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from app.bench import client, remote
from app.bench.client import ClientRun, run_client
from app.bench.load import Pace
from app.bench.progress import Progress
from app.bench.remote import RemoteBench
from app.bench.report import NOT_REPORTED, beside_server, table
from app.bench.runner import Plan
from app.bench.server_metrics import add_reported, client_figures
from app.bench.sweep import Axis, Sweep
from app.bench.workload import BenchRequest, fixed, stand_in_ids, text_of
from app.clients.calls import make_call
from app.clients.chunks import Counting
from app.clients.errors import TargetError
from app.clients.metric_names import Figure, Latency
from app.clients.metrics import Change, Scrape
from app.clients.stream import Streamer
from app.clients.target import ServerType, parse_address
from engine.errors import ConfigError
from engine.sampling_params import SamplingParams
from engine.snapshot import RequestTimes, TokenEvent
from engine.telemetry.metrics import HistogramSnapshot
from tests.app.clients.conftest import PAGES, Exchange, ScriptedServer
from tests.figures import numbers

GAP_S = 0.02
COMPLETIONS = "/v1/completions"


def piece(count: int, total: int, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "text": "x" * count, "finish_reason": finish}
    return {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": total}}


def paced(exchange: Exchange) -> None:
    """A token after each GAP_S."""
    count = exchange.body["max_tokens"]
    exchange.begin()
    for i in range(count):
        time.sleep(GAP_S)
        exchange.events(piece(1, i + 1, "length" if i + 1 == count else None))
    exchange.events("[DONE]")


def run(server: ScriptedServer, requests: list[BenchRequest], pace: Pace) -> ClientRun:
    async def go() -> ClientRun:
        streamer = Streamer(server.target, parse_address(server.target.base_url))
        make = lambda request: make_call(
            ServerType.VLLM, "m", request.prompt_token_ids,
            SamplingParams(temperature=0.0, max_tokens=request.output_len),
        )  # fmt: skip
        try:
            return await run_client(streamer, requests, make, pace)
        finally:
            await streamer.close()

    return asyncio.run(go())


def test_times_are_those_of_a_client(server: ScriptedServer) -> None:
    server.answers[COMPLETIONS] = paced
    found = run(server, [BenchRequest((1, 2, 3), 5, 5)] * 4, Pace(concurrency=2))
    assert (len(found.requests), found.num_failed, found.most_at_once) == (4, 0, 2)
    assert (found.num_output_tokens, found.num_prompt_tokens, found.num_short) == (20, 28, 0)
    assert found.counting is Counting.USAGE
    for times in found.requests:
        assert times.ttft_s is not None and times.ttft_s >= GAP_S * 0.9
        assert len(times.itl_s) == 4
        assert times.ttft_s + sum(times.itl_s) >= 5 * GAP_S * 0.9  # the first may be read late
    assert found.duration_s >= 2 * 5 * GAP_S * 0.9  # two after two


def test_it_says_how_long_it_waited_for_a_core(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = tmp_path / "schedstat"
    told.write_text("5 1000000000 7\n")
    monkeypatch.setattr(client, "_SCHEDSTAT", told)

    def wait(exchange: Exchange) -> None:
        told.write_text("5 1250000000 7\n")
        exchange.stream(piece(1, 1, "stop"), "[DONE]")

    server.answers[COMPLETIONS] = wait
    found = run(server, [BenchRequest((1,), 1, 1)], Pace())
    assert found.core_wait_s == 0.25
    found.duration_s = 0.5
    assert client_figures([found])["client_core_wait"] == 0.5
    told.unlink()
    assert run(server, [BenchRequest((1,), 1, 1)], Pace()).core_wait_s is None


def test_requests_come_when_they_are_due(server: ScriptedServer) -> None:
    server.answers[COMPLETIONS] = paced
    began = time.perf_counter()
    found = run(server, [BenchRequest((1,), 1, 1)] * 5, Pace(request_rate=20.0))
    arrivals = sorted(times.arrival for times in found.requests)
    due = Pace(request_rate=20.0).due_times(5, 0)
    for arrival, when in zip(arrivals, due, strict=True):
        assert arrival - began >= when


def test_failures_are_counted_and_named(server: ScriptedServer) -> None:
    server.answers[COMPLETIONS] = lambda exchange: exchange.send(400, {"error": "too long"})
    found = run(server, [BenchRequest((1,), 1, 1)] * 3, Pace())
    assert (len(found.requests), found.num_failed) == (0, 3)
    assert found.error is not None and "too long" in found.error.cause


def test_replies_that_end_early_are_counted(server: ScriptedServer) -> None:
    server.answers[COMPLETIONS] = lambda exchange: exchange.stream(piece(1, 1, "stop"), "[DONE]")
    assert run(server, [BenchRequest((1,), 9, 9)], Pace()).num_short == 1


# -- the server's own figures -----------------------------------------------------------------


def scrape_of(at: float, counts: tuple[int, ...], total: float, **values: float) -> Scrape:
    histogram = HistogramSnapshot((0.01, 0.02, 0.04), counts, total)
    figures = {Figure[name]: value for name, value in values.items()}
    return Scrape(at, figures, {Latency.TTFT: histogram, Latency.ITL: histogram})


def test_the_two_stand_beside_each_other() -> None:
    tokens = tuple(TokenEvent(0.02 + 0.015 * i, 1) for i in range(11))
    run = ClientRun([RequestTimes(0.0, None, tokens, tokens[-1].time)], 100, duration_s=0.5)
    run.num_cached_tokens = 20
    figures = client_figures([run])
    before = scrape_of(0, (0, 5, 5, 5), 0.1, GENERATION_TOKENS=5, PREEMPTIONS=1)
    now = scrape_of(1, (0, 15, 15, 15), 0.25, GENERATION_TOKENS=16, PREEMPTIONS=3)
    add_reported(figures, [Change(before, now)], 0.5, 0.001)
    told = figures["server"]
    assert told["itl_ms"]["mean"] == pytest.approx(15)
    assert told["client_less_server_ms"]["itl_ms"]["mean"] == pytest.approx(0)
    assert told["client_less_server_ms"]["ttft_ms"]["mean"] == pytest.approx(5)
    assert told["client_less_server_ms"]["ttft_ms"]["mean_less_round_trip"] == pytest.approx(4)
    assert "1 ms)" in told["explanation"]
    assert (figures["preemptions"], figures["peak_kv_usage"]) == (2, 0.5)
    assert figures["prefix_cache_hit_rate"] == 0.2  # of the usage: the metrics do not say
    shown = table({"unique": figures}, NOT_REPORTED)
    rows = dict(re.split(r"\s{3,}", line)[:2] for line in shown.splitlines()[1:])
    assert rows["Weights"] == NOT_REPORTED
    assert rows["Preemptions"] == "2"
    assert "difference" in beside_server(figures)


def test_a_server_that_tells_its_engines_part_has_the_way_explained() -> None:
    run = ClientRun([RequestTimes(0.0, None, (TokenEvent(0.0124, 1),), 0.0124)], 10)
    figures = client_figures([run])

    def at(seconds: float, count: int) -> Scrape:
        one = lambda value: HistogramSnapshot((1.0,), (count, count), value * count)
        found = {Latency.TTFT: one(0.0119), Latency.ENGINE_TTFT: one(0.0109)}
        return Scrape(seconds, {}, found)

    add_reported(figures, [Change(at(0, 0), at(1, 1))], None, 0.001)
    parts = figures["server"]["ttft_parts_ms"]
    assert parts == pytest.approx({"engine": 10.9, "way_out": 1.0, "line": 0.5})
    shown = beside_server(figures)
    assert shown.splitlines()[0].split() == ["client", "server", "engine", "difference"]
    assert shown.splitlines()[1].split()[2::2] == ["12.4", "11.9", "10.9", "0.500"]
    assert all(ms in shown.splitlines()[-1] for ms in ("12.4 ms", "10.9 ms", "1 ms", "500 µs"))


def test_without_metrics_there_is_nothing_beside() -> None:
    figures = client_figures([ClientRun()])
    add_reported(figures, [], None, 0.001)
    assert beside_server(figures) == ""
    assert NOT_REPORTED in table({"unique": figures}, NOT_REPORTED)


# -- the whole --------------------------------------------------------------------------------


def test_a_server_is_measured(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MOST_SETTLE_S", 0.2)  # its page says that something runs, always
    server.models("vllm", "m", max_model_len=100)
    server.answers |= {
        "/metrics": (PAGES / "vllm_0.12.txt").read_text(),
        "/tokenize": {"tokens": list(range(100, 200))},
        COMPLETIONS: paced,
    }  # fmt: skip
    bench = RemoteBench(server.target, Plan(fixed(8, 3, 4), Pace(2)))
    figures = bench.variants()["unique"]
    assert (figures["completed"], figures["failed"], bench.prompts) == (4, 0, "token ids")
    prompts = [tuple(body["prompt"]) for body in server.asked]
    assert len(set(prompts)) == 5  # a warm-up, and no prompt twice
    assert all(100 <= token < 200 and len(p) == 8 for p in prompts for token in p)
    assert figures["tokens_counted_by"] == str(Counting.USAGE)
    assert figures["preemptions"] == 0
    assert figures["server"]["generation_tokens"] == 0  # its page does not change


def test_a_server_that_goes_away_leaves_what_is_measured(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MOST_SETTLE_S", 0.0)
    server.models("vllm", "m", max_model_len=100)
    server.answers |= {"/tokenize": {"tokens": list(range(100, 200))}, COMPLETIONS: paced}

    def hang_up(exchange: Exchange) -> None:
        exchange.connection.shutdown(socket.SHUT_RDWR)

    def follow(progress: Progress) -> None:
        if progress.done:
            server.answers[COMPLETIONS] = hang_up

    plan = Plan(fixed(8, 3, 2), Pace())
    axes = (Axis("concurrency", (1, 2)),)
    sweep = Sweep(RemoteBench(server.target, plan), axes, plan.pace, 2, progress=follow)
    first, second = sweep.run()
    assert first.is_measured and first.figures["completed"] == 2 and not first.error
    assert not second.is_measured and second.error and not sweep.was_cancelled


def test_text_of_the_right_length_where_ids_are_not_taken(
    server: ScriptedServer,
) -> None:
    server.models("somebody", "m")
    server.answers["/v1/chat/completions"] = lambda exchange: exchange.stream(
        {"choices": [{"delta": {"content": "x"}, "finish_reason": "length"}]}, "[DONE]"
    )
    bench = RemoteBench(server.target, Plan(fixed(8, 1, 2), Pace()))
    figures = bench.variants()["unique"]
    assert (figures["completed"], bench.prompts) == (2, "text")
    assert len(server.asked[0]["messages"][0]["content"].split()) == 8
    assert "ignore_eos" in bench.remarks[0]


def test_what_does_not_fit_is_refused_before(server: ScriptedServer) -> None:
    server.models("vllm", "m", max_model_len=10)
    with pytest.raises(ConfigError) as failed:
        RemoteBench(server.target, Plan(fixed(8, 3, 1), Pace()))
    assert numbers(failed.value.cause) == [11, 10]
    with pytest.raises(ConfigError) as failed:
        RemoteBench(server.target, Plan(fixed(1, 1, 1), Pace()), "other")
    assert "'other'" in failed.value.cause and failed.value.remedy.endswith(" m.")
    server.answers["/v1/models"] = "<html>"
    with pytest.raises(TargetError, match="HTML"):
        RemoteBench(server.target, Plan(fixed(1, 1, 1), Pace()))


def test_words_share_what_ids_share() -> None:
    ids = stand_in_ids()
    assert len(set(ids)) == len(ids) > 1000
    one, other = text_of((*ids[:5], 1)), text_of((*ids[:5], 2))
    assert one.split()[:5] == other.split()[:5]
    assert one != other
