"""`Draft`: unsent text and files of each conversation, and the context they will take."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from app.features.chat.attachments import (
    Attachment,
    file_content,
    read_attachment,
)
from app.features.chat.controller import ChatController
from app.link.tasks import run_task
from engine.errors import InferdeckError
from engine.messages import TokensCounted
from engine.units import bytes_text
from widgets.chat.composer import Composer
from widgets.chat.records import AttachmentRecord
from widgets.controls.notice import Notice

COUNT_DELAY_MS = 300
SAVE_DELAY_MS, SAVE_AT_LEAST_S = 500, 3.0
"""A draft is saved after a pause in typing, and at least at this interval."""
COUNTED, COUNTED_PER_TOKEN = 2**16, 8
"""Characters that are tokenized, in all and per token of the context: a text that may fit is
counted whole, the count of longer ones is extrapolated."""
PER_TOKEN = 4
"""Characters per token, where no tokenizer is loaded."""


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
        self._counts: dict[str, int] = {}  # text -> tokens, of what is here
        self._asked: dict[str, str] = {}  # key -> text
        self._uncounted: set[str] = set()  # texts that this engine cannot count
        self._keys = itertools.count()
        self._later = QTimer(self, singleShot=True, interval=COUNT_DELAY_MS)
        self._later.timeout.connect(self.count)
        self._pause = QTimer(self, singleShot=True)
        self._pause.timeout.connect(self.keep)
        self._written_since = 0.0
        composer.input.textChanged.connect(self._later.start)
        composer.input.textChanged.connect(self._keep_soon)
        composer.input.files_given.connect(self.add_files)
        composer.attach_requested.connect(self.choose_files)
        composer.files.removed.connect(self.remove)
        controller.engine.tokens_counted.connect(self._counted)
        controller.engine.state_changed.connect(lambda state: self._forget_counts())

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
        self.count()

    def _show_files(self) -> None:
        self._composer.set_attachments(
            [
                AttachmentRecord(a.name, f"{bytes_text(a.num_bytes)}{self._tokens_of(a)}", a.text)
                for a in self.attachments
            ]
        )

    def _tokens_of(self, attachment: Attachment) -> str:
        count = self._counts.get(file_content(attachment.name, attachment.text))
        return "" if count is None else f" · {count:,} tokens"

    # Context ---------------------------------------------------------------------------------

    @property
    def num_tokens(self) -> int:
        return sum(map(self._estimate, self._texts()))

    def _estimate(self, text: str) -> int:
        return self._counts.get(text, len(text) // PER_TOKEN + 1)

    def _unanswered(self) -> list[str]:
        controller = self._controller
        return [] if controller.is_busy else controller.current.unanswered()

    def _texts(self) -> list[str]:
        """Parts of the message as it would be sent."""
        files = [file_content(a.name, a.text) for a in self.attachments]
        written = self._composer.text.strip()
        before = "" if self._controller.current.messages else self._controller.current.system_prompt
        if not files and not written:
            return []
        return [text for text in (*files, written, before.strip()) if text]

    def count(self) -> None:
        """Ask the engine for missing token counts."""
        texts = list(dict.fromkeys([*self._unanswered(), *self._texts()]))
        self._counts = {text: n for text, n in self._counts.items() if text in texts}
        self._uncounted &= set(texts)
        self._asked.clear()
        for text in texts:
            if text not in self._counts and text not in self._uncounted:
                key = f"draft-{next(self._keys)}"
                self._asked[key] = text
                self._controller.engine.count_tokens(key, text[: self._num_counted])
        self.show_context()

    @property
    def _num_counted(self) -> int:
        """Characters of a text that are tokenized at most."""
        return max(COUNTED, COUNTED_PER_TOKEN * (self._controller.context[1] or 0))

    def _counted(self, event: TokensCounted) -> None:
        text = self._asked.pop(event.key, None)
        if text is None:
            return
        if event.num_tokens is None:
            self._uncounted.add(text)
        else:
            counted = min(len(text), self._num_counted)
            self._counts[text] = round(event.num_tokens * len(text) / counted)
            self._show_files()
        self.show_context()

    def _forget_counts(self) -> None:
        """Discard token counts: another model has another tokenizer."""
        self._counts.clear()
        self._uncounted.clear()
        self.count()

    @property
    def use(self) -> ContextUse:
        used, limit = self._controller.context
        most = self._controller.current.sampling.max_tokens
        texts = self._unanswered()
        counts = [(self._estimate(text), text) for text in texts]
        longest = max(counts, default=(0, ""))
        return ContextUse(
            used, self.num_tokens, limit, most, sum(n for n, _ in counts), *longest,
            is_guess=not self._uncounted.isdisjoint((*texts, *self._texts())),
        )  # fmt: skip

    def may_send(self) -> bool:
        """Whether the message fits, as far as its tokens can be counted; else say so."""
        fits = not self.use.is_too_long
        if not fits:
            self.count()
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


NEARLY = 0.9
"""Share of the context that counts as nearly full."""
SHORT_REPLY = 256
"""With fewer tokens left, a reply is likely to be cut off."""
SHOWN = 40
"""Characters by which a message is named."""
_REMEDY = "Shorten the message, start a new chat, or increase the context length."


class ContextUse(NamedTuple):
    """Tokens: `used` by the conversation (None: unknown), `draft`, `limit` of the model,
    `max_tokens` of a reply, `unanswered`: in messages after the last reply, sent again; the longest
    of them has `longest` tokens and this text. `is_guess`: the engine cannot count them."""

    used: int | None = None
    draft: int = 0
    limit: int | None = None
    max_tokens: int | None = None
    unanswered: int = 0
    longest: int = 0
    longest_text: str = ""
    is_guess: bool = False

    @property
    def total(self) -> int:
        return (self.used or 0) + self.estimated

    @property
    def estimated(self) -> int:
        """Tokens that no prompt has counted yet."""
        return self.unanswered + self.draft

    @property
    def is_stuck(self) -> bool:
        """Whether even the shortest message does not fit."""
        return bool(
            self.unanswered and self.limit and (self.used or 0) + self.unanswered >= self.limit
        )

    @property
    def is_too_long(self) -> bool:
        """Whether the engine would refuse the message."""
        return bool(self.draft and self.limit and self.total >= self.limit and not self.is_guess)

    @property
    def room(self) -> int | None:
        return None if self.limit is None else self.limit - self.total

    @property
    def is_nearly_full(self) -> bool:
        return self.limit is not None and self.total > NEARLY * self.limit


def _beginning(text: str) -> str:
    words = " ".join(text[: 2 * SHOWN].split())
    return words if len(words) <= SHOWN else words[:SHOWN].rstrip() + "…"


def context_text(use: ContextUse) -> str:
    draft = f" + ~{use.estimated:,}" if use.estimated else ""
    if use.limit is None:
        return "" if use.used is None else f"context: {use.used:,}{draft} tokens"
    if use.used is None:
        whole = f"{use.limit:,} tokens"
        return f"context: ~{use.estimated:,} of {whole}" if use.estimated else f"context: {whole}"
    return f"context: {use.used:,}{draft} of {use.limit:,} tokens"


def context_short(use: ContextUse) -> str:
    """The same in a narrow window."""
    return "" if use.limit is None else f"{use.total:,} / {use.limit:,}"


def context_warning(use: ContextUse) -> str:
    """What would be refused or cut off, or ""."""
    if use.limit is None or use.room is None:
        return ""
    if use.is_stuck:
        others = (use.used or 0) + use.unanswered - use.longest
        beside = f" beside {others:,} of other messages" if use.longest < use.limit else ""
        return (
            f"The earlier message “{_beginning(use.longest_text)}” is too long: about "
            f"{use.longest:,} tokens{beside}; the context length is {use.limit:,}. Edit it, start "
            "a new chat, or increase the context length."
        )
    if use.draft and use.room <= 0:
        return (
            f"The prompt is too long: about {use.total:,} tokens. Prompt and reply share a "
            f"{use.limit:,}-token context. {_REMEDY}"
        )
    if use.room <= 0:
        return f"The context is full: {use.total:,} of {use.limit:,} tokens. {_REMEDY}"
    if use.max_tokens is not None and use.draft and use.room < use.max_tokens:
        return (
            f"About {use.room:,} tokens left for the reply (max tokens: {use.max_tokens:,}). "
            f"It may be truncated. {_REMEDY}"
        )
    if use.room < SHORT_REPLY and use.is_nearly_full:
        return f"About {use.room:,} tokens left: the reply may be truncated. {_REMEDY}"
    return ""
