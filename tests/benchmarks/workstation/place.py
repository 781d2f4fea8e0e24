"""The real window with the real engine in its thread, whose model is scripted: every step takes
as long as it is told to and the words are given. In folders of its own."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication

from app.link.engine_handle import SNAPSHOT_INTERVAL_MS
from app.main.application import Application
from app.main.garbage import GarbageCollector
from app.main.start import make_application
from app.paths import starter_model
from tests.benchmarks.gui_cases import script
from tests.benchmarks.workstation.meter import pause, wait_for

LOAD_S = 120.0
SIZE = (1600, 1000)


class Pace:
    """Seconds of one step of the scripted model; may be changed at any time."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s


@contextmanager
def folders() -> Iterator[Path]:
    """Chats and settings of the window go to a folder that goes away afterwards."""
    with tempfile.TemporaryDirectory() as name:
        os.environ["INFERDECK_DATA_DIR"] = os.environ["INFERDECK_CONFIG_DIR"] = name
        yield Path(name)


def long_model(folder: Path, length: int) -> Path:
    """The starter model with a context of `length` tokens: good for a scripted engine only."""
    made = folder / "long"
    shutil.copytree(starter_model(), made)
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = length
    (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return made


@contextmanager
def workstation(
    pace: Pace, text: str, model: Path | None = None, **settings: Any
) -> Iterator[Application]:
    """The window on the screen, the model loaded. `text` is what it writes, again and again."""
    from engine import EngineConfig, LLMEngine
    from engine.engine_thread import EngineThread

    def make_engine(config: EngineConfig, *callbacks: Any) -> LLMEngine:
        engine = LLMEngine(config, *callbacks)
        script(engine, text, lambda: pace.step_s)
        return engine

    def make_thread(on_event: Callable[[Any], None]) -> EngineThread:
        return EngineThread(
            on_event, snapshot_interval_s=SNAPSHOT_INTERVAL_MS / 1000, factory=make_engine
        )

    app = make_application()
    collector = GarbageCollector(app)  # as the program does: no other thread ends objects of Qt
    collector.start()
    application = Application(app, make_thread)
    application.window.resize(*SIZE)
    application.show()
    loaded: list[object] = []
    application.bridge.loaded.connect(loaded.append)
    given = {"num_threads": 1, "kv_cache_memory_bytes": 2**30, **settings}
    application.session.load(EngineConfig(model=str(model or starter_model()), **given))
    wait_for(lambda: bool(loaded), LOAD_S)
    pause(500)
    try:
        yield application
    finally:
        collector.stop()
        application.shutdown()
        QApplication.processEvents()


def show_all_docks(application: Application) -> None:
    """Every dock open and in view, none behind another."""
    window = application.window
    area, sides = window.dock_area, Qt.DockWidgetArea
    docks = [dock for dock, _ in window.dock_shortcuts if dock is not application.settings_dock]
    rows = (docks[: len(docks) // 2], docks[len(docks) // 2 :])
    for row in rows:
        area.addDockWidget(sides.BottomDockWidgetArea, row[0], Qt.Orientation.Vertical)
        for before, dock in pairwise(row):
            area.splitDockWidget(before, dock, Qt.Orientation.Horizontal)
    for dock in docks:
        dock.show()
    pause(200)
