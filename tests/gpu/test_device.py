"""Nothing that a step computes with is made on another device than the model's, or asked for.

The device is torch's "meta": it holds no numbers, so that asking for one fails, and no operation
takes a tensor of it together with one of the CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.attention import NAME, register
from engine.models import loader, materialise
from engine.models.checkpoint import Checkpoint
from engine.numerics import rounding as e4m3
from engine.numerics.scheme import PLAIN, Scheme
from engine.runner.model_runner import probe_kv
from tests.engine.tiny_models import make_model, save

KINDS = ("attention", "qkv", "gate/up", "rms norm", "rotary apply", "rotary table", "experts")


@pytest.mark.parametrize(
    ("family", "scheme"),
    [
        ("llama", PLAIN),
        ("llama", Scheme("int4", 32)),
        ("qwen3", Scheme("int8")),
        ("gemma3", Scheme("fp8")),
        ("qwen3_moe", PLAIN),
    ],
)
def test_a_step_stays_on_its_device(
    family: str, scheme: Scheme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what loading asks of real numbers
    monkeypatch.setattr(materialise, "_has_nan", lambda tensor: False)
    monkeypatch.setattr(e4m3, "has_nan", lambda codes: False)
    monkeypatch.setattr(loader, "kinds_that_agree", lambda *_: (frozenset(KINDS), {}))
    folder = save(make_model(family, num_hidden_layers=2), tmp_path)
    checkpoint = Checkpoint.open(folder, dummy=True)
    request = loader.LoadRequest(checkpoint, torch.bfloat16, "meta", "dummy", 0, 64, scheme=scheme)
    model: Any = loader.load_model(request).model
    tensors = [*model.parameters(), *model.buffers()]
    assert tensors and all(tensor.is_meta for tensor in tensors)
    register()
    model.config._attn_implementation = NAME
    assert len(probe_kv(model)) == 2
