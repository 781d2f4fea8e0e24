"""With an 8-bit KV cache drafts still change no token; what drafts has its KV in 8 bits too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import LLMEngine
from engine.attention.cpu import CPUAttention
from engine.numerics.kv_dtype import parse_kv_dtype
from tests.engine.speculation.runs import PARAMS, PROMPTS
from tests.tiers import first_fast, tiered

MakeEngine = Callable[..., LLMEngine]
DTYPES = ("int8", "fp8", "k=int8,v=fp8")


_plain: dict[str, list[Any]] = {}


def tokens(engine: LLMEngine) -> list[Any]:
    found = [(o.token_ids, o.text, o.finish_reason) for o in engine.generate(PROMPTS, PARAMS)]
    engine.check_integrity()
    return found


@pytest.mark.parametrize("kv_dtype", tiered(DTYPES, DTYPES[:1]))
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "ngram"])
@pytest.mark.parametrize(
    "tight",
    first_fast(1, [
        {"block_size": 4, "watermark": 0.0},  # of a small cache: preemptions
        {"max_num_batched_tokens": 16, "block_size": 3},
        {},
    ]),
)  # fmt: skip
def test_drafts_change_no_token(
    kv_dtype: str,
    method: str,
    tight: dict[str, Any],
    make_engine: MakeEngine,
    draft_folder: Path,
    head_folder: Path,
) -> None:
    if kv_dtype not in _plain:
        _plain[kv_dtype] = tokens(make_engine(kv_cache_dtype=kv_dtype))
    plain = _plain[kv_dtype]
    engine = make_engine(
        kv_cache_dtype=kv_dtype, speculative_method=method, speculative_adaptive=False,
        speculative_model=str(head_folder if method == "eagle3" else draft_folder),
        prompt_lookup_min=1, **tight,
    )  # fmt: skip
    if "watermark" in tight:
        engine.reconfigure(kv_cache_memory_bytes=24 * engine.plan.bytes_per_block)
    assert tokens(engine) == plain
    assert tokens(engine) == plain  # now with prefix hits
    figures = engine.snapshot().speculation
    assert figures is not None and figures.drafted > 0
    if "watermark" in tight:
        assert engine.snapshot().counters.preemptions > 0


@pytest.mark.parametrize("kv_dtype", ["auto", *DTYPES])
@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_memory_counts_both_caches_as_they_are(
    kv_dtype: str, method: str, make_engine: MakeEngine, draft_folder: Path, head_folder: Path
) -> None:
    engine = make_engine(
        kv_cache_dtype=kv_dtype, speculative_method=method,
        speculative_model=str(head_folder if method == "eagle3" else draft_folder),
    )  # fmt: skip
    memory, proposer = engine.snapshot().memory, engine._host.assembly.proposer
    assert proposer is not None
    own = engine._host.runner.backend.nbytes
    assert memory.kv_cache == own + proposer.cache_bytes == memory.plan.kv_cache <= 2**20
    assert proposer.cache_bytes == memory.plan.draft_bytes_per_block * memory.plan.num_blocks
    cache = proposer._cache if method == "eagle3" else proposer.runner.backend
    assert isinstance(cache, CPUAttention)
    sides = zip(next(iter(cache.caches.values())), parse_kv_dtype(kv_dtype), strict=True)
    for pages, name in sides:
        assert (pages.scales is not None) == (name != "auto")
