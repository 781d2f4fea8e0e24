"""The window as the user has set it: what settings, layout and notifications want of its parts."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication

from app.engine_bridge import EngineBridge
from app.main_window import MainWindow
from app.notifications.finished import FinishedWork
from app.pages import Pages
from app.preferences.effects import Effects
from widgets.text_size import apply_text_size


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
