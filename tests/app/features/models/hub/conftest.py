"""A hub with a small, real, loadable model, and a cache of its own."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.features.models.hub import Hub
from app.paths import starter_model
from tests.app.features.models.hub.server import HubServer, Model


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test run is offline; the hub of these tests is on this machine."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("app.features.models.hub_download.CHUNK", 1 << 14)
    sleep = SimpleNamespace(sleep=lambda seconds: time.sleep(0.01))  # between attempts
    monkeypatch.setattr("huggingface_hub.file_download.time", sleep)


def tiny_files() -> dict[str, bytes]:
    """A repository as they are: weights twice, other formats, pictures."""
    noise = random.Random(0).randbytes
    return {
        ".gitattributes": b"*.safetensors filter=lfs",
        "README.md": b"# tiny",
        "config.json": (starter_model() / "config.json").read_bytes(),
        "tokenizer.json": noise(9_000),
        "tokenizer_config.json": b"{}",
        "model.safetensors": noise(300_000),
        "pytorch_model.bin": noise(5_000),
        "tiny-q4.gguf": noise(5_000),
        "onnx/model.onnx": noise(5_000),
    }


@pytest.fixture
def server() -> Iterator[HubServer]:
    models = (
        Model("acme/tiny", tiny_files(), downloads=50, num_parameters=4_500_000),
        Model("acme/tiny-gguf", {"tiny.gguf": b"GGUF" * 2000}, downloads=5),
        Model("acme/gated", tiny_files(), gated=True, downloads=40),
    )
    with HubServer(*models) as running:
        yield running


@pytest.fixture
def hub(server: HubServer, tmp_path: Path) -> Hub:
    return Hub(server.url, tmp_path / "hub")
