"""What few bits cost the starter model, on answers that it did not learn from."""

from __future__ import annotations

import pytest

from app.features.quantize.texts import builtin_text
from app.paths import starter_model
from engine.config import EngineConfig
from engine.evaluate import EvaluationReport, EvaluationTask, plain, run
from tests.tiers import tiered

TOKENS = 1500


def measured(**precision: str) -> EvaluationReport:
    config = EngineConfig(model=str(starter_model()), dtype="float32", num_threads=1, **precision)  # type: ignore[arg-type]
    text = builtin_text("starter").read()
    scored = builtin_text("starter").scored(text)
    return run(EvaluationTask(config, plain(config), text=text, scored=scored, max_tokens=TOKENS))


INT8 = {"quantization": "int8"}


@pytest.mark.parametrize(
    "precision",
    tiered([INT8, {"quantization": "fp8"}, {"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "fp8"}],
           [INT8]),
    ids=lambda value: "-".join(value.values()),
)  # fmt: skip
def test_eight_bits_cost_little(precision: dict[str, str]) -> None:
    report = measured(**precision)
    assert report.divergence is not None
    assert report.divergence.similarity is not None
    assert report.perplexity_change is not None
    assert report.divergence.similarity.mean > 0.999
    assert abs(report.perplexity_change) < 0.01
    assert report.divergence.top1_agreement > 0.99
    assert report.reference is not None
    assert report.reference.quantization == ""
    assert report.candidate.quantization == precision.get("quantization", "")
    smaller = (
        report.candidate.weights_bytes < report.reference.weights_bytes,
        report.candidate.kv_bytes_per_token < report.reference.kv_bytes_per_token,
    )
    assert smaller == ("quantization" in precision, "kv_cache_dtype" in precision)


@pytest.mark.slow
def test_four_bits_cost_more_and_it_shows() -> None:
    eight, four = measured(quantization="int8"), measured(quantization="int4")
    assert eight.divergence is not None
    assert four.divergence is not None
    assert four.divergence.kl.mean > 4 * eight.divergence.kl.mean
    assert four.divergence.top1_agreement < eight.divergence.top1_agreement
    assert four.candidate.weights_bytes < eight.candidate.weights_bytes
    assert four.worst[0].kl > eight.worst[0].kl
