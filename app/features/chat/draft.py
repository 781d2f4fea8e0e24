"""`Draft`: unsent text and files of each conversation, and the context they will take."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.features.chat.attachments import (
    Attachment,
    file_content,
    read_attachment,
)
from app.features.chat.context_use import (
    ContextUse,
    context_short,
    context_text,
    context_warning,
)
from app.features.chat.controller import ChatController
from app.features.chat.conversation import unanswered
from app.features.chat.token_counts import TokenCounts, message_parts
from app.link.tasks import run_task
from engine.errors import InferdeckError
from engine.units import bytes_text
from widgets.chat.composer import Composer
from widgets.chat.records import AttachmentRecord
from widgets.controls.notice import Notice

SAVE_DELAY_MS, SAVE_AT_LEAST_S = 500, 3.0
"""A draft is saved after a pause in typing, and at least at this interval."""


class Draft(QObject):
    """Fills `composer` and `notice`. `refused(text)`: why a file was not attached; "" clears it."""

    refused = Signal(str)

    def __init__(
        self, controller: ChatController, composer: Composer, notice: Notice, parent: QWidget
    ) -> None:
        super().__init__(parent)
        self._controller, self._window = controller, parent
        self._composer, self._notice = composer, notice
        self._kept: dict[str, list[Attachment]] = {}  # of the other conversations
        self._shown = controller.current
        composer.set_text(self._shown.draft)
        self.attachments: list[Attachment] = []
        self._refusal = self._warning = ""
        self.counts = TokenCounts(controller, self._counted, self)
        self._pause = QTimer(self, singleShot=True)
        self._pause.timeout.connect(self.keep)
        self._written_since = 0.0
        composer.input.textChanged.connect(self.counts.count_soon)
        composer.input.textChanged.connect(self._keep_soon)
        composer.input.files_given.connect(self.add_files)
        composer.attach_requested.connect(self.choose_files)
        composer.files.removed.connect(self.remove)
        self.counts.changed.connect(self._show_counts)

    # Text ------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Show the draft of the current conversation."""
        self.keep()
        self._kept[self._shown.id] = self.attachments
        self._shown = self._controller.current
        self.attachments = self._kept.pop(self._shown.id, [])
        self._composer.set_text(self._shown.draft)
        self._changed()

    def keep(self) -> None:
        self._pause.stop()
        self._controller.saver.save_draft(self._shown, self._composer.text)

    def _keep_soon(self) -> None:
        now = time.monotonic()
        if not self._pause.isActive():
            self._written_since = now
        if now - self._written_since < SAVE_AT_LEAST_S:
            self._pause.start(SAVE_DELAY_MS)

    def clear(self, left: str = "") -> None:
        """Clear the draft, which was sent; `left` remains as text."""
        self.attachments = []
        self._refuse("")
        self._composer.set_text(left)
        self._changed()

    def give_back(self, conversation_id: str, text: str, given: Sequence[Attachment]) -> None:
        """Restore text and files that could not be sent, before the current draft."""
        if conversation_id == self._shown.id:
            self._composer.set_text(_before(text, self._composer.text))
            self.attachments = [*given, *self.attachments]
            self._changed()
            return
        conversation = self._controller.conversation(conversation_id)
        if conversation is not None:
            self._controller.saver.save_draft(conversation, _before(text, conversation.draft))
            self._kept[conversation_id] = [*given, *self._kept.get(conversation_id, [])]

    # Files -------------------------------------------------------------------------------------

    def choose_files(self) -> QFileDialog:
        dialog = QFileDialog(self._window, "Attach text files")
        dialog.setFileMode(QFileDialog.FileMode.ExistingFiles)
        dialog.filesSelected.connect(self.add_files)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()
        return dialog

    def add_files(self, paths: Iterable[str]) -> None:
        """Read files in another thread, and attach those that are text."""
        chosen, conversation_id = [Path(path) for path in paths], self._shown.id
        self._refuse("")
        run_task(
            self,
            lambda: _read_all(chosen),
            lambda found: self._add(conversation_id, *found),
            lambda error: self._refuse(f"{error.cause} {error.remedy}".strip()),
        )

    def _refuse(self, text: str) -> None:
        if text or self._refusal:
            self._refusal = text
            self.refused.emit(text)

    def _add(self, conversation_id: str, found: list[Attachment], problems: list[str]) -> None:
        if conversation_id == self._shown.id:
            self.attachments = [*self.attachments, *found]
            self._changed()
        else:
            self._kept[conversation_id] = [*self._kept.get(conversation_id, []), *found]
        if problems:
            self._refuse(" ".join(problems))

    def remove(self, index: int) -> None:
        self.attachments = [a for i, a in enumerate(self.attachments) if i != index]
        self._changed()

    def _changed(self) -> None:
        self._show_files()
        self.counts.count()

    def _show_files(self) -> None:
        self._composer.set_attachments(
            [
                AttachmentRecord(a.name, f"{bytes_text(a.num_bytes)}{self._tokens_of(a)}", a.text)
                for a in self.attachments
            ]
        )

    def _tokens_of(self, attachment: Attachment) -> str:
        count = self.counts.known(file_content(attachment.name, attachment.text))
        return "" if count is None else f" · {count:,} tokens"

    # Context ---------------------------------------------------------------------------------

    @property
    def num_tokens(self) -> int:
        return self.use.draft

    def _unanswered(self) -> list[str]:
        controller = self._controller
        return [] if controller.is_busy else unanswered(controller.current.path())

    def _texts(self) -> list[str]:
        """Parts of the message as it would be sent."""
        current = self._controller.current
        files = [file_content(a.name, a.text) for a in self.attachments]
        return message_parts(current.path(), current.system_prompt, files, self._composer.text)

    def _counted(self) -> list[str]:
        return [*self._unanswered(), *self._texts()]

    def _show_counts(self) -> None:
        self._show_files()
        self.show_context()

    @property
    def use(self) -> ContextUse:
        used, limit = self._controller.context
        return self.counts.use(used, limit, self._unanswered(), self._texts())

    def may_send(self) -> bool:
        """Whether the message fits, as far as its tokens can be counted; else say so."""
        fits = not self.use.is_too_long
        if not fits:
            self.counts.count()
        return fits

    def show_context(self) -> None:
        use = self.use
        used, limit, unanswered = use.used, use.limit, use.unanswered
        role = "warning" if use.is_nearly_full else "small"
        self._composer.set_context(context_text(use), role, context_short(use))
        self._composer.meter.show_use((used or 0) + unanswered, use.draft, limit or 0)
        warning = "" if self._controller.is_busy else context_warning(use)
        if warning != self._warning:
            self._warning = warning
            self._notice.say(warning)
        self._composer.set_refusal(warning if use.is_too_long else "")


def _before(text: str, written: str) -> str:
    return f"{text}\n{written}" if written else text


def _read_all(paths: Sequence[Path]) -> tuple[list[Attachment], list[str]]:
    """(attachments, errors)."""
    found, problems = [], []
    for path in paths:
        try:
            found.append(read_attachment(path))
        except InferdeckError as error:
            problems.append(f"{error.cause} {error.remedy}".strip())
    return found, problems
