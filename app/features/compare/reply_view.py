"""Shared by the comparison and broadcast windows: `PromptWindow` and `ReplyView`."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QSignalBlocker, QTimer, Signal
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
    QPlainTextEdit,
    QPushButton,
    QSpinBox,
    QTextEdit,
    QWidget,
)

from app.features.compare.replies import Reply
from app.features.compare.requests import Broadcast
from app.features.compare.runner import ComparisonRunner
from widgets.controls import layouts
from widgets.controls.layouts import dressed, hbox, vbox
from widgets.controls.lines import ElidedLine
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, theme, theme_notifier

SIZE = (1080, 760)
_LINE_HEIGHT = 125  # percent of the font's own
_EMPTY = "The reply appears here."


class ReplyView(QFrame):
    """A reply while it is generated: title, the subclass's widgets in `column`, text."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setProperty("panel", True)
        self.reply: Reply | None = None
        self.title = ElidedLine()
        self.head = hbox((self.title, 1))
        text = QTextEdit(readOnly=True, tabChangesFocus=True, placeholderText=_EMPTY)
        self.text = dressed(text, name, bare=True)
        self.text.setFrameShape(QFrame.Shape.NoFrame)
        self.text.document().setDocumentMargin(0)
        margins = (SPACE_3, SPACE_2, SPACE_2, SPACE_2)
        self.column = vbox(self.head, (self.text, 1), of=self, spacing=SPACE_1, margins=margins)
        theme_notifier().changed.connect(self.show_text)

    def parts(self, reply: Reply) -> list[tuple[str, str, str]]:
        """(text, theme colour, tooltip) of each part; the colour "accent" is a background."""
        return [(reply.text, "text", "")]

    def show_reply(self, reply: Reply | None) -> None:
        self.reply = reply
        self.show_text()

    def append(self, text: str) -> None:
        """Append text; keeps the end in view if it was."""
        bar = self.text.verticalScrollBar()
        follows = bar.value() == bar.maximum()
        self._insert(text, "text", "")
        if follows:
            bar.setValue(bar.maximum())

    def show_text(self) -> None:
        with QSignalBlocker(self.text):
            self.text.clear()
            spacing = QTextBlockFormat()
            kind = QTextBlockFormat.LineHeightTypes.ProportionalHeight
            spacing.setLineHeight(_LINE_HEIGHT, kind.value)
            QTextCursor(self.text.document()).setBlockFormat(spacing)
            for part in self.parts(self.reply) if self.reply is not None else ():
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
    """A window with prompts and replies, which are kept until it is closed. Escape first stops the
    run, then closes."""

    closed = Signal()

    def __init__(
        self,
        title: str,
        runs: Broadcast | ComparisonRunner,
        refresh: Callable[[], object],
        refresh_ms: int,
        on_return: Callable[[], object],
        parent: QWidget | None,
    ) -> None:
        """`runs`: the run to show. `refresh` is called meanwhile, `on_return` on Ctrl+Return."""
        super().__init__(parent)
        self.setWindowTitle(title)
        self.resize(*SIZE)
        self._runs, self._is_closed = runs, False
        self._timer = QTimer(self, interval=refresh_ms)
        self._timer.timeout.connect(refresh)
        self.prompt = QPlainTextEdit(tabChangesFocus=True)
        QShortcut(QKeySequence("Ctrl+Return"), self.prompt, on_return)
        self.max_tokens = spin("Max tokens", "Max tokens per reply", 1, 8192, 128)
        self.max_tokens.setSuffix(" tokens")
        self.seed = spin("Seed", "Sampling seed", 0, 2**31 - 65, 0)
        self.seed.setPrefix("seed ")

    def run_timer(self) -> None:
        """Refresh periodically while figures change."""
        is_wanted = self._runs.is_running and not self._is_closed
        if is_wanted != self._timer.isActive():
            (self._timer.start if is_wanted else self._timer.stop)()

    def closeEvent(self, event: QCloseEvent) -> None:
        self._is_closed = True  # engines are switched back without this window
        self._runs.stop()
        self.run_timer()
        super().closeEvent(event)
        self.closed.emit()

    def reject(self) -> None:
        if self._runs.is_running:
            self._runs.stop()
        else:
            self.close()


def button(text: str, do: Callable[[], object], tip: str = "", kind: str = "") -> QPushButton:
    made = layouts.button(text, do, tip, kind)
    made.setAutoDefault(False)
    return made


def spin(name: str, tip: str, least: int, most: int, value: int) -> QSpinBox:
    return dressed(QSpinBox(minimum=least, maximum=most, value=value), name, tip)
