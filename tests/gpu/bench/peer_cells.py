"""transformers on the same shape and prompts: `generate`, and `generate_batch`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    StoppingCriteria,
    logging,
)

from engine.snapshot import RequestTimes, TokenEvent
from tests.gpu.bench.bench import Bench
from tests.gpu.bench.serving import Decoding, Served, latencies, random_prompts
from tests.gpu.bench.timing import synchronize

_PAGE = 256
_models: dict[str, Any] = {}


def measure(
    bench: Bench, *, engine: str, shape: str, concurrency: int, num_input: int, num_output: int,
    rounds: int,
) -> dict[str, Any]:  # fmt: skip
    """Waves as those of our engine, by `engine`: "generate" or "generate_batch"; bf16, greedy."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = _model(bench, shape)
    vocab = model.config.vocab_size
    run = {"generate": _generate, "generate_batch": _generate_batch}[engine]
    run(bench, model, random_prompts(concurrency, min(64, num_input), vocab, "warm-up"), 3)
    waves = [
        Served(run(bench, model, random_prompts(concurrency, num_input, vocab, i), num_output))
        for i in range(rounds)
    ]
    found = [d for wave in waves if (d := Decoding.of(wave.requests, num_input)) is not None]
    decode = None
    if found:
        step_s = sum(d.step_s for d in found) / len(found)
        context = sum(d.context for d in found) / len(found)
        decode = {"step_ms": step_s * 1000, "tokens_per_s": concurrency / step_s,
                  "context": context}  # fmt: skip
    return {**latencies(waves), "decode": decode}


def _model(bench: Bench, shape: str) -> Any:
    """transformers' own model with random weights, made on the device; kept for the next cell."""
    if shape not in _models:
        config = AutoConfig.from_pretrained(bench.model_folder(shape))
        torch.manual_seed(0)
        with bench.device:
            made = AutoModelForCausalLM.from_config(
                config, dtype=torch.bfloat16, attn_implementation="sdpa"
            )
        _models[shape] = made.eval().to(bench.device)
        _models[shape].generation_config.eos_token_id = None
    return _models[shape]


class _Clock(StoppingCriteria):
    """Notes when `generate` has each token; stops nothing."""

    def __init__(self, device: torch.device) -> None:
        self.times: list[float] = []
        self._device = device

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        synchronize(self._device)  # generate looks at the token right after this anyway
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


@torch.inference_mode()
def _generate(
    bench: Bench, model: Any, prompts: Sequence[Sequence[int]], num_output: int
) -> tuple[RequestTimes, ...]:
    input_ids = torch.tensor(prompts, device=bench.device)
    clock = _Clock(bench.device)
    began = time.perf_counter()
    model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        generation_config=_greedy(num_output),
        stopping_criteria=[clock],
    )
    return (_times(began, clock.times, num_output),) * len(prompts)


def _generate_batch(
    bench: Bench, model: Any, prompts: Sequence[Sequence[int]], num_output: int
) -> tuple[RequestTimes, ...]:
    tokens = sum(-(-(len(p) + num_output) // _PAGE) * _PAGE for p in prompts)
    known = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
    page = "page_size" if "page_size" in known else "block_size"  # its name has changed
    settings = {
        page: _PAGE, "num_blocks": max(64, tokens // _PAGE + 8), "max_batch_tokens": 8192,
        "max_requests_per_batch": max(16, len(prompts)),
    }  # fmt: skip
    outputs = model.generate_batch(
        [list(p) for p in prompts],
        generation_config=_greedy(num_output),
        continuous_batching_config=ContinuousBatchingConfig(
            **{name: value for name, value in settings.items() if name in known}
        ),
        record_timestamps=True,
    )
    found = list(outputs.values())
    failed = [output.error for output in found if output.error is not None]
    if failed or len(found) != len(prompts):
        raise RuntimeError(f"{len(found)} of {len(prompts)} requests came back; errors: {failed}")
    return tuple(_times(o.created_time, o.timestamps, num_output) for o in found)


def _greedy(num_output: int) -> GenerationConfig:
    return GenerationConfig(
        max_new_tokens=num_output, do_sample=False, eos_token_id=-1, pad_token_id=0
    )


def _times(arrival: float, tokens: Sequence[float], wanted: int) -> RequestTimes:
    if len(tokens) != wanted:
        raise RuntimeError(f"{len(tokens)} tokens came, not {wanted}.")
    events = tuple(TokenEvent(t, 1) for t in tokens)
    return RequestTimes(arrival, arrival, events, finished=events[-1].time)
