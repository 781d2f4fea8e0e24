"""One message of a transcript: the user's in a bubble, a reply with its figures below."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QEvent, QObject, QPoint, QRect, Qt, Signal, SignalInstance
from PySide6.QtGui import QEnterEvent, QMouseEvent, QResizeEvent, QTextCursor
from PySide6.QtWidgets import QFrame, QSizePolicy, QToolButton, QWidget

from widgets.chat.attachments import SentFiles
from widgets.chat.composer import ComposerInput
from widgets.chat.marks import with_marks
from widgets.chat.message_text import MessageText
from widgets.chat.meters import FiguresLine
from widgets.chat.reasoning import Reasoning, ReasoningBlock, split_reasoning, without_reasoning
from widgets.chat.records import MessageRecord
from widgets.controls.buttons import CopyButton, IconButton, QuietButton
from widgets.controls.kept_focus import tab_through
from widgets.controls.layouts import STRETCH, Label, button, dressed, hbox, vbox, wrapped
from widgets.controls.text import set_key_tip
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, figure_font, restyle

BUBBLE_SHARE = 0.76
"""A user's message takes at most this share of the column."""
CONTINUE = "Continue"
_HINT = "Generates a new reply. This version is kept."


class MessageRequests(QObject):
    """User requests about any message. All except `link`, `file` and `typed` carry its id."""

    edit = Signal(str, str)  # id, new text
    edit_begun = Signal(str)
    edit_typed = Signal(str)
    edit_ended = Signal(str)
    regenerate = Signal(str)
    continue_reply = Signal(str)
    version = Signal(str, int)  # id, -1 or +1
    pressed = Signal(str)  # a reply, anywhere
    latency = Signal(str)
    tokens = Signal(str)
    branches = Signal(str)
    link = Signal(str)
    file = Signal(object, QWidget)  # AttachmentRecord, the button
    typed = Signal(str)  # where nothing takes text


class MessageView(QWidget):
    """Base of both kinds. `requests`: shared by the transcript."""

    def __init__(self, record: MessageRecord, requests: MessageRequests | None = None) -> None:
        super().__init__()
        self.record = record
        self.requests = requests or MessageRequests(self)
        self.text = MessageText()
        self.text.link_activated.connect(self.requests.link)
        self.versions = VersionSwitcher(
            lambda step: self.requests.version.emit(self.record.id, step),
            self._ask(self.requests.branches),
        )
        self._copy = CopyButton("Copy message", self.copied)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)

    def _ask(self, request: SignalInstance) -> Callable[[], None]:
        """A slot that emits `request` with the id of this message."""
        return lambda: request.emit(self.record.id)

    def mark(self, words: Sequence[str]) -> QRect | None:
        """Mark `words`; the rectangle of the first, in this view's coordinates, or None."""
        place = self.text.mark(words)
        return None if place is None else place.translated(self.text.mapTo(self, QPoint()))

    def copied(self) -> str:
        """The text to copy: without reasoning, with the note on a line below."""
        note = f"\n\n[{self.record.note}]" if self.record.note else ""
        return without_reasoning(self.record.text) + note

    def show_record(self, record: MessageRecord) -> None:
        """Show everything but the text, which `append` extends."""
        self.record = record
        if record.num_versions > 1 or not self.versions.isHidden():
            self.versions.show_version(record.version, record.num_versions)


