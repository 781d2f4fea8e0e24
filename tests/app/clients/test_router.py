"""A router's replicas: recorded pages, and their figures as those of one server."""

from __future__ import annotations

import asyncio
import gc
import json
import math
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.clients.http import Answer
from app.clients.look import Looker
from app.clients.metric_names import Figure, Latency
from app.clients.metrics import Scrape
from app.clients.probe import probe
from app.clients.router import Hits, ReplicaSum, read_workers, routed_url, with_routed
from app.clients.target import ServerType, Target, TargetError, parse_address
from app.clients.watch import Watch
from tests.app.clients.conftest import PAGES, ScriptedServer, served

WORKERS = json.loads((PAGES / "vllm_router_0.1_workers.json").read_text())
FIRST, SECOND = "http://127.0.0.1:18101", "http://127.0.0.1:18102"


def page(running: int = 0, tokens: int = 0, hits: int = 0, queries: int = 0) -> str:
    return (
        f"vllm:num_requests_running {running}\nvllm:generation_tokens_total {tokens}\n"
        f"vllm:prefix_cache_hits_total {hits}\nvllm:prefix_cache_queries_total {queries}\n"
        f'vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {queries}\n'
    )


def answer(text: str) -> Answer:
    return Answer(200, httpx.Headers(), text.encode(), 0.0)


def test_a_recorded_router_with_a_dead_replica() -> None:
    text = (PAGES / "vllm_router_0.1.txt").read_text()
    one, other = with_routed(read_workers(WORKERS), text)
    assert (one.url, one.is_healthy, one.routed, one.is_tried) == (FIRST, True, 31, True)
    assert (other.url, other.is_healthy, other.routed, other.is_tried) == (SECOND, False, 33, False)
    assert routed_url("http://127.0.0.1:8000") == "http://127.0.0.1:8001/metrics"


def test_a_recorded_sglang_router() -> None:
    """Its requests of each worker are the outcomes that its circuit breaker has seen."""
    workers = json.loads((PAGES / "sglang_router_0.3_workers.json").read_text())
    (one,) = with_routed(read_workers(workers), (PAGES / "sglang_router_0.3.txt").read_text())
    assert (one.url, one.is_healthy, one.routed, one.is_tried) == (
        "http://127.0.0.1:8123", True, 2, True,
    )  # fmt: skip


def test_other_pages_are_no_routers() -> None:
    for value in (None, [], {"workers": WORKERS["workers"]}):
        assert read_workers(value) == ()


def test_counters_go_on_without_a_replica_and_gauges_do_not() -> None:
    summed = ReplicaSum()
    both = {FIRST: answer(page(2, 100, 10, 20)), SECOND: answer(page(3, 50, 0, 5))}
    found = summed.add(0.0, both)
    assert found is not None
    assert (found.get(Figure.RUNNING), found.get(Figure.GENERATION_TOKENS)) == (5, 150)
    assert found.latencies[Latency.TTFT].count == 25
    found = summed.add(1.0, {FIRST: answer(page(4, 110, 12, 24))})
    assert found is not None
    assert (found.get(Figure.RUNNING), found.get(Figure.GENERATION_TOKENS)) == (4, 160)
    found = summed.add(2.0, {FIRST: answer(page(4, 110, 12, 24)), SECOND: answer(page(1, 7, 0, 1))})
    assert found is not None and found.get(Figure.GENERATION_TOKENS) == 110 + 50 + 7
    assert found.latencies[Latency.TTFT].count == 24 + 5 + 1
    assert summed.hits == {FIRST: Hits(12, 24), SECOND: Hits(0, 1)}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.booleans()), max_size=12))
def test_the_sum_grows_as_its_parts_do(steps: list[tuple[str, int, bool]]) -> None:
    """Whichever replicas answer, and whenever one begins anew."""
    summed, counts, wanted = ReplicaSum(), {"a": 5, "b": 5}, 10
    summed.add(0.0, {url: answer(page(tokens=count)) for url, count in counts.items()})
    for url, grown, begins_anew in steps:
        before = counts[url]
        counts[url] = grown if begins_anew else before + grown
        # one that has overtaken its old count cannot be told from one that went on
        fell = counts[url] < before
        wanted += counts[url] if fell else counts[url] - before
        found = summed.add(1.0, {url: answer(page(tokens=counts[url]))})
        assert found is not None and found.get(Figure.GENERATION_TOKENS) == wanted


