"""What 8-bit keys and values cost on the starter model, and why each vector has its own scale."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from engine import EngineConfig, LLMEngine
from engine.attention.cpu import CPUAttention
from engine.batch.batch import Span, pack
from resources import resource_path
from resources.starter.corpus import conversations
from resources.starter.tokenizer import END_OF_TEXT
from tests.tiers import first_fast

TEXT_SEED = 987
NUM_TOKENS = 700
CHUNK = 256


class Quality(NamedTuple):
    """perplexity; distance: mean KL divergence from the plain cache, in nats; agreement: share of
    tokens with the same most probable one."""

    perplexity: float
    distance: float
    agreement: float


@pytest.fixture(scope="module")
def engine() -> Iterator[LLMEngine]:
    folder = str(resource_path("starter", "chat"))
    engine = LLMEngine(
        EngineConfig(model=folder, dtype="float32", max_model_len=1024, num_threads=1)
    )
    yield engine
    engine.shutdown()


@pytest.fixture(scope="module")
def token_ids(engine: LLMEngine) -> list[int]:
    """Conversations of the kind that the model was made for, their questions included: there it is
    unsure, and shows the smallest change."""
    found: list[int] = []
    for conversation in islice(conversations(TEXT_SEED), 40):
        for message in conversation.messages():
            text = f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
            found += engine.tokenizer.encode(text)
        found += engine.tokenizer.encode(END_OF_TEXT)
    assert len(found) >= NUM_TOKENS
    return found[:NUM_TOKENS]


@pytest.fixture(scope="module")
def plain(engine: LLMEngine, token_ids: list[int]) -> Tensor:
    return log_probabilities(engine, "auto", token_ids)


def log_probabilities(engine: LLMEngine, kv_dtype: str, token_ids: list[int]) -> Tensor:
    """[T, V], computed in chunks as a prompt is."""
    engine.reconfigure(kv_cache_dtype=kv_dtype)
    size = engine.config.block_size
    table = list(range(-(-len(token_ids) // size)))
    rows = []
    for start in range(0, len(token_ids), CHUNK):
        part = token_ids[start : start + CHUNK]
        rows.append(engine._host.runner.execute(pack([Span(part, start, table, len(part))], size)))
    return torch.cat(rows).float().log_softmax(-1)


def quality(found: Tensor, plain: Tensor, token_ids: list[int]) -> Quality:
    next_ids = torch.tensor(token_ids[1:]).unsqueeze(1)
    surprise = -found[:-1].gather(1, next_ids).mean()
    distance = (plain.exp() * (plain - found)).sum(-1).mean()
    agreement = (found.argmax(-1) == plain.argmax(-1)).float().mean()
    return Quality(float(surprise.exp()), float(distance), float(agreement))


@pytest.mark.parametrize(
    "kv_dtype", first_fast(2, ["int8", "fp8", "k=int8,v=fp8", "k=auto,v=int8"])
)
def test_perplexity_stays_within_one_percent(
    engine: LLMEngine, token_ids: list[int], plain: Tensor, kv_dtype: str
) -> None:
    found = log_probabilities(engine, kv_dtype, token_ids)
    before, after = (quality(rows, plain, token_ids) for rows in (plain, found))
    assert before.distance == 0 and before.agreement == 1
    assert after.perplexity == pytest.approx(before.perplexity, rel=0.01)
    assert 0 < after.distance < 0.01
    assert after.agreement > 0.98


def test_no_scale_is_a_fixed_one(engine: LLMEngine, token_ids: list[int]) -> None:
    log_probabilities(engine, "fp8", token_ids)
    backend = engine._host.runner.backend
    assert isinstance(backend, CPUAttention)
    used = NUM_TOKENS // engine.config.block_size
    for cache in backend.caches.values():
        for pages in cache:
            scales = pages.scales[:used]
            assert (scales > 0).all() and not (scales == 1.0).any()
            assert len(scales.unique()) > 20
