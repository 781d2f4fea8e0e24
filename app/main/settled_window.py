"""The window as the user has set it: what settings, layout and notifications want of its parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication

from app.features.models.downloads import DownloadQueue, State
from app.features.quantize.page import QuantizePage
from app.link.bridge import EngineBridge
from app.main.main_window import MainWindow
from app.main.pages import Pages
from app.window.notices import Notice
from app.window.notification_history import NoticeHistory
from app.window.program_settings import Effects
from engine import messages
from widgets.theme.text_size import apply_text_size

LONG_S = 2.0
"""Applied settings that took less are nobody's news."""


class FinishedWork(QObject):
    """Models that were loaded, downloads, runs of the Quantize page, settings that took long. What
    failed and is shown as a notice is in the history by that."""

    def __init__(self, history: NoticeHistory, bridge: EngineBridge, parent: QObject) -> None:
        super().__init__(parent)
        self._history = history
        bridge.loaded.connect(self._on_loaded)
        bridge.reconfigured.connect(self._on_reconfigured)

    def follow_downloads(self, queue: DownloadQueue, open_model: Callable[[str], object]) -> None:
        """`open_model(path)` is offered for what has arrived."""
        told: set[str] = set()  # of failures: a queue tells of one more than once

        def finished(repo_id: str, path: str) -> None:
            told.discard(repo_id)
            act = (("Open", lambda: open_model(path)),)
            self._history.add(Notice(repo_id, f"{repo_id} is downloaded.", path, actions=act))

        def changed(repo_id: str) -> None:
            download = queue.get(repo_id)
            error = download.error if download is not None else None
            if download is None or download.state is not State.FAILED or error is None:
                told.discard(repo_id)
            elif repo_id not in told:
                told.add(repo_id)
                cause = f"{repo_id} was not downloaded: {error.cause}"
                self._history.add(Notice(repo_id, cause, error.remedy, "error"))

        queue.finished.connect(finished)
        queue.changed.connect(changed)

    def follow_runs(self, page: QuantizePage, show_page: Callable[[], object]) -> None:
        """Quantizing and measuring."""

        def over() -> None:
            if page.ending is not None:
                text, is_error = page.ending
                kind = "error" if is_error else "info"
                notice = Notice("quantize", text, "", kind, actions=(("Show", show_page),))  # type: ignore[arg-type]
                self._history.add(notice)

        page.run_over.connect(over)

    def _on_loaded(self, event: messages.Loaded) -> None:
        model, config = event.model, event.config
        text = f"{model.name} is loaded."
        self._history.add(Notice("loaded", text, f"{config.dtype} on {config.device}."))

    def _on_reconfigured(self, event: messages.Reconfigured) -> None:
        if event.seconds >= LONG_S:
            self._history.add(Notice("applied", f"Settings were applied in {event.seconds:.1f} s."))


class SettledWindow(QObject):
    """Keeps the window so as long as it lives. What goes before there is a window, such as the
    theme, the application sees to."""

    def __init__(
        self, effects: Effects, bridge: EngineBridge, window: MainWindow, pages: Pages
    ) -> None:
        super().__init__(window)
        self._window, self._preferences = window, window.settings.preferences
        for charts in (window.charts, pages.tune.charts):
            effects.bind("chart_span", charts.set_window)
            charts.window_changed.connect(self._keep_span)
        effects.bind("confirm_links", partial(setattr, pages.chat_page, "asks_about_links"))
        effects.bind("confirm_leave", partial(setattr, pages.quantize, "asks_to_leave"))
        effects.follow("model_folders", lambda folders: pages.models.library.reload())
        effects.bind("notices_kept", window.history.set_limit)
        effects.bind("notice_seconds", window.notices.set_info_seconds)
        self.finished = FinishedWork(window.history, bridge, self)
        self.finished.follow_downloads(pages.models.queue, pages.models.open_downloaded)
        self.finished.follow_runs(pages.quantize, partial(window.show_widget, pages.quantize))
        effects.follow("text_size", lambda percent: window.layouts.leave_text_size())
        window.layouts.text_size_changed.connect(self._take_text_size)
        self._take_text_size()

    def _keep_span(self, seconds: float) -> None:
        """Chosen in the menu of a chart."""
        self._preferences.set("chart_span", round(seconds))

    def _take_text_size(self) -> None:
        """That of the layout in force, else that of the settings."""
        app = QApplication.instance()
        assert isinstance(app, QApplication)
        own = self._window.layouts.text_size
        apply_text_size(app, own or self._preferences.get("text_size"))
