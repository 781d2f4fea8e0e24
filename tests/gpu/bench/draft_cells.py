"""What drafting costs a step: the draft model's passes, and the verification of what it drafted."""

from __future__ import annotations

import time
from typing import Any

from engine import LLMEngine, SamplingParams
from tests.gpu.bench.bench import Bench, UnableError
from tests.gpu.bench.serving import random_prompts
from tests.gpu.bench.timing import synchronize
from tests.gpu.bench.wave_cells import BLOCK, engine_facts, settings_of

_WARM_UP = 4


def measure(
    bench: Bench, *, shape: str, draft: str, precision: str, num_drafts: int, concurrency: int,
    num_input: int, num_steps: int, budget: int,
) -> dict[str, Any]:  # fmt: skip
    """Steps in which each of `concurrency` requests has `num_drafts` drafts of a model of the shape
    `draft`: replayed as graphs where the engine chooses to, and launched kernel by kernel. With
    random weights next to none of the drafts stands; what a step costs does not depend on it."""
    # enough for all drafts to stand, and for steps in which others compute their prompts
    num_output = (num_steps + _WARM_UP + 1 + concurrency) * (num_drafts + 1)
    context = (-(-(num_input + num_output) // BLOCK) + 1) * BLOCK
    engine = bench.engine(
        shape, speculative_method="draft_model", speculative_model=str(bench.model_folder(draft)),
        num_speculative_tokens=num_drafts, speculative_adaptive=False,
        **settings_of(precision, concurrency, context, budget),
    )  # fmt: skip
    figures: dict[str, Any] = {}
    for name, eager in (("replayed", False), ("launched", True)):
        engine.reconfigure(enforce_eager=eager)
        figures[name] = _steps(bench, engine, concurrency, num_input, num_output, num_steps)
        if not eager:
            graphs = engine.runner.graphs
            worth = None if graphs is None else graphs.worth
            figures["worth"] = None if worth is None else {
                "saved_us": {size: s * 1e6 for size, s in worth.saved_s.items()},
                "read_us_per_1000_tokens": worth.token_s * 1e9,
            }  # fmt: skip
            figures |= engine_facts(bench)
    return figures


def _steps(
    bench: Bench, engine: LLMEngine, concurrency: int, num_input: int, num_output: int,
    num_steps: int,
) -> dict[str, Any]:  # fmt: skip
    """Mean milliseconds of a step, and of what the host spends on drafting in it."""
    vocab = engine.model_info.vocab_size
    params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
    for prompt in random_prompts(concurrency, num_input, vocab, ("drafts", time.time())):
        engine.add_request(prompt, params)
    while any(not request.num_output_tokens for request in engine.snapshot().requests):
        engine.step()
    for _ in range(_WARM_UP):
        engine.step()
    synchronize(bench.device)
    before = engine.snapshot().speculation
    began = time.perf_counter()
    for _ in range(num_steps):
        engine.step()
    synchronize(bench.device)
    seconds = time.perf_counter() - began
    after = engine.snapshot()
    if before is None or after.speculation is None or len(after.requests) < concurrency:
        raise UnableError("Requests had ended before the steps were measured.")
    lengths = [r.num_prompt_tokens + r.num_output_tokens for r in after.requests]
    drafted = after.speculation.drafted - before.drafted
    bench.settle()
    return {
        "step_ms": seconds / num_steps * 1000,
        "draft_ms": (after.speculation.draft_s - before.draft_s) / num_steps * 1000,
        "drafted_per_step": drafted / num_steps,
        "context": sum(lengths) / len(lengths),
    }
