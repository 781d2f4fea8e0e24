"""One tiny model that many tests share, an engine's thread, and a stand-in for captured graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import EngineConfig, LLMEngine
from engine.engine_thread import EngineThread
from tests.engine import tiny_models
from tests.engine.recorded_graphs import Recording
from tests.engine.thread_events import Recorder


@pytest.fixture(scope="session")
def tiny_model() -> Any:
    """A random llama of transformers, the reference of `tiny_folder`."""
    return tiny_models.make_model("llama")


@pytest.fixture(scope="session")
def tiny_folder(tiny_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(tiny_model, tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture
def config(tiny_folder: Path) -> EngineConfig:
    return EngineConfig(
        model=str(tiny_folder), dtype="float32", num_threads=1, kv_cache_memory_bytes=2**20,
        max_num_batched_tokens=512,
    )  # fmt: skip


@pytest.fixture
def events() -> Recorder:
    return Recorder()


@pytest.fixture
def thread(events: Recorder) -> Iterator[EngineThread]:
    thread = EngineThread(events, snapshot_interval_s=0.01)
    thread.start()
    yield thread
    assert thread.stop(120)


@pytest.fixture
def make_engine(tiny_folder: Path) -> Iterator[Callable[..., LLMEngine]]:
    """Engines on the tiny llama, in float32 and with a small cache; shut down afterwards."""
    engines: list[LLMEngine] = []

    def make(**settings: Any) -> LLMEngine:
        config = EngineConfig(
            model=str(tiny_folder),
            dtype="float32",
            num_threads=1,
            block_size=8,
            kv_cache_memory_bytes=2**20,
            max_num_batched_tokens=512,
        )
        engines.append(LLMEngine(config.replace(**settings)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown()


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Engines made from now on capture their steps on the CPU."""
    made = Recording()
    for module in ("engine.runner.cuda_graphs", "engine.host.kv_cache"):
        monkeypatch.setattr(f"{module}.capture_for", lambda device: made)
    return made
