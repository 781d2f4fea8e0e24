"""What is asked when the window is closed while a run is going on."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QPushButton, QVBoxLayout, QWidget

from app.features.quantize.fields import wrapped
from widgets.theme.theme import SPACE_3, SPACE_4, restyle


class LeaveDialog(QDialog):
    """Accepted: stop the run and leave."""

    def __init__(self, what: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Stop the run?")
        text = wrapped(
            "", f"{what} is still going on. Leaving stops it, and nothing of it is kept."
        )
        text.setMinimumWidth(360)
        buttons = QDialogButtonBox()
        self.stay = QPushButton("Keep running")
        self.leave = QPushButton("Stop and leave")
        restyle(self.leave, kind="danger")
        buttons.addButton(self.stay, QDialogButtonBox.ButtonRole.RejectRole)
        buttons.addButton(self.leave, QDialogButtonBox.ButtonRole.AcceptRole)
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        self.stay.setDefault(True)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        column.setSpacing(SPACE_3)
        column.addWidget(text)
        column.addWidget(buttons)


class LeaveGuard(QObject):
    """Asks, and closes the window itself when the answer is to leave; who closes it a second time
    while he is asked means it."""

    def __init__(self, stop: Callable[[], object], parent: QObject) -> None:
        super().__init__(parent)
        self._stop = stop
        self.dialog: LeaveDialog | None = None

    def may_close(self, what: str, window: QWidget) -> bool:
        """`what` is going on; nothing for no text."""
        if not what or self.dialog is not None:
            return True
        self.dialog = dialog = LeaveDialog(what, window)
        dialog.accepted.connect(lambda: self._leave(window))
        dialog.rejected.connect(self._stay)
        dialog.open()
        return False

    def _leave(self, window: QWidget) -> None:
        self._stop()
        window.close()

    def _stay(self) -> None:
        if self.dialog is not None:
            self.dialog.deleteLater()
        self.dialog = None
