"""Shared by comparison and broadcast: `PromptView` and `ReplyView`."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QSignalBlocker, Qt, QTimer, Signal
from PySide6.QtGui import (
    QHideEvent,
    QKeyEvent,
    QShowEvent,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextOption,
)
from PySide6.QtWidgets import (
    QFrame,
    QPlainTextEdit,
    QSpinBox,
    QTextEdit,
    QWidget,
)

from app.features.compare.replies import Reply
from app.features.compare.requests import Broadcast
from app.features.compare.runner import ComparisonRunner
from widgets.controls.keys import LocalKeys
from widgets.controls.layouts import dressed, hbox, vbox
from widgets.controls.lines import ElidedLine
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, theme, theme_notifier

_LINE_HEIGHT = 125  # percent of the font's own
_EMPTY = "The reply appears here."


class ReplyView(QFrame):
    """A reply while it is generated: title, the subclass's widgets in `column`, text."""

    least_lines = 6
    """In view: a longer reply scrolls."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setProperty("panel", True)
        self.reply: Reply | None = None
        self.title = ElidedLine()
        self.head = hbox((self.title, 1))
        text = QTextEdit(readOnly=True, tabChangesFocus=True, placeholderText=_EMPTY)
        self.text = dressed(text, name, bare=True, ring=True)
        self.text.setFrameShape(QFrame.Shape.NoFrame)
        self.text.document().setDocumentMargin(0)
        self.text.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.text.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        margins = (SPACE_3, SPACE_2, SPACE_2, SPACE_2)
        self.column = vbox(self.head, (self.text, 1), of=self, spacing=SPACE_1, margins=margins)
        theme_notifier().changed.connect(self.restyle)
        self._fit()

    def restyle(self) -> None:
        self._fit()
        self.show_text()

    def _fit(self) -> None:
        line = self.text.fontMetrics().height() * _LINE_HEIGHT / 100
        self.text.setMinimumHeight(round(self.least_lines * line))

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


class PromptField(QPlainTextEdit):
    """`entered`: Ctrl+Enter, also where a command of the window has these keys."""

    entered = Signal()

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ShortcutOverride and _is_entered(event):
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if _is_entered(event):
            self.entered.emit()
        else:
            super().keyPressEvent(event)


def _is_entered(event: QEvent) -> bool:
    return (
        isinstance(event, QKeyEvent)
        and event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        and bool(event.modifiers() & Qt.KeyboardModifier.ControlModifier)
    )


class PromptView(QWidget):
    """Prompts and replies. Escape stops the run; `left` when there is none to stop."""

    left = Signal()

    def __init__(
        self,
        runs: Broadcast | ComparisonRunner,
        refresh: Callable[[], object],
        refresh_ms: int,
        on_return: Callable[[], object],
    ) -> None:
        """`runs`: the run to show. `refresh` is called meanwhile, `on_return` on Ctrl+Return."""
        super().__init__()
        self._runs = runs
        self._timer = QTimer(self, interval=refresh_ms)
        self._timer.timeout.connect(refresh)
        self.prompt = PromptField(tabChangesFocus=True)
        self.prompt.entered.connect(on_return)
        LocalKeys(self, {"Esc": self._leave})
        self.max_tokens = spin("Max tokens", "Max tokens per reply", 1, 8192, 128)
        self.max_tokens.setSuffix(" tokens")
        self.seed = spin("Seed", "Sampling seed", 0, 2**31 - 65, 0)
        self.seed.setPrefix("seed ")

    @property
    def is_running(self) -> bool:
        return self._runs.is_running

    def run_timer(self) -> None:
        """Refresh periodically while figures change and are seen."""
        is_wanted = self._runs.is_running and self.isVisible()
        if is_wanted != self._timer.isActive():
            (self._timer.start if is_wanted else self._timer.stop)()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.run_timer()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.run_timer()

    def _leave(self) -> None:
        if self._runs.is_running:
            self._runs.stop()
        else:
            self.left.emit()


def spin(name: str, tip: str, least: int, most: int, value: int) -> QSpinBox:
    return dressed(QSpinBox(minimum=least, maximum=most, value=value), name, tip)
