"""`Palette`: fuzzy search of commands, in a list over the window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import shiboken6
from PySide6.QtCore import QEvent, QModelIndex, QObject, QPoint, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QCursor, QFontMetrics, QKeyEvent, QPainter, QTextCharFormat
from PySide6.QtWidgets import (
    QLineEdit,
    QListView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from widgets.controls.layouts import label
from widgets.controls.lines import marked_line
from widgets.controls.popover import Popover
from widgets.controls.tables import Index, RowTable
from widgets.plot.text import TextPen
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_4, theme, theme_notifier, ui_font


class Match(NamedTuple):
    """A match in text `number`; `marks`: (start, end) of the matched parts."""

    number: int
    marks: tuple[tuple[int, int], ...]


def search(query: str, texts: Sequence[str], keywords: Sequence[str] = ()) -> list[Match]:
    """Texts that contain every word of `query`, best first, ties in their order. keywords: of each
    text, further words that lead to it.

    Rank of a word: at the beginning of a word of the text, of a keyword, inside a word, or as
    scattered letters ("gch" in "Regenerate chat"); within a rank, early matches first. An empty
    query matches all texts."""
    words = query.lower().split()
    found: list[tuple[tuple[int, int], Match]] = []
    for index, text in enumerate(texts):
        more = keywords[index].lower().split() if keywords else ()
        places = [_find(word, text, more) for word in words]
        if None in places:
            continue
        known = [place for place in places if place is not None]
        rank = (sum(p.rank for p in known), sum(p.marks[0][0] for p in known if p.marks))
        marks = sorted(mark for place in known for mark in place.marks)
        found.append((rank, Match(index, tuple(_joined(marks)))))
    found.sort(key=lambda entry: entry[0])
    return [match for _, match in found]


class _Place(NamedTuple):
    rank: int  # 0: a word begins with it; 1: a keyword does; 2: inside a word; 3: letters in order
    marks: list[tuple[int, int]]


LEAST_KEY = 3
"""Letters of a query that keywords are searched for: fewer would find most of them."""


def _find(word: str, text: str, keywords: Sequence[str] = ()) -> _Place | None:
    # one letter at a time keeps positions: lower() of some letters is longer than they are
    folded = "".join(letter.lower() if len(letter.lower()) == 1 else letter for letter in text)
    starts = [i for i in range(len(folded)) if folded.startswith(word, i)]
    for start in starts:
        if start == 0 or not folded[start - 1].isalnum():
            return _Place(0, [(start, start + len(word))])
    if len(word) >= LEAST_KEY and any(key.startswith(word) for key in keywords):
        return _Place(1, [])
    if starts:
        return _Place(2, [(starts[0], starts[0] + len(word))])
    marks, position = [], 0
    for letter in word:
        position = folded.find(letter, position)
        if position < 0:
            return None
        marks.append((position, position + 1))
        position += 1
    return _Place(3, marks)


def _joined(marks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted marks, merged where they touch or overlap."""
    joined: list[tuple[int, int]] = []
    for start, end in marks:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


ROW = Qt.ItemDataRole.UserRole


class Entry(NamedTuple):
    """A command: its menu, its shortcut in the platform's words, whether it is enabled and checked,
    and why it is disabled, if known. keywords: further words that find it."""

    id: str
    text: str
    where: str
    shortcut: str = ""
    is_enabled: bool = True
    is_checked: bool = False
    why_not: str = ""
    keywords: str = ""


class Row(NamedTuple):
    entry: Entry
    marks: tuple[tuple[int, int], ...]


class EntryModel(RowTable[Row]):
    """Matching entries in order; disabled commands last."""

    HEADINGS = ("Command",)

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
        if not index.isValid() or not self.entry(index.row()).is_enabled:
            return Qt.ItemFlag.NoItemFlags
        return Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable

    def entry(self, row: int) -> Entry:
        return self._rows[row].entry

    def show_matches(self, entries: Sequence[Entry], matches: Sequence[Match]) -> None:
        """Show `matches`, whose numbers are indices of `entries`."""
        rows = [Row(entries[match.number], match.marks) for match in matches]
        self.set_rows(sorted(rows, key=lambda row: not row.entry.is_enabled))

    def first_enabled(self) -> QModelIndex:
        is_there = bool(self._rows) and self.entry(0).is_enabled
        return self.index(0, 0) if is_there else QModelIndex()


class EntryDelegate(QStyledItemDelegate):
    """Paints name and menu, with the shortcut at the right."""

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
        where = f"{entry.where} · active" if entry.is_checked else entry.where
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
        """Paint the name with the matched letters in the accent colour."""
        colors = theme()
        painter.setPen(colors.color("text" if row.entry.is_enabled else "text_disabled"))
        found = QTextCharFormat()
        found.setForeground(colors.color("accent"))
        marks = row.marks if row.entry.is_enabled else ()
        layout = marked_line(name, self._text.font, marks, found)
        top = area.center().y() - layout.boundingRect().height() / 2
        layout.draw(painter, QRectF(area.left(), top, 0, 0).topLeft())


WIDTH, MOST_ROWS = 560, 12
_MOVES = {
    Qt.Key.Key_Down: 1,
    Qt.Key.Key_Up: -1,
    Qt.Key.Key_PageDown: MOST_ROWS - 1,
    Qt.Key.Key_PageUp: 1 - MOST_ROWS,
}


