"""Live figures of a server: rates and latencies between two scrapes. No Qt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.clients.target import Probe, ServerType, Target
from engine.units import duration_text, number, percent_text, rate_text

if TYPE_CHECKING:
    from app.clients.http import Fetcher
    from app.clients.metrics import Scrape


LOOK_TIMEOUT_S = 3.0
NOT_TOLD = "not reported"


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """Latencies in seconds; None: not reported. tokens_per_s, ttft and itl are NaN if there was
    nothing to measure between two polls. round_trip_s: of the poll."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    tokens_per_s: float | None = None
    ttft_p50: float | None = None
    itl_p50: float | None = None
    round_trip_s: float = 0.0
    has_metrics: bool = True

    def texts(self) -> dict[str, str]:
        return {
            "running": _told(self.running, number),
            "waiting": _told(self.waiting, number),
            "kv": _told(self.kv_usage, percent_text),
            "tokens": _told(self.tokens_per_s, rate_text),
            "ttft": _told(self.ttft_p50, duration_text),
            "itl": _told(self.itl_p50, duration_text),
        }


def _told(value: float | None, text: Callable[[float], str]) -> str:
    return NOT_TOLD if value is None else text(value)


class Looker:
    """Polls one server over one kept connection. One poll at a time, from any thread."""

    def __init__(self, target: Target, server_type: ServerType) -> None:
        self._target, self._server_type = target, server_type
        self._fetcher: Fetcher | None = None
        self._before: Scrape | None = None
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
        if self._server_type is ServerType.OPENAI:  # it shows nothing: whether it is there
            answer = self._fetcher.get(address.api("models"), began + LOOK_TIMEOUT_S)
            if answer.status != 200:
                raise self._fetcher.problem(answer)
            return LiveFigures(round_trip_s=answer.seconds, has_metrics=False)
        from app.clients.metrics import scrape_with

        now = scrape_with(self._fetcher, address, self._server_type, began + LOOK_TIMEOUT_S)
        before, self._before = self._before, now
        return figures_of(before, now, time.perf_counter() - began)

    def _hang_up(self) -> None:
        if self._fetcher is not None:
            self._fetcher.__exit__(None, None, None)
        self._fetcher = None


def figures_of(before: Scrape | None, now: Scrape, round_trip_s: float) -> LiveFigures:
    """The figures of two scrapes; the first alone has no rates."""
    from app.clients.metric_names import Figure, Latency
    from app.clients.metrics import Change

    change, load, nan = Change(before, now), now.load, float("nan")

    def p50(which: Latency) -> float | None:
        if which not in now.latencies:
            return None
        found = change.quantile(which, 0.5)
        return nan if found is None else found

    rate: float | None = None
    if now.get(Figure.GENERATION_TOKENS) is not None:
        grown = change.per_second(Figure.GENERATION_TOKENS)
        rate = nan if grown is None else grown
    return LiveFigures(
        load.num_running, load.num_waiting, load.kv_usage, rate, p50(Latency.TTFT),
        p50(Latency.ITL), round_trip_s,
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
