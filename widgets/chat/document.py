"""Items of markdown in a QTextDocument; only changed items are rewritten.

    item 0        item 1            item 2 (a table)
    [block] sep   [block] BEGIN_OF_FRAME [cells] END_OF_FRAME [gap block]

The end of the document before each item is stored, so that everything from an item on can be
removed and rewritten. After a table Qt keeps an empty paragraph, which the next line uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import (
    QTextBlock,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextOption,
)

from widgets.chat.formats import (
    block_format,
    gap_format,
    left_margin,
    line_formats,
    plain_format,
    table_format,
)
from widgets.chat.markdown import Item, Line, Table
from widgets.theme.theme import Theme, theme

_ALIGNMENT = {
    "left": Qt.AlignmentFlag.AlignLeft,
    "center": Qt.AlignmentFlag.AlignHCenter,
    "right": Qt.AlignmentFlag.AlignRight,
}


class _Place(NamedTuple):
    """End of the document before an item: position, and whether its last block is empty and is
    reused."""

    end: int
    is_free: bool
    first_block: int  # number of the block in which the item begins


class Group(NamedTuple):
    """Lines on a common panel: kind "code", "quote", "rule" or "mark"; items first to last."""

    kind: str
    first: int
    last: int
    label: str


class MarkdownDocument:
    """Writes items into `document` and owns its whole content."""

    def __init__(self, document: QTextDocument) -> None:
        self._document = document
        document.setUndoRedoEnabled(False)
        document.setDocumentMargin(0)
        option = QTextOption(Qt.AlignmentFlag.AlignLeft)
        option.setWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        document.setDefaultTextOption(option)
        self.items: list[Item] = []
        self._places: list[_Place] = []
        self._is_free = True  # the last block is empty and belongs to no item
        self.groups: list[Group] = []
        """From top to bottom; quotes may contain code."""

    def set_items(self, items: Sequence[Item], num_same: int = 0) -> None:
        """Show `items` after the first `num_same` items, which stay as they are."""
        old = self.items[num_same:]
        same = 0
        while same < len(old) and same < len(items) and old[same] == items[same]:
            same += 1
        if same == len(old) == len(items):
            return
        cursor = QTextCursor(self._document)
        cursor.beginEditBlock()
        self._cut(cursor, num_same + same)
        cursor.movePosition(QTextCursor.MoveOperation.End)
        colors = theme()
        for item in items[same:]:
            self._write(cursor, item, colors)
        cursor.endEditBlock()
        self.groups = groups_of(self.items, self.groups, num_same + same)

    def rewrite(self) -> None:
        """Write everything again in the current theme."""
        items = list(self.items)
        self.set_items([])
        self.set_items(items)

    # Places ----------------------------------------------------------------------------------

    def rect(self, group: Group) -> QRectF:
        """Rectangle of a group's lines, without the space around them."""
        layout = self._document.documentLayout()
        top = layout.blockBoundingRect(self._block(group.first))
        return top.united(layout.blockBoundingRect(self._block(group.last)))

    def left_of(self, group: Group) -> int:
        """Left edge of a group's panel, in pixels."""
        return left_margin(self.items[group.first])

    def right_of_text(self, group: Group) -> float:
        """Right end of the text in a group's first line, in pixels."""
        layout = self._block(group.first).layout()
        if layout.lineCount() == 0:
            return layout.position().x()
        line = layout.lineAt(0)
        return layout.position().x() + line.x() + line.naturalTextWidth()

    def text_of(self, group: Group) -> str:
        lines = self.items[group.first : group.last + 1]
        return "\n".join(item.text for item in lines if isinstance(item, Line))

    def _block(self, item: int) -> QTextBlock:
        return self._document.findBlockByNumber(self._places[item].first_block)

    # Writing ---------------------------------------------------------------------------------

    def _cut(self, cursor: QTextCursor, count: int) -> None:
        """Keep the first `count` items only."""
        if count == len(self.items):
            return
        place = self._places[count]
        cursor.setPosition(place.end)
        cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        del self.items[count:], self._places[count:]
        self._is_free = place.is_free
        last = self.items[-1] if self.items else None
        if place.is_free:
            cursor.setBlockFormat(gap_format() if last else QTextBlockFormat())
            cursor.setBlockCharFormat(QTextCharFormat())
        elif isinstance(last, Line):
            # of two joined blocks Qt may keep the second one's format
            cursor.setBlockFormat(block_format(last, self.items[-2] if count > 1 else None))

    def _write(self, cursor: QTextCursor, item: Item, colors: Theme) -> None:
        before = self.items[-1] if self.items else None
        end, is_free = cursor.position(), self._is_free
        if isinstance(item, Table):
            first_block = self._write_table(cursor, item, before, colors)
        else:
            first_block = self._write_line(cursor, item, before, colors)
        self.items.append(item)
        self._places.append(_Place(end, is_free, first_block))

    def _write_line(
        self, cursor: QTextCursor, line: Line, before: Item | None, colors: Theme
    ) -> int:
        style = block_format(line, before)
        plain = plain_format(line, colors)
        if self._is_free:
            cursor.setBlockFormat(style)
            cursor.setBlockCharFormat(plain)
        else:
            cursor.insertBlock(style, plain)
        self._is_free = False
        for text, run in line_formats(line, colors):
            cursor.insertText(text, run)
        if isinstance(before, Table) and not (line.spans or line.marker):
            cursor.insertText(" ", plain)  # Qt gives an empty paragraph after a table no place
        return cursor.block().blockNumber()

    def _write_table(
        self, cursor: QTextCursor, table: Table, before: Item | None, colors: Theme
    ) -> int:
        if before is None:
            cursor.setBlockFormat(gap_format())
        columns = len(table.aligns)
        made = cursor.insertTable(
            len(table.rows), max(1, columns), table_format(table, before, colors)
        )
        for r, row in enumerate(table.rows):
            for c in range(columns):
                cell = made.cellAt(r, c)
                spans = row[c] if c < len(row) else ()
                if r == 0:
                    style = cell.format()
                    style.setBackground(colors.color("raised"))
                    cell.setFormat(style)
                    spans = tuple(span._replace(bold=True) for span in spans)
                inside = cell.firstCursorPosition()
                aligned = inside.blockFormat()
                aligned.setAlignment(_ALIGNMENT.get(table.aligns[c], Qt.AlignmentFlag.AlignLeft))
                inside.setBlockFormat(aligned)
                for text, run in line_formats(Line("text", spans), colors):
                    inside.insertText(text, run)
        first = made.firstCursorPosition().block().blockNumber()
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.setBlockFormat(gap_format())
        self._is_free = True
        return first


def groups_of(items: Sequence[Item], before: Sequence[Group], num_same: int) -> list[Group]:
    """The groups of `items`; `before`: the previous groups, of which `num_same` items are
    unchanged."""
    start = max(0, num_same - 1)  # what follows an item decides where its group ends
    found = list(before)
    quote_start: int | None = None
    code_start = start
    while found and found[-1].last >= start:
        group = found.pop()
        if group.first <= start and group.kind == "code":
            code_start = group.first
        elif group.first <= start and group.kind == "quote":
            quote_start = group.first
    for number in range(start, len(items)):
        item = items[number]
        after = items[number + 1] if number + 1 < len(items) else None
        if item.quote and quote_start is None:
            quote_start = number
        if isinstance(item, Line) and item.kind in ("rule", "mark"):
            found.append(Group(item.kind, number, number, ""))
        elif isinstance(item, Line) and item.kind == "code":
            code_start = number if item.first else code_start
            if not (isinstance(after, Line) and after.kind == "code" and not after.first):
                found.append(Group("code", code_start, number, item.label))
        if quote_start is not None and (after is None or not after.quote):
            found.append(Group("quote", quote_start, number, ""))
            quote_start = None
    return found