class Palette(Popover):
    """`chosen(id)` after closing. The focus stays in the field; up, down and Enter act on the list.
    With an empty query the last choice comes first."""

    chosen = Signal(str)

    def __init__(
        self,
        parent: QWidget,
        name: str = "Command palette",
        hint: str = "Search commands and settings",
        nothing: str = "No command or setting matches",
    ) -> None:
        """`hint`: in the empty field; `nothing`: before what was typed, if nothing matches."""
        super().__init__(parent)
        self.setAccessibleName(name)
        self._nothing = nothing
        self._window = parent
        self._entries: list[Entry] = []
        self._more: list[Entry] = []
        self._recent: list[str] = []
        self._focus_before: QWidget | None = None
        self.field = QLineEdit()
        self.field.setPlaceholderText(hint)
        self.field.setAccessibleName(hint)
        self.field.setClearButtonEnabled(True)
        self.field.textChanged.connect(lambda text: self._search())
        self.model = EntryModel(self)
        self.view = QListView()
        self.view.setModel(self.model)
        self.view.setItemDelegate(EntryDelegate(self.view))
        self.view.setFrameShape(QListView.Shape.NoFrame)
        self.view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.view.setUniformItemSizes(True)
        self.view.setMouseTracking(True)
        self.view.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.view.setAccessibleName("Matching commands")
        self.view.entered.connect(self._point_at)
        self._pointer = QCursor.pos()
        self.view.clicked.connect(self._choose)
        self.nothing = label(role="muted")
        self.nothing.setTextFormat(Qt.TextFormat.PlainText)
        self.column.setSpacing(SPACE_2)
        for widget in (self.field, self.nothing, self.view):
            self.column.addWidget(widget)

    def open(self, entries: Iterable[Entry], more: Iterable[Entry] = ()) -> None:
        """Open it near the top of the window, or close it if open. `more`: entries that are listed
        after the matches of `entries`, only when something is typed."""
        if not self.isHidden():
            self.close_and_return()
            return
        self._entries = self.in_order(list(entries))
        self._more = list(more)
        window = self._window.window()
        self._focus_before = window.focusWidget()
        self.setFixedWidth(min(WIDTH, window.width() - 2 * SPACE_2))
        self.field.clear()
        self._pointer = QCursor.pos()
        self._search()
        self.open_at(self.corner())

    def in_order(self, entries: list[Entry]) -> list[Entry]:
        """The order for an empty query: the last choice first."""
        places = {name: place for place, name in enumerate(self._recent)}
        return sorted(entries, key=lambda entry: places.get(entry.id, len(places)))

    def typed(self, query: str) -> list[Entry]:
        """Entries that the query itself makes; they come first."""
        return []

    def corner(self) -> QPoint:
        """Where it opens in the window."""
        window = self._window.window()
        return QPoint((window.width() - self.width()) // 2, window.height() // 10)

    def first_field(self) -> QWidget:
        return self.field

    def _search(self) -> None:
        query = self.field.text()
        entries = [*self._entries, *(self._more if query.strip() else ())]
        found = search(query, [e.text for e in entries], [e.keywords for e in entries])
        typed = self.typed(query.strip())
        found = [Match(len(entries) + n, ()) for n in range(len(typed))] + found
        entries += typed
        self.model.show_matches(entries, found)
        self.view.setCurrentIndex(self.model.first_enabled())
        self.nothing.setText(f"{self._nothing} “{query.strip()}”.")
        self.nothing.setVisible(not found)
        self.view.setVisible(bool(found))
        row_height = max(1, self.view.sizeHintForRow(0))
        room = (self._window.window().height() * 3 // 4) // row_height
        rows = min(len(found), MOST_ROWS, max(2, room - 1))
        self.view.setFixedHeight(rows * row_height + SPACE_1)
        self.adjustSize()

    def _point_at(self, index: QModelIndex) -> None:
        # rows that the keyboard scrolls under a pointer that lies still are not pointed at
        pointer, self._pointer = self._pointer, QCursor.pos()
        if pointer != self._pointer and self.model.flags(index) & Qt.ItemFlag.ItemIsEnabled:
            self.view.setCurrentIndex(index)

    def _move(self, rows: int) -> None:
        everything = range(self.model.rowCount())
        last = sum(self.model.entry(row).is_enabled for row in everything) - 1  # others stand last
        if last >= 0:
            self._pointer = QCursor.pos()
            row = self.view.currentIndex().row() + rows
            self.view.setCurrentIndex(self.model.index(min(max(row, 0), last), 0))

    def _choose(self, index: QModelIndex) -> None:
        if not index.isValid() or not self.model.flags(index) & Qt.ItemFlag.ItemIsEnabled:
            return
        name = self.model.entry(index.row()).id
        self._recent = [name, *(other for other in self._recent if other != name)]
        self.close_and_return()
        self.chosen.emit(name)

    def close_and_return(self) -> None:
        self.hide()
        # an editor may have closed, and be gone, because the palette took its focus
        if self._focus_before is not None and shiboken6.isValid(self._focus_before):
            self._focus_before.setFocus()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self.field and isinstance(event, QKeyEvent):
            key = Qt.Key(event.key())
            if event.type() == QEvent.Type.KeyPress:
                if key in _MOVES:
                    self._move(_MOVES[key])
                    return True
                if key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                    self._choose(self.view.currentIndex())
                    return True
                if key == Qt.Key.Key_Escape:
                    self.close_and_return()
                    return True
        return super().eventFilter(watched, event)
