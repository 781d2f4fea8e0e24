"""Opening a model: where models are found, what they need, and the Models page."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.features.models.downloads import DownloadQueue
from app.features.models.estimate import SHORTEST_CONTEXT, Estimate, Held, Need, estimate
from app.features.models.hub import Hub
from app.features.models.model_card import DUMMY_NOTE, STARTER_NOTE
from app.features.models.page import ModelsPage
from app.paths import starter_model
from app.storage.model_sources import (
    SourceKind,
    folder_source,
    hugging_face_sources,
    is_starter,
    recent_sources,
    shape_sources,
    starter_source,
)
from app.storage.trash import Trash
from app.window.settings_store import RecentModel, SettingsStore
from engine.config import EngineConfig
from engine.memory.model_sizes import ModelReport

GIB = 2**30


def report(**changes: object) -> ModelReport:
    values: dict[str, object] = {
        "name": "m", "architecture": "LlamaForCausalLM", "supported": True,
        "num_parameters": 1_240_000_000, "disk_bytes": 2 * GIB, "num_layers": 16,
        "hidden_size": 2048, "num_heads": 32, "num_kv_heads": 8, "context_length": 131072,
    }  # fmt: skip
    return ModelReport(**{**values, **changes})  # type: ignore[arg-type]


def scripted(free: int = 8 * GIB) -> Callable[[EngineConfig, Held], Estimate]:
    """An estimator of a model of 2 GiB with 64 KiB of KV cache a token."""

    def estimator(config: EngineConfig, in_use: Held) -> Estimate:
        length = config.max_model_len or 131072
        need = Need(length, "bfloat16", 2 * GIB, GIB // 8, length * 65536, free, 2 * free, free)
        fitting = length if need.fits else 65536
        return Estimate(report(), need, fitting_len=fitting)

    return estimator


@pytest.fixture
def store(qtbot: QtBot) -> SettingsStore:
    return SettingsStore()


def page_for(
    qtbot: QtBot,
    store: SettingsStore,
    estimator: Callable[[EngineConfig, Held], Estimate] = estimate,
) -> ModelsPage:
    hub, data = Hub(), store.path.parent
    queue, trash = DownloadQueue(hub, data / "downloads.json"), Trash(data / "trash.json")
    made = ModelsPage(store, queue, trash, hub, estimator=estimator)
    qtbot.addWidget(made)
    made.show()
    return made


def test_a_path_is_looked_at_and_a_name_finds_the_first(
    qtbot: QtBot, store: SettingsStore, tmp_path: Path
) -> None:
    page = page_for(qtbot, store, scripted(64 * GIB))
    page.open_model()
    assert page.focusWidget() is page.library.filter
    qtbot.keyClicks(page.library.filter, str(tmp_path))
    qtbot.keyClick(page.library.filter, Qt.Key.Key_Return)
    assert page.source is not None and page.source.kind is SourceKind.FOLDER
    assert page.source.path == str(tmp_path) and store.folders == []
    store.remember_model(RecentModel(str(tmp_path), "auto", "opened"))
    page.library.show_sources()
    assert [s.path for s in page.library.list.sources].count(str(tmp_path)) == 1
    page.open_model()
    qtbot.keyClicks(page.library.filter, "llama")
    qtbot.keyClick(page.library.filter, Qt.Key.Key_Return)
    assert page.source is not None and page.source.title == "Llama-3.2-1B"
    assert page.focusWidget() is page.library.list


# Sources -----------------------------------------------------------------------------------------


def test_shapes_are_real_and_smallest_first() -> None:
    shapes = shape_sources()
    assert [s.title for s in shapes] == ["Qwen3-0.6B", "Llama-3.2-1B", "Llama-3.1-8B"]
    assert all(s.load_format == "dummy" and s.kind is SourceKind.SHAPE for s in shapes)


def test_a_file_of_a_checkpoint_stands_for_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "model.gguf").write_bytes(b"")
    assert folder_source(str(tmp_path / "config.json")).path == str(tmp_path)
    assert folder_source(str(tmp_path / "model.safetensors")).path == str(tmp_path)
    assert folder_source(str(tmp_path / "model.gguf")).path.endswith(".gguf")


def test_recent_models_leave_out_what_has_its_own_heading(tmp_path: Path) -> None:
    shape = shape_sources()[0]
    found = recent_sources(
        [
            (str(starter_model()), "auto", "Demo model"),
            (shape.path, "dummy", "shape"),
            (str(tmp_path), "auto", "mine"),
            ("/gone", "auto", "gone"),
        ]
    )
    assert [s.title for s in found] == ["mine", "gone"]
    assert found[1].subtitle == "missing"
    assert is_starter(starter_source().path) and not is_starter("") and not is_starter("/x")


def test_the_hugging_face_cache_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    snapshot = tmp_path / "models--acme--tiny" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(b"x" * 2048)
    other = tmp_path / "models--acme--no-weights" / "snapshots" / ("b" * 40)
    other.mkdir(parents=True)
    (other / "config.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    [found] = hugging_face_sources()
    assert found.title == "acme/tiny" and found.path == str(snapshot)
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path / "no"))
    assert hugging_face_sources() == []


# What a model needs ------------------------------------------------------------------------------


def test_estimate_of_a_shape_counts_parameters_and_memory() -> None:
    shape = shape_sources()[0]
    config = EngineConfig(
        model=shape.path, load_format="dummy", dtype="bfloat16", max_model_len=1024
    )
    found = estimate(config)
    need = found.need
    assert need is not None and found.report.supported
    assert found.report.num_parameters == pytest.approx(596_049_920, rel=1e-3)
    # beside the weights cosines and sines of 1,024 positions, 128 wide
    assert need.weights == 2 * found.report.num_parameters + 1024 * 128 * 2 * 2
    # 28 layers x 8 heads x 128 x (K and V) x 2 bytes
    assert need.kv_bytes_per_token == 28 * 8 * 128 * 2 * 2
    assert need.needed == need.weights + need.activations + need.kv_cache


def test_estimate_counts_an_8_bit_cache_with_its_scales() -> None:
    shape = shape_sources()[0]
    config = EngineConfig(
        model=shape.path, load_format="dummy", dtype="bfloat16", max_model_len=1024
    )
    plain, narrow = (estimate(config.replace(kv_cache_dtype=n)).need for n in ("auto", "int8"))
    assert plain is not None and narrow is not None
    assert narrow.kv_bytes_per_token == 28 * 8 * (128 + 2) * 2
    assert narrow.weights == plain.weights and narrow.needed < plain.needed


def test_estimate_says_why_a_folder_is_no_model(tmp_path: Path) -> None:
    found = estimate(EngineConfig(model=str(tmp_path)))
    assert not found.can_open and "config.json" in found.problem
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    found = estimate(EngineConfig(model=str(tmp_path)))
    assert "GGUF" in found.problem and "safetensors" in found.problem
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    found = estimate(EngineConfig(model=str(tmp_path), load_format="dummy"))
    assert not found.report.supported and found.problem


def test_estimate_refuses_a_context_that_the_model_was_not_made_for() -> None:
    shape = shape_sources()[0]
    found = estimate(EngineConfig(model=shape.path, load_format="dummy", max_model_len=10_000_000))
    assert found.need is None and "10,000,000" in found.problem


def test_the_fitting_context_fits() -> None:
    shape = shape_sources()[2]
    found = estimate(EngineConfig(model=shape.path, load_format="dummy", dtype="bfloat16"))
    assert found.need is not None
    if not found.need.fits and found.fitting_len is not None:
        smaller = estimate(
            EngineConfig(
                model=shape.path, load_format="dummy", dtype="bfloat16",
                max_model_len=found.fitting_len,
            )
        )  # fmt: skip
        assert smaller.need is not None and smaller.need.needed <= found.need.limit * 1.01
        assert found.fitting_len >= SHORTEST_CONTEXT


# The page ----------------------------------------------------------------------------------------


def test_choosing_a_model_shows_what_it_is_and_needs(qtbot: QtBot, store: SettingsStore) -> None:
    page = page_for(qtbot, store, scripted(free=64 * GIB))
    assert not page.inspector.can_open
    page.library.list.choose(shape_sources()[1])
    qtbot.waitUntil(lambda: page.inspector.can_open, timeout=5000)
    assert page.detail.card.fact("Parameters") == "1.24 B"
    assert page.detail.card.fact("Architecture") == "LlamaForCausalLM"
    assert "BF16" in page.detail.card.verdict and page.detail.card.note == DUMMY_NOTE
    bar = page.detail.card._bar.text()
    assert "Weights 2.00 GiB" in bar and "64.0 GiB free" in bar
    with qtbot.waitSignal(page.model_chosen) as chosen:
        page.detail.primary.click()
    assert chosen.args is not None
    assert chosen.args[:2] == [shape_sources()[1].path, "dummy"]
    assert chosen.args[2] == {"dtype": "auto", "max_model_len": None}


def test_a_context_that_does_not_fit_is_shortened_in_plain_sight(
    qtbot: QtBot, store: SettingsStore
) -> None:
    page = page_for(qtbot, store, scripted(free=8 * GIB))
    page.library.list.choose(shape_sources()[1])
    qtbot.waitUntil(lambda: page.inspector.can_open, timeout=5000)
    assert page.detail.card.chosen()["max_model_len"] == 65536
    page.detail.card.choose_context(32768)
    page.detail.card.options_changed.emit()
    qtbot.waitUntil(lambda: page.inspector.can_open, timeout=5000)
    assert page.detail.card.chosen()["max_model_len"] == 32768


def test_what_was_chosen_before_is_offered_again(qtbot: QtBot, store: SettingsStore) -> None:
    shape = shape_sources()[1]
    settings = {"dtype": "float16", "max_model_len": 4096, "block_size": 32}
    store.remember_model(RecentModel(shape.path, "dummy", "shape", settings))
    page = page_for(qtbot, store, scripted())
    page.library.list.choose(shape)
    qtbot.waitUntil(lambda: page.inspector.can_open, timeout=5000)
    assert page.detail.card.chosen() == {"dtype": "float16", "max_model_len": 4096}
    with qtbot.waitSignal(page.model_chosen) as chosen:
        page.detail.primary.click()
    assert chosen.args is not None and chosen.args[2] == settings


def test_what_is_not_supported_says_why_and_cannot_be_opened(
    qtbot: QtBot, store: SettingsStore
) -> None:
    reason = "mamba layers are not supported. Choose a decoder-only model."
    refused = Estimate(report(supported=False), problem=reason)
    page = page_for(qtbot, store, lambda config, in_use: refused)
    page.library.list.choose(starter_source())
    qtbot.waitUntil(lambda: reason in page.detail.card.verdict, timeout=5000)
    assert not page.inspector.can_open and page.detail.card.note == STARTER_NOTE


def test_a_fault_while_looking_is_shown_in_place(qtbot: QtBot, store: SettingsStore) -> None:
    def broken(config: EngineConfig, in_use: Held) -> Estimate:
        raise OSError(5, "Input/output error")

    page = page_for(qtbot, store, broken)
    page.library.list.choose(starter_source())
    qtbot.waitUntil(lambda: "Input/output error" in page.detail.card.verdict, timeout=5000)


def test_an_answer_that_comes_late_is_not_shown(qtbot: QtBot, store: SettingsStore) -> None:
    release = threading.Event()

    def slow(config: EngineConfig, in_use: Held) -> Estimate:
        if config.load_format == "dummy":
            release.wait(60)
            return Estimate(report(architecture="Late"), problem="late")
        return scripted(64 * GIB)(config, in_use)

    page = page_for(qtbot, store, slow)
    page.library.list.choose(shape_sources()[0])
    page.library.list.choose(starter_source())
    try:
        qtbot.waitUntil(lambda: page.inspector.can_open, timeout=5000)
    finally:
        release.set()
    qtbot.wait(100)
    assert page.detail.card.fact("Architecture") == "LlamaForCausalLM" and page.inspector.can_open
