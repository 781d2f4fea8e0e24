"""/metrics: the engine's registry of metrics in Prometheus' formats, under vLLM's names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from app.server.errors import bad_request, refused, unavailable
from engine.errors import CheckpointError, InvalidRequestError
from engine.messages import Prompt
from engine.sampling_params import SamplingParams
from engine.snapshot import ModelInfo
from engine.telemetry.metrics import (
    EXPORTED,
    Exported,
    HistogramSnapshot,
    MetricKind,
    MetricsSnapshot,
)
from engine.text.tokenizer import EncodedPrompt, Tokenizer, encode_prompt

COMMON_LABELS = ("model_name", "engine")
"""vLLM's labels of every sample; engines are numbered from 0."""


class EngineCollector(Collector):
    """Metrics at one moment. `model_name`: the name under /v1/models."""

    def __init__(self, now: MetricsSnapshot, model_name: str) -> None:
        self._now = now
        self._model_name = model_name

    def collect(self) -> Iterator[Family]:
        now = self._now
        common = [self._model_name, "0"]
        for metric in EXPORTED.values():
            if metric.kind is MetricKind.HISTOGRAM:
                yield _histogram(metric, common, now.histograms[metric.name])
                continue
            kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
            name = metric.exported_name.removesuffix("_total")  # the format adds it to samples
            family = kind(name, metric.help, labels=[*COMMON_LABELS, *metric.labels])
            for labels, value in now.values[metric.name].items():
                family.add_metric([*common, *labels], value)
            yield family


def _histogram(
    metric: Exported, common: list[str], now: HistogramSnapshot
) -> HistogramMetricFamily:
    bounds = [*(f"{bound:g}" if bound < 1e6 else str(bound) for bound in now.buckets), "+Inf"]
    buckets = list(zip(bounds, map(float, now.cumulative), strict=True))
    family = HistogramMetricFamily(metric.exported_name, metric.help, labels=COMMON_LABELS)
    family.add_metric(common, buckets, sum_value=now.sum)
    return family


def exposition(now: MetricsSnapshot, model_name: str, accept: str) -> tuple[bytes, str]:
    """The metrics in the format that `accept` prefers, and its content type. Takes milliseconds."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(now, model_name))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


T = TypeVar("T")


class TokenizerWorker:
    """Encodes and decodes for the loaded model; loads its tokenizer on first use."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="server-tokenizer")
        self._path = ""
        self._tokenizer: Tokenizer | None = None

    async def run(self, model: ModelInfo, work: Callable[[Tokenizer], T]) -> T:
        """`work` on the tokenizer's thread. Raises ApiError 400 for what cannot be encoded."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._run, model, work)

    async def encode(
        self, model: ModelInfo, prompts: Sequence[Prompt], params: SamplingParams
    ) -> tuple[list[EncodedPrompt], Tokenizer]:
        work = lambda known: ([encode_prompt(p, known, params) for p in prompts], known)
        known = self._tokenizer
        if known is not None and self._path == model.path and all(map(_is_token_ids, prompts)):
            return work(known)  # nothing to work out: no need to wait for another thread
        return await self.run(model, work)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _run(self, model: ModelInfo, work: Callable[[Tokenizer], T]) -> T:
        try:
            return work(self._of(model))
        except InvalidRequestError as error:
            raise refused(error.info()) from error
        except CheckpointError as error:
            raise unavailable(f"{error.cause} {error.remedy}") from error

    def _of(self, model: ModelInfo) -> Tokenizer:
        if self._tokenizer is None or self._path != model.path:
            self._tokenizer = Tokenizer.from_folder(model.path, allow_missing=model.is_dummy)
            self._path = model.path
        return self._tokenizer


def _is_token_ids(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and all(isinstance(item, int) for item in prompt)


def decode_all(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """The text of tokens, special ones by their names."""
    parts: list[str] = []
    for is_silent, group in groupby(token_ids, tokenizer.is_silent):
        run = list(group)
        parts += map(tokenizer.token_text, run) if is_silent else [tokenizer.decode(run)]
    return "".join(parts)


def check_token_ids(token_ids: Sequence[int], vocab_size: int, name: str) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise bad_request(
                f"{name} contains token id {token_id}. Valid ids are 0 to {vocab_size - 1}.", name
            )
