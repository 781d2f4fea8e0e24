"""Reasoning before an answer: found in the text, also while it streams, and its foldable block.

    <think>              Qwen3, DeepSeek: the reasoning is between the two marks
    so, 6 times 7 ...
    </think>
    The answer is 42.

Templates that contain the first mark (DeepSeek-R1) leave the second one alone: then all before it
is reasoning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QPoint, QRect, QRectF, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolButton, QWidget

from widgets.chat.message_text import MessageText
from widgets.controls.layouts import vbox
from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_1, SPACE_4, theme, theme_notifier

BEGIN, END = "<think>", "</think>"


class Reasoning(NamedTuple):
    """`is_open`: the reasoning has not ended. A text without any is all answer."""

    thought: str
    answer: str
    is_open: bool


def split_reasoning(text: str, grows: bool = False) -> Reasoning:
    """Reasoning and answer of a reply, without the marks and surrounding space. While the text
    `grows`, a prefix of the first mark is no answer yet."""
    start = len(text) - len(text.lstrip())
    begins = text.startswith(BEGIN, start)
    end = text.find(END)
    if not begins and end < 0:
        return Reasoning("", "" if grows and BEGIN.startswith(text[start:]) else text, False)
    inside = start + len(BEGIN) if begins else 0
    if end < 0:
        return Reasoning(_without_tail(text[inside:]).strip(), "", True)
    answer = text[end + len(END) :].lstrip()
    return Reasoning(text[inside:end].strip(), answer, False)


def without_reasoning(text: str) -> str:
    """The answer; the reasoning if there is none."""
    thought, answer, _ = split_reasoning(text)
    return answer if answer.strip() else thought


def _without_tail(text: str) -> str:
    """`text` without a suffix that may become the closing mark."""
    for length in range(len(END) - 1, 0, -1):
        if text.endswith(END[:length]):
            return text[:-length]
    return text


_BAR = 3  # pixels, at the left of the text


class ReasoningBlock(QWidget):
    """Expanded while the reasoning streams, folded when the answer begins, unless the user chose.
    Hidden without reasoning."""

    def __init__(self) -> None:
        super().__init__()
        self._shown = ""
        self._chosen: bool | None = None  # by the user
        beside = Qt.ToolButtonStyle.ToolButtonTextBesideIcon
        self.header = QToolButton(toolButtonStyle=beside)
        self.header.setCursor(Qt.CursorShape.PointingHandCursor)
        self.header.setToolTip("Show or hide reasoning")
        self.header.clicked.connect(lambda: self._choose(not self.is_unfolded))
        self.text = MessageText()
        self.text.setAccessibleName("Reasoning")
        body = vbox(self.text, margins=(SPACE_4, 0, 0, SPACE_1))
        vbox((self.header, 0, Qt.AlignmentFlag.AlignLeft), body, of=self, spacing=SPACE_1)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        theme_notifier().changed.connect(self.update)
        self.hide()

    @property
    def is_unfolded(self) -> bool:
        return not self.text.isHidden()

    def show_thought(self, thought: str, is_open: bool) -> None:
        """Show reasoning; `is_open`: it is still streaming."""
        if thought.startswith(self._shown):
            if thought != self._shown:
                self.text.append(thought[len(self._shown) :])
        else:
            self.text.set_markdown(thought)
        self._shown = thought
        if not is_open:
            self.text.render_now()
        self.text.set_caret(is_open)
        words = len(thought.split())
        count = "1 word" if words == 1 else f"{words:,} words"
        self.header.setText("Thinking" if is_open else f"Reasoning · {count}")
        self._fold(self._chosen if self._chosen is not None else is_open)
        self.setVisible(bool(thought) or is_open)

    def mark(self, words: Sequence[str], view: QWidget) -> QRect | None:
        """Mark `words`; unfold if any is found. Returns its rectangle in the coordinates of
        `view`."""
        place = self.text.mark(words)
        if place is None:
            return None
        self._choose(True)
        return place.translated(self.text.mapTo(view, QPoint()))

    def _choose(self, is_unfolded: bool) -> None:
        self._chosen = is_unfolded
        self._fold(is_unfolded)

    def _fold(self, is_unfolded: bool) -> None:
        set_icon(self.header, "chevron-down" if is_unfolded else "chevron-right")
        self.header.setAccessibleName(
            f"{self.header.text()}, {'expanded' if is_unfolded else 'folded'}"
        )
        self.text.setVisible(is_unfolded)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        if self.is_unfolded:
            painter = QPainter(self)
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme().color("border_strong"))
            area = self.text.geometry()
            painter.drawRoundedRect(QRectF(SPACE_1, area.top(), _BAR, area.height()), 1.5, 1.5)
            painter.end()
