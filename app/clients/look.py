"""Live figures of a server: rates and latencies between two scrapes. No Qt."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app.clients.target import Address, Probe, ServerType, Target, TargetError
from engine.units import duration_text, number, rate_text, whole_percent

if TYPE_CHECKING:
    from app.clients.http import Fetcher
    from app.clients.metrics import Scrape
    from app.clients.router import Replica, RouterLook


LOOK_TIMEOUT_S = 3.0
NOT_TOLD = "not reported"
_EARLY_S = 0.3
"""Polls come earlier by as much."""


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """Latencies in seconds; None: not reported; NaN: nothing to measure. hit_rate: share of prompt
    tokens found in the prefix cache; acceptance_rate: of drafted tokens; preemptions: a count; all
    over the span of latencies. round_trip_s: of the poll. replicas: of a router."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    tokens_per_s: float | None = None
    ttft_p50: float | None = None
    itl_p50: float | None = None
    queue_mean: float | None = None
    prefill_mean: float | None = None
    decode_mean: float | None = None
    hit_rate: float | None = None
    preemptions: float | None = None
    acceptance_rate: float | None = None
    round_trip_s: float = 0.0
    has_metrics: bool = True
    replicas: tuple[Replica, ...] = ()

    def texts(self) -> dict[str, str]:
        return {
            "running": _told(self.running, number),
            "waiting": _told(self.waiting, number),
            "kv": _told(self.kv_usage, whole_percent),
            "tokens": _told(self.tokens_per_s, rate_text),
            "ttft": _told(self.ttft_p50, duration_text),
            "itl": _told(self.itl_p50, duration_text),
            "queue": _told(self.queue_mean, duration_text),
            "prefill": _told(self.prefill_mean, duration_text),
            "decode": _told(self.decode_mean, duration_text),
            "hits": _told(self.hit_rate, whole_percent),
            "preemptions": _told(self.preemptions, number),
            "acceptance": _told(self.acceptance_rate, whole_percent),
        }


def _told(value: float | None, text: Callable[[float], str]) -> str:
    return NOT_TOLD if value is None else text(value)


class Looker:
    """Polls one server over one kept connection. One poll at a time, from any thread. Rates are of
    the last `rate_s`, latencies of the last `span_s` seconds, to a poll. routed_url: see
    `RouterLook`."""

    def __init__(
        self, target: Target, server_type: ServerType, rate_s: float, span_s: float,
        routed_url: str = "",
    ) -> None:  # fmt: skip
        self._target, self._server_type = target, server_type
        self._rate_s, self._span_s, self._routed_url = rate_s, span_s, routed_url
        self._router: RouterLook | None = None
        self._fetcher: Fetcher | None = None
        self._past: deque[Scrape] = deque()
        self._is_looking = threading.Lock()
        self._is_closed = False

    def look(self) -> LiveFigures:
        """Blocks for a few seconds at most. Raises TargetError."""
        with self._is_looking:
            try:
                return self._look()
            finally:
                if self._is_closed:
                    self._hang_up()

    def close(self) -> None:
        """Stop polling; a running poll closes the connection when it ends."""
        self._is_closed = True
        if self._is_looking.acquire(blocking=False):
            self._hang_up()
            self._is_looking.release()

    def _look(self) -> LiveFigures:
        from app.clients.http import Fetcher
        from app.clients.target import parse_address

        address = parse_address(self._target.base_url)
        if self._fetcher is None:
            self._fetcher = Fetcher(self._target, address)
        began = time.perf_counter()
        deadline = began + LOOK_TIMEOUT_S
        if self._server_type is ServerType.OPENAI:  # it shows nothing: whether it is there
            seconds = self._ask_models(self._fetcher, address, deadline)
            return LiveFigures(round_trip_s=seconds, has_metrics=False)
        if self._server_type is not ServerType.ROUTER:
            return self._figures(self._scrape(self._fetcher, address, deadline), began)
        from app.clients.router import RouterLook

        if self._router is None:
            self._router = RouterLook(address, self._span_s, self._routed_url)
        summed = self._router.look(self._fetcher, deadline)
        figures = LiveFigures(round_trip_s=time.perf_counter() - began, has_metrics=False)
        if summed is not None:
            figures = self._figures(summed, began)
        return replace(figures, replicas=self._router.replicas)

    def _scrape(self, fetcher: Fetcher, address: Address, deadline: float) -> Scrape:
        from app.clients.errors import is_timeout, of_silent_metrics
        from app.clients.metrics import scrape_with

        try:
            return scrape_with(fetcher, address, self._server_type, deadline)
        except TargetError as error:
            if not is_timeout(error):
                raise
            self._ask_models(fetcher, address, deadline + LOOK_TIMEOUT_S)
            raise of_silent_metrics(address.host, LOOK_TIMEOUT_S) from None

    @staticmethod
    def _ask_models(fetcher: Fetcher, address: Address, deadline: float) -> float:
        """Its seconds. Raises TargetError where the server does not respond."""
        answer = fetcher.get(address.api("models"), deadline)
        if answer.status != 200:
            raise fetcher.problem(answer)
        return answer.seconds

    def _figures(self, now: Scrape, began: float) -> LiveFigures:
        while self._past and now.time - self._past[0].time > self._span_s + _EARLY_S:
            self._past.popleft()
        self._past.append(now)
        before = scrape_before(self._past, self._rate_s)
        return figures_of(before, self._past[0], now, time.perf_counter() - began)

    def _hang_up(self) -> None:
        if self._fetcher is not None:
            self._fetcher.__exit__(None, None, None)
        self._fetcher = None


