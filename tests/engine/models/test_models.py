"""Every family gives transformers' own tokens and log probabilities in float32, whatever the
batch, the chunks, the cache and preemption do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from engine import EngineConfig, LLMEngine, SamplingParams
from tests.engine import tiny_models
from tests.engine.tiny_models import FAMILIES, Reference
from tests.tiers import tiered

MAX_TOKENS = 14
LENGTHS = (5, 40, 17, 33, 90)
GREEDY = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=2)


class Case(NamedTuple):
    folder: Path
    prompts: list[list[int]]
    references: list[Reference]


@pytest.fixture(scope="module", params=tiered(sorted(FAMILIES)))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    model = tiny_models.make_model(request.param)
    folder = tiny_models.save(model, tmp_path_factory.mktemp(request.param))
    prompts = tiny_models.make_prompts(LENGTHS)
    prompts.append(prompts[3][:24] + prompts[0])  # shares a prefix of whole blocks
    references = [tiny_models.reference(model, prompt, MAX_TOKENS) for prompt in prompts]
    return Case(folder, prompts, references)


def make_engine(case: Case, **settings: object) -> LLMEngine:
    config = EngineConfig(model=str(case.folder), dtype="float32", block_size=8, num_threads=1)
    return LLMEngine(config.replace(**settings))


@pytest.fixture
def engine(case: Case) -> Iterator[LLMEngine]:
    # 15 blocks of 8 tokens hold one to three of the requests: some must wait, some are preempted.
    settings = {"max_num_batched_tokens": 24, "watermark": 0.0}
    engine = make_engine(case, **settings)
    bytes_per_block = engine.plan.bytes_per_block
    engine.reconfigure(kv_cache_memory_bytes=15 * bytes_per_block)
    yield engine
    engine.shutdown()


def test_batched_chunked_preempted_and_cached_equal_transformers(
    case: Case, engine: LLMEngine
) -> None:
    for _ in range(2):  # the second time with prefix hits
        outputs = engine.generate(case.prompts, GREEDY)
        engine.check_integrity()
        for output, reference in zip(outputs, case.references, strict=True):
            assert output.token_ids == reference.token_ids
            chosen = [entry.logprob for entry in output.logprobs]
            assert chosen == pytest.approx(reference.logprobs, abs=1e-4)
            assert all(entry.rank == 1 for entry in output.logprobs)
    counters = engine.snapshot().counters
    assert counters.preemptions > 0
    assert counters.prefix_hits > 0


def test_settings_never_change_the_tokens(case: Case) -> None:
    engine = make_engine(case)
    try:
        for settings in (
            {"batching": "static", "max_num_seqs": 2},
            {"batching": "continuous", "enable_chunked_prefill": False, "max_num_seqs": 8},
            {"enable_prefix_caching": False, "block_size": 3, "max_num_batched_tokens": 7},
            {"kv_allocation": "contiguous", "enable_chunked_prefill": True},
        ):
            engine.reconfigure(**settings)
            outputs = engine.generate(case.prompts, GREEDY)
            got = [output.token_ids for output in outputs]
            assert got == [reference.token_ids for reference in case.references], settings
            engine.check_integrity()
    finally:
        engine.shutdown()
