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
    # enough for all drafts to stand, for steps without, and for those of other prompts
    num_output = (2 * num_steps + _WARM_UP + 1 + concurrency) * (num_drafts + 1)
    context = (-(-(num_input + num_output) // BLOCK) + 1) * BLOCK
    engine = bench.engine(
        shape, speculative_method="draft_model", speculative_model=str(bench.model_folder(draft)),
        num_speculative_tokens=num_drafts, speculative_adaptive=False,
        **settings_of(precision, concurrency, context, budget),
    )  # fmt: skip
    figures: dict[str, Any] = {}
    for name, eager in (("replayed", False), ("launched", True)):
        engine.reconfigure(enforce_eager=eager)
        figures[name] = _steps(
            bench, engine, concurrency, num_drafts, num_input, num_output, num_steps
        )
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
    bench: Bench, engine: LLMEngine, concurrency: int, num_drafts: int, num_input: int,
    num_output: int, num_steps: int,
) -> dict[str, Any]:  # fmt: skip
    """Mean milliseconds of a step in which everybody has all drafts, and of what the host spends
    on drafting in it."""
    vocab = engine.model_info.vocab_size
    params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
    for prompt in random_prompts(concurrency, num_input, vocab, ("drafts", time.time())):
        engine.add_request(prompt, params)
    while any(not request.num_output_tokens for request in engine.snapshot().requests):
        engine.step()
    for _ in range(_WARM_UP):
        engine.step()
    synchronize(bench.device)
    times, draft_s, contexts = [], 0.0, []
    before = engine.snapshot()
    while len(times) < num_steps:
        began = time.perf_counter()
        engine.step()
        synchronize(bench.device)
        seconds = time.perf_counter() - began
        after = engine.snapshot()
        if len(after.requests) < concurrency:
            raise UnableError("Requests had ended before the steps were measured.")
        assert before.speculation is not None and after.speculation is not None
        drafted = after.speculation.drafted - before.speculation.drafted
        if drafted == concurrency * num_drafts:  # now and then the engine tries one without
            times.append(seconds)
            draft_s += after.speculation.draft_s - before.speculation.draft_s
            contexts += [r.num_prompt_tokens + r.num_output_tokens for r in after.requests]
        before = after
    bench.settle()
    return {
        "step_ms": sum(times) / num_steps * 1000,
        "draft_ms": draft_s / num_steps * 1000,
        "context": sum(contexts) / len(contexts),
    }
