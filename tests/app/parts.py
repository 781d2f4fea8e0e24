"""One page over a scripted engine thread, without the window around it: a fifth of its widgets.

For what a page does by itself. How it works with other pages, docks and commands is tested in the
window (`window_fixtures.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TypeVar

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.features.bench.page import BenchPage
from app.features.models.downloads import DownloadQueue
from app.features.models.estimate import estimate
from app.features.models.hub import Hub
from app.features.models.page import ModelsPage
from app.features.models.session import ModelSession
from app.features.runs.page import RunsPage
from app.features.runs.place import make_runs_page
from app.features.serve.page import ServerPage
from app.features.tune.engine_settings import EngineSettingsPanel
from app.link.bridge import EngineBridge
from app.link.engine_handle import ThreadFactory
from app.link.tasks import wait_for_tasks
from app.main.application import SHUTDOWN_S
from app.main.engine_status import feed_metrics
from app.main.main_window import FIRST_SIZE, MINIMUM_SIZE
from app.paths import downloads_file, trash_file
from app.storage.trash import Trash
from app.window.setting_specs import this_machine
from app.window.settings_store import SettingsStore
from tests.app.fakes import FakeEngineThread, Script
from widgets.live.metric_store import MetricStore
from widgets.plot.clock import RedrawClock
from widgets.theme.restyling import restyling
from widgets.theme.theme import apply_text_size, apply_theme

W = TypeVar("W", bound=QWidget)


class Parts:
    """Pages, each made when it is first asked for, and what they are made of."""

    def __init__(self, app: QApplication, make_thread: ThreadFactory) -> None:
        self.settings = SettingsStore()
        self.settings.preferences.bind("text_size", partial(apply_text_size, app))
        self.settings.preferences.bind("theme", partial(apply_theme, app))
        self.bridge = EngineBridge(make_thread)
        self.metrics = MetricStore()
        feed_metrics(self.metrics, self.bridge)
        self.session = ModelSession(self.bridge, self.settings)
        with restyling().put_off():
            self.engine_settings = EngineSettingsPanel(
                self.bridge, self.settings.profiles, this_machine(), times=self.settings,
                metrics=self.metrics,
            )  # fmt: skip
        self._widgets: list[QWidget] = [self.engine_settings]
        self.session.opening.connect(self.engine_settings.show_opening)
        self.session.opened.connect(self.engine_settings.show_model)

    def _keep(self, made: W) -> W:
        self._widgets.append(made)
        return made

    @cached_property
    def trash(self) -> Trash:
        return Trash(trash_file())

    @cached_property
    def models(self) -> ModelsPage:
        hub, in_use = Hub(), lambda: self.bridge.gives_back
        queue = DownloadQueue(hub, downloads_file())
        made = ModelsPage(self.settings, queue, self.trash, hub, in_use, self.session, estimate)
        return self._keep(made)

    @cached_property
    def runs(self) -> RunsPage:
        made = make_runs_page(
            self.bridge, self.settings, self.session, self.models, self.trash,
            self.engine_settings, lambda reply, side, model: None,
        )  # fmt: skip
        return self._keep(made)

    @cached_property
    def server(self) -> ServerPage:
        clock = RedrawClock()
        made = ServerPage(self.bridge, self.settings, self.session, self.metrics, clock)
        clock.setParent(made)
        return self._keep(made)

    @cached_property
    def bench(self) -> BenchPage:
        made = BenchPage(
            self.bridge, self.runs.book, self.engine_settings, (), self.server.bench_targets,
            self.settings,
        )  # fmt: skip
        return self._keep(made)

    def show(self, name: str) -> None:
        """The page of this attribute, as a window of its own."""
        with restyling().put_off():
            page: QWidget = getattr(self, name)
        page.setMinimumSize(*MINIMUM_SIZE)
        page.resize(*FIRST_SIZE)
        page.show()

    def shutdown(self) -> None:
        """As the program ends."""
        made = vars(self)
        if "bench" in made:
            self.bench.close_down(SHUTDOWN_S)
        if "runs" in made:
            self.runs.program_ends.emit()
            self.runs.close_down(SHUTDOWN_S)
        if "server" in made:
            self.server.close_down()
        for widget in self._widgets:
            widget.close()
        restyling().leave()
        self.bridge.shutdown(SHUTDOWN_S)
        if "models" in made:
            self.models.close_down()
        wait_for_tasks(1.0)
        self.settings.sync()
        for widget in reversed(self._widgets):
            widget.deleteLater()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


@contextmanager
def parts_over(app: QApplication, make_thread: ThreadFactory) -> Iterator[Parts]:
    """They are shut down whatever a check says of them."""
    made = Parts(app, make_thread)
    try:
        yield made
    finally:
        made.shutdown()


@pytest.fixture
def parts(
    qapp: QApplication, qtbot: QtBot, script: Script, request: pytest.FixtureRequest
) -> Iterator[Parts]:
    """A module that says OPENS gets them with this model open. It may have its own `script`."""
    with parts_over(qapp, lambda on_event: FakeEngineThread(on_event, script)) as made:
        if opens := getattr(request.module, "OPENS", ""):
            with qtbot.waitSignal(made.bridge.loaded, timeout=5000):
                made.session.open(opens)
        yield made