class UserMessageView(MessageView):
    """Plain text in a bubble; edited in place."""

    def __init__(self, record: MessageRecord, requests: MessageRequests | None = None) -> None:
        super().__init__(record, requests)
        self.text.setAccessibleName("Your message")
        self._bubble = dressed(QFrame(), bubble="user")
        vbox(self.text, of=self._bubble, margins=(SPACE_3, SPACE_2, SPACE_3, SPACE_2))
        self._edit = QuietButton("edit", "Edit and resend", self.begin_edit)
        self._copy.is_lit = False
        self._editor: MessageEditor | None = None
        self._parts = QWidget()
        middle = Qt.AlignmentFlag.AlignVCenter
        beside = ((widget, 0, middle) for widget in (self._edit, self._copy, self.versions))
        hbox(STRETCH, *beside, SPACE_1, self._bubble, of=self._parts, spacing=SPACE_1)
        self.text.set_plain(record.text)
        self._bubble.setVisible(bool(record.text))
        self._column = vbox(self._parts, of=self, spacing=-1, margins=(0, SPACE_3, 0, 0))
        if record.attachments:
            files = SentFiles(record.attachments, self.requests.file.emit)
            self._column.addWidget(files, 0, Qt.AlignmentFlag.AlignRight)
        self.show_record(record)

    @property
    def is_editing(self) -> bool:
        return self._editor is not None

    def begin_edit(self) -> None:
        if self._editor is not None:
            self._editor.setFocus()
            return
        self._editor = MessageEditor(self.record.text)
        self._editor.accepted.connect(lambda text: self.requests.edit.emit(self.record.id, text))
        self._editor.input.textChanged.connect(self._ask(self.requests.edit_typed))
        self._editor.cancelled.connect(self.end_edit)
        self._column.addWidget(self._editor)
        self._editor.show()
        self._editor.setFocus()  # first: hiding the focused button would scroll to the next one
        self._parts.hide()
        self.requests.edit_begun.emit(self.record.id)

    def end_edit(self) -> None:
        if self._editor is not None:
            self._parts.show()
            self._edit.setFocus()
            self._column.removeWidget(self._editor)
            self._editor.hide()
            self._editor.deleteLater()
            self._editor = None
            self.requests.edit_ended.emit(self.record.id)

    @property
    def edited_text(self) -> str:
        return self._editor.text if self._editor is not None else self.record.text

    def set_refusal(self, text: str) -> None:
        """Why the open editor cannot send, or ""."""
        if self._editor is not None:
            self._editor.set_refusal(text)

    def enterEvent(self, event: QEnterEvent) -> None:
        super().enterEvent(event)
        self._light(True)

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self._light(False)

    def _light(self, is_lit: bool) -> None:
        for one in (self._edit, self._copy):
            one.is_lit = is_lit
            one.update()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        beside = [w for w in (self._edit, self._copy, self.versions) if not w.isHidden()]
        free = self.width() - sum(w.sizeHint().width() + SPACE_1 for w in beside) - SPACE_1
        limit = max(120, min(int(self.width() * BUBBLE_SHARE), free)) - 2 * SPACE_3 - 2
        self.text.setFixedWidth(self.text.ideal_width(limit))


class AssistantMessageView(MessageView):
    """Markdown, then a line with state or figures, and buttons."""

    def __init__(self, record: MessageRecord, requests: MessageRequests | None = None) -> None:
        super().__init__(record, requests)
        self.text.setAccessibleName("Reply")
        self.reasoning: ReasoningBlock | None = None  # of a reply that has some
        self._answer = ""  # shown by `text`
        self._error: ErrorBox | None = None  # of a reply that failed
        self._status = FiguresLine()
        ask = self._ask
        self._regenerate = IconButton("regenerate", "Regenerate", ask(self.requests.regenerate))
        self.continue_reply = IconButton("play", CONTINUE, ask(self.requests.continue_reply))
        self.continue_reply.setText(CONTINUE)
        self.continue_reply.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.latency = IconButton("benchmark", "Latency", ask(self.requests.latency))
        self.latency.setCheckable(True)
        set_key_tip(self.latency, "Inspect reply", "chat.latency")
        self.text.pressed.connect(ask(self.requests.pressed))
        self.tokens = IconButton(
            "tokens", "Tokens: probabilities, alternatives, branches", ask(self.requests.tokens)
        )
        details = (self.versions, self.latency, self.tokens)
        buttons = (*details, self._copy, self.continue_reply, self._regenerate)
        foot = hbox((self._status, 1), *buttons, spacing=SPACE_1)
        self._column = vbox(of=self, spacing=SPACE_1)
        self._show_reasoning(self._parts())  # comes first, also for the Tab key
        self._column.addWidget(self.text)
        self._column.addLayout(foot)
        self.show_record(record)

    def append(self, text: str) -> None:
        self.record = self.record._replace(text=self.record.text + text)
        self._show_text()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        super().mousePressEvent(event)
        self.requests.pressed.emit(self.record.id)

    def mark(self, words: Sequence[str]) -> QRect | None:
        found = super().mark(words)
        return self.reasoning.mark(words, self) if self.reasoning and not found else found

    def _parts(self) -> Reasoning:
        """Reasoning and answer; `is_open` while more reasoning is coming."""
        record = self.record
        text = with_marks(record.text, record.marks) if record.marks else record.text
        if "<" not in text:  # the marks of reasoning begin with it
            return Reasoning("", text, False)
        found = split_reasoning(text, record.is_open)
        return found._replace(is_open=found.is_open and record.is_open)

    def _show_text(self) -> None:
        """Extend the displayed reasoning and answer."""
        parts = self._parts()
        self._show_reasoning(parts)
        answer, is_answering = parts.answer, self.record.is_open and not parts.is_open
        if answer.startswith(self._answer):
            if answer != self._answer:
                self.text.append(answer[len(self._answer) :])
        else:  # the first text has turned out to be reasoning
            self.text.set_markdown(answer)
        self._answer = answer
        self.text.set_caret(is_answering)
        self.text.setVisible(bool(answer) or is_answering)

    def _show_reasoning(self, parts: Reasoning) -> None:
        if self.reasoning is None and (parts.thought or parts.is_open):
            self.reasoning = self._make_reasoning()
        if self.reasoning is not None:
            self.reasoning.show_thought(parts.thought, parts.is_open)

    def _make_reasoning(self) -> ReasoningBlock:
        """Above the answer, also for the Tab key."""
        made = ReasoningBlock()
        made.text.link_activated.connect(self.requests.link)
        self._column.insertWidget(0, made)
        tab_through(self.previousInFocusChain() or self, made.header, made.text)
        return made

    def show_record(self, record: MessageRecord) -> None:
        super().show_record(record)
        self._show_text()
        if not record.is_open:
            self.text.render_now()
        if self._error is None and record.error is not None:
            self._error = ErrorBox()
            self._column.insertWidget(self._column.count() - 1, self._error)
        if self._error is not None:
            self._error.show_error(record.error)
        self._status.show_line(record.status or record.figures)
        self._status.setToolTip(record.details)
        self._status.setAccessibleDescription(record.details)
        self.latency.setVisible(record.has_latency)
        self.tokens.setVisible(record.has_tokens)
        self._regenerate.setEnabled(not record.is_open)
        is_cut = record.not_continued is not None and not record.is_open
        self.continue_reply.setVisible(is_cut)
        if is_cut:
            self.continue_reply.setEnabled(not record.not_continued)
            if record.not_continued:
                self.continue_reply.setToolTip(f"{CONTINUE}: {record.not_continued}")
            else:
                set_key_tip(self.continue_reply, CONTINUE, "chat.continue")
        self._copy.setEnabled(bool(record.text))


