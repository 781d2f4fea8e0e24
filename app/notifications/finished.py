"""Finished work goes to the history: whoever was elsewhere reads there what came of it."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject

from app.engine_bridge import EngineBridge
from app.models.downloads import DownloadQueue, State
from app.notifications.history import NoticeHistory
from app.panels.notices import Notice
from app.quantize.page import QuantizePage
from engine import messages

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
