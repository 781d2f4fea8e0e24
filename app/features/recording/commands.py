"""Saving and opening recordings from the main window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import shiboken6
from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.features.models.deletion import Deletion
from app.features.recording import file
from app.features.recording.panel import RecordingsPanel
from app.features.recording.recorder import FlightRecorder
from app.features.recording.shelf import StoredRecording, new_path, stored
from app.features.recording.window import ReplayWindow
from app.link.tasks import LatestTask, run_task
from app.storage.trash import Trash
from app.window.commands import Command
from app.window.notices import Notice, error_notice
from engine.errors import ErrorInfo
from engine.units import bytes_text, duration_text

_FILTER = f"Recordings (*{file.SUFFIX})"
_NOTICE = "recording"


class RecordingController(QObject):
    """Commands of recordings, and the windows of open ones."""

    notice = Signal(object)  # Notice

    def __init__(
        self, recorder: FlightRecorder, panel: RecordingsPanel, trash: Trash, folder: Path,
        window: QWidget,
    ) -> None:
        """`folder`: of the recordings in the panel's list; `trash`: for deleted ones."""
        super().__init__(window)
        self._recorder, self._panel, self._folder, self._window = recorder, panel, folder, window
        self.windows: list[ReplayWindow] = []
        self._listing = LatestTask(self)
        self._deletion = Deletion(trash, panel.toast, self)
        self._deletion.changed.connect(self.reload)
        self._deletion.failed.connect(self._not_deleted)
        panel.state = self._state
        panel.shown.connect(self.reload)
        panel.save_wanted.connect(self.save_last)
        panel.file_wanted.connect(self.ask_and_open)
        panel.open_wanted.connect(lambda one: self.open(one.path))
        panel.delete_wanted.connect(self.delete)
        recorder.begun.connect(panel.show_state)

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

    def save(self, path: Path, seconds: float | None = None) -> None:
        """Save the last `seconds`, or everything."""
        if not self._recorder.is_empty:
            self._recorder.save(path, partial(self._saved, path), self._not_saved, seconds)

    def save_last(self, seconds: float | None) -> None:
        """Save to the list of recordings."""
        try:
            path = new_path(self._folder, datetime.now())
        except OSError as error:
            remedy = f"Check the permissions of {self._folder}."
            self._not_saved(ErrorInfo(f"{error.strerror or error}.", remedy))
        else:
            self.save(path, seconds)

    def _saved(self, path: Path, seconds: float, size: int) -> None:
        self.reload()
        length = f"{duration_text(seconds)}, {bytes_text(size)}"
        if path.parent == self._folder and self._panel.isVisible():
            self._panel.toast.show_message(f"Recording saved ({length}).")
            return
        self.notice.emit(
            Notice(
                _NOTICE,
                f"Recording saved ({length}).",
                f"{path} contains steps, settings and machine info, but no chat text.",
                actions=(("Open", lambda: self.open(path)),),
            )
        )

    def _not_saved(self, error: ErrorInfo) -> None:
        self.notice.emit(error_notice(_NOTICE, "Cannot save the recording.", error))

    # The list ----------------------------------------------------------------------------------

    def _state(self) -> str:
        recorder = self._recorder
        return "" if recorder.is_empty else f"{duration_text(recorder.seconds)} recorded"

    def reload(self) -> None:
        """Read the folder in a thread."""
        if self._panel.isVisible():
            self._listing.run(
                lambda: stored(self._folder), self._panel.show_recordings, self._not_deleted
            )

    def delete(self, recordings: Sequence[StoredRecording]) -> None:
        """Move them to the trash and offer Undo for some seconds."""
        names = recordings[0].path.name
        self._deletion.delete([one.path for one in recordings], lambda count: names)

    def _not_deleted(self, error: ErrorInfo) -> None:
        self._panel.toast.show_message(f"{error.cause} {error.remedy}".strip())

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
        self._deletion.close()
        for window in list(self.windows):
            if shiboken6.isValid(window):
                window.close()
