"""Scrapes of a server's metrics under our names, and changes between two scrapes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from app.clients.errors import TargetError
from app.clients.http import Address, Answer, Fetcher
from app.clients.metric_names import NEVER_REPORTED, PARTS, TABLES, Figure, Latency
from app.clients.metrics_page import (
    Exposition,
    Readings,
    llama_slots,
    quantile,
    since,
    tensorrt_iterations,
)
from app.clients.target import ServerType
from engine.snapshot import Counters, Part, ReportedLoad, SpeculationSnapshot
from engine.telemetry.metrics import HistogramSnapshot


@dataclass(frozen=True, slots=True)
class Scrape:
    """One poll of a server's metrics. time: of time.perf_counter. Counters count from the server's
    start. itl_is_mean, hits_are_tokens: see `Table`."""

    time: float
    values: Mapping[Figure, float]
    latencies: Mapping[Latency, HistogramSnapshot]
    itl_is_mean: bool = False
    hits_are_tokens: bool = False

    def get(self, figure: Figure) -> float | None:
        return self.values.get(figure)

    @property
    def missing(self) -> frozenset[Part]:
        """Parts that the server does not report."""
        return NEVER_REPORTED | {
            part
            for part, figures in PARTS.items()
            if not any(figure in self.values for figure in figures)
        }

    @property
    def load(self) -> ReportedLoad:
        return ReportedLoad(
            _whole(self.get(Figure.RUNNING)),
            _whole(self.get(Figure.WAITING)),
            self.get(Figure.KV_USAGE),
        )


NOTHING_REPORTED = NEVER_REPORTED | frozenset(PARTS)


def metric_pages(server_type: ServerType) -> Mapping[str, Callable[[Answer], Readings]]:
    """How each path that may have a server's metrics is read; earlier pages take precedence.
    Reading raises ValueError for other content."""
    table = TABLES.get(server_type)
    if table is None:
        return {}
    text: Callable[[Answer], Readings] = lambda answer: Exposition(answer.text).read(table)
    if server_type is ServerType.TENSORRT_LLM:
        return {
            "prometheus/metrics": text,
            "metrics": lambda answer: (tensorrt_iterations(answer.json()), {}),
        }
    if server_type is ServerType.LLAMA_CPP:
        return {"metrics": text, "slots": lambda answer: (llama_slots(answer.json()), {})}
    return {"metrics": text}


def merged(server_type: ServerType, at: float, answers: Mapping[str, Answer]) -> Scrape:
    """One scrape from the pages by path. Raises TargetError if none of them has metrics."""
    values: dict[Figure, float] = {}
    latencies: dict[Latency, HistogramSnapshot] = {}
    for path, read in metric_pages(server_type).items():
        answer = answers.get(path)
        if answer is None or answer.status != 200:
            continue
        with suppress(ValueError):
            more_values, more_latencies = read(answer)
            values, latencies = more_values | values, more_latencies | latencies
    if not values and not latencies:
        raise TargetError(f"{server_type} reports no metrics.", HOW_TO_SHOW.get(server_type, ""))
    table = TABLES[server_type]
    return Scrape(at, values, latencies, table.itl_is_mean, table.hits_are_tokens)


HOW_TO_SHOW: Mapping[ServerType, str] = {
    ServerType.SGLANG: "Start the server with --enable-metrics.",
    ServerType.LLAMA_CPP: "Start the server with --metrics.",
    ServerType.TENSORRT_LLM: "Set return_perf_metrics and enable_iter_perf_stats.",
    ServerType.VLLM: "Start the server without --disable-log-stats.",
    ServerType.OPENAI: "Latencies are measured client-side.",
}
"""How to enable a server's metrics."""


def scrape_with(
    fetcher: Fetcher, address: Address, server_type: ServerType, deadline: float
) -> Scrape:
    """Poll once, until `deadline` (time.perf_counter). Raises TargetError."""
    answers: dict[str, Answer] = {}
    for path in metric_pages(server_type):
        answers[path] = fetcher.get(address.beside(path), deadline)
        if answers[path].status in (401, 403):
            raise fetcher.problem(answers[path])
    return merged(server_type, time.perf_counter(), answers)


@dataclass(frozen=True, slots=True)
class Change:
    """The difference between two scrapes of one server; the first may be missing. A counter that
    fell means a restart: all of it is new."""

    before: Scrape | None
    now: Scrape

    def grown(self, figure: Figure) -> float | None:
        """How much a counter grew; None if not reported, or without an earlier scrape."""
        now = self.now.get(figure)
        before = self.before.get(figure) if self.before is not None else None
        if now is None or before is None:
            return None
        return now - before if now >= before else now

    def per_second(self, figure: Figure) -> float | None:
        grown = self.grown(figure)
        seconds = self.now.time - self.before.time if self.before is not None else 0.0
        return grown / seconds if grown is not None and seconds > 0 else None

    def latency(self, which: Latency) -> HistogramSnapshot | None:
        """The samples between the two."""
        now = self.now.latencies.get(which)
        if now is None or self.before is None:
            return None
        return since(now, self.before.latencies.get(which))

    def quantile(self, which: Latency, q: float) -> float | None:
        """In seconds; None without samples."""
        found = self.latency(which)
        return quantile(found, q) if found is not None else None


class RunningTotals:
    """Counters that continue when a restarted server begins at zero."""

    def __init__(self) -> None:
        self._base: dict[Figure, float] = {}
        self._last: dict[Figure, float] = {}
        self._now: Scrape | None = None

    def update(self, scrape: Scrape) -> None:
        self._now = scrape
        for figure, value in scrape.values.items():
            last = self._last.get(figure, 0.0)
            if value < last:
                self._base[figure] = self._base.get(figure, 0.0) + last
            self._last[figure] = value

    def get(self, figure: Figure) -> int:
        return int(self._base.get(figure, 0.0) + self._last.get(figure, 0.0))

    def drafts(self) -> SpeculationSnapshot | None:
        """None without drafts, or if they are not reported."""
        drafted = self.get(Figure.DRAFTED)
        length = None if self._now is None else self._now.get(Figure.ROUND_LENGTH)
        if not drafted and not length:
            return None
        return SpeculationSnapshot(
            method="", rounds=self.get(Figure.DRAFT_ROUNDS), told_drafted=drafted,
            told_accepted=self.get(Figure.ACCEPTED), told_length=length or None,
        )  # fmt: skip

    def counters(self) -> Counters:
        """Under our names. Of a prompt's tokens, only computed ones count."""
        hits = min(self.get(Figure.PREFIX_HITS), self.get(Figure.PREFIX_QUERIES))
        cached = hits if self._now is not None and self._now.hits_are_tokens else 0
        return Counters(
            prompt_tokens=max(self.get(Figure.PROMPT_TOKENS) - cached, 0),
            cached_prompt_tokens=cached,
            generation_tokens=self.get(Figure.GENERATION_TOKENS),
            prefix_queries=self.get(Figure.PREFIX_QUERIES),
            prefix_hits=hits,
            preemptions=self.get(Figure.PREEMPTIONS),
        )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
