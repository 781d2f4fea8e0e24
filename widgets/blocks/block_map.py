"""`BlockMap`: every physical KV block as a cell."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRect, QSize, Qt, Signal
from PySide6.QtGui import (
    QFocusEvent,
    QHelpEvent,
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QToolTip, QWidget

from engine.snapshot import BLOCK_CACHED, BLOCK_FREE, BlockSnapshot
from widgets.blocks.picture import Grid, OwnerSlots, fit, paint
from widgets.plot.clock import RedrawClock
from widgets.plot.painted import NONE, PaintedPlot
from widgets.plot.table import ValuesTable
from widgets.theme.tables import to_image
from widgets.theme.theme import theme


class BlockMap(PaintedPlot):
    """Coloured by request; clicking a block highlights all blocks of its request. `chosen(request
    id)`: the highlighted request, "" for none."""

    chosen = Signal(str)
    preferred = QSize(420, 240)
    least = QSize(120, 60)

    def __init__(self, clock: RedrawClock, parent: QWidget | None = None) -> None:
        super().__init__("KV block map", clock=clock, parent=parent)
        self.blocks: BlockSnapshot | None = None
        self.chosen_owner = ""
        self.tip: Callable[[], str] = lambda: ""
        """Tooltip of the pointed block; "" for none."""
        self._owners = OwnerSlots(len(theme().series.owners))
        self._slots = np.zeros(0, np.int64)
        self.grid = Grid(0, 1, 1)
        self._image = QImage()

    def values_table(self) -> ValuesTable:
        blocks = self.blocks
        rows = tuple(
            (block, self.state_of(block), int(blocks.fill[block]), int(blocks.ref_count[block]),
             ", ".join(self.owners_of(block)))
            for block in range(self.num_items)
        ) if blocks else ()  # fmt: skip
        return ValuesTable(("block", "state", "tokens", "references", "requests"), rows, (0,) * 5)

    def state_of(self, block: int) -> str:
        """free, cached or in use."""
        owner = int(self.blocks.owner[block]) if self.blocks else BLOCK_FREE
        return {BLOCK_FREE: "free", BLOCK_CACHED: "cached"}.get(owner, "in use")

    # What is shown -----------------------------------------------------------------------------

    def update_blocks(self, blocks: BlockSnapshot | None) -> None:
        """Show another state. Cheap: drawn by the clock."""
        count = blocks.num_blocks if blocks else 0
        owners = blocks.owners if blocks else ()
        self.blocks = blocks
        self._slots = self._owners.update(owners)
        owner_is_gone = bool(self.chosen_owner) and self.chosen_owner not in owners
        block_is_gone = self.pointed_index >= count
        # consistent before either signal
        self.chosen_owner = "" if owner_is_gone else self.chosen_owner
        self.pointed_index = NONE if block_is_gone else self.pointed_index
        if count != self.grid.num_blocks:
            self._fit()
        self.request_redraw()
        if owner_is_gone:
            self.chosen.emit("")
        if block_is_gone:
            self.pointed.emit(NONE)

    def choose(self, owner: str) -> None:
        """Highlight the blocks of one request; none for "" or a request without blocks."""
        if self.blocks is None or owner not in self.blocks.owners:
            owner = ""
        if owner != self.chosen_owner:
            self.chosen_owner = owner
            self.redraw()
            self.chosen.emit(owner)

    def owners_of(self, block: int) -> list[str]:
        """Requests that hold a block."""
        if self.blocks is None:
            return []
        pairs = zip(self.blocks.owners, self.blocks.tables, strict=True)
        return [owner for owner, table in pairs if block in table]

    # Drawing -----------------------------------------------------------------------------------

    def redraw(self) -> None:
        if self.blocks is None or not self.grid.num_blocks:
            self._image = QImage()
        else:
            pixels = paint(self.blocks, self._slots, theme(), self.grid, self._chosen_blocks())
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
        if self.pointed_index != NONE and not self._image.isNull():
            painter.setPen(QPen(theme().color("accent"), 2))
            painter.drawRect(self.cell_rect(self.pointed_index).adjusted(-1, -1, 0, 0))

    # Geometry ----------------------------------------------------------------------------------

    def cell_rect(self, block: int) -> QRect:
        ratio = self.devicePixelRatioF()
        left, top = (round(value / ratio) for value in self.grid.place(block))
        side = round(self.grid.cell / ratio)
        return QRect(left, top, side, side)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        count = self.blocks.num_blocks if self.blocks else 0
        if not count:
            self.grid = Grid(0, 1, 1)
            return
        ratio = self.devicePixelRatioF()
        area = self.parentWidget() or self  # the viewport: this widget may be higher than it
        self.grid = fit(count, int(self.width() * ratio), int(area.height() * ratio))
        is_scrolled = self.grid.height > area.height() * ratio
        self.setMinimumHeight(int(self.grid.height / ratio) if is_scrolled else 0)
        self.redraw()

    # Mouse and keyboard ------------------------------------------------------------------------

    @property
    def num_items(self) -> int:
        return self.grid.num_blocks

    def item_at(self, position: QPointF) -> int:
        position = position * self.devicePixelRatioF()
        block = self.grid.block_at(position.x(), position.y()) if self.blocks else None
        return NONE if block is None else block

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
        rows = {Qt.Key.Key_Up: -self.grid.columns, Qt.Key.Key_Down: self.grid.columns}
        if key not in rows or not self.num_items:
            return super().key_target(key)
        return min(max(max(self.pointed_index, 0) + rows[key], 0), self.num_items - 1)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key = Qt.Key(event.key())
        if key in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self._choose_pointed()
        elif key == Qt.Key.Key_Escape and self.chosen_owner:
            self.choose("")
            self.point_at(NONE)
        else:
            super().keyPressEvent(event)

    def _choose_pointed(self) -> None:
        """Highlight the request of the block under the pointer; clicks on a shared block cycle
        through its requests."""
        owners = self.owners_of(self.pointed_index)
        if self.chosen_owner in owners:
            following = owners.index(self.chosen_owner) + 1
            self.choose(owners[following] if following < len(owners) else "")
        else:
            self.choose(owners[0] if owners else "")
