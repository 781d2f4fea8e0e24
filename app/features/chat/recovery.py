"""Recovery from a chats file that cannot be written: replace it, or save a copy, before closing."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QLabel, QPushButton, QVBoxLayout, QWidget

from app.features.chat.file_actions import ChatTransfer
from app.features.chat.library import ChatLibrary
from app.storage import StorageError
from engine.errors import ErrorInfo
from widgets.theme.theme import SPACE_3, SPACE_4, restyle

REPLACE, COPY = "Start a new file", "Save a copy…"
QUESTION = (
    "This window has unsaved chats, because the chats file is damaged. Inferdeck can move the "
    "damaged file aside and save these chats in a new one."
)


def copy_question(problem: ErrorInfo | None, num_chats: int) -> str:
    """Why chats are not saved, and the remedy."""
    cause = problem.cause if problem is not None else "The chats file cannot be written."
    chats = "1 unsaved chat" if num_chats == 1 else f"{num_chats:,} unsaved chats"
    return f"This window has {chats}. {cause} Save a copy, and import it later (Chat > Import)."


class UnsavedDialog(QDialog):
    """`save`, `leave` without saving, or stay; Escape stays."""

    def __init__(self, text: str, save: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Save chats?")
        self.text = QLabel(text)
        self.text.setWordWrap(True)
        self.text.setTextFormat(Qt.TextFormat.PlainText)
        self.text.setMinimumWidth(400)
        buttons = QDialogButtonBox()
        self.save, self.leave = QPushButton(save), QPushButton("Close without saving")
        self.stay = QPushButton("Cancel")
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


class FileRecovery(QObject):
    """`say(text)` shows the result."""

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
        transfer.failed.connect(self._show_error)

    @property
    def is_possible(self) -> bool:
        return self._library.can_replace_file

    def begin(self) -> bool:
        """Replace the file. False where that failed; the error is shown."""
        try:
            aside = self._library.replace_file()
        except StorageError as error:
            self._say(f"{error.cause} {error.remedy}")
            return False
        self._say(f"Chats are saved again. The damaged file is now {aside.name}.")
        return True

    def may_close(self, window: QWidget) -> bool:
        """Ask where chats would be lost. A second attempt while the dialog is open closes."""
        unsaved = self._library.unsaved_chats
        if not unsaved or self.dialog is not None:
            return True
        if self.is_possible:
            self.dialog = dialog = UnsavedDialog(QUESTION, REPLACE, window)
            dialog.save.clicked.connect(lambda: self._save(window))
        else:
            text = copy_question(self._library.saver.problem, len(unsaved))
            self.dialog = dialog = UnsavedDialog(text, COPY, window)
            dialog.save.clicked.connect(
                lambda: self._transfer.save_copy(self._library.unsaved_chats, window.close)
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

    def _show_error(self, error: ErrorInfo) -> None:
        """Saving a copy failed: the dialog stays open."""
        if self.dialog is not None:
            self.dialog.text.setText(f"{error.cause} {error.remedy}")

    def _stay(self) -> None:
        if self.dialog is not None:
            self.dialog.deleteLater()
        self.dialog = None
