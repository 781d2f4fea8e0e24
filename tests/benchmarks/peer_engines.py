"""One face for the engines that are compared: prompts in, times of every token out.

All of them run in this process, on the same threads, greedily and without an end of text.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    StoppingCriteria,
    logging,
)

from app.bench.load import EngineRun, Pace, run_load
from app.bench.workload import BenchRequest
from engine import EngineConfig, LLMEngine
from engine.snapshot import RequestTimes, TokenEvent

Prompts = Sequence[Sequence[int]]
logging.set_verbosity_error()
logging.disable_progress_bar()

MAX_LEN = 2048
BLOCK_TOKENS = 256


class Served(NamedTuple):
    """What became of the prompts of one run. `load` is there for our own engine only."""

    requests: tuple[RequestTimes, ...]
    load: EngineRun | None = None

    @property
    def span_s(self) -> float:
        first = min(request.arrival for request in self.requests)
        return max(request.tokens[-1].time for request in self.requests) - first


class PeerEngine(Protocol):
    name: str

    def run(self, prompts: Prompts, num_output: int) -> Served:
        """Serve all prompts together, `num_output` tokens each."""


class Inferdeck:
    """This repository's engine, with its default settings."""

    name = "inferdeck"

    def __init__(self, model: Path, num_threads: int, **settings: Any) -> None:
        config = EngineConfig(
            model=str(model), dtype="bfloat16", num_threads=num_threads, max_model_len=MAX_LEN
        )
        self.engine = LLMEngine(config.replace(**settings))

    def run(self, prompts: Prompts, num_output: int) -> Served:
        requests = [BenchRequest(tuple(p), num_output, num_output) for p in prompts]
        # One look at the cache per run: the steps come with it, and the run is not disturbed.
        result = run_load(self.engine, requests, Pace(), snapshot_cost=1e-9)
        return Served(tuple(result.requests), result)

    def close(self) -> None:
        self.engine.shutdown()


class Clock(StoppingCriteria):
    """Notes the time at which `generate` has chosen each token; stops nothing."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class TransformersGenerate:
    """`model.generate` on the whole batch at once, as one calls it without a server."""

    name = "generate"

    def __init__(self, model: Any) -> None:
        self._model = model

    @torch.inference_mode()
    def run(self, prompts: Prompts, num_output: int) -> Served:
        input_ids = torch.tensor(prompts)
        clock = Clock()
        began = time.perf_counter()
        output = self._model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            generation_config=_greedy(num_output),
            stopping_criteria=[clock],
        )
        assert output.shape == (len(prompts), len(prompts[0]) + num_output), output.shape
        return Served((_times(began, clock.times),) * len(prompts))


class TransformersContinuousBatching:
    """`model.generate_batch`: the continuous batching of transformers."""

    name = "generate_batch"

    def __init__(self, model: Any) -> None:
        self._model = model

    def run(self, prompts: Prompts, num_output: int) -> Served:
        blocks = sum(-(-(len(p) + num_output) // BLOCK_TOKENS) for p in prompts)
        settings = ContinuousBatchingConfig(
            page_size=BLOCK_TOKENS,
            num_blocks=max(64, blocks + 8),
            max_batch_tokens=MAX_LEN,
            max_requests_per_batch=max(16, len(prompts)),
        )
        outputs = self._model.generate_batch(
            [list(p) for p in prompts],
            generation_config=_greedy(num_output),
            continuous_batching_config=settings,
            record_timestamps=True,
        )
        served = []
        for output in outputs.values():
            assert output.error is None, output.error
            assert len(output.generated_tokens) == num_output, len(output.generated_tokens)
            served.append(_times(output.created_time, output.timestamps))
        assert len(served) == len(prompts), len(served)
        return Served(tuple(served))


def load_transformers(model: Path) -> Any:
    loaded = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.bfloat16, attn_implementation="sdpa"
    ).eval()
    loaded.generation_config.eos_token_id = None
    return loaded


def random_prompts(count: int, length: int, vocab_size: int, salt: object) -> list[list[int]]:
    """Seeded token ids away from both ends of the vocabulary, where special tokens are."""
    rng = random.Random(f"{salt}")
    return [rng.choices(range(300, vocab_size - 1000), k=length) for _ in range(count)]


def _greedy(num_output: int) -> GenerationConfig:
    return GenerationConfig(
        max_new_tokens=num_output, do_sample=False, eos_token_id=-1, pad_token_id=0
    )


def _times(arrival: float, tokens: Sequence[float]) -> RequestTimes:
    events = tuple(TokenEvent(t, 1) for t in tokens)
    return RequestTimes(arrival, arrival, events, finished=events[-1].time)
