"""A router (vllm-router, sglang-router) and its replicas: how each is, what it
gets, and all as one server.

    window --> router --policy--> replica A, replica B, ...
      \\--- GET /workers            health and running requests of each, as the router has them
      \\--- GET replica/metrics     figures of each replica; their sums are the router's
      \\--- GET :port+1/metrics     requests routed (of a router that the window runs)

A router passes GET /metrics on to one of its replicas, which is why it is never asked there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from app.clients.errors import TargetError
from app.clients.http import Answer, Fetcher
from app.clients.metric_names import MEANS, TABLES, Figure, Latency
from app.clients.metrics import Scrape
from app.clients.metrics_page import Exposition, added
from app.clients.target import Address
from engine.telemetry.metrics import HistogramSnapshot

WORKERS = "workers"
ROUTED = ("vllm_router_processed_requests_total", "smg_worker_cb_outcomes_total")
BREAKER = ("vllm_router_cb_state", "smg_worker_cb_state")
"""Of vllm-router, of sglang-router."""
NO_NAME = "unknown"
"""What sglang-router lists as the model of replicas that are no SGLang; it routes by their own."""
GAUGES = frozenset((Figure.RUNNING, Figure.WAITING)) | MEANS


@dataclass(frozen=True, slots=True)
class Replica:
    """As its router has it. running: its requests. routed: requests so far; None: not reported.
    is_tried: its circuit breaker lets requests through. hit_rate: of its prefix cache, 0 to 1, over
    the last span; None: not reported, NaN: no queries."""

    url: str
    is_healthy: bool
    running: int = 0
    routed: int | None = None
    is_tried: bool = True
    hit_rate: float | None = None

    @property
    def metrics_url(self) -> str:
        return f"{self.url}/metrics"


class Hits(NamedTuple):
    """Of a prefix cache, since its server started."""

    hits: float
    queries: float


def routed_url(base_url: str) -> str:
    """Of a router that the window runs: the port after its own."""
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.hostname}:{(parts.port or 0) + 1}/metrics"


def read_workers(value: Any) -> tuple[Replica, ...]:
    """From the answer of GET /workers; none where it is not a router's."""
    workers = value.get("workers") if isinstance(value, dict) and "stats" in value else None
    found = [
        Replica(one["url"].rstrip("/"), one.get("is_healthy") is True, int(one.get("load") or 0))
        for one in (workers if isinstance(workers, list) else ())
        if isinstance(one, dict) and isinstance(one.get("url"), str)
    ]
    return tuple(sorted(found, key=lambda one: one.url))  # its order is that of a hash table


def check_replicas(replicas: Sequence[Replica]) -> None:
    """Raises TargetError where no replica is healthy."""
    if not any(one.is_healthy for one in replicas):
        count = len(replicas)
        raise TargetError(
            f"None of the router's {count} replicas responds." if count
            else "The router has no replicas.",
            "Start a replica. The router uses it again within seconds.",
        )  # fmt: skip


def with_routed(replicas: Iterable[Replica], page: str) -> tuple[Replica, ...]:
    """With what the router's own page of metrics has. Raises ValueError for other content."""
    series = Exposition(page)
    routed, states = (
        next((found for name in names if (found := series.by_label(name, "worker"))), {})
        for names in (ROUTED, BREAKER)
    )
    return tuple(
        replace(one, routed=int(routed.get(one.url, 0)), is_tried=states.get(one.url, 0) != 1)
        for one in replicas
    )


def read_page(at: float, answer: Answer) -> Scrape | None:
    """A replica's page of metrics, of any server; None where it has none."""
    if answer.status != 200:
        return None
    with suppress(ValueError):
        page = Exposition(answer.text)
        for table in TABLES.values():
            if page.is_of(table):
                return Scrape(at, *page.read(table), table.itl_is_mean, table.hits_are_tokens)
    return None


