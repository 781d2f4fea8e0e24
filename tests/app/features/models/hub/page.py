"""The Models page over a hub on this machine, and words for what a user does there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.features.models.downloads import DownloadQueue
from app.features.models.estimate import Estimate, Held, Need
from app.features.models.hub import Hub
from app.features.models.page import ModelsPage
from app.paths import starter_model
from app.storage.model_sources import ModelSource
from app.storage.trash import Trash
from app.window.settings_store import SettingsStore
from engine.config import EngineConfig
from tests.app.features.models.test_open_model import report

GIB = 2**30


def estimator(config: EngineConfig, in_use: Held) -> Estimate:
    """Everything is a model of 2 GiB in 16 bits, on a machine with 8 GiB free."""
    size = 2 if config.dtype == "float32" else 1
    length = config.max_model_len or 8192
    need = Need(length, "bfloat16", size * 2 * GIB, GIB // 8, length * 65536, 8 * GIB, 16 * GIB,
                8 * GIB)  # fmt: skip
    return Estimate(report(context_length=8192), need, fitting_len=length)


@pytest.fixture
def store(qtbot: QtBot) -> SettingsStore:
    return SettingsStore()


class Opened:
    """What the page asks of the session: `paths` are open, with whatever settings."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def is_open(self, path: str) -> bool:
        return path in self.paths

    def is_open_with(self, path: str, load_format: str, settings: Mapping[str, Any]) -> bool:
        return path in self.paths


@pytest.fixture
def opened() -> list[str]:
    """Paths of models that count as open."""
    return []


@pytest.fixture
def page(
    qtbot: QtBot, hub: Hub, store: SettingsStore, opened: list[str], tmp_path: Path
) -> Iterator[ModelsPage]:
    queue = DownloadQueue(hub, tmp_path / "downloads.json")
    trash = Trash(tmp_path / "trash.json")
    made = ModelsPage(store, queue, trash, hub, session=Opened(opened), estimator=estimator)
    qtbot.addWidget(made)
    made.resize(1000, 640)
    made.show()
    qtbot.waitUntil(lambda: not made.library._task.is_running, timeout=5000)
    yield made
    made.close_down()


def titles(page: ModelsPage) -> list[str]:
    return [source.title for source in page.library.list.sources]


def choose(qtbot: QtBot, page: ModelsPage, source: ModelSource) -> None:
    page.library.list.choose(source)
    qtbot.waitUntil(lambda: page.inspector.can_open, timeout=5000)


def search(qtbot: QtBot, page: ModelsPage, text: str) -> list[ModelSource]:
    page.show_hub()
    page.search.field.setText(text)
    qtbot.keyClick(page.search.field, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: not page.search._task.is_running, timeout=5000)
    return page.search.list.sources


def look(qtbot: QtBot, page: ModelsPage, repo_id: str) -> None:
    """Search for a model of the hub and wait for its buttons."""
    found = search(qtbot, page, repo_id)
    page.search.list.choose(next(s for s in found if s.title == repo_id))
    qtbot.waitUntil(lambda: page.inspector.estimate is not None, timeout=5000)


def download(qtbot: QtBot, page: ModelsPage, repo_id: str = "acme/tiny") -> ModelSource:
    """A model of the hub in the cache, as the list has it."""
    with qtbot.waitSignal(page.queue.finished, timeout=5000):
        page.queue.start(repo_id)
    qtbot.waitUntil(lambda: page.library.snapshot_of(repo_id) is not None, timeout=5000)
    found = page.library.snapshot_of(repo_id)
    assert found is not None
    return found


def own_model(folder: Path) -> Path:
    """A copy of the starter model in a folder of the user's."""
    shutil.copytree(starter_model(), folder)
    return folder
