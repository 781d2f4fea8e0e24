"""The file of the chats cannot be used: keep it aside and save what is written in its place, or,
where it is whole and another's, or its disk is full, save a copy of what was written; ask before it
is lost."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QLabel, QPushButton, QVBoxLayout, QWidget

from app.features.chat.file_actions import ChatTransfer
from app.features.chat.library import ChatLibrary
from app.storage import StorageError
from engine.errors import ErrorInfo
from widgets.theme.theme import SPACE_3, SPACE_4, restyle

BEGIN, COPY = "Keep it aside, begin anew", "Save a copy…"
QUESTION = (
    "What you wrote in this window is not saved: the file of the chats cannot be used. It can be "
    "kept aside, and a new one begun with these chats."
)


def copy_question(problem: ErrorInfo | None, num_chats: int) -> str:
    """Why it is not saved, and what can be done."""
    cause = problem.cause if problem is not None else "The file of the chats cannot be written."
    what, it = ("1 chat", "it") if num_chats == 1 else (f"{num_chats:,} chats", "them")
    return (
        f"What you wrote in this window, in {what}, is not saved. {cause} A copy of {it} can be "
        "saved as a file, which Chat > Import chats reads later."
    )


class UnsavedDialog(QDialog):
    """`save`, `leave` without saving, or stay; Escape stays."""

    def __init__(self, text: str, save: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Save the chats?")
        self.text = QLabel(text)
        self.text.setWordWrap(True)
        self.text.setTextFormat(Qt.TextFormat.PlainText)
        self.text.setMinimumWidth(400)
        buttons = QDialogButtonBox()
        self.save, self.leave = QPushButton(save), QPushButton("Leave without saving")
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

    def __init__(
        self,
        library: ChatLibrary,
        transfer: ChatTransfer,
        say: Callable[[str], object],
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._library, self._transfer, self._say = library, transfer, say
        self.dialog: UnsavedDialog | None = None
        transfer.failed.connect(self._say_in_dialog)

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
        written = self._library.only_here
        if not written or self.dialog is not None:
            return True
        if self.is_possible:
            self.dialog = dialog = UnsavedDialog(QUESTION, BEGIN, window)
            dialog.save.clicked.connect(lambda: self._save(window))
        else:
            text = copy_question(self._library.problem, len(written))
            self.dialog = dialog = UnsavedDialog(text, COPY, window)
            dialog.save.clicked.connect(
                lambda: self._transfer.save_copy(self._library.only_here, window.close)
            )
        dialog.leave.clicked.connect(lambda: window.close())
        dialog.rejected.connect(self._stay)
        dialog.open()
        return False

    def _save(self, window: QWidget) -> None:
        if self.begin():
            window.close()
        elif self.dialog is not None:
            self.dialog.reject()

    def _say_in_dialog(self, error: ErrorInfo) -> None:
        """A copy could not be saved: the question stays, with the reason."""
        if self.dialog is not None:
            self.dialog.text.setText(f"{error.cause} {error.remedy}")

    def _stay(self) -> None:
        if self.dialog is not None:
            self.dialog.deleteLater()
        self.dialog = None
