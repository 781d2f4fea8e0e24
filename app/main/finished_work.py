"""Finished jobs in the notification history: loads, downloads, quantize runs, slow settings."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject

from app.features.models.downloads import DownloadQueue, State
from app.features.quantize.page import QuantizePage
from app.link.bridge import EngineBridge
from app.window.notices import Notice
from app.window.notification_history import NoticeHistory
from engine import messages

LONG_S = 2.0
"""Settings that apply faster are not listed."""


class FinishedWork(QObject):
    """Adds each finished job to the history. Failures that show as a notice arrive there as such.
    """

    def __init__(
        self,
        history: NoticeHistory,
        bridge: EngineBridge,
        queue: DownloadQueue,
        open_model: Callable[[str], object],
        quantize: QuantizePage,
        show_quantize: Callable[[], object],
        parent: QObject,
    ) -> None:
        """`open_model(path)`: offered for a finished download."""
        super().__init__(parent)
        self._history, self._queue, self._quantize = history, queue, quantize
        self._open_model, self._show_quantize = open_model, show_quantize
        self._failed: set[str] = set()  # a queue reports a failure more than once
        bridge.loaded.connect(self._on_loaded)
        bridge.reconfigured.connect(self._on_reconfigured)
        queue.finished.connect(self._on_downloaded)
        queue.changed.connect(self._on_download)
        quantize.run_over.connect(self._on_run)

    def _on_loaded(self, event: messages.Loaded) -> None:
        model, config = event.model, event.config
        text = f"{model.name} is loaded."
        self._history.add(Notice("loaded", text, f"{config.dtype} on {config.device}."))

    def _on_reconfigured(self, event: messages.Reconfigured) -> None:
        if event.seconds >= LONG_S:
            self._history.add(Notice("applied", f"Settings applied in {event.seconds:.1f} s."))

    def _on_downloaded(self, repo_id: str, path: str) -> None:
        self._failed.discard(repo_id)
        act = (("Open", lambda: self._open_model(path)),)
        self._history.add(Notice(repo_id, f"{repo_id} is downloaded.", path, actions=act))

    def _on_download(self, repo_id: str) -> None:
        download = self._queue.get(repo_id)
        error = download.error if download is not None else None
        if download is None or download.state is not State.FAILED or error is None:
            self._failed.discard(repo_id)
        elif repo_id not in self._failed:
            self._failed.add(repo_id)
            cause = f"Download of {repo_id} failed: {error.cause}"
            self._history.add(Notice(repo_id, cause, error.remedy, "error"))

    def _on_run(self) -> None:
        if self._quantize.ending is not None:
            text, is_error = self._quantize.ending
            actions = (("Show", self._show_quantize),)
            self._history.add(
                Notice("quantize", text, "", "error" if is_error else "info", actions=actions)
            )
