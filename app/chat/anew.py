"""The file of the chats cannot be used: keep it aside, and save what is written in its place."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QLabel, QPushButton, QVBoxLayout, QWidget

from app.chat.library import ChatLibrary
from app.storage import StorageError
from widgets.theme import SPACE_3, SPACE_4, restyle

BEGIN = "Keep it aside, begin anew"
QUESTION = (
    "What you wrote in this window is not saved: the file of the chats cannot be used. It can be "
    "kept aside, and a new one begun with these chats."
)


class UnsavedDialog(QDialog):
    """`save`, `leave` without saving, or stay; Escape stays."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Save the chats?")
        self.text = QLabel(QUESTION)
        self.text.setWordWrap(True)
        self.text.setTextFormat(Qt.TextFormat.PlainText)
        self.text.setMinimumWidth(400)
        buttons = QDialogButtonBox()
        self.save, self.leave = QPushButton(BEGIN), QPushButton("Leave without saving")
        self.stay = QPushButton("Stay")
        restyle(self.leave, kind="danger")
        roles = QDialogButtonBox.ButtonRole
        buttons.addButton(self.stay, roles.RejectRole)
        buttons.addButton(self.leave, roles.ActionRole)
        buttons.addButton(self.save, roles.ActionRole)
        buttons.rejected.connect(self.reject)
        self.save.setDefault(True)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        column.setSpacing(SPACE_3)
        column.addWidget(self.text)
        column.addWidget(buttons)


class BeginAnew(QObject):
    """`say(text)` shows what came of it."""

    def __init__(self, library: ChatLibrary, say: Callable[[str], object], parent: QObject) -> None:
        super().__init__(parent)
        self._library, self._say = library, say
        self.dialog: UnsavedDialog | None = None

    @property
    def is_possible(self) -> bool:
        return self._library.can_begin_anew

    def begin(self) -> bool:
        """Do it; False where it failed, and said why."""
        try:
            aside = self._library.begin_anew()
        except StorageError as error:
            self._say(f"{error.cause} {error.remedy}")
            return False
        self._say(f"Chats are saved again. The file of before is kept as {aside.name}.")
        return True

    def may_close(self, window: QWidget) -> bool:
        """Ask where chats would be lost; who closes the window a second time while he is asked
        means it."""
        if not (self.is_possible and self._library.has_any) or self.dialog is not None:
            return True
        self.dialog = dialog = UnsavedDialog(window)
        dialog.save.clicked.connect(lambda: self._save(window))
        dialog.leave.clicked.connect(lambda: window.close())
        dialog.rejected.connect(self._stay)
        dialog.open()
        return False

    def _save(self, window: QWidget) -> None:
        if self.begin():
            window.close()
        elif self.dialog is not None:
            self.dialog.reject()

    def _stay(self) -> None:
        if self.dialog is not None:
            self.dialog.deleteLater()
        self.dialog = None
