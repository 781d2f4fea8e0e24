"""The precision of weights and cache is changed under running requests, which survive it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine import LLMEngine, SamplingParams
from engine.config import Change
from engine.errors import ConfigError, OutOfMemoryError
from engine.host.model_host import ModelHost
from tests.tiers import first_fast

PROMPTS = [list(range(3, 30)), list(range(40, 52)), [5, 6, 7]]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def begin(engine: LLMEngine, steps: int = 6) -> dict[str, list[int]]:
    """All prompts, after some steps; the tokens so far."""
    said = {engine.add_request(prompt, GREEDY): [] for prompt in PROMPTS}
    for _ in range(steps):
        advance(engine, said)
    return said


def advance(engine: LLMEngine, said: dict[str, list[int]]) -> None:
    for event in engine.step():
        said[event.request_id] += event.token_ids


def finish(engine: LLMEngine, said: dict[str, list[int]]) -> None:
    while engine.has_unfinished:
        advance(engine, said)
    engine.check_integrity()


@pytest.mark.parametrize("method", first_fast(2, ["int8", "int4", "nf4", "fp8"]))
def test_requests_go_on_at_another_precision_and_back(
    method: str, make_engine: Callable[..., LLMEngine]
) -> None:
    engine = make_engine()
    plain = [output.token_ids for output in engine.generate(PROMPTS, GREEDY)]
    wide = engine.model_info.weights_bytes
    said = begin(engine)
    before = {request: list(tokens) for request, tokens in said.items()}
    assert engine.reconfigure(quantization=method, quantization_group_size=32) is Change.RELOAD
    info = engine.model_info
    assert method in info.quantization and info.weights_bytes < 0.85 * wide
    assert engine.snapshot().memory.weights == info.weights_bytes
    for _ in range(4):
        advance(engine, said)
    assert engine.reconfigure(quantization="none") is Change.RELOAD
    assert engine.model_info.weights_bytes == wide and engine.model_info.quantization == ""
    finish(engine, said)
    assert all(len(tokens) == 24 for tokens in said.values())
    assert all(said[r][: len(tokens)] == tokens for r, tokens in before.items())
    # nothing of the other precision is left, in weights or in cached prefixes
    assert [output.token_ids for output in engine.generate(PROMPTS, GREEDY)] == plain


def test_the_same_precision_gives_the_same_tokens_whatever_was_before(
    make_engine: Callable[..., LLMEngine],
) -> None:
    at_once = make_engine(quantization="int4", quantization_group_size=32, kv_cache_dtype="int8")
    expected = [output.token_ids for output in at_once.generate(PROMPTS, GREEDY)]
    engine = make_engine()
    engine.generate(PROMPTS, GREEDY)
    engine.reconfigure(quantization="int4", quantization_group_size=32, kv_cache_dtype="int8")
    assert [output.token_ids for output in engine.generate(PROMPTS, GREEDY)] == expected


@pytest.mark.parametrize("method", ["int8", "int4"])
@pytest.mark.parametrize("budget", first_fast(1, [5, 1, 64]))
def test_tokens_do_not_depend_on_batch_or_chunks(
    method: str, budget: int, make_engine: Callable[..., LLMEngine]
) -> None:
    settings = {"quantization": method, "quantization_group_size": 32}
    one = make_engine(max_num_seqs=1, **settings)
    alone = [one.generate([prompt], GREEDY)[0].token_ids for prompt in PROMPTS]
    together = make_engine(max_num_batched_tokens=budget, **settings).generate(PROMPTS, GREEDY)
    assert [output.token_ids for output in together] == alone


def test_a_switch_that_fails_leaves_what_was_there(
    make_engine: Callable[..., LLMEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(quantization="int8")
    said = begin(engine)
    with pytest.raises(ConfigError, match="inferdeck quantize"):
        engine.reconfigure(quantization="awq")
    adopt, calls = ModelHost._adopt, iter(range(9))

    def fail_once(host: ModelHost, assembly: object) -> None:
        if next(calls) == 0:
            raise OutOfMemoryError("No memory.", "Close other programs.")
        adopt(host, assembly)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelHost, "_adopt", fail_once)
    with pytest.raises(OutOfMemoryError):
        engine.reconfigure(quantization="int4")
    assert engine.config.quantization == "int8" and engine.model_info.quantization == "int8"
    finish(engine, said)
    assert all(len(tokens) == 24 for tokens in said.values())
