"""`LeaveGuard`: asks before the window closes during a job."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QMessageBox, QWidget

from widgets.theme.theme import restyle


class LeaveGuard(QObject):
    """Asks without blocking, and closes the window on confirmation; a second close while it asks
    confirms too."""

    def __init__(
        self, asks: Callable[[], bool], stop: Callable[[], object], loss: str, parent: QObject
    ) -> None:
        """asks: a preference. stop: the job. loss: what closing does: "Closing stops the job and
        discards the result."."""
        super().__init__(parent)
        self._asks, self._stop, self._loss = asks, stop, loss
        self.dialog: QMessageBox | None = None

    def may_close(self, what: str, window: QWidget) -> bool:
        """`what`: title of the running job; "" for none."""
        if not what or self.dialog is not None or not self._asks():
            return True
        self.dialog = dialog = QMessageBox(window)
        dialog.setWindowTitle("Stop the job?")
        dialog.setText(f"{what} is in progress. {self._loss}")
        stay = dialog.addButton("Keep running", QMessageBox.ButtonRole.RejectRole)
        leave = dialog.addButton("Stop and close", QMessageBox.ButtonRole.AcceptRole)
        restyle(leave, kind="danger")
        dialog.setDefaultButton(stay)
        leave.clicked.connect(lambda: self._leave(window))
        dialog.rejected.connect(self._stay)
        stay.clicked.connect(self._stay)
        dialog.open()
        return False

    def _leave(self, window: QWidget) -> None:
        self._stop()
        window.close()

    def _stay(self) -> None:
        if self.dialog is not None:
            self.dialog.deleteLater()
        self.dialog = None
