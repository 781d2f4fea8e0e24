"""Whole models through the kernels: what the CPU's path computes of the same codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from engine.kernels import ops, quantized
from engine.kernels.embedding import PackedEmbedding
from engine.kernels.per_channel import Int8PerChannel
from engine.models import prepare, targets
from engine.models.checkpoint import Checkpoint
from engine.models.loader import LoadedModel, LoadRequest, load_model
from engine.numerics.scheme import PLAIN, Scheme
from tests.engine.tiny_models import make_model, make_prompts, save
from tests.gpu.references import poison, relative_error


def load(folder: Path, scheme: Scheme, device: torch.device) -> LoadedModel:
    checkpoint, device_name = Checkpoint.open(folder), str(device)
    return load_model(
        LoadRequest(checkpoint, torch.float32, device_name, "auto", 0, 64, scheme=scheme)
    )


@torch.inference_mode()
def logits(model: Any, num_tokens: int) -> Tensor:
    model.config._attn_implementation = "eager"
    tokens = torch.tensor(make_prompts([num_tokens]))
    found: Tensor = model(tokens.to(next(model.parameters()).device), use_cache=False).logits
    return found.cpu()


CASES = [
    ("gemma3", PLAIN, 1e-5),
    ("llama", Scheme("int4", 32), 1e-4),
    ("qwen3", Scheme("int8", head="int8"), 2e-2),
    ("qwen3_moe", Scheme("int4", 32), 1e-4),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "scheme", "tolerance"), CASES)
def test_logits_are_those_of_the_cpu(
    family: str, scheme: Scheme, tolerance: float, tmp_path: Path, device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = save(make_model(family, num_hidden_layers=1), tmp_path)
    expected = load(folder, scheme, torch.device("cpu"))
    lengths = (1, 7)
    wanted = [logits(expected.model, num_tokens) for num_tokens in lengths]
    with monkeypatch.context() as patch:
        patch.setattr(ops, "_everywhere", True)
        patch.setattr(prepare, "_known", {})  # compared without these kernels before
        for module in (quantized, targets):
            patch.setattr(module, "is_usable", lambda device: True)
        poison(patch)
        found = load(folder, scheme, device)
        assert found.kernels["rms norm"].startswith("fused")
        assert found.kernels["attention" if family != "gemma3" else "qkv"].startswith("fused")
        has_residual = found.kernels.get("residual norm", "").startswith("fused")
        assert has_residual == (family != "gemma3")
        for num_tokens, before in zip(lengths, wanted, strict=True):
            assert relative_error(logits(found.model, num_tokens), before) < tolerance


def test_head_and_embeddings_share_one_copy(
    tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (quantized, targets):
        monkeypatch.setattr(module, "is_usable", lambda device: True)
    folder = save(make_model("llama", tie_word_embeddings=True), tmp_path)
    model: Any = load(folder, Scheme("none", head="int8"), device).model
    embedding = model.get_input_embeddings()
    assert isinstance(model.get_output_embeddings().packed, Int8PerChannel)
    assert isinstance(embedding, PackedEmbedding) and embedding.packed_bytes == 0
    tokens = torch.tensor([[3, 9, 3]], device=device)
    assert torch.equal(embedding(tokens)[0], model.get_output_embeddings().weight[tokens[0]])