def scrape_before(past: Sequence[Scrape], seconds: float) -> Scrape:
    """The newest that is about `seconds` older than the last; the first where none is."""
    at = past[-1].time - seconds + _EARLY_S
    return next((one for one in reversed(past) if one.time <= at), past[0])


def figures_of(before: Scrape, first: Scrape, now: Scrape, round_trip_s: float) -> LiveFigures:
    """Rates since `before`, latencies since `first`; none where these are `now` itself."""
    from app.clients.metric_names import Figure, Latency
    from app.clients.metrics import Change
    from app.clients.metrics_page import mean

    rates, latencies = (Change(one if one is not now else None, now) for one in (before, first))
    load, nan = now.load, float("nan")

    def p50(which: Latency) -> float | None:
        if which not in now.latencies:
            return None
        found = latencies.quantile(which, 0.5)
        return nan if found is None else found

    def average(which: Latency) -> float | None:
        """Where the first bucket ends at 0.3 s, as of vLLM's times, a p50 would be a guess."""
        if which not in now.latencies:
            return None
        samples = latencies.latency(which)
        found = mean(samples) if samples is not None else None
        return nan if found is None else found

    def share(part: Figure, whole: Figure) -> float | None:
        if now.get(part) is None or now.get(whole) is None:
            return None
        some, of = latencies.grown(part), latencies.grown(whole)
        return some / of if some is not None and of else nan

    preemptions: float | None = None
    if now.get(Figure.PREEMPTIONS) is not None:
        grown = latencies.grown(Figure.PREEMPTIONS)
        preemptions = nan if grown is None else grown
    rate: float | None = None
    if now.get(Figure.GENERATION_TOKENS) is not None:
        grown = rates.per_second(Figure.GENERATION_TOKENS)
        rate = nan if grown is None else grown
    return LiveFigures(
        load.num_running, load.num_waiting, load.kv_usage, rate, p50(Latency.TTFT),
        p50(Latency.ITL), average(Latency.QUEUE), average(Latency.PREFILL),
        average(Latency.DECODE),
        share(Figure.PREFIX_HITS, Figure.PREFIX_QUERIES), preemptions,
        share(Figure.ACCEPTED, Figure.DRAFTED), round_trip_s,
    )  # fmt: skip


REACH_TIMEOUT_S = 5.0
OUR_PATH = "inferdeck/v1"


def reach(target: Target, server_type: ServerType | None) -> Probe | None:
    """Probe the server; None if it is still an Inferdeck engine, with or without a model. Blocks
    for a few seconds at most. Raises TargetError."""
    from app.clients.probe import probe

    if server_type is ServerType.INFERDECK and _is_ours(target):
        return None
    return probe(target, REACH_TIMEOUT_S)


def _is_ours(target: Target) -> bool:
    """False if another server listens there now. Raises TargetError for a wrong key, or without a
    response."""
    from app.clients.http import Fetcher
    from app.clients.target import parse_address

    address = parse_address(target.base_url)
    with Fetcher(target, address) as fetcher:
        answer = fetcher.get(address.beside(OUR_PATH), time.perf_counter() + REACH_TIMEOUT_S)
        if answer.status in (401, 403):
            raise fetcher.problem(answer)
        return answer.status == 200 and "protocol" in answer.object()
