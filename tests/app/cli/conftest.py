"""Models for the command line's tests: a tiny shape for random weights, and damaged folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from app.paths import starter_model
from tests.app.clients.conftest import server

__all__ = ["server"]

TINY_SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="session")
def tiny_shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config.json alone: enough for --load-format dummy. The same for all, so that
    its token budget is measured once."""
    folder = tmp_path_factory.mktemp("shape") / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY_SHAPE))
    return folder


@pytest.fixture
def tiny_flags(tiny_shape: Path) -> list[str]:
    return ["--model", str(tiny_shape), "--load-format", "dummy", "--num-threads", "1",
            "--kv-cache-memory-bytes", "2MiB"]  # fmt: skip


@pytest.fixture
def nan_model(tmp_path: Path) -> Path:
    """The starter model with a final norm of NaN: every logit is NaN."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "nan"
    shutil.copytree(starter_model(), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"].fill_(float("nan"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
