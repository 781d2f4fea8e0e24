"""Both replies to a prompt in two columns, with the first difference marked, and the prompts."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QGridLayout,
    QHeaderView,
    QLabel,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from app.features.compare.export import figures, pair_text
from app.features.compare.record import LEFT, RIGHT, SIDE_NAMES, SIDES, Comparison, PromptReplies
from app.features.compare.replies import Reply
from app.features.compare.reply_view import ReplyView
from widgets.controls.layouts import button, dressed, hbox, label, vbox
from widgets.controls.lines import ElidedLine
from widgets.controls.tables import FittedColumns, dress_table
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, figure_font, theme_notifier


class SideFigures(QWidget):
    """Names above values in a row, as many as fit from the left; the tooltip has all."""

    def __init__(self) -> None:
        super().__init__()
        self._cells: dict[str, tuple[QLabel, QLabel]] = {}
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(SPACE_2)
        self._grid.setVerticalSpacing(1)

    @property
    def values(self) -> dict[str, QLabel]:
        return {name: value for name, (_, value) in self._cells.items()}

    def show_value(self, name: str, text: str) -> None:
        if name not in self._cells:
            value = dressed(QLabel(), name)
            value.setFont(figure_font())
            place = len(self._cells)
            self._cells[name] = label(name, "small"), value
            for line, widget in enumerate(self._cells[name]):
                self._grid.addWidget(widget, line, place)
            self._grid.setColumnStretch(place, 1)
        self._cells[name][1].setText(text)
        self.setToolTip("\n".join(f"{one}: {value.text()}" for one, value in self.values.items()))
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def minimumSizeHint(self) -> QSize:
        return QSize(0, super().minimumSizeHint().height())

    def _fit(self) -> None:
        needed = 0
        for cell in self._cells.values():
            needed += max(one.sizeHint().width() for one in cell)
            for one in cell:
                one.setVisible(needed <= self.width())
            needed += SPACE_2


class SideColumn(ReplyView):
    """One side: precision, figures, and the reply to the chosen prompt. `continued(reply)`: by its
    button, as a chat."""

    continued = Signal(object)

    def __init__(self, side: int) -> None:
        super().__init__(f"{SIDE_NAMES[side].capitalize()} reply")
        tip = "Open a chat with this prompt and reply, with this side's model and precision"
        self.keep = button("Continue as chat", lambda: self.continued.emit(self.reply), tip, "link")
        self.keep.setAccessibleName(f"Continue the {SIDE_NAMES[side]} reply as chat")
        policy = self.keep.sizePolicy()
        policy.setRetainSizeWhenHidden(True)  # both sides stay in line
        self.keep.setSizePolicy(policy)
        self.head.addWidget(self.keep)
        self._side = side
        self._pair: PromptReplies | None = None
        self.figures = SideFigures()
        self.column.insertWidget(1, self.figures)

    def show_side(self, name: str, comparison: Comparison | None) -> None:
        self.title.set_text(name)
        for row in figures(comparison) if comparison is not None else ():
            self.figures.show_value(row[0], row[1 + self._side])

    def show_pair(self, pair: PromptReplies | None) -> None:
        self._pair = pair
        reply = pair.replies[self._side] if pair is not None else None
        self.show_reply(reply)
        self.keep.setVisible(reply is not None and not reply.stage.is_open and bool(reply.text))

    def parts(self, reply: Reply) -> list[tuple[str, str, str]]:
        """The identical part is muted, the first different token marked."""
        if self._pair is None:
            return []
        same, token, rest = self._pair.parts(self._side)
        muted = "text_muted" if self._pair.both is not None else "text"
        problem = f"\n{reply.problem}" if reply.text else reply.problem
        return [
            (same, muted, ""), (token, "accent", f"First difference: {token!r}"),
            (rest, "text", ""), (problem if reply.problem else "", "danger", ""),
        ]  # fmt: skip


class Columns(QWidget):
    """Both sides below the prompt and a line about their first difference.
    `continued(reply, side)`: as a chat."""

    continued = Signal(object, int)

    def __init__(self) -> None:
        super().__init__()
        self.sides = (SideColumn(LEFT), SideColumn(RIGHT))
        for place, side in enumerate(self.sides):
            side.continued.connect(lambda reply, place=place: self.continued.emit(reply, place))
        self.prompt, self.line = ElidedLine(), ElidedLine("text_muted")
        row = hbox(*((side, 1) for side in self.sides))
        vbox(self.prompt, self.line, (row, 1), of=self, spacing=SPACE_1)

    def show_comparison(self, names: Sequence[str], comparison: Comparison | None) -> None:
        for side, name in zip(self.sides, names, strict=True):
            side.show_side(name, comparison)

    def show_pair(self, pair: PromptReplies | None) -> None:
        """Show both replies to a prompt; None: no prompt is chosen."""
        prompt = " ".join(pair.prompt.shown.split()) if pair is not None else ""
        self.prompt.set_text(f"Prompt: {prompt}" if prompt else "")
        self.line.set_text(pair_text(pair) if pair is not None else "")
        for line in (self.prompt, self.line):
            line.setVisible(bool(line.text()))
        for side in self.sides:
            side.show_pair(pair)

    def append(self, reply: Reply, text: str) -> None:
        for side in self.sides:
            if side.reply is reply:
                side.append(text)


_COLUMNS = ("Prompt", "Identical", "Continuation (left)", "Continuation (right)")
_EXCERPT_WIDTH = 150
_EXCERPT = 40
LEAST_ROWS = 4
"""In view."""


class PromptTable(QTableWidget):
    """The prompts, with how much of their replies is identical. `chosen`: another row is
    selected."""

    chosen = Signal()

    def __init__(self) -> None:
        super().__init__(0, len(_COLUMNS))
        dress_table(self, "Prompts")
        self.setHorizontalHeaderLabels(_COLUMNS)
        self.setEditTriggers(QTableWidget.EditTrigger.NoEditTriggers)
        header = self.horizontalHeader()
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        header.setSectionResizeMode(1, QHeaderView.ResizeMode.ResizeToContents)
        FittedColumns(header, lambda: dict.fromkeys((2, 3), scaled(_EXCERPT_WIDTH)))
        header.geometriesChanged.connect(self.updateGeometry)  # taken after this one's fonts
        self.itemSelectionChanged.connect(self.chosen)
        self._take_fonts()
        theme_notifier().changed.connect(self._take_fonts)

    @property
    def chosen_row(self) -> int:
        """Index of the chosen prompt; -1 for none."""
        rows = self.selectionModel().selectedRows()
        return rows[0].row() if rows else -1

    def show_pairs(self, pairs: Sequence[PromptReplies]) -> None:
        """List the prompts; select the first unless one is selected."""
        self.setRowCount(len(pairs))
        for row, pair in enumerate(pairs):
            for column, text in enumerate(_texts(pair)):
                self._put(row, column, text)
        if pairs and self.chosen_row < 0:
            self.selectRow(0)

    def _put(self, row: int, column: int, text: str) -> None:
        item = self.item(row, column)
        if item is None:
            item = QTableWidgetItem()
            self.setItem(row, column, item)
        if item.text() != text:
            item.setText(text)
            item.setToolTip(text)

    def minimumSizeHint(self) -> QSize:
        head = self.horizontalHeader().sizeHint().height() + 2 * self.frameWidth()
        rows = LEAST_ROWS * self.verticalHeader().defaultSectionSize()
        return super().minimumSizeHint().expandedTo(QSize(0, head + rows))

    def _take_fonts(self) -> None:
        self.setFont(figure_font("small"))
        row = self.fontMetrics().height() + SPACE_2
        self.verticalHeader().setDefaultSectionSize(row)
        self.updateGeometry()


def _texts(pair: PromptReplies) -> tuple[str, str, str, str]:
    prompt = " ".join(pair.prompt.shown.split())
    if any(reply is not None and reply.problem for reply in pair.replies):
        left, right = (reply.problem if reply is not None else "" for reply in pair.replies)
        return prompt, "–", left, right
    share = pair.equal_share
    if share is None:
        ended = sum(pair.has_ended(side) for side in SIDES)
        return prompt, "1 of 2 replies" if ended else "queued", "", ""
    if pair.is_identical:
        return prompt, "all", "", ""
    left, right = (_excerpt(pair, side) for side in SIDES)
    return prompt, f"{100 * share:.0f} %", left, right


def _excerpt(pair: PromptReplies, side: int) -> str:
    """The text from the first difference onward."""
    _, token, rest = pair.parts(side)
    text = " ".join((token + rest)[: 2 * _EXCERPT].split())
    return text if len(text) <= _EXCERPT else text[:_EXCERPT].rstrip() + "…"
