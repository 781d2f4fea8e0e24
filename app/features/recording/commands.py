"""Saving and opening recordings from the main window."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

import shiboken6
from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.features.recording import file
from app.features.recording.recorder import FlightRecorder
from app.features.recording.window import ReplayWindow
from app.link.tasks import run_task
from app.window.commands import Command
from app.window.notices import Notice, error_notice
from engine.errors import ErrorInfo
from engine.units import bytes_text, duration_text

_FILTER = f"Recordings (*{file.SUFFIX})"
_NOTICE = "recording"


class RecordingController(QObject):
    """Commands of recordings, and the windows of open ones."""

    notice = Signal(object)  # Notice

    def __init__(self, recorder: FlightRecorder, window: QWidget) -> None:
        super().__init__(window)
        self._recorder, self._window = recorder, window
        self.windows: list[ReplayWindow] = []

    def commands(self) -> list[Command]:
        return [
            Command(
                "flight.save", "Save recording…", self.ask_and_save, "File", "Ctrl+Shift+S",
                "download", "flight", is_enabled=lambda: not self._recorder.is_empty,
            ),
            Command(
                "flight.open", "Open recording…", self.ask_and_open, "File", "Ctrl+Alt+O",
                "play", "flight",
            ),
        ]  # fmt: skip

    # Saving ------------------------------------------------------------------------------------

    def ask_and_save(self) -> None:
        """Choose a file for the recorded steps, settings and machine."""
        path = Path.home() / f"{datetime.now():%Y-%m-%d-%H%M}{file.SUFFIX}"
        dialog = self._dialog("Save recording", path, self.save)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(file.SUFFIX.removeprefix("."))
        dialog.open()

    def save(self, path: Path) -> None:
        saved = partial(self._saved, path, self._recorder.seconds)
        self._recorder.save(path, saved, self._not_saved)

    def _saved(self, path: Path, seconds: float, size: int) -> None:
        self.notice.emit(
            Notice(
                _NOTICE,
                f"Recording saved ({duration_text(seconds)}, {bytes_text(size)}).",
                f"{path} contains steps, settings and machine info, but no chat text.",
                actions=(("Open", lambda: self.open(path)),),
            )
        )

    def _not_saved(self, error: ErrorInfo) -> None:
        self.notice.emit(error_notice(_NOTICE, "Cannot save the recording.", error))

    # Opening -----------------------------------------------------------------------------------

    def ask_and_open(self) -> None:
        dialog = self._dialog("Open recording", Path.home(), self.open)
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.open()

    def _dialog(self, title: str, path: Path, do: Callable[[Path], None]) -> QFileDialog:
        dialog = QFileDialog(self._window, title, str(path), _FILTER)
        dialog.fileSelected.connect(lambda chosen: do(Path(chosen)))
        dialog.finished.connect(dialog.deleteLater)
        return dialog

    def open(self, path: Path) -> None:
        """Read a recording in a thread, then show it in its own window."""
        run_task(self, lambda: file.read(path), self._show, self._not_opened)

    def _show(self, recording: file.Recording) -> None:
        window = ReplayWindow(recording)
        self.windows.append(window)
        window.closed.connect(lambda: self._forget(window))
        window.show()

    def _not_opened(self, error: ErrorInfo) -> None:
        self.notice.emit(error_notice(_NOTICE, "Cannot open the recording.", error))

    def _forget(self, window: ReplayWindow) -> None:
        if window in self.windows:
            self.windows.remove(window)
            window.deleteLater()

    def close(self) -> None:
        for window in list(self.windows):
            if shiboken6.isValid(window):
                window.close()
