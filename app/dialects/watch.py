"""How a server is: its metrics, read again and again, as snapshots of an engine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import NamedTuple

import httpx

from app.connections.target import Dialect, Probe, Target
from app.dialects.address import Address
from app.dialects.errors import TargetError, of_status, of_transport
from app.dialects.fetch import MOST_BYTES, Answer
from app.dialects.figures import Figure
from app.dialects.metrics import NOTHING_TOLD, RunningTotals, Scrape, merged, metric_pages
from app.dialects.nothing import NO_BLOCKS, NO_MEMORY
from app.dialects.requests import Samples
from engine.config import EngineConfig
from engine.snapshot import (
    Counters,
    EngineSnapshot,
    ModelInfo,
    Part,
    RequestSnapshot,
    RequestState,
    Told,
)

LOOK_S = 3.0
"""A server that takes longer to say how it is does not answer."""


class Pages(NamedTuple):
    """time: of time.perf_counter. answers: by path."""

    time: float
    answers: Mapping[str, Answer]


class Watch:
    """Call `look` from time to time; `snapshot` makes of the last look, and of what was measured
    here, what views show."""

    def __init__(
        self, client: httpx.AsyncClient, target: Target, address: Address, found: Probe
    ) -> None:
        self._client = client
        self._has_key = bool(target.api_key)
        self._address = address
        self._dialect: Dialect = found.dialect
        self.has_metrics = found.has_metrics
        self.last: Scrape | None = None
        self._totals = RunningTotals()
        self._own_at_look = Samples()
        self._counted = Counters()
        self._own_now = Samples()

    @property
    def is_busy(self) -> bool:
        """Whether somebody's requests run there."""
        return self.last is not None and bool(
            self.last.get(Figure.RUNNING) or self.last.get(Figure.WAITING)
        )

    async def look(self) -> None:
        """Raises TargetError where the server does not answer. One that answers and shows no
        metrics (any more) is there all the same."""
        if not self.has_metrics:
            answer = await self._get(self._address.api("models"))
            self._check(answer)
            return
        pages = await self.ask()
        for answer in pages.answers.values():
            if answer.status in (401, 403) or (answer.status >= 500 and answer.status != 501):
                self._check(answer)
        self.last = self.read(pages)
        if self.last is not None:
            self._totals.update(self.last)
            self._own_at_look = dataclasses.replace(self._own_now)

    async def ask(self) -> Pages:
        """Its pages of metrics, unread: to read them takes as long as some tokens. Raises
        TargetError where the server does not answer."""
        answers = {}
        for page in metric_pages(self._dialect):
            answers[page.path] = await self._get(self._address.beside(page.path))
        return Pages(time.perf_counter(), answers)

    def read(self, pages: Pages) -> Scrape | None:
        """None where they show no metrics."""
        try:
            return merged(self._dialect, pages.time, pages.answers)
        except TargetError:
            return None

    def snapshot(
        self,
        config: EngineConfig,
        model: ModelInfo,
        requests: tuple[RequestSnapshot, ...],
        samples: Samples,
    ) -> EngineSnapshot:
        ttft, itl = samples.take()
        self._own_now = dataclasses.replace(samples, ttft=[], itl=[])
        last = self.last
        drafts = None if last is None else self._totals.drafts()
        missing = NOTHING_TOLD if last is None else last.missing
        if drafts is None:
            missing |= {Part.SPECULATION}
        return EngineSnapshot(
            time=time.perf_counter(), step_index=0, config=config, model=model,
            requests=requests, blocks=NO_BLOCKS, memory=NO_MEMORY,
            counters=self._counters(samples), ttft=ttft, itl=itl,
            missing=missing, speculation=drafts,
            told=Told() if last is None else _at_least(last.told, requests),
        )  # fmt: skip

    def _counters(self, own: Samples) -> Counters:
        """The server's, and between two looks at them what our own requests added; without any,
        those of our own requests alone. They never fall."""
        last = self.last
        if last is None or last.get(Figure.GENERATION_TOKENS) is None:
            return Counters(
                prompt_tokens=max(own.num_prompt_tokens - own.num_cached_tokens, 0),
                cached_prompt_tokens=own.num_cached_tokens,
                generation_tokens=own.num_output_tokens,
                finished=dict(own.finished),
            )
        told = self._totals.counters()
        new = own.num_output_tokens - self._own_at_look.num_output_tokens
        written = max(told.generation_tokens + new, self._counted.generation_tokens)
        self._counted = dataclasses.replace(
            told, generation_tokens=written, finished=dict(own.finished)
        )
        return self._counted

    async def _get(self, url: str) -> Answer:
        began = time.perf_counter()
        try:
            response = await self._client.get(url, timeout=LOOK_S)
        except (httpx.HTTPError, OSError) as error:
            raise of_transport(error, self._address.host) from error
        body = response.content[:MOST_BYTES]
        return Answer(response.status_code, response.headers, body, time.perf_counter() - began)

    def _check(self, answer: Answer) -> None:
        if answer.status != 200:
            raise of_status(
                answer.status, answer.body, answer.headers, self._address.host, self._has_key
            )


def _at_least(told: Told, own: tuple[RequestSnapshot, ...]) -> Told:
    """A look is up to a second old: our own requests that run are known to run."""
    if told.num_running is None:
        return told
    running = sum(row.state is RequestState.RUNNING for row in own)
    return dataclasses.replace(told, num_running=max(told.num_running, running))
