"""Polls another server and makes snapshots; parts that it does not report are marked as missing."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple

import httpx
import numpy as np

from app.clients.errors import TargetError, is_timeout, of_status, of_transport
from app.clients.http import MOST_BYTES, Address, Answer
from app.clients.kv_events import PATH, Source, StoredBlocks, batches, joined, read_sources
from app.clients.latencies import Samples
from app.clients.metric_names import Figure
from app.clients.metrics import NOTHING_REPORTED, RunningTotals, Scrape, merged, metric_pages
from app.clients.router import WORKERS, ReplicaSum, check_replicas, read_workers
from app.clients.target import Probe, ServerType, Target
from engine.config import EngineConfig
from engine.snapshot import (
    BlockSnapshot,
    Counters,
    EngineSnapshot,
    MemoryPlan,
    MemorySnapshot,
    ModelInfo,
    Part,
    ReportedLoad,
    RequestSnapshot,
    RequestState,
)

NO_PLAN = MemoryPlan(
    total=0, free=0, reserve=0, limit=0, weights=0, activations=0, kv_cache=0, bytes_per_block=0,
    num_blocks=0,
)  # fmt: skip

NO_MEMORY = MemorySnapshot(
    NO_PLAN, weights=0, kv_cache=0, kv_used=0, kv_cached=0, other=0, process=0, free=0, total=0
)

NO_BLOCKS = BlockSnapshot(
    16, (), np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32),
    np.empty(0, np.bool_),
)  # fmt: skip


def model_named(name: str, server: str, max_model_len: int | None) -> ModelInfo:
    """The known facts of a remote model: name, server, and context length if reported (else 0)."""
    return ModelInfo(
        name=name, path=name, architecture="", dtype="", device=server, num_parameters=0,
        weights_bytes=0, num_layers=0, hidden_size=0, num_heads=0, num_kv_heads=0, head_dim=0,
        vocab_size=0, max_model_len=max_model_len or 0, is_dummy=False, has_chat_template=True,
    )  # fmt: skip


LOOK_S = 3.0
"""Timeout of a poll."""
SILENCE_S = 10.0
"""Without metrics, after which the last ones are shown no longer."""
SOON_S, AGAIN_S = 0.25, 5.0
"""Until the size of the KV cache is looked for, and its events are asked for, again."""
_NUM_BLOCKS = re.compile(r'^vllm:cache_config_info\{[^\n]*num_gpu_blocks="(\d{1,9})"', re.MULTILINE)


class Pages(NamedTuple):
    """time: of time.perf_counter. answers: by path."""

    time: float
    answers: Mapping[str, Answer]


class Watch:
    """Call `look` regularly; `snapshot` combines the last poll with client-side measurements."""

    def __init__(
        self, client: httpx.AsyncClient, target: Target, address: Address, found: Probe
    ) -> None:
        self._client = client
        self._has_key = bool(target.api_key)
        self._address = address
        self._server_type: ServerType = found.server_type
        self.has_metrics = found.has_metrics or self._is_router  # its replicas may come back
        self.last: Scrape | None = None
        self.stored: dict[int, StoredBlocks] = {}  # by data-parallel rank
        self._forwards = dict(target.forwards)
        self._evicted = 0  # of connections before
        self.num_blocks: tuple[int, ...] = ()  # of each rank
        self._heard_at = time.perf_counter()
        self.is_silent = False
        """Whether it responds, but its metrics have not for `SILENCE_S`."""
        self._totals = RunningTotals()
        self._sum = ReplicaSum()
        self._own_at_look = Samples()
        self._counted = Counters()
        self._own_now = Samples()

    @property
    def _is_router(self) -> bool:
        return self._server_type is ServerType.ROUTER

    @property
    def is_busy(self) -> bool:
        """Whether any requests run there."""
        return self.last is not None and bool(
            self.last.get(Figure.RUNNING) or self.last.get(Figure.WAITING)
        )

    async def look(self) -> None:
        """Raises TargetError if the server does not respond. A response without metrics is not an
        error."""
        if not self.has_metrics:
            answer = await self._get(self._address.api("models"))
            self._check(answer)
            return
        try:
            pages = await self.ask()
        except TargetError as error:
            if self._is_router or not is_timeout(error):
                raise
            await self._look_without_metrics()
            return
        self._heard_at, self.is_silent = pages.time, False
        for answer in pages.answers.values():
            if answer.status in (401, 403) or (answer.status >= 500 and answer.status != 501):
                self._check(answer)
        if self._is_router:
            check_replicas(read_workers(pages.answers[WORKERS].json()))
        self.last = self.read(pages)
        if "metrics" in pages.answers:  # after a restart there may be more, or fewer
            self.num_blocks = num_blocks_of(pages.answers["metrics"].text) or self.num_blocks
        if self.last is not None:
            self._totals.update(self.last)
            self._own_at_look = dataclasses.replace(self._own_now)

    async def _look_without_metrics(self) -> None:
        """A server whose metrics hang may serve all the same."""
        self._check(await self._get(self._address.api("models")))
        self.is_silent = time.perf_counter() - self._heard_at > SILENCE_S

    async def ask(self) -> Pages:
        """Fetch its metrics pages without parsing, which takes as long as some tokens. Raises
        TargetError if the server does not respond."""
        if self._is_router:
            return await self._ask_replicas()
        answers = {
            path: await self._get(self._address.beside(path))
            for path in metric_pages(self._server_type)
        }
        return Pages(time.perf_counter(), answers)

    async def _ask_replicas(self) -> Pages:
        answers = {WORKERS: await self._get(self._address.beside(WORKERS))}
        replicas = read_workers(answers[WORKERS].json())
        for one in (one for one in replicas if one.is_healthy):
            with suppress(TargetError):  # the router has not noticed yet that it is away
                answer = await self._get(one.metrics_url)
                if answer.status == 200:
                    answers[one.url] = answer
        return Pages(time.perf_counter(), answers)

    def read(self, pages: Pages) -> Scrape | None:
        """None without metrics."""
        if self._is_router:
            replicas = {url: one for url, one in pages.answers.items() if url != WORKERS}
            return self._sum.add(pages.time, replicas)
        try:
            return merged(self._server_type, pages.time, pages.answers)
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
        counters = self._counters(samples)
        stored = [self.stored[rank] for rank in sorted(self.stored)]
        evicted = self._evicted + sum(one.evictions for one in stored)
        if evicted:
            counters = dataclasses.replace(counters, evictions=evicted)
        self._own_now = dataclasses.replace(samples, ttft=[], gaps=[])
        last = None if self.is_silent else self.last
        drafts = None if last is None else self._totals.drafts()
        missing = NOTHING_REPORTED if last is None else last.missing
        if drafts is None:
            missing |= {Part.SPECULATION}
        return EngineSnapshot(
            time=time.perf_counter(), step_index=0, config=config, model=model,
            requests=requests, blocks=joined(stored) if stored else NO_BLOCKS,
            memory=NO_MEMORY,
            counters=counters, ttft=ttft, itl=itl,
            missing=missing, speculation=drafts,
            told=ReportedLoad() if last is None else _at_least(last.load, requests),
        )  # fmt: skip

    def _counters(self, own: Samples) -> Counters:
        """The server's counters, plus what our own requests added since the last poll; without
        metrics, those of our own requests alone. They never decrease."""
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

    async def follow_blocks(self) -> None:
        """Keep `stored`, where the server publishes KV events, until it does not any more."""
        while not self.num_blocks:
            await asyncio.sleep(SOON_S)
        while True:
            with suppress(TargetError, OSError, EOFError, ValueError):
                answer = await self._get(self._address.beside(PATH))
                if answer.status != 404:
                    self._check(answer)
                sources = read_sources(answer.json(), self._address, self._forwards)
                if not sources:
                    return
                await self._follow_ranks(sources)
            self._evicted += sum(one.evictions for one in self.stored.values())
            self.stored = {}
            await asyncio.sleep(AGAIN_S)

    async def _follow_ranks(self, sources: Sequence[Source]) -> None:
        """Until one of them ends."""
        ranks = enumerate(sources)
        tasks = [asyncio.create_task(self._follow(rank, source)) for rank, source in ranks]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, rank: int, source: Source) -> None:
        blocks = StoredBlocks(self.num_blocks[min(rank, len(self.num_blocks) - 1)])
        async with aclosing(batches(source)) as found:
            async for payload in found:  # an empty one first
                blocks.apply(payload)
                self.stored[rank] = blocks

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


def num_blocks_of(page: str) -> tuple[int, ...]:
    """Of vLLM's KV cache in each data-parallel rank, a label of a metric."""
    return tuple(map(int, _NUM_BLOCKS.findall(page)))


def _at_least(told: ReportedLoad, own: tuple[RequestSnapshot, ...]) -> ReportedLoad:
    """A poll is up to a second old: our own running requests are known."""
    if told.num_running is None:
        return told
    running = sum(row.state is RequestState.RUNNING for row in own)
    return dataclasses.replace(told, num_running=max(told.num_running, running))
