"""`Composer`: the input of a chat. Grows to eight lines; Enter sends, Shift+Enter adds a line."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QMimeData, Qt, Signal
from PySide6.QtGui import QFontMetricsF, QKeyEvent, QResizeEvent, QTextCursor
from PySide6.QtWidgets import QPlainTextEdit, QPushButton

from widgets.chat.attachments import AttachmentList
from widgets.chat.meters import ContextMeter, FittingLine
from widgets.chat.records import AttachmentRecord
from widgets.controls.buttons import IconButton
from widgets.controls.frames import FittedFrame
from widgets.controls.layouts import button, dressed, hbox, vbox
from widgets.controls.text import set_key_tip
from widgets.theme.fonts import scaled
from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, restyle, theme_notifier

LINES, LINES_IF_LOW = (2, 8), (1, 4)
"""Least and most lines of the input, and those in a low window."""
NARROW = 460
"""Width in pixels below which button labels are shortened, at the default text size."""
_HINTS = (
    "Message  (Enter: send, Shift+Enter: new line, Esc: stop)", "Message  (Enter: send)", "Message",
)  # fmt: skip


class Composer(FittedFrame):
    """The text stays after `send_requested(text)`. With an empty input, Ctrl+Enter regenerates and
    Up edits the last message."""

    send_requested = Signal(str)
    stop_requested = Signal()
    regenerate_requested = Signal()
    attach_requested = Signal()
    compare_requested = Signal(str)  # the text

    def __init__(self) -> None:
        super().__init__()
        self.files = AttachmentList()
        self.attach = IconButton("attach", "Attach text files", self.attach_requested.emit)
        set_key_tip(self.attach, "Attach text files", "chat.attach")
        tip = "Compare this prompt side by side"
        self.compare = IconButton(
            "compare", tip, lambda: self.compare_requested.emit(self.text.strip())
        )
        set_key_tip(self.compare, tip, "chat.compare")
        self.meter = ContextMeter()
        self._has_system_prompt = self._is_busy = False
        self._refusal = ""
        self.input = ComposerInput()
        self.input.send.connect(self.send)
        self.input.stop.connect(self.stop_requested)
        self.input.regenerate.connect(self.send_or_regenerate)
        self.input.textChanged.connect(lambda: self.set_busy(self._is_busy))
        self.setFocusProxy(self.input)
        self.context = FittingLine()
        name, tip = "System prompt", "Instructions sent before the first message"
        self.system_prompt = dressed(QPushButton(name), name, tip, kind="flat")
        self.sampling = dressed(QPushButton("Sampling"), tip="Sampling settings")
        set_icon(self.sampling, "tune")
        self._button = button("Send", self._button_pressed, kind="primary")
        self._sampling_name = "Sampling"
        self._foot = hbox(
            self.attach, self.compare, self.meter, (self.context, 1), self.system_prompt,
            self.sampling, self._button,
        )  # fmt: skip
        vbox(self.files, self.input, self._foot, of=self)
        self.set_busy(False)
        theme_notifier().changed.connect(self.fit)

    @property
    def text(self) -> str:
        return self.input.toPlainText()

    @property
    def is_empty(self) -> bool:
        """Whether there is neither text nor an attached file."""
        return not self.text.strip() and not self.files.records

    def set_attachments(self, records: Sequence[AttachmentRecord]) -> None:
        if list(records) != self.files.records:
            self.files.show_files(records)
            self.set_busy(self._is_busy)

    def set_text(self, text: str) -> None:
        self.input.setPlainText(text)
        self.input.moveCursor(QTextCursor.MoveOperation.End)

    def type(self, text: str) -> None:
        """Append text typed outside the input, and focus the input."""
        self.input.moveCursor(QTextCursor.MoveOperation.End)
        self.input.insertPlainText(text)
        self.input.setFocus()

    def set_busy(self, is_busy: bool) -> None:
        """While a reply is generated the button stops it."""
        is_other, self._is_busy = is_busy is not self._is_busy, is_busy
        tip = "Stop generating (Esc)" if is_busy else self._refusal or "Send (Enter)"
        dressed(self._button, tip, tip)
        self._button.setEnabled(is_busy or not (self.is_empty or self._refusal))
        if is_other:
            self.fit()

    def set_refusal(self, text: str) -> None:
        """Disable Send, with the reason as its tooltip; "" enables it."""
        if text != self._refusal:
            self._refusal = text
            self.set_busy(self._is_busy)

    def set_context(self, text: str, role: str = "small", short: str = "") -> None:
        """Show the context usage; `short` where `text` does not fit; `role` "warning" when nearly
        full."""
        self.context.show_lines(text, short, "")
        self.context.setToolTip(text)
        if self.context.property("role") != role:
            restyle(self.context, role=role)

    def fit(self) -> None:
        """In a narrow window hide the meter and shorten the longest label, then show icons only."""
        first = 1 if self.width() < scaled(NARROW) else 0
        fitting = (level for level in (first, 1, 2) if self._width_at(level) <= self.width())
        level = next(fitting, 2)
        for one, word in self._labels(level):
            one.setText(word)
        self.meter.setMaximumWidth(self._meter_width(level))

    def _labels(self, level: int) -> tuple[tuple[QPushButton, str], ...]:
        """Labels of the buttons, from the longest (0) to the shortest (2)."""
        names = ("Prompt", "Prompt: set") if level else ("System prompt", "System prompt: set")
        return (
            (self.system_prompt, names[self._has_system_prompt]),
            (self.sampling, self._sampling_name if level < 2 else ""),
            (self._button, "Stop" if self._is_busy else "Send"),
        )

    def _meter_width(self, level: int) -> int:
        return 0 if level else self.meter.sizeHint().width()

    def _width_at(self, level: int) -> int:
        """Minimum width with the labels of `level`."""
        width = self._foot.minimumSize().width()
        for one, word in self._labels(level):
            advance = one.fontMetrics().horizontalAdvance
            width += advance(word) - advance(one.text())
            if word and not one.text():
                width += SPACE_1  # between icon and word
        if not self.meter.isHidden():
            width += self._meter_width(level) - min(self._meter_width(0), self.meter.maximumWidth())
        return width

    def set_sampling_name(self, name: str) -> None:
        self._sampling_name = name
        dressed(self.sampling, f"Sampling settings: {name}", f"Sampling settings: {name}")
        self.fit()

    def set_system_prompt_used(self, is_used: bool) -> None:
        self._has_system_prompt = is_used
        self.fit()

    def send(self) -> None:
        """Like Enter. During a reply the text stays."""
        if not self.is_empty and not self._is_busy:
            self.send_requested.emit(self.text.strip())

    def send_or_regenerate(self) -> None:
        if self.is_empty:
            self.regenerate_requested.emit()
        else:
            self.send()

    def _button_pressed(self) -> None:
        if self._is_busy:
            self.stop_requested.emit()
        else:
            self.send()
        self.input.setFocus()


class ComposerInput(QPlainTextEdit):
    """Grows with its text. Enter sends, Ctrl+Enter regenerates, Escape stops, Up edits the last.
    `files_given(paths)`: dropped or pasted."""

    send = Signal()
    stop = Signal()
    regenerate = Signal()
    edit_last = Signal()
    files_given = Signal(list)

    def __init__(self) -> None:
        super().__init__(tabChangesFocus=True)
        self.setAccessibleName("Message")
        self._lines = LINES
        self.document().setDocumentMargin(SPACE_2)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        # after a change of the text, whose lines are not laid out yet then
        self.document().documentLayout().documentSizeChanged.connect(lambda size: self._fit())
        theme_notifier().changed.connect(self._fit)
        self._fit()

    def set_lines(self, lines: tuple[int, int]) -> None:
        """LINES or LINES_IF_LOW."""
        if lines != self._lines:
            self._lines = lines
            self._fit()

    def event(self, event: QEvent) -> bool:
        # before the shortcuts of the window: Ctrl+Enter also sends this text
        if (
            event.type() == QEvent.Type.ShortcutOverride
            and isinstance(event, QKeyEvent)
            and (event.key() == Qt.Key.Key_Escape or _is_return(event))
        ):
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.stop.emit()
        elif _is_return(event) and event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            self.regenerate.emit()
        elif _is_return(event) and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.send.emit()
        elif event.key() == Qt.Key.Key_Up and not self.toPlainText():
            self.edit_last.emit()
        else:
            super().keyPressEvent(event)

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        return bool(local_files(source)) or super().canInsertFromMimeData(source)

    def insertFromMimeData(self, source: QMimeData) -> None:
        """Dropped or pasted files are attached, text is inserted."""
        files = local_files(source)
        if files:
            self.files_given.emit(files)
        else:
            super().insertFromMimeData(source)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._fit()

    def _fit(self) -> None:
        """As high as the text, within limits. The document of a plain text edit counts lines."""
        least, most = self._lines
        lines = max(least, int(self.document().size().height()))
        shown = min(most, lines)
        height = shown * QFontMetricsF(self.font()).lineSpacing() + 2 * SPACE_2 + SPACE_3
        self.setFixedHeight(int(height))
        always, never = Qt.ScrollBarPolicy.ScrollBarAsNeeded, Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        self.setVerticalScrollBarPolicy(always if lines > most else never)
        # the longest hint that the lines have room for
        advance = self.fontMetrics().horizontalAdvance
        line = self.viewport().width() - 4 * SPACE_2  # it ends between words
        room = least * line
        fitting = (hint for hint in _HINTS if advance(hint) <= room)
        self.setPlaceholderText(next(fitting, _HINTS[-1]))


def local_files(source: QMimeData) -> list[str]:
    """Paths of dragged or copied files, where all are on this machine."""
    urls = source.urls()
    return [url.toLocalFile() for url in urls] if all(url.isLocalFile() for url in urls) else []


def _is_return(event: QKeyEvent) -> bool:
    return event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)


def is_text(event: QKeyEvent) -> bool:
    """Whether a key begins a text: a letter or sign, and no command."""
    commands = (
        Qt.KeyboardModifier.ControlModifier
        | Qt.KeyboardModifier.AltModifier
        | Qt.KeyboardModifier.MetaModifier
    )
    text = event.text()
    return text.isprintable() and bool(text.strip()) and not event.modifiers() & commands
