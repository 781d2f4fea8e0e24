"""Waves of requests through the engine, and requests that arrive at a rate."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from engine import LLMEngine, SamplingParams
from tests.gpu.bench.bench import Bench, UnableError
from tests.gpu.bench.serving import (
    Decoding,
    Served,
    latencies,
    random_prompts,
    serve,
    step_shares,
)

BLOCK = 16
_WARM_UP_OUTPUT = 4


def settings_of(precision: str, concurrency: int, context: int, budget: int) -> dict[str, Any]:
    """Of an engine for waves of up to `concurrency` requests of `context` tokens; `budget`: most
    tokens of a step."""
    return {
        "quantization": "none" if precision == "bf16" else precision,
        "max_num_seqs": concurrency,
        "max_num_batched_tokens": budget,
        "max_model_len": context,
        "block_size": BLOCK,
    }


def measure(
    bench: Bench, *, shape: str, precision: str, kv: str, concurrency: int, num_input: int,
    num_output: int, num_shared: int, rounds: int, most: int, budget: int, **memory: Any,
) -> dict[str, Any]:  # fmt: skip
    """Waves of `concurrency` requests at once, one after the other. The engine is made for waves
    of up to `most`. What prompts share is computed before the first wave."""
    context = (-(-(num_input + num_output) // BLOCK) + 1) * BLOCK
    engine = bench.engine(shape, kv, **settings_of(precision, most, context, budget), **memory)
    vocab = engine.model_info.vocab_size
    (shared,) = random_prompts(1, num_shared, vocab, "shared")
    warm_up(engine, concurrency, num_input, shared)
    waves = [
        serve(
            engine, random_prompts(concurrency, num_input, vocab, (kv, round_), shared), num_output
        )
        for round_ in _fresh(bench, rounds)
    ]
    return {**latencies(waves), **_decoding(waves, num_input, concurrency), **engine_facts(bench)}


_wave_count = 0


def _fresh(bench: Bench, rounds: int) -> list[int]:
    """Numbers of waves that this process had not: their prompts are not cached."""
    global _wave_count
    first, _wave_count = _wave_count, _wave_count + rounds
    return list(range(first, _wave_count))


def warm_up(
    engine: LLMEngine, concurrency: int, num_input: int, shared: Sequence[int] = ()
) -> None:
    """What prompts share is computed, and a prompt of the full length; then as many requests as
    are measured, short ones where they share nothing; then a prompt while another request
    decodes: every kernel has been compiled after that."""
    vocab = engine.model_info.vocab_size
    for prompt in random_prompts(2, num_input, vocab, ("warm-up", num_input), shared):
        serve(engine, [prompt], 1)
    length = num_input if shared else min(BLOCK, num_input)
    prompts = random_prompts(concurrency, length, vocab, ("warm-up", length), shared)
    serve(engine, prompts, _WARM_UP_OUTPUT)
    if concurrency > 1:
        for size in (num_input, length):  # sequences of several splits, and of one
            (other,) = random_prompts(1, size, vocab, ("other", size), shared)
            (prompt,) = random_prompts(1, num_input, vocab, ("beside", size), shared)
            _compute_beside(engine, prompt, other)


def _compute_beside(engine: LLMEngine, prompt: Sequence[int], other: Sequence[int]) -> None:
    """Compute a prompt in a step in which another request decodes."""
    params = SamplingParams(temperature=0.0, max_tokens=_WARM_UP_OUTPUT, ignore_eos=True)
    engine.add_request(other, params)
    while any(not request.num_output_tokens for request in engine.snapshot().requests):
        engine.step()
    engine.add_request(prompt, params)
    while engine.has_unfinished:
        engine.step()


def _decoding(waves: list[Served], num_input: int, concurrency: int) -> dict[str, Any]:
    found = [d for wave in waves if (d := Decoding.of(wave.requests, num_input)) is not None]
    if not found:
        return {"decode": None}
    steps = sum(one.num_steps for one in found)
    step_s = sum(one.step_s * one.num_steps for one in found) / steps
    return {
        "decode": {
            "step_ms": step_s * 1000,
            "num_steps": steps,
            "context": sum(one.context * one.num_steps for one in found) / steps,
            "tokens_per_s": concurrency / step_s,
            "parts": step_shares([s for wave in waves for s in wave.steps], concurrency),
        }
    }


def engine_facts(bench: Bench) -> dict[str, Any]:
    """What the engine says of itself: memory, kernels, notices."""
    engine = bench.current
    plan, info = engine.plan, engine.model_info
    return {
        "load_s": bench.load_s,
        "weights_bytes": info.weights_bytes,
        "kv_cache_bytes": plan.kv_cache,
        "kv_tokens": plan.num_blocks * engine.config.block_size,
        "kernels": dict(info.kernels),
        "notices": list(info.notices),
    }


def arrivals(
    bench: Bench, *, shape: str, precision: str, rate: float, seconds: float, lengths: list[int],
    most: int, context: int, budget: int,
) -> dict[str, Any]:  # fmt: skip
    """Short requests at `rate` a second (Poisson), with `lengths` = [least, most] tokens in and
    out, for `seconds`."""
    low, high = lengths
    engine = bench.engine(shape, "auto", **settings_of(precision, most, context, budget))
    rng = random.Random(f"arrivals-{rate}")
    due = [0.0]
    while due[-1] < seconds:
        due.append(due[-1] + rng.expovariate(rate))
    vocab = engine.model_info.vocab_size
    prompts = [
        random_prompts(1, rng.randint(low, high), vocab, (rate, i))[0] for i in range(len(due))
    ]
    outputs = [rng.randint(low, high) for _ in due]
    warm_up(engine, min(most, 32), high)
    served = serve(engine, prompts, outputs, due)
    if not served.requests:
        raise UnableError("No request came in that time.")
    return {"rate": rate, "offered_per_s": len(due) / due[-1], **latencies([served])}
