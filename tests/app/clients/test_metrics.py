"""Recorded metrics pages of each server type, under our names."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from app.clients.errors import TargetError
from app.clients.http import Answer, Fetcher
from app.clients.look import NOT_TOLD, LiveFigures
from app.clients.metric_names import NEVER_REPORTED, Figure, Latency
from app.clients.metrics import Change, RunningTotals, Scrape, merged, metric_pages, scrape_with
from app.clients.metrics_page import mean, quantile
from app.clients.target import ServerType, Target, parse_address
from engine.snapshot import Part
from engine.units import NOTHING
from tests.app.clients.conftest import PAGES, Exchange, ScriptedServer

F = Figure
VLLM = {F.RUNNING: 3, F.KV_USAGE: 0.25, F.PROMPT_TOKENS: 1200, F.GENERATION_TOKENS: 340,
        F.PREEMPTIONS: 4}  # fmt: skip
TGI = {F.RUNNING: 6, F.WAITING: 2, F.PROMPT_TOKENS: 610, F.GENERATION_TOKENS: 420}
LLAMA = {F.RUNNING: 1, F.WAITING: 3, F.PROMPT_TOKENS: 6886, F.GENERATION_TOKENS: 3469}
WANTED: Mapping[str, tuple[ServerType, Mapping[Figure, float], int, int]] = {
    "vllm_0.5.txt": (ServerType.VLLM, {**VLLM, F.WAITING: 3}, 10, 330),
    "vllm_0.8.txt": (
        ServerType.VLLM, {**VLLM, F.WAITING: 2, F.PREFIX_QUERIES: 75, F.PREFIX_HITS: 30}, 10, 330,
    ),
    "vllm_0.12.txt": (
        ServerType.VLLM,
        {**VLLM, F.WAITING: 2, F.PREFIX_QUERIES: 1200, F.PREFIX_HITS: 480, F.DRAFT_ROUNDS: 100,
         F.DRAFTED: 300, F.ACCEPTED: 150},
        10, 330,
    ),
    "vllm_0.32.txt": (  # recorded
        ServerType.VLLM,
        {F.RUNNING: 0, F.WAITING: 0, F.KV_USAGE: 0, F.PROMPT_TOKENS: 16, F.GENERATION_TOKENS: 239,
         F.PREEMPTIONS: 0, F.PREFIX_QUERIES: 16, F.PREFIX_HITS: 0},
        2, 237,
    ),
    "sglang_0.4.txt": (
        ServerType.SGLANG,
        {F.RUNNING: 162, F.WAITING: 2826, F.KV_USAGE: 0.28, F.PROMPT_TOKENS: 8128902,
         F.PREFIX_QUERIES: 8128902, F.GENERATION_TOKENS: 7557572},
        400, 7400757,
    ),
    "sglang_0.5.txt": (
        ServerType.SGLANG,
        {F.RUNNING: 5, F.WAITING: 1, F.KV_USAGE: 0.5, F.PROMPT_TOKENS: 4096,
         F.PREFIX_QUERIES: 4096, F.PREFIX_HITS: 3072, F.GENERATION_TOKENS: 512, F.PREEMPTIONS: 7,
         F.ROUND_LENGTH: 2.5},
        8, 504,
    ),
    "tgi_3.txt": (ServerType.TGI, TGI, 0, 10),
    "llama_cpp_2024.txt": (ServerType.LLAMA_CPP, {**LLAMA, F.KV_USAGE: 0.125}, 0, 0),
    "llama_cpp_2025.txt": (ServerType.LLAMA_CPP, LLAMA, 0, 0),
    "tensorrt_llm_1.1.txt": (ServerType.TENSORRT_LLM, {}, 5, 5),
    "tensorrt_llm_1.3.txt": (
        ServerType.TENSORRT_LLM,
        {F.RUNNING: 4, F.WAITING: 1, F.KV_USAGE: 0.6, F.PREFIX_QUERIES: 80, F.PREFIX_HITS: 20,
         F.PROMPT_TOKENS: 900, F.GENERATION_TOKENS: 500, F.DRAFTED: 20, F.ACCEPTED: 12},
        5, 5,
    ),
}  # fmt: skip


def answer(text: str, status: int = 200) -> Answer:
    return Answer(status, httpx.Headers(), text.encode(), 0.0)


def read(file: str, at: float = 0.0) -> Scrape:
    server_type = WANTED[file][0]
    path = next(iter(metric_pages(server_type)))
    return merged(server_type, at, {path: answer((PAGES / file).read_text())})


@pytest.mark.parametrize("file", WANTED)
def test_every_generation_of_names_is_found(file: str) -> None:
    _, values, num_ttft, num_itl = WANTED[file]
    found = read(file)
    assert found.values == pytest.approx(values)
    counts = {which: found.latencies[which].count for which in found.latencies}
    assert counts == {
        which: count for which, count in ((Latency.TTFT, num_ttft), (Latency.ITL, num_itl)) if count
    }


def test_there_is_a_fixture_for_each_server_type_with_metrics() -> None:
    assert {server_type for server_type, *_ in WANTED.values()} == {
        server_type for server_type in ServerType if metric_pages(server_type)
    } - {ServerType.INFERDECK}  # ours are read from the real server


def test_what_a_server_type_lacks_is_missing() -> None:
    assert read("vllm_0.12.txt").missing == NEVER_REPORTED
    assert read("tgi_3.txt").missing == NEVER_REPORTED | {
        Part.KV_USAGE, Part.PREFIX_CACHE, Part.PREEMPTIONS, Part.SPECULATION,
    }  # fmt: skip
    assert Part.KV_USAGE not in read("llama_cpp_2024.txt").missing
    assert Part.KV_USAGE in read("llama_cpp_2025.txt").missing


def test_load_gauges_are_read() -> None:
    load = read("vllm_0.12.txt").load
    assert (load.num_running, load.num_waiting, load.kv_usage) == (3, 2, 0.25)
    assert read("tgi_3.txt").load.kv_usage is None


def test_one_mean_a_request_is_marked() -> None:
    assert read("tgi_3.txt").itl_is_mean
    assert not read("vllm_0.12.txt").itl_is_mean


def test_series_of_several_engines_are_one_histogram() -> None:
    ttft = read("vllm_0.12.txt").latencies[Latency.TTFT]
    assert ttft == read("vllm_0.8.txt").latencies[Latency.TTFT]
    assert mean(ttft) == pytest.approx(0.04)
    assert quantile(ttft, 0.5) == pytest.approx(0.035)


def test_iterations_of_tensorrt_llm_tell_what_its_page_lacks() -> None:
    iterations = (PAGES / "tensorrt_llm_iterations.json").read_text()
    page = (PAGES / "tensorrt_llm_1.1.txt").read_text()
    found = merged(
        ServerType.TENSORRT_LLM, 0.0,
        {"prometheus/metrics": answer(page), "metrics": answer(iterations)},
    )  # fmt: skip
    assert (found.get(F.RUNNING), found.get(F.WAITING), found.get(F.KV_USAGE)) == (5, 3, 0.6)
    assert (found.get(F.PREFIX_HITS), found.get(F.PREFIX_QUERIES)) == (85, 100)
    assert found.latencies[Latency.TTFT].count == 5
    idle = merged(ServerType.TENSORRT_LLM, 0.0, {"metrics": answer("[]")})
    assert idle.get(F.RUNNING) == 0


def test_slots_of_llama_cpp_tell_what_runs() -> None:
    slots = json.dumps([{"id": 0, "is_processing": True}, {"id": 1, "is_processing": False}])
    found = merged(ServerType.LLAMA_CPP, 0.0, {"metrics": answer("", 501), "slots": answer(slots)})
    assert found.values == {F.RUNNING: 1}


@pytest.mark.parametrize("text", ["", "<html>", "{}", '{"error": "x"}', "a b c d\n", "\x00"])
def test_pages_of_something_else_are_refused(text: str) -> None:
    for server_type in (ServerType.VLLM, ServerType.TENSORRT_LLM, ServerType.LLAMA_CPP):
        answers = {path: answer(text) for path in metric_pages(server_type)}
        with pytest.raises(TargetError):
            merged(server_type, 0.0, answers)


def test_openai_has_none() -> None:
    with pytest.raises(TargetError):
        merged(ServerType.OPENAI, 0.0, {})


# -- changes ----------------------------------------------------------------------------------


def scraped(at: float, **values: float) -> Scrape:
    return Scrape(at, {Figure[name]: value for name, value in values.items()}, {})


def test_rates_are_those_between_two_scrapes() -> None:
    change = Change(scraped(10, GENERATION_TOKENS=100), scraped(12, GENERATION_TOKENS=150))
    assert change.per_second(F.GENERATION_TOKENS) == 25
    assert change.per_second(F.PROMPT_TOKENS) is None
    assert Change(None, change.now).per_second(F.GENERATION_TOKENS) is None


def test_counters_that_fell_start_anew() -> None:
    change = Change(scraped(10, GENERATION_TOKENS=100), scraped(12, GENERATION_TOKENS=30))
    assert change.grown(F.GENERATION_TOKENS) == 30
    totals = RunningTotals()
    for value in (100, 130, 10, 20):
        totals.update(scraped(0, GENERATION_TOKENS=value, RUNNING=value))
    assert totals.get(F.GENERATION_TOKENS) == 150
    assert totals.counters().generation_tokens == 150


def test_prompt_tokens_are_those_that_were_computed() -> None:
    totals = RunningTotals()
    totals.update(read("sglang_0.5.txt"))
    counters = totals.counters()
    assert (counters.prompt_tokens, counters.cached_prompt_tokens) == (1024, 3072)
    assert counters.prefix_hit_rate == 0.75
    totals = RunningTotals()
    totals.update(read("tensorrt_llm_1.3.txt"))  # its hits are blocks
    assert totals.counters().prompt_tokens == 900


def test_quantiles_are_those_of_the_time_between() -> None:
    before, now = read("vllm_0.8.txt", 1.0), read("vllm_0.8.txt", 2.0)
    assert Change(before, now).quantile(Latency.TTFT, 0.5) is None  # nothing came
    assert Change(None, now).quantile(Latency.TTFT, 0.5) is None


# -- over the line ----------------------------------------------------------------------------


def scrape(target: Target, server_type: ServerType) -> Scrape:
    address = parse_address(target.base_url)
    with Fetcher(target, address) as fetcher:
        return scrape_with(fetcher, address, server_type, time.perf_counter() + 3.0)


def test_a_scrape_reads_what_the_server_shows(server: ScriptedServer) -> None:
    server.answers["/metrics"] = (PAGES / "vllm_0.12.txt").read_text()
    found = scrape(server.target, ServerType.VLLM)
    assert found.get(F.RUNNING) == 3


def test_a_scrape_without_its_key_says_so(server: ScriptedServer) -> None:
    def refuse(exchange: Exchange) -> None:
        exchange.send(401, {"error": "Unauthorized"})

    server.answers["/metrics"] = refuse
    with pytest.raises(TargetError, match="API key"):
        scrape(server.target, ServerType.VLLM)


def test_all_values_are_numbers() -> None:
    """llama.cpp writes nan where it has divided by nothing."""
    for file in WANTED:
        values: Any = read(file).values.values()
        assert all(value == value for value in values)


def test_drafts_are_those_that_the_server_counted() -> None:
    totals = RunningTotals()
    totals.update(read("vllm_0.12.txt"))
    found = totals.drafts()
    assert found is not None and not found.method
    assert (found.rounds, found.drafted, found.accepted) == (100, 300, 150)
    assert (found.acceptance_rate, found.acceptance_length) == (0.5, 2.5)
    totals = RunningTotals()
    totals.update(read("sglang_0.5.txt"))
    told = totals.drafts()
    assert told is not None
    assert (told.acceptance_length, told.acceptance_rate) == (2.5, None)
    totals = RunningTotals()
    totals.update(read("tgi_3.txt"))
    assert totals.drafts() is None


def test_live_latencies_have_their_own_units() -> None:
    idle = LiveFigures(running=1204, tokens_per_s=math.nan, ttft_p50=3.34, itl_p50=0.0634).texts()
    assert idle == {
        "running": "1,204", "waiting": NOT_TOLD, "kv": NOT_TOLD, "tokens": NOTHING,
        "ttft": "3.34 s", "itl": "63.4 ms", "queue": NOT_TOLD, "prefill": NOT_TOLD,
        "decode": NOT_TOLD, "hits": NOT_TOLD, "preemptions": NOT_TOLD, "acceptance": NOT_TOLD,
    }  # fmt: skip