def test_restarts_leave_one_record() -> None:
    """A replica that restarts for ever leaves no more than its sum."""
    summed = ReplicaSum()
    gc.collect()
    before = sum(isinstance(one, Scrape) for one in gc.get_objects())
    for number in range(60):
        found = summed.add(float(number), {FIRST: answer(page(tokens=60 - number, queries=1))})
    gc.collect()
    assert found is not None and found.get(Figure.GENERATION_TOKENS) == sum(range(1, 61))
    assert sum(isinstance(one, Scrape) for one in gc.get_objects()) - before <= 3


# A scripted router and its replicas -------------------------------------------------------------


@pytest.fixture
def replicas() -> Iterator[tuple[ScriptedServer, ScriptedServer]]:
    with served() as one, served() as other:
        one.replica(page=page(1, 10, 0, 10))
        other.replica(page=page(2, 20, 0, 10))
        yield one, other


@pytest.fixture
def router(
    server: ScriptedServer, replicas: tuple[ScriptedServer, ScriptedServer]
) -> ScriptedServer:
    """It has the pages of a replica, as it passes them on."""
    server.answers |= replicas[0].answers
    workers = [{"url": f"http://{one.host}", "is_healthy": True, "load": 1} for one in replicas]
    server.answers["/workers"] = {**WORKERS, "workers": workers}
    return server


def test_it_is_not_taken_for_its_replica(router: ScriptedServer) -> None:
    found = probe(router.target)
    assert (found.server_type, found.models, found.has_metrics) == (ServerType.ROUTER, ("m",), True)
    assert found.max_model_len == 4096


def test_models_come_from_a_replica_where_the_chosen_one_died(router: ScriptedServer) -> None:
    router.answers["/v1/models"] = lambda exchange: exchange.send(500, "Request failed")
    assert probe(router.target).models == ("m",)


def test_a_router_that_does_not_know_its_models_has_those_of_a_replica(
    router: ScriptedServer,
) -> None:
    router.models("local", "unknown")
    found = probe(router.target)
    assert (found.models, found.max_model_len) == (("m",), 4096)


def test_a_look_has_all_replicas(
    router: ScriptedServer, replicas: tuple[ScriptedServer, ScriptedServer]
) -> None:
    looker = Looker(router.target, ServerType.ROUTER, 1.0, 60.0)
    try:
        found = looker.look()
        assert found.running == 3 and found.has_metrics
        assert [one.running for one in found.replicas] == [1, 1]
        assert all(math.isnan(one.hit_rate or 0.0) for one in found.replicas)
        replicas[1].replica(page=page(2, 30, 6, 18))
        rates = {one.url: one.hit_rate for one in looker.look().replicas}
        assert rates[f"http://{replicas[1].host}"] == 0.75
        router.answers["/workers"] = {**WORKERS, "workers": [
            {"url": f"http://{one.host}", "is_healthy": False, "load": 0} for one in replicas
        ]}  # fmt: skip
        found = looker.look()
        assert not any(one.is_healthy for one in found.replicas) and not found.running
    finally:
        looker.close()
    assert all(path != "/metrics" for path, _ in router.seen)


async def _watched(target: Target) -> Watch:
    address = parse_address(target.base_url)
    async with httpx.AsyncClient() as client:
        watch = Watch(client, target, address, probe(target))
        await watch.look()
        return watch


def test_the_window_has_the_sum(router: ScriptedServer) -> None:
    watch = asyncio.run(_watched(router.target))
    assert watch.last is not None
    assert watch.last.get(Figure.RUNNING) == 3 and watch.is_busy


@pytest.mark.parametrize(
    "words",
    ["No available workers (all circuits open or unhealthy)", "No workers are currently available"],
)
def test_a_request_without_replicas_says_so(router: ScriptedServer, words: str) -> None:
    router.answers["/v1/models"] = lambda exchange: exchange.send(503, words)
    router.answers["/workers"] = {}
    with pytest.raises(TargetError, match="No replica of the router") as raised:
        probe(router.target)
    assert not raised.value.is_final


def test_a_router_without_replicas_is_said(router: ScriptedServer) -> None:
    dead = [{"url": one["url"], "is_healthy": False} for one in WORKERS["workers"]]
    router.answers["/workers"] = {**WORKERS, "workers": dead}
    with pytest.raises(TargetError, match="None of the router's 2 replicas responds"):
        asyncio.run(_watched(router.target))
