"""`BlockMap`: every physical KV block, as a cell, in a range of blocks, or in a row per request."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QHelpEvent,
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPen,
    QResizeEvent,
    QShowEvent,
)
from PySide6.QtWidgets import QToolTip, QWidget

from engine.snapshot import BLOCK_CACHED, BLOCK_FREE, BlockSnapshot
from widgets.blocks.picture import paint
from widgets.blocks.scales import SMALLEST_PITCH, Bars, Grid, OwnerSlots, Row, Use, bars, fit
from widgets.controls.keys import LocalKeys
from widgets.plot.clock import RedrawClock
from widgets.plot.painted import NONE, PaintedPlot
from widgets.plot.table import ValuesTable
from widgets.theme.fonts import scaled
from widgets.theme.tables import to_image
from widgets.theme.theme import SPACE_1, SPACE_2, theme

_LABEL_WIDTH, _MOST_LABEL = 132, 0.4  # of a row: pixels, and share of the width
_BAR_MARGIN = 2
_COLORS = {Use.OTHERS: "other", Use.CACHED: "kv_cached", Use.FREE: "free"}


_NOTHING = Grid(0, 1, SMALLEST_PITCH)


class BlockMap(PaintedPlot):
    """Coloured by request; clicking a cell highlights all blocks of its request. Items are cells:
    what one stands for depends on the room. `chosen(request id)`: the highlighted request, "" for
    none."""

    chosen = Signal(str)
    scale_changed = Signal()  # a cell stands for another number of blocks
    preferred = QSize(420, 240)
    least = QSize(120, 60)

    def __init__(self, clock: RedrawClock, parent: QWidget | None = None) -> None:
        super().__init__("KV block map", clock=clock, parent=parent)
        self.blocks: BlockSnapshot | None = None
        self.chosen_owner = ""
        self.name: Callable[[str], str] = lambda request_id: request_id[:8]
        self.tip: Callable[[], str] = lambda: ""
        """Tooltip of the pointed block; "" for none."""
        self._owners = OwnerSlots(len(theme().series.owners))
        self._slots = np.zeros(0, np.int64)
        self.cells: Grid | Bars = _NOTHING
        self._image = QImage()
        LocalKeys(self, {"Esc": self._show_all}, lambda: bool(self.chosen_owner))

    def values_table(self) -> ValuesTable:
        blocks = self.blocks
        rows = tuple(
            (block, self.state_of(block), int(blocks.fill[block]), int(blocks.ref_count[block]),
             ", ".join(self.owners_of(block)))
            for block in range(blocks.num_blocks)
        ) if blocks else ()  # fmt: skip
        return ValuesTable(("block", "state", "tokens", "references", "requests"), rows, (0,) * 5)

    def state_of(self, block: int) -> str:
        """free, cached or in use."""
        owner = int(self.blocks.owner[block]) if self.blocks else BLOCK_FREE
        return {BLOCK_FREE: "free", BLOCK_CACHED: "cached"}.get(owner, "in use")

    # What is shown -----------------------------------------------------------------------------

    def update_blocks(self, blocks: BlockSnapshot | None) -> None:
        """Show another state. Cheap: drawn by the clock."""
        owners = blocks.owners if blocks else ()
        self.blocks = blocks
        self._slots = self._owners.update(owners)
        owner_is_gone = bool(self.chosen_owner) and self.chosen_owner not in owners
        self.chosen_owner = "" if owner_is_gone else self.chosen_owner
        count = blocks.num_blocks if blocks else 0
        is_other = isinstance(self.cells, Bars) or self.cells.num_blocks != count
        if is_other and self.isVisible():
            self._fit()
        elif is_other:  # cells are found when they are seen
            self.cells = _NOTHING
        cell_is_gone = self.pointed_index >= self.num_items
        self.pointed_index = NONE if cell_is_gone else self.pointed_index
        self.request_redraw()
        if owner_is_gone:  # consistent before either signal
            self.chosen.emit("")
        if cell_is_gone:
            self.pointed.emit(NONE)

    def choose(self, owner: str) -> None:
        """Highlight the blocks of one request; none for "" or a request without blocks."""
        if self.blocks is None or owner not in self.blocks.owners:
            owner = ""
        if owner != self.chosen_owner:
            self.chosen_owner = owner
            self.redraw()
            self.chosen.emit(owner)

    def owners_of(self, *blocks: int) -> list[str]:
        """Requests that hold any of these blocks."""
        if self.blocks is None:
            return []
        pairs = zip(self.blocks.owners, self.blocks.tables, strict=True)
        return [owner for owner, table in pairs if not set(blocks).isdisjoint(table)]

    @property
    def pointed_block(self) -> int:
        """The block under the pointer; NONE where a cell stands for several."""
        if self.pointed_index == NONE or isinstance(self.cells, Bars) or self.cells.per_cell > 1:
            return NONE
        return self.pointed_index

    # Drawing -----------------------------------------------------------------------------------

    def redraw(self) -> None:
        self._image = QImage()
        if self.blocks is not None and isinstance(self.cells, Grid) and self.num_items:
            chosen = self._chosen_blocks()
            pixels = paint(self.blocks, self._slots, theme(), self.cells, chosen)
            self._image = to_image(pixels)
            self._image.setDevicePixelRatio(self.devicePixelRatioF())
        super().redraw()

    def _chosen_blocks(self) -> np.ndarray | None:
        if not self.chosen_owner or self.blocks is None:
            return None
        lit = np.zeros(self.blocks.num_blocks, np.bool_)
        lit[list(self.blocks.tables[self.blocks.owners.index(self.chosen_owner)])] = True
        return lit

    def paint(self, painter: QPainter) -> None:
        painter.drawImage(0, 0, self._image)
        if isinstance(self.cells, Bars):
            for cell, row in enumerate(self.cells.rows):
                self._paint_row(painter, self.cell_rect(cell), row, self.cells.longest)
        if self.pointed_index != NONE:
            painter.setPen(QPen(theme().color("accent"), 2))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(self.cell_rect(self.pointed_index).adjusted(-1, -1, 0, 0))

    def _paint_row(self, painter: QPainter, place: QRect, row: Row, longest: int) -> None:
        table, count = theme(), f"{row.num_blocks:,}"
        label = min(scaled(_LABEL_WIDTH), round(_MOST_LABEL * place.width()))
        area = QRectF(place).adjusted(label + SPACE_2, 0, -self._count_width - SPACE_2, 0)
        is_low = place.height() < self.line_height  # the pointer names it: texts would overlap
        area = QRectF(place) if is_low else area
        color = table.color(_COLORS[row.use]) if row.use in _COLORS else self._color_of(row)
        length = min(1.0, row.num_blocks / longest) * area.width()
        margin = _BAR_MARGIN if area.height() > 3 * _BAR_MARGIN else 0
        bar = QRectF(area.left(), area.top() + margin, length, area.height() - 2 * margin)
        painter.fillRect(bar, color)
        if is_low:
            return
        painter.setPen(table.color("text"))
        self.pen.right(
            painter, QRectF(place.left(), place.top(), label, place.height()),
            self.pen.elided(self.row_name(row), label),
        )  # fmt: skip
        painter.setPen(table.color("text_muted"))
        self.pen.left(painter, QRectF(bar.right() + SPACE_1, area.top(), 1, area.height()), count)

    @property
    def _count_width(self) -> int:
        return round(self.pen.width(f"{self.cells.num_blocks:,}"))

    def _color_of(self, row: Row) -> QColor:
        owners = theme().series.owners
        color = QColor(owners[int(self._slots[row.owners[0]]) % len(owners)])
        is_pale = self.chosen_owner and self.blocks and (
            self.blocks.owners[row.owners[0]] != self.chosen_owner
        )
        color.setAlphaF(0.25 if is_pale else 1.0)
        return color

    def row_name(self, row: Row) -> str:
        if row.use is Use.REQUEST and self.blocks is not None:
            return self.name(self.blocks.owners[row.owners[0]])
        return f"{len(row.owners):,} more" if row.use is Use.OTHERS else str(row.use)

    # Geometry ----------------------------------------------------------------------------------

    def cell_rect(self, cell: int) -> QRect:
        cells = self.cells
        if isinstance(cells, Bars):
            return QRect(0, cell * cells.pitch, self.width(), cells.pitch)
        ratio = self.devicePixelRatioF()
        left, top = (round(value / ratio) for value in cells.place(cell))
        side = round(cells.cell / ratio)
        return QRect(left, top, side, side)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._fit()

    def _fit(self) -> None:
        before = type(self.cells), getattr(self.cells, "per_cell", 0)
        self.cells = self._fitting(self.blocks)
        if before != (type(self.cells), getattr(self.cells, "per_cell", 0)):
            self.point_at(NONE)  # a cell stands for something else
            self.scale_changed.emit()
        self.redraw()

    def _fitting(self, blocks: BlockSnapshot | None) -> Grid | Bars:
        if blocks is None or not blocks.num_blocks:
            return _NOTHING
        ratio = self.devicePixelRatioF()
        size = int(self.width() * ratio), int(self.height() * ratio)
        line = round(self.line_height) + 2 * _BAR_MARGIN
        return fit(blocks.num_blocks, *size, ratio) or bars(blocks, self.height(), line)

    # Mouse and keyboard ------------------------------------------------------------------------

    @property
    def num_items(self) -> int:
        return self.cells.num_cells

    def item_at(self, position: QPointF) -> int:
        if isinstance(self.cells, Grid):
            position = position * self.devicePixelRatioF()
        cell = self.cells.cell_at(position.x(), position.y())
        return NONE if cell is None else cell

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            text = self.tip() if self.pointed_index != NONE else ""
            place = self.cell_rect(self.pointed_index) if text else QRect()
            QToolTip.showText(event.globalPos(), text, self, place)
            return True
        return super().event(event)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        if not self.underMouse():
            self.point_at(NONE)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        super().mousePressEvent(event)
        if event.button() == Qt.MouseButton.LeftButton:
            self.point_at(self.item_at(event.position()))
            self._choose_pointed()

    def key_target(self, key: Qt.Key) -> int | None:
        rows = {Qt.Key.Key_Up: -self.cells.columns, Qt.Key.Key_Down: self.cells.columns}
        if key not in rows or not self.num_items:
            return super().key_target(key)
        return min(max(max(self.pointed_index, 0) + rows[key], 0), self.num_items - 1)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key = Qt.Key(event.key())
        if key in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self._choose_pointed()
        else:
            super().keyPressEvent(event)

    def _show_all(self) -> None:
        self.choose("")
        self.point_at(NONE)

    def _choose_pointed(self) -> None:
        """Highlight the request of the cell under the pointer; clicks on a cell of several cycle
        through them."""
        cell = self.pointed_index
        owners = self.owners_of(*self.cells.blocks(cell).tolist()) if cell != NONE else []
        if self.chosen_owner in owners:
            following = owners.index(self.chosen_owner) + 1
            self.choose(owners[following] if following < len(owners) else "")
        else:
            self.choose(owners[0] if owners else "")
