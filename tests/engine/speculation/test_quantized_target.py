"""Drafts for a quantized model: they still change no token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import LLMEngine
from engine.kernels.embedding import PackedEmbedding
from tests.engine.quantized_checkpoints import make_quantized
from tests.engine.speculation.runs import PARAMS, PROMPTS
from tests.tiers import first_fast, tiered

MakeEngine = Callable[..., LLMEngine]
WEIGHTS: list[dict[str, Any]] = [
    {"quantization": "int8"},
    {"quantization": "int4", "quantization_group_size": 32},
    {"quantization": "nf4", "quantization_head": "int8"},
]


def tokens(engine: LLMEngine) -> list[Any]:
    found = [(o.token_ids, o.text, o.finish_reason) for o in engine.generate(PROMPTS, PARAMS)]
    engine.check_integrity()
    return found


@pytest.mark.parametrize("weights", tiered(WEIGHTS, WEIGHTS[1:2]), ids=str)
@pytest.mark.parametrize("method", first_fast(1, ["eagle3", "draft_model", "ngram"]))
def test_drafts_change_no_token(
    weights: dict[str, Any],
    method: str,
    make_engine: MakeEngine,
    draft_folder: Path,
    head_folder: Path,
) -> None:
    plain = tokens(make_engine(**weights))
    engine = make_engine(
        speculative_method=method, speculative_adaptive=False, prompt_lookup_min=1,
        speculative_model=str(head_folder if method == "eagle3" else draft_folder), **weights,
    )  # fmt: skip
    assert tokens(engine) == plain
    figures = engine.snapshot().speculation
    assert figures is not None and figures.drafted > 0
    if "quantization_head" in weights:
        embedding = engine._host.runner.model.get_input_embeddings()
        assert isinstance(embedding, PackedEmbedding)


def test_a_draft_model_that_is_stored_quantized(
    make_engine: MakeEngine, draft_folder: Path, tmp_path: Path
) -> None:
    """It is loaded as it is stored, whatever the model's precision."""
    plain = tokens(make_engine())
    folder = tmp_path / "draft"
    make_quantized(folder, "awq")
    for file in draft_folder.glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    engine = make_engine(
        speculative_method="draft_model", speculative_adaptive=False, speculative_model=str(folder)
    )
    assert tokens(engine) == plain
    figures = engine.snapshot().speculation
    assert figures is not None and figures.drafted > 0
    assert figures.weights < 0.75 * engine.model_info.weights_bytes
