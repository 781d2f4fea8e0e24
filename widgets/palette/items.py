"""Fuzzy search of commands, and the list that shows the matches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from PySide6.QtCore import (
    QAbstractListModel,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QRect,
    QRectF,
    QSize,
    Qt,
)
from PySide6.QtGui import QFontMetrics, QPainter, QTextCharFormat
from PySide6.QtWidgets import QStyle, QStyledItemDelegate, QStyleOptionViewItem

from widgets.controls.lines import marked_line
from widgets.plot.text import TextPen
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_4, theme, theme_notifier, ui_font


class Match(NamedTuple):
    """Text `number` matches; `marks` are the (start, end) of what was found in it."""

    number: int
    marks: tuple[tuple[int, int], ...]


def search(query: str, texts: Sequence[str]) -> list[Match]:
    """The texts in which every word of `query` is found, the best first, equals in their order.

    A word is found at the beginning of a word of the text, inside one, or as letters in order
    ("gch" in "Regenerate chat"): in this order, and early before late. No query finds everything.
    """
    words = query.lower().split()
    found: list[tuple[tuple[int, int], Match]] = []
    for index, text in enumerate(texts):
        places = [_find(word, text) for word in words]
        if None in places:
            continue
        known = [place for place in places if place is not None]
        rank = (sum(p.rank for p in known), sum(p.marks[0][0] for p in known))
        marks = sorted(mark for place in known for mark in place.marks)
        found.append((rank, Match(index, tuple(_joined(marks)))))
    found.sort(key=lambda entry: entry[0])
    return [match for _, match in found]


class _Place(NamedTuple):
    rank: int  # 0: a word begins with it; 1: inside a word; 2: letters in order
    marks: list[tuple[int, int]]


def _find(word: str, text: str) -> _Place | None:
    # one letter at a time keeps positions: lower() of some letters is longer than they are
    folded = "".join(letter.lower() if len(letter.lower()) == 1 else letter for letter in text)
    starts = [i for i in range(len(folded)) if folded.startswith(word, i)]
    for start in starts:
        if start == 0 or not folded[start - 1].isalnum():
            return _Place(0, [(start, start + len(word))])
    if starts:
        return _Place(1, [(starts[0], starts[0] + len(word))])
    marks, position = [], 0
    for letter in word:
        position = folded.find(letter, position)
        if position < 0:
            return None
        marks.append((position, position + 1))
        position += 1
    return _Place(2, marks)


def _joined(marks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted marks, with those that touch or overlap made one."""
    joined: list[tuple[int, int]] = []
    for start, end in marks:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


Index = QModelIndex | QPersistentModelIndex
ROW = Qt.ItemDataRole.UserRole


class Entry(NamedTuple):
    """A command: where in the menus it stands, its shortcut in this platform's words, whether
    it is possible now and switched on, and why it is not possible, where there is a reason to tell.
    """

    id: str
    text: str
    where: str
    shortcut: str = ""
    is_enabled: bool = True
    is_checked: bool = False
    why_not: str = ""


class Row(NamedTuple):
    entry: Entry
    marks: tuple[tuple[int, int], ...]


class EntryModel(QAbstractListModel):
    """The entries that were found, in their order."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._rows: list[Row] = []

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's signature
        return 0 if parent.isValid() else len(self._rows)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row = self._rows[index.row()]
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return row.entry.text
            case Qt.ItemDataRole.AccessibleTextRole:
                why_not = row.entry.why_not or "unavailable"
                state = "" if row.entry.is_enabled else f", {why_not}"
                return ", ".join(filter(None, row.entry[1:4])) + state
            case Qt.ItemDataRole.ToolTipRole:
                return row.entry.why_not or None
            case Qt.ItemDataRole.UserRole:
                return row
        return None

    def flags(self, index: Index) -> Qt.ItemFlag:
        if not index.isValid() or not self._rows[index.row()].entry.is_enabled:
            return Qt.ItemFlag.NoItemFlags
        return Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable

    def entry(self, row: int) -> Entry:
        return self._rows[row].entry

    def show_matches(self, entries: Sequence[Entry], matches: Sequence[Match]) -> None:
        """`matches` number the `entries`. Unavailable commands come last."""
        self.beginResetModel()
        rows = [Row(entries[match.number], match.marks) for match in matches]
        self._rows = sorted(rows, key=lambda row: not row.entry.is_enabled)
        self.endResetModel()

    def first_enabled(self) -> QModelIndex:
        if self._rows and self._rows[0].entry.is_enabled:
            return self.index(0)
        return QModelIndex()


class EntryDelegate(QStyledItemDelegate):
    """Name, menu, and the shortcut at the right."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._take_fonts()
        theme_notifier().changed.connect(self._take_fonts)

    def _take_fonts(self) -> None:
        self._text, self._small = TextPen(ui_font()), TextPen(ui_font("small"))

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(100, QFontMetrics(ui_font()).height() + 2 * SPACE_2)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        row: Row = index.data(ROW)
        colors = theme()
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        area: QRect = option.rect
        state: QStyle.StateFlag = option.state
        if state & QStyle.StateFlag.State_Selected:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(colors.color("pressed"))
            painter.drawRoundedRect(area, SPACE_1, SPACE_1)
        inside = QRectF(area.adjusted(SPACE_2, 0, -SPACE_2, 0))
        entry = row.entry
        painter.setPen(colors.color("text_muted"))
        shortcut = self._small.width(entry.shortcut) if entry.shortcut else 0.0
        if entry.shortcut:
            self._small.use(painter).right(painter, inside, entry.shortcut)
        where = f"{entry.where} · on" if entry.is_checked else entry.where
        room = inside.width() - shortcut - SPACE_4
        name_room = max(0.0, room - self._small.width(where) - SPACE_4)
        name = self._text.elided(entry.text, name_room)
        width = self._text.width(name)
        self._paint_marked(painter, name, row, inside)
        painter.setPen(colors.color("text_muted"))
        beside = QRectF(inside.left() + width + SPACE_2, inside.top(), room, inside.height())
        small = self._small.use(painter)
        if entry.why_not and not entry.is_enabled:
            where = small.elided(entry.why_not, room - width - SPACE_2)
        small.left(painter, beside, where)
        painter.restore()

    def _paint_marked(self, painter: QPainter, name: str, row: Row, area: QRectF) -> None:
        """The name with the letters that were found in the accent's colour."""
        colors = theme()
        painter.setPen(colors.color("text" if row.entry.is_enabled else "text_disabled"))
        found = QTextCharFormat()
        found.setForeground(colors.color("accent"))
        marks = row.marks if row.entry.is_enabled else ()
        layout = marked_line(name, self._text.font, marks, found)
        top = area.center().y() - layout.boundingRect().height() / 2
        layout.draw(painter, QRectF(area.left(), top, 0, 0).topLeft())
