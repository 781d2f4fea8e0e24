"""AWQ on a model that people chat with: better than plain rounding at the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from app.features.quantize.texts import builtin_text
from app.paths import starter_model
from engine import EngineConfig
from engine.evaluate import EvaluationTask, plain, run
from engine.evaluate.report import EvaluationReport
from engine.quantize.quantize import quantize
from engine.quantize.recipe import Recipe
from tests.benchmarks.quality import calibration_text, measured_text

BASE = EngineConfig(num_threads=1, kv_cache_memory_bytes=2**26)
CONVERSATIONS = 60  # some 4,000 tokens that count, which the model has not seen


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests run side by side, and threads that wait for each other do so in loops."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(recipe: Recipe, output: Path) -> EvaluationReport:
    """What a recipe costs the starter model."""
    quantize(starter_model(), recipe, output, [calibration_text()])
    text = measured_text(CONVERSATIONS)
    reference = plain(BASE, dtype="float32").replace(model=str(starter_model()))
    scored = builtin_text("starter").scored(text)
    return run(
        EvaluationTask(
            BASE.replace(model=str(output)), reference=reference, text=text, scored=scored
        )
    )


@pytest.mark.slow
def test_awq_beats_rounding_on_the_starter_model(tmp_path: Path) -> None:
    rounded = made(Recipe(method="rtn", group_size=128, symmetric=False), tmp_path / "rtn")
    small = {"num_sequences": 12, "sequence_length": 256, "num_search_sequences": 6}
    awq = made(Recipe(method="awq", group_size=128, **small), tmp_path / "awq")
    assert awq.divergence is not None and rounded.divergence is not None
    assert awq.divergence.kl.mean < 0.85 * rounded.divergence.kl.mean  # 0.67 as measured
    assert awq.candidate_loss is not None and rounded.candidate_loss is not None
    assert awq.candidate_loss.perplexity < rounded.candidate_loss.perplexity
