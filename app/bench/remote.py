"""Runs workloads on a server as its client."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from app.bench.client import ClientRun, run_client
from app.bench.doubt import late_text
from app.bench.load import Pace
from app.bench.runner import Plan, Progress
from app.bench.server_metrics import add_reported, client_figures
from app.bench.workload import TEXT, BenchRequest, stand_in_ids, text_of
from app.clients.calls import TAKES_IDS, Call, make_call
from app.clients.errors import TargetError
from app.clients.http import TokenCounter
from app.clients.metric_names import Figure
from app.clients.metrics import Change, Scrape
from app.clients.probe import probe
from app.clients.stream import Streamer
from app.clients.target import Probe, ServerType, Target, parse_address
from app.clients.watch import Pages, Watch
from engine.errors import ConfigError
from engine.sampling_params import SamplingParams

FEWEST_IDS = 32
"""Enough distinct tokens for prompts without a common prefix."""
SCRAPE_S = 1.0
SETTLE_S, MOST_SETTLE_S = 0.1, 3.0


class RemoteBench:
    """Runs a plan against `target`. `probe`, `prompts` ("token ids" or "text") and `model` describe
    what was found there. Raises TargetError if the server cannot be reached, ConfigError for what
    it lacks."""

    def __init__(
        self,
        target: Target,
        plan: Plan,
        model: str = "",
        progress: Progress = lambda stage, done, total: None,
    ) -> None:
        self._target = target
        # whether its model has a chat template is not reported
        self._plan = replace(plan, workload=plan.workload.for_model(True))
        self.progress = progress
        self._address = parse_address(target.base_url)
        self.probe: Probe = probe(target)
        self.model = self._chosen(model)
        self.prompts = "text" if plan.workload.is_raw or not plan.workload.prompts else "messages"
        self.remarks: list[str] = []
        self._vocabulary = stand_in_ids()
        self._num_runs = 0
        self._check_fits()

    def variants(self) -> dict[str, dict[str, Any]]:
        """Figures of each variant of the workload, by its name."""
        return asyncio.run(self._variants())

    def measure(
        self, settings: Mapping[str, Any], pace: Pace, least: int, label: str,
        limit_s: float = math.inf,
    ) -> ClientRun:
        """One run of a sweep, after a warm-up; the settings of a server cannot change."""
        assert not settings
        return asyncio.run(self._measure(pace, least, label, limit_s))

    async def _measure(self, pace: Pace, least: int, label: str, limit_s: float) -> ClientRun:
        plan = replace(self._plan.with_requests(least), pace=pace)
        variant = next(iter(plan.workload.variants))
        streamer = Streamer(self._target, self._address)
        try:
            if self.prompts == "text":
                await self._learn_ids(streamer)
            await self._warm_up(streamer, variant)
            await streamer.open(min(pace.concurrency or 1, least))
            return await self._run(streamer, variant, label, plan, limit_s)
        finally:
            await streamer.close()

    async def _variants(self) -> dict[str, dict[str, Any]]:
        streamer = Streamer(self._target, self._address)
        try:
            await self._learn_ids(streamer)
            watch = Watch(streamer.client, self._target, self._address, self.probe)
            found = {
                name: await self._variant(streamer, watch, name)
                for name in self._plan.workload.variants
            }
            self._remark(late_text(list(found.values())))
            return found
        finally:
            await streamer.close()

    async def _variant(self, streamer: Streamer, watch: Watch, name: str) -> dict[str, Any]:
        await self._warm_up(streamer, name)
        runs, changes, peaks = [], [], []
        for number in range(self._plan.rounds):
            label = self._plan.run_label(name, number)
            before = await self._settled(watch)
            await streamer.open(self._num_at_once)
            async with self._looking(watch) as pages:
                runs.append(await self._run(streamer, name, label))
            now = await self._settled(watch)
            if before is not None and now is not None:
                changes.append(Change(before, now))
            usages = [found.get(Figure.KV_USAGE) for page in pages if (found := watch.read(page))]
            peaks += [usage for usage in usages if usage is not None]
        figures = client_figures(runs)
        add_reported(figures, changes, max(peaks, default=None), self.probe.round_trip_s)
        return figures

    async def _run(
        self, streamer: Streamer, variant: str, label: str, plan: Plan | None = None,
        limit_s: float = math.inf,
    ) -> ClientRun:
        plan = plan or self._plan
        self._num_runs += 1
        salt = f"{time.time_ns()}-{self._num_runs}"  # the server may remember another day's prompts
        requests = plan.workload.requests(variant, self._vocabulary, plan.seed, salt)
        self.progress(label, 0, len(requests))
        return await run_client(
            streamer, requests, self._call, plan.pace, plan.seed,
            lambda done, total: self.progress(label, done, total), limit_s,
        )  # fmt: skip

    async def _warm_up(self, streamer: Streamer, variant: str) -> None:
        chosen = self._plan.warm_ups(variant, self._vocabulary, time.time_ns())
        if chosen:
            await run_client(streamer, chosen, self._call, self._plan.pace)

    @property
    def _num_at_once(self) -> int:
        plan = self._plan
        if plan.pace.request_rate is not None:
            return 1  # not known before
        return min(plan.pace.concurrency or plan.workload.num_requests, plan.workload.num_requests)

    def _call(self, request: BenchRequest) -> Call:
        params = SamplingParams(temperature=0.0, max_tokens=request.output_len, ignore_eos=True)
        ids = request.prompt_token_ids
        prompt: Any = ids if self.prompts == "token ids" else text_of(ids)
        if request.prompt is not None:
            prompt = request.prompt
        elif self.probe.server_type is ServerType.OPENAI:  # many have no completions of plain text
            prompt = ({"role": "user", "content": prompt},)
        found = self.probe
        call = make_call(found.server_type, self.model, prompt, params, found.max_model_len)
        self._remark(call.remark)
        return call

    def _remark(self, text: str) -> None:
        if text and text not in self.remarks:
            self.remarks.append(text)

    # -- the server -------------------------------------------------------------------------

    def _chosen(self, wanted: str) -> str:
        models = self.probe.models
        if self.probe.may_serve(wanted):
            return wanted
        if not models:
            raise ConfigError(
                f"No model is loaded on {self._address.host}.",
                "Load a model there, or set --served-model if the server loads models on demand.",
            )
        if wanted:
            raise ConfigError(
                f"{self._address.host} does not serve {wanted!r}.",
                f"Served models: {', '.join(models[:10])}.",
            )
        return models[0]

    def _check_fits(self) -> None:
        workload, context = self._plan.workload, self.probe.max_model_len
        longest = workload.input.high + workload.output.high
        if context is not None and longest > context:
            raise ConfigError(
                f"{workload.name} needs a context length of {longest:,} tokens; {self.model} is "
                f"limited to {context:,}.",
                "Reduce --input-len or --output-len, or choose another workload.",
            )

    async def _learn_ids(self, streamer: Streamer) -> None:
        """Ordinary token ids that the model has: those of words."""
        if self.probe.server_type not in TAKES_IDS or self._plan.workload.prompts:
            return
        counter = TokenCounter(streamer.client, self._address, self.probe.server_type, self.model)
        ids = sorted(set(await counter.ids(TEXT)))
        if len(ids) >= FEWEST_IDS:
            self._vocabulary, self.prompts = ids, "token ids"

    async def _settled(self, watch: Watch) -> Scrape | None:
        """Its metrics once they stop changing; None if it has none."""
        if not watch.has_metrics:
            return None
        until = time.perf_counter() + MOST_SETTLE_S
        found = await self._looked(watch)
        while time.perf_counter() < until:
            await asyncio.sleep(SETTLE_S)
            before, found = found, await self._looked(watch)
            if found is None or before is None:
                continue
            is_idle = not found.get(Figure.RUNNING) and not found.get(Figure.WAITING)
            if is_idle and found.values == before.values and found.latencies == before.latencies:
                break
        return found

    async def _looked(self, watch: Watch) -> Scrape | None:
        try:
            await watch.look()
        except TargetError:
            return None
        return watch.last

    @contextlib.asynccontextmanager
    async def _looking(self, watch: Watch) -> AsyncIterator[list[Pages]]:
        """Metrics pages, fetched once a second during a run and parsed after it."""
        pages: list[Pages] = []

        async def look() -> None:
            while True:
                await asyncio.sleep(SCRAPE_S)
                with contextlib.suppress(TargetError):
                    pages.append(await watch.ask())

        task = asyncio.create_task(look()) if watch.has_metrics else None
        try:
            yield pages
        finally:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def describe_probe(found: Probe, model: str, prompts: str) -> dict[str, Any]:
    """The server as plain data, for the report."""
    return {
        "dialect": str(found.server_type),
        "version": found.version,
        "model": model,
        "max_model_len": found.max_model_len,
        "has_metrics": found.has_metrics,
        "round_trip_ms": found.round_trip_s * 1e3,
        "prompts_sent_as": prompts,
    }
