"""`ChatTransfer`: exports and imports chats, with file dialogs, in another thread."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QFileDialog, QLabel, QWidget

from app.features.chat.controller import ChatController
from app.features.chat.files import Bundle, ChatFileError, collect, dump, keep, parse
from app.features.chat.markdown import as_markdown, from_markdown
from app.link.tasks import run_task
from app.storage import ChatStore, StorageError, StoredConversation, StoredMessage
from app.storage.chat_file import Renewed
from app.storage.json_file import write_whole
from engine.errors import CheckpointError, ErrorInfo, InferdeckError
from engine.json_file import read_regular
from engine.units import bytes_text
from widgets.controls.layouts import vbox
from widgets.theme.theme import SPACE_3, SPACE_4, restyle

JSON, MARKDOWN = "Chats with all branches (*.json)", "Current branch (*.md)"
IMPORTED, ALL = "Chats (*.json *.md)", "inferdeck-chats"
LARGEST_IMPORT = 512 * 2**20


def ask_for_file(
    parent: QWidget,
    title: str,
    filters: Sequence[str],
    chosen: Callable[[str], object],
    name: str | None = None,
    folder: str = "",
) -> QFileDialog:
    """Open a file dialog and pass the path to `chosen`. With a `name` it saves, else it opens a
    file."""
    dialog = QFileDialog(parent, title, folder)
    dialog.setNameFilters(list(filters))
    if name is None:
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
    else:
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(_suffix(filters[0]))
        dialog.filterSelected.connect(lambda kind: dialog.setDefaultSuffix(_suffix(kind)))
        dialog.selectFile(name)
    dialog.fileSelected.connect(chosen)
    dialog.finished.connect(dialog.deleteLater)
    dialog.open()
    return dialog


def _suffix(name_filter: str) -> str:
    """ "md" of "Text (*.md)"."""
    return name_filter.rpartition("*.")[2].rstrip(")")


class ChatTransfer(QObject):
    """`done(message)`, `failed(ErrorInfo)`: an export or an import has ended."""

    done = Signal(str)
    failed = Signal(object)

    def __init__(self, controller: ChatController, parent: QWidget) -> None:
        super().__init__(parent)
        self.controller, self._window = controller, parent

    # The dialogs -------------------------------------------------------------------------------

    def export_one(self, conversation_id: str) -> QFileDialog | None:
        """Ask for a file, then write one chat as JSON or markdown."""
        conversation = self.controller.conversation(conversation_id)
        if conversation is None or not conversation.is_stored:
            return None
        write = lambda path: self.write(path, [conversation_id])
        name = file_name(conversation.title)
        return ask_for_file(self._window, "Export chat", [JSON, MARKDOWN], write, name)

    def export_all(self) -> QFileDialog:
        """Ask for a file, then write every chat, also archived ones, as JSON."""
        ids = [c.id for c in (*self.controller.conversations, *self.controller.archived)]
        write = lambda path: self.write(path, ids)
        return ask_for_file(self._window, "Export all chats", [JSON], write, ALL)

    def save_copy(self, ids: Sequence[str], saved: Callable[[], object]) -> QFileDialog:
        """Ask for a file, then write these chats as JSON; `saved` is called after success."""
        write = lambda path: self.write(path, ids, saved)
        return ask_for_file(self._window, "Save chats", [JSON], write, ALL)

    def import_some(self) -> QFileDialog:
        return ask_for_file(self._window, "Import chats", [IMPORTED, "All files (*)"], self.read)

    # The work ----------------------------------------------------------------------------------

    def write(
        self, path: str, conversation_ids: Sequence[str], saved: Callable[[], object] = lambda: None
    ) -> None:
        """Write these chats to a file: markdown where its name ends in .md, else JSON. `saved` is
        called after success."""
        chosen = [self.controller.conversation(i) for i in conversation_ids]
        records = [c.record() for c in chosen if c is not None]
        store, file = self.controller.saved_store(), Path(path)
        newer = self.controller.unsaved_messages()

        def end(_: None) -> None:
            self.done.emit(f"Saved {_count(records)} to {file.name}.")
            saved()

        run_task(self, lambda: _write(store, records, newer, file), end, self.failed.emit)

    def read(self, path: str) -> None:
        store, file = self.controller.saved_store(), Path(path)

        def end(bundles: list[Bundle]) -> None:
            self.controller.add_imported([bundle.conversation for bundle in bundles])
            self.done.emit(f"Imported {_count(bundles)}.")

        run_task(self, lambda: _read(store, file), end, self.failed.emit)


def _count(chats: Sequence[object]) -> str:
    return "1 chat" if len(chats) == 1 else f"{len(chats):,} chats"


def file_name(title: str) -> str:
    """A title as a valid file name on any system."""
    words = re.sub(r'[<>:"/\\|?*\x00-\x1f]+', " ", title).split()
    return " ".join(words).strip(" .")[:80].rstrip(" .") or "chat"


def _write(
    store: ChatStore,
    records: Sequence[StoredConversation],
    newer: Sequence[StoredMessage],
    path: Path,
) -> None:
    """Atomic: an existing file is replaced once everything is written."""
    store.flush()
    bundles = [collect(store, record, newer) for record in records]
    is_markdown = path.suffix.lower() == ".md"
    text = "\n".join(map(as_markdown, bundles)) if is_markdown else dump(bundles)
    try:
        write_whole(path, text)
    except OSError as error:
        raise InferdeckError(
            f"Cannot write {path} ({error.strerror or error}, {bytes_text(len(text))}).",
            "Free disk space or choose another folder, then export again.",
        ) from error


def _read(store: ChatStore, path: Path) -> list[Bundle]:
    try:
        text = read_regular(path, LARGEST_IMPORT).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ChatFileError(
            f"{path.name} is not a chat export: invalid UTF-8 at byte {error.start:,}.",
            "Nothing was imported. Choose a file exported by Inferdeck.",
        ) from error
    except CheckpointError as error:
        raise ChatFileError(error.cause, "Nothing was imported.") from error
    is_markdown = path.suffix.lower() in (".md", ".markdown")
    # all of it, before the first is stored
    bundles = [from_markdown(text)] if is_markdown else parse(text)
    return [keep(store, bundle) for bundle in bundles]


REPLACE, COPY, RECOVER = "Save to new file", "Save a copy…", "Recover chats"
QUESTION = (
    "Chats in this window are unsaved because the chat file is damaged. Inferdeck can rename "
    "the damaged file and save these chats to a new one."
)


def copy_question(problem: ErrorInfo | None, num_chats: int) -> str:
    cause = problem.cause if problem is not None else "Cannot write the chat file."
    chats = "1 unsaved chat" if num_chats == 1 else f"{num_chats:,} unsaved chats"
    return f"{chats} in this window. {cause} Save a copy and import it later (Chat > Import)."


def _renewed_text(renewed: Renewed) -> str:
    saved = (
        f"Saved {_count(range(renewed.num_conversations))} to a new file (messages: "
        f"{renewed.num_messages:,})."
    )
    return saved if renewed.aside is None else f"{saved} The old file is now {renewed.aside.name}."


class UnsavedDialog(QDialog):
    """`save`, `leave` without saving, or stay; Escape stays."""

    def __init__(self, text: str, save: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Save chats?")
        self.text = QLabel(text, wordWrap=True, textFormat=Qt.TextFormat.PlainText)
        self.text.setMinimumWidth(400)
        buttons, roles = QDialogButtonBox(), QDialogButtonBox.ButtonRole
        self.stay = buttons.addButton("Cancel", roles.RejectRole)
        self.leave = buttons.addButton("Close without saving", roles.ActionRole)
        restyle(self.leave, kind="danger")
        self.save = buttons.addButton(save, roles.ActionRole)
        self.save.setDefault(True)
        buttons.rejected.connect(self.reject)
        margins = (SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        vbox(self.text, buttons, of=self, spacing=SPACE_3, margins=margins)


class FileRecovery(QObject):
    """`say(text)` shows the result."""

    def __init__(self, transfer: ChatTransfer, say: Callable[[str], object]) -> None:
        super().__init__(transfer)
        self._library, self._transfer, self._say = transfer.controller, transfer, say
        self.dialog: UnsavedDialog | None = None
        self._waiting: list[Callable[[bool], object]] = []  # for the end of what runs
        transfer.failed.connect(self._show_error)

    def begin(self, ended: Callable[[bool], object] = lambda is_saved: None) -> None:
        """Replace the file, then call `ended`; the result or the error is shown."""
        self._waiting.append(ended)
        if len(self._waiting) > 1:
            return

        def end(error: StorageError | None) -> None:
            waiting, self._waiting = self._waiting, []
            self._say(_renewed_text(renewed.result()) if error is None else str(error))
            for ended in waiting:
                ended(error is None)

        renewed = self._library.replace_file(end)

    def may_close(self, window: QWidget) -> bool:
        """Ask where chats would be lost. A second attempt while the dialog is open closes."""
        unsaved = self._library.unsaved_chats
        if not unsaved or self.dialog is not None:
            return True
        if self._library.can_replace_file:
            self.dialog = dialog = UnsavedDialog(QUESTION, REPLACE, window)
            dialog.save.clicked.connect(lambda: self._save(dialog, window))
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

    def _save(self, dialog: UnsavedDialog, window: QWidget) -> None:
        dialog.save.setEnabled(False)

        def end(is_saved: bool) -> None:
            if self.dialog is not dialog:
                return  # the user cancelled meanwhile
            if is_saved:
                window.close()
            else:
                dialog.reject()

        self.begin(end)

    def _show_error(self, error: ErrorInfo) -> None:
        """Saving a copy failed: the dialog stays open."""
        if self.dialog is not None:
            self.dialog.text.setText(f"{error.cause} {error.remedy}")

    def _stay(self) -> None:
        if self.dialog is not None:
            self.dialog.deleteLater()
        self.dialog = None
