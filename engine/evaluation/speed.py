"""How fast one request runs alone: prefill of a prompt, then decoding."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import InferdeckError
from engine.evaluation.report import Speed
from engine.evaluation.stages import Cancelled, check
from engine.llm_engine import LLMEngine
from engine.output import RequestOutput
from engine.sampling_params import SamplingParams

PROMPT_TOKENS, REPLY_TOKENS = 512, 33
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class _Run:
    prefill_s: float
    decode_s: float
    num_decoded: int


def measure_speed(
    engine: LLMEngine,
    context: int,
    progress: Callable[[int, int], None],
    cancelled: Cancelled,
) -> Speed:
    """Prompts of random tokens, each of its own, within a context of `context` tokens. Nothing
    else may run in the engine. Raises InferdeckError where a run fails."""
    length = max(1, min(PROMPT_TOKENS, context - REPLY_TOKENS - 1))
    reply = max(2, min(REPLY_TOKENS, context - length - 1))
    generator = random.Random(0)
    runs = []
    for index in range(ROUNDS + 1):
        progress(index, ROUNDS + 1)
        ids = [generator.randrange(engine.model_info.vocab_size) for _ in range(length)]
        runs.append(_run(engine, ids, reply, cancelled))
    progress(ROUNDS + 1, ROUNDS + 1)
    measured = runs[1:]  # the first one pays for buffers and caches
    return Speed(
        prefill=length / statistics.median(run.prefill_s for run in measured),
        decode=statistics.median(run.num_decoded / run.decode_s for run in measured),
        prefill_tokens=length,
        decode_tokens=measured[0].num_decoded,
        rounds=ROUNDS,
    )


def _run(engine: LLMEngine, ids: list[int], reply: int, cancelled: Cancelled) -> _Run:
    params = SamplingParams(temperature=0.0, max_tokens=reply, ignore_eos=True)
    output = RequestOutput("", len(ids))
    request_id = engine.add_request(tuple(ids), params)
    try:
        while output.finish_reason is None:
            check(cancelled)
            for event in engine.step():
                output.extend(event)
    finally:
        engine.abort(request_id)
    times = output.metrics
    if output.error is not None:
        raise InferdeckError(output.error.cause, output.error.remedy)
    assert times is not None and times.ttft_s is not None and times.e2e_s is not None
    decode_s = max(times.e2e_s - times.ttft_s, 1e-9)
    return _Run(max(times.ttft_s, 1e-9), decode_s, len(output.token_ids) - 1)