class ReplicaSum:
    """The figures of all replicas as those of one server. Counters and histograms go on where a
    replica is away or begins anew; gauges are of those that answer."""

    def __init__(self) -> None:
        self._ended: Scrape | None = None  # the counts of replicas before they began anew
        self._last: dict[str, Scrape] = {}

    def add(self, at: float, answers: Mapping[str, Answer]) -> Scrape | None:
        """answers: of the pages of metrics, by replica. None as long as none has metrics."""
        read = ((url, read_page(at, answer)) for url, answer in answers.items())
        now = {url: one for url, one in read if one is not None}
        for url, one in now.items():
            last = self._last.get(url)
            if last is not None and _began_anew(last, one):
                self._ended = _summed(at, self._with_ended([last]), ())
        self._last |= now
        counted = self._with_ended(self._last.values())
        return _summed(at, counted, now.values()) if counted else None

    def _with_ended(self, others: Iterable[Scrape]) -> list[Scrape]:
        return [*others] if self._ended is None else [self._ended, *others]

    @property
    def hits(self) -> dict[str, Hits]:
        """Of each replica that reports them."""
        found = {}
        for url, one in self._last.items():
            hits, queries = one.get(Figure.PREFIX_HITS), one.get(Figure.PREFIX_QUERIES)
            if hits is not None and queries is not None:
                found[url] = Hits(hits, queries)
        return found


def _summed(at: float, counted: Collection[Scrape], now: Collection[Scrape]) -> Scrape:
    """Counters and histograms of `counted`, gauges of `now`."""
    values: dict[Figure, float] = {}
    for figure in Figure:
        parts = now if figure in GAUGES else counted
        found = [value for one in parts if (value := one.get(figure)) is not None]
        if found:
            values[figure] = sum(found) / (len(found) if figure in MEANS else 1)
    latencies: dict[Latency, HistogramSnapshot] = {}
    for latency in Latency:
        samples = [one.latencies[latency] for one in counted if latency in one.latencies]
        if samples:
            latencies[latency] = reduce(added, samples)
    return Scrape(
        at, values, latencies, any(one.itl_is_mean for one in counted),
        all(one.hits_are_tokens for one in counted),
    )  # fmt: skip


def _began_anew(before: Scrape, now: Scrape) -> bool:
    fell = (figure for figure, value in now.values.items() if value < before.values.get(figure, 0))
    return any(figure not in GAUGES for figure in fell)


class RouterLook:
    """Polls a router and its replicas. span_s: of the hit rates. routed_url: of the router's own
    metrics; "" where not known."""

    def __init__(self, address: Address, span_s: float, routed_url: str = "") -> None:
        self._address, self._span_s, self._routed_url = address, span_s, routed_url
        self._sum = ReplicaSum()
        self._past: deque[tuple[float, dict[str, Hits]]] = deque()
        self.replicas: tuple[Replica, ...] = ()

    def look(self, fetcher: Fetcher, deadline: float) -> Scrape | None:
        """None as long as no replica has metrics. Raises TargetError where the router does not
        answer."""
        answer = fetcher.get(self._address.beside(WORKERS), deadline)
        if answer.status != 200:
            raise fetcher.problem(answer)
        replicas = read_workers(answer.json())
        if self._routed_url:
            with suppress(TargetError, ValueError):
                page = fetcher.get(self._routed_url, deadline)
                replicas = with_routed(replicas, page.text)
        pages: dict[str, Answer] = {}
        for one in replicas:
            with suppress(TargetError):
                if one.is_healthy:
                    pages[one.url] = fetcher.get(one.metrics_url, deadline)
        found = self._sum.add(time.perf_counter(), pages)
        self.replicas = tuple(replace(one, hit_rate=self._hit_rate(one.url)) for one in replicas)
        if found is not None:
            self._remember(found.time)
        return found

    def _remember(self, at: float) -> None:
        self._past.append((at, self._sum.hits))
        while len(self._past) > 1 and at - self._past[0][0] > self._span_s:
            self._past.popleft()

    def _hit_rate(self, url: str) -> float | None:
        now = self._sum.hits.get(url)
        if now is None:
            return None
        before = next((hits[url] for _, hits in self._past if url in hits), now)
        if now.queries < before.queries:
            before = Hits(0.0, 0.0)  # it began anew
        queries = now.queries - before.queries
        return (now.hits - before.hits) / queries if queries else float("nan")
