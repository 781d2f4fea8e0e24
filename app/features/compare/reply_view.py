"""What the windows of a comparison and of a broadcast share: a prompt's window, a reply's view."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QSignalBlocker, QTimer, Signal, SignalInstance
from PySide6.QtGui import (
    QCloseEvent,
    QKeySequence,
    QShortcut,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
)
from PySide6.QtWidgets import (
    QDialog,
    QFrame,
    QHBoxLayout,
    QPlainTextEdit,
    QPushButton,
    QSpinBox,
    QTextEdit,
    QVBoxLayout,
    QWidget,
)

from app.features.compare.replies import Reply
from widgets.controls.lines import ElidedLine
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, theme, theme_notifier

SIZE = (1080, 760)
_LINE_HEIGHT = 125  # percent of the font's own
_EMPTY = "The reply appears here."

Parts = Callable[[Reply], list[tuple[str, str, str]]]
"""(text, colour of the theme, tooltip). "accent" is a background."""


def plain_parts(reply: Reply) -> list[tuple[str, str, str]]:
    return [(reply.text, "text", "")]


class ReplyView(QFrame):
    """A reply as it is generated: a title, what a subclass puts into `column`, the text."""

    def __init__(self, name: str, parts: Parts = plain_parts) -> None:
        super().__init__()
        self.setProperty("panel", True)
        self.reply: Reply | None = None
        self._parts = parts
        self.title = ElidedLine()
        self.head = QHBoxLayout()
        self.head.setSpacing(SPACE_2)
        self.head.addWidget(self.title, 1)
        self.text = QTextEdit()
        self.text.setReadOnly(True)
        self.text.setProperty("bare", True)
        self.text.setFrameShape(QFrame.Shape.NoFrame)
        self.text.setTabChangesFocus(True)
        self.text.setPlaceholderText(_EMPTY)
        self.text.document().setDocumentMargin(0)
        self.text.setAccessibleName(name)
        self.column = QVBoxLayout(self)
        self.column.setContentsMargins(SPACE_3, SPACE_2, SPACE_2, SPACE_2)
        self.column.setSpacing(SPACE_1)
        self.column.addLayout(self.head)
        self.column.addWidget(self.text, 1)
        theme_notifier().changed.connect(self.show_text)

    def show_reply(self, reply: Reply | None) -> None:
        self.reply = reply
        self.show_text()

    def append(self, text: str) -> None:
        """More of its text; the end stays in view where it was."""
        bar = self.text.verticalScrollBar()
        follows = bar.value() == bar.maximum()
        self._insert(text, "text", "")
        if follows:
            bar.setValue(bar.maximum())

    def show_text(self) -> None:
        """All of the text again."""
        with QSignalBlocker(self.text):
            self.text.clear()
            spacing = QTextBlockFormat()
            kind = QTextBlockFormat.LineHeightTypes.ProportionalHeight
            spacing.setLineHeight(_LINE_HEIGHT, kind.value)
            QTextCursor(self.text.document()).setBlockFormat(spacing)
            for part in self._parts(self.reply) if self.reply is not None else ():
                self._insert(*part)

    def _insert(self, text: str, color: str, tip: str) -> None:
        look, colors = QTextCharFormat(), theme()
        look.setToolTip(tip)
        if color == "accent":
            look.setBackground(colors.color("accent"))
            color = "accent_text"
        look.setForeground(colors.color(color))
        cursor = QTextCursor(self.text.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(text, look)


class PromptWindow(QDialog):
    """Kept until it is closed, replies and all. Escape stops what runs, and then closes."""

    closed = Signal()

    def __init__(self, title: str, refresh_ms: int, parent: QWidget | None) -> None:
        super().__init__(parent)
        self.setWindowTitle(title)
        self.resize(*SIZE)
        self._heard: list[tuple[SignalInstance, Callable[..., object]]] = []
        self._timer = QTimer(self)
        self._timer.setInterval(refresh_ms)
        self.prompt = QPlainTextEdit()
        self.prompt.setTabChangesFocus(True)
        self.max_tokens = spin("Max tokens", "Max tokens per reply", 1, 8192, 128)
        self.max_tokens.setSuffix(" tokens")
        self.seed = spin("Seed", "Seed of the sampling", 0, 2**31 - 65, 0)
        self.seed.setPrefix("seed ")
        self.start = button("", "")
        self.start.setProperty("kind", "primary")

    @property
    def is_running(self) -> bool:
        raise NotImplementedError

    def stop_replies(self) -> None:
        raise NotImplementedError

    def hear(self, signal: SignalInstance, slot: Callable[..., object]) -> None:
        """Connect them until the window is closed."""
        signal.connect(slot)
        self._heard.append((signal, slot))

    def on_return(self, do: Callable[[], object]) -> None:
        """`do` with Ctrl+Return in the prompt."""
        QShortcut(QKeySequence("Ctrl+Return"), self.prompt, do)

    def run_timer(self) -> None:
        """While there are figures that change."""
        if self.is_running != self._timer.isActive():
            (self._timer.start if self.is_running else self._timer.stop)()

    def closeEvent(self, event: QCloseEvent) -> None:
        for signal, slot in self._heard:  # engines are switched back without this window
            signal.disconnect(slot)
        self._heard.clear()
        self._timer.stop()
        self.stop_replies()
        super().closeEvent(event)
        self.closed.emit()

    def reject(self) -> None:
        if self.is_running:
            self.stop_replies()
        else:
            self.close()


def button(text: str, tip: str) -> QPushButton:
    made = QPushButton(text)
    made.setToolTip(tip)
    made.setAutoDefault(False)
    return made


def spin(name: str, tip: str, least: int, most: int, value: int) -> QSpinBox:
    made = QSpinBox()
    made.setRange(least, most)
    made.setValue(value)
    made.setAccessibleName(name)
    made.setToolTip(tip)
    return made
