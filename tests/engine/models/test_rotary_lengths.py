"""Rotary frequencies that depend on the length are fixed when a model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.models.test_loader import load, logits, save
from tests.engine.tiny_models import make_model
from tests.figures import numbers


class TestRotaryScaling:
    def test_dynamic_frequencies_are_those_of_the_longest_context(self, tmp_path: Path) -> None:
        rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
        model = make_model("llama", rope_parameters=rope, max_position_embeddings=16)
        loaded = load(save(model, tmp_path), max_model_len=64)
        # transformers uses the frequencies of the length that it sees
        expected = logits(model, length=64)
        assert torch.allclose(logits(loaded.model, length=64), expected, atol=1e-3, rtol=1e-4)
        assert "dynamic" in loaded.notices[0]
        # and ours do not depend on what else is in the step
        short = logits(loaded.model, length=8)
        logits(loaded.model, length=64)
        assert torch.equal(logits(loaded.model, length=8), short)

    @pytest.mark.parametrize(("length", "factor"), [(12, 1.0), (64, 3.0)])
    def test_longrope_is_short_or_long_by_max_model_len(
        self, length: int, factor: float, tmp_path: Path
    ) -> None:
        rope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [3.0] * 8,
                "rope_theta": 10000.0, "original_max_position_embeddings": 16,
                "factor": 4.0}  # fmt: skip
        model = make_model("phi3", rope_parameters=rope, max_position_embeddings=64,
                           original_max_position_embeddings=16)  # fmt: skip
        loaded = load(save(model, tmp_path), max_model_len=length)
        expected = logits(model, length=length)
        assert torch.allclose(logits(loaded.model, length), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "rope", "original"),
    [
        (
            "phi3",
            {
                "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8, "original_max_position_embeddings": 32,
            },
            4096,  # of the class: it decides over the value in the dictionary
        ),
        ("llama", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}, 256),
    ],
)  # fmt: skip
def test_a_notice_gives_the_lengths_of_fixed_frequencies(
    family: str, rope: dict[str, Any], original: int, tmp_path: Path
) -> None:
    model = make_model(family, rope_parameters=rope)
    (notice,) = load(save(model, tmp_path), max_model_len=48).notices
    assert {48, original} <= set(numbers(notice)) and rope["rope_type"] in notice
