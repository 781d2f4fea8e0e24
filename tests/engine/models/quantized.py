"""Loads quantized models, and compares what they compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.models.checkpoint import Checkpoint
from engine.models.loader import LoadedModel, LoadRequest, load_model
from engine.numerics.scheme import Scheme
from tests.engine.tiny_models import make_prompts

SCHEMES = [Scheme("int8"), Scheme("int4", 32), Scheme("nf4"), Scheme("fp8")]


def load(folder: Path, **changes: Any) -> LoadedModel:
    options: dict[str, Any] = {
        "dtype": torch.float32, "device": "cpu", "load_format": "auto", "seed": 0,
        "max_model_len": 64,
    }  # fmt: skip
    options |= changes
    checkpoint = Checkpoint.open(folder, dummy=options["load_format"] == "dummy")
    return load_model(LoadRequest(checkpoint, **options))


@torch.inference_mode()
def logits(model: Any) -> Tensor:
    """Attention is transformers' own, whoever loaded the weights."""
    model.config._attn_implementation = "eager"
    found: Tensor = model(torch.tensor(make_prompts([20])), use_cache=False).logits
    return found


def difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
