"""Greedy replies of both models to the user's prompts, and where they first differ."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.errors import InferdeckError, InvalidRequestError
from engine.evaluate.report import AnswerPair, Answers, Difference, Speed
from engine.evaluate.task import Cancelled, PromptLine, TextError, check
from engine.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams
from engine.step.output import RequestOutput
from engine.text.tokenizer import Tokenizer

EXCERPT_TOKENS = 24
LONGEST_PROMPT = 400
"""Characters of a prompt that a report repeats."""


class Answer(NamedTuple):
    token_ids: tuple[int, ...]
    text: str


def answer(
    engine: LLMEngine,
    prompts: Sequence[PromptLine],
    source: str,
    progress: Callable[[int, int], None],
    cancelled: Cancelled,
) -> list[Answer]:
    """Greedy replies, in the order of the prompts. Raises TextError for a prompt that does not fit
    into the context, with its line in `source`."""
    outputs: dict[str, RequestOutput] = {}
    try:
        for line in prompts:
            outputs[_add(engine, line, source)] = RequestOutput("", 0)
        done = 0
        while done < len(prompts):
            progress(done, len(prompts))
            check(cancelled)
            for event in engine.step():
                outputs[event.request_id].extend(event)
            done = sum(o.finish_reason is not None for o in outputs.values())
    finally:
        for request_id in outputs:
            engine.abort(request_id)
    progress(done, len(prompts))
    for line, output in zip(prompts, outputs.values(), strict=True):
        if output.error is not None:
            raise InferdeckError(
                f"{source}, line {line.line}: {output.error.cause}", output.error.remedy
            )
    return [Answer(tuple(o.token_ids), o.text) for o in outputs.values()]


def _add(engine: LLMEngine, line: PromptLine, source: str) -> str:
    params = SamplingParams(temperature=0.0, max_tokens=line.max_tokens)
    try:
        return engine.add_request(line.prompt, params)
    except InvalidRequestError as error:
        raise TextError(f"{source}, line {line.line}: {error.cause}", error.remedy) from error


def compare(
    prompts: Sequence[PromptLine],
    reference: Sequence[Answer],
    candidate: Sequence[Answer],
    tokenizer: Tokenizer,
    source: str,
) -> Answers:
    """Compare at least one pair of replies."""
    pairs = tuple(
        _pair(line, expected, found, tokenizer)
        for line, expected, found in zip(prompts, reference, candidate, strict=True)
    )
    equal = [_equal_share(a, b) for a, b in zip(reference, candidate, strict=True)]
    return Answers(
        source=source,
        pairs=pairs,
        identical_share=sum(pair.is_identical for pair in pairs) / len(pairs),
        mean_equal_share=sum(equal) / len(equal),
    )


def _pair(line: PromptLine, expected: Answer, found: Answer, tokenizer: Tokenizer) -> AnswerPair:
    prompt = line.shown
    if len(prompt) > LONGEST_PROMPT:
        prompt = prompt[: LONGEST_PROMPT - 1] + "…"
    difference = None
    if expected.token_ids != found.token_ids:
        index = equal_tokens(expected.token_ids, found.token_ids)
        begin, end = max(0, index - EXCERPT_TOKENS), index + EXCERPT_TOKENS
        difference = Difference(
            token_index=index,
            text_before=tokenizer.decode(expected.token_ids[begin:index]),
            reference=tokenizer.decode(expected.token_ids[index:end]),
            candidate=tokenizer.decode(found.token_ids[index:end]),
        )
    return AnswerPair(
        line=line.line,
        prompt=prompt,
        reference=expected.text,
        candidate=found.text,
        num_reference_tokens=len(expected.token_ids),
        num_candidate_tokens=len(found.token_ids),
        difference=difference,
    )


def equal_tokens(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens before the first difference."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )


def _equal_share(expected: Answer, found: Answer) -> float:
    if expected.token_ids == found.token_ids:
        return 1.0
    return equal_tokens(expected.token_ids, found.token_ids) / max(1, len(expected.token_ids))


PROMPT_TOKENS, REPLY_TOKENS = 512, 33
ROUNDS, MOST_ROUNDS = 3, 7
ENOUGH_S = 4.0
"""Rounds after ROUNDS start only within this time: more samples for the spread, and no long wait
for a slow model."""


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
    most = max(ROUNDS, MOST_ROUNDS)
    runs: list[tuple[float, float, int]] = []
    while len(runs) <= ROUNDS or (len(runs) <= most and _seconds(runs) < ENOUGH_S):
        progress(len(runs), most + 1)
        ids = [generator.randrange(engine.model_info.vocab_size) for _ in range(length)]
        runs.append(_run(engine, ids, reply, cancelled))
    progress(most + 1, most + 1)
    measured = runs[1:]  # the first one pays for buffers and caches
    prefill = tuple(length / prefill_s for prefill_s, _, _ in measured)
    decode = tuple(decoded / decode_s for _, decode_s, decoded in measured)
    return Speed(
        prefill=statistics.median(prefill),
        decode=statistics.median(decode),
        prefill_tokens=length,
        decode_tokens=measured[0][2],
        rounds=len(measured),
        prefill_samples=prefill,
        decode_samples=decode,
    )


def _seconds(runs: Sequence[tuple[float, float, int]]) -> float:
    return sum(prefill_s + decode_s for prefill_s, decode_s, _ in runs[1:])


def _run(
    engine: LLMEngine, ids: list[int], reply: int, cancelled: Cancelled
) -> tuple[float, float, int]:
    """(seconds to the first token, seconds of decoding, decoded tokens)."""
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
    return max(times.ttft_s, 1e-9), decode_s, len(output.token_ids) - 1