class VersionSwitcher(QWidget):
    """ "2 / 3" between two arrows; opens the branches. Hidden, and empty, for a single version."""

    def __init__(self, step: Callable[[int], object], show_branches: Callable[[], object]) -> None:
        super().__init__()
        self._step, self._show_branches = step, show_branches
        self.hide()

    def _fill(self) -> None:
        self._before = IconButton("chevron-left", "Previous version", lambda: self._step(-1))
        self._after = IconButton("chevron-right", "Next version", lambda: self._step(1))
        self._label = QToolButton()
        self._label.setFont(figure_font("small"))
        set_key_tip(self._label, "Branches", "chat.branches")
        self._label.setCursor(Qt.CursorShape.PointingHandCursor)
        self._label.clicked.connect(lambda: self._show_branches())
        hbox(self._before, self._label, self._after, of=self, spacing=0)

    def show_version(self, version: int, count: int) -> None:
        if self.layout() is None:
            self._fill()
        self._label.setText(f"{version} / {count}")
        self._label.setAccessibleName(f"Version {version} of {count}: show branches")
        self._before.setEnabled(version > 1)
        self._after.setEnabled(version < count)
        self.setVisible(count > 1)


class ErrorBox(QFrame):
    """Cause and remedy, in place of the reply."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("notice", "error")
        self._cause, self._remedy = (
            Label(
                wordWrap=True, textFormat=Qt.TextFormat.PlainText,
                textInteractionFlags=Qt.TextInteractionFlag.TextSelectableByMouse,
            )
            for _ in range(2)
        )  # fmt: skip
        self._remedy.setProperty("role", "muted")
        margins = (SPACE_3, SPACE_2, SPACE_3, SPACE_2)
        vbox(self._cause, self._remedy, of=self, spacing=SPACE_1, margins=margins)
        self.hide()

    def show_error(self, error: tuple[str, str] | None) -> None:
        cause, remedy = error or ("", "")
        self._cause.setText(cause)
        self._remedy.setText(remedy)
        self._remedy.setVisible(bool(remedy))
        self.setVisible(error is not None)


class MessageEditor(QWidget):
    """Edits a message in place. Ctrl+Enter or Enter sends, Escape cancels."""

    accepted = Signal(str)
    cancelled = Signal()

    def __init__(self, text: str) -> None:
        super().__init__()
        self.input = ComposerInput()
        self.input.setAccessibleName("Edit message")
        self.input.setPlainText(text)
        self.input.moveCursor(QTextCursor.MoveOperation.End)
        self.input.send.connect(self._accept)
        self.input.regenerate.connect(self._accept)
        self.input.stop.connect(self.cancelled)
        self.setFocusProxy(self.input)
        self._hint = wrapped("small", _HINT)
        cancel = button("Cancel", self.cancelled.emit)
        self._send = button("Send", self._accept, kind="primary")
        vbox(self.input, hbox((self._hint, 1), cancel, self._send, spacing=-1), of=self)

    @property
    def text(self) -> str:
        return self.input.toPlainText().strip()

    def set_refusal(self, text: str) -> None:
        """Disable Send and show the reason; "" enables it."""
        if self._hint.text() != (text or _HINT):
            self._hint.setText(text or _HINT)
            restyle(self._hint, role="warning" if text else "small")
            self._send.setEnabled(not text)

    def _accept(self) -> None:
        if self.text:
            self.accepted.emit(self.text)
