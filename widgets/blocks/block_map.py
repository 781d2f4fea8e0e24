"""`BlockMap`: every physical KV block as a cell, drawn from the engine's snapshots."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PySide6.QtCore import QEvent, QRect, QSize, Qt, Signal
from PySide6.QtGui import (
    QFocusEvent,
    QHelpEvent,
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from engine.snapshot import BlockSnapshot
from widgets.blocks.picture import Colors, Grid, OwnerSlots, fit, paint
from widgets.plot.clock import RedrawClock, work_time
from widgets.theme.colors import to_image
from widgets.theme.theme import theme, theme_notifier

NONE = -1


class BlockMap(QWidget):
    """Colours by owner; a click on a block lights up the request that holds it, and its prefix.

    `pointed(block)`: the block under the mouse or the keyboard's cursor, -1 for none.
    `chosen(request id)`: whose blocks are lit up, "" for nobody's.
    """

    pointed = Signal(int)
    chosen = Signal(str)

    def __init__(self, clock: RedrawClock, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.blocks: BlockSnapshot | None = None
        self.chosen_owner = ""
        self.pointed_block = NONE
        self.tip: Callable[[], str] = lambda: ""
        """What a tooltip says of the block that the mouse rests on; "" for none."""
        self._clock = clock
        self._owners = OwnerSlots(len(theme().series.owners))
        self._slots = np.zeros(0, np.int64)
        self._grid = Grid(0, 1, 1)
        self._image = QImage()
        self._dirty = False
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName("Map of the KV blocks")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        theme_notifier().changed.connect(self.redraw)
        clock.add(self)

    # What is shown -----------------------------------------------------------------------------

    def update_blocks(self, blocks: BlockSnapshot | None) -> None:
        """Show another state. Cheap: the clock decides when it is drawn."""
        count = blocks.num_blocks if blocks else 0
        owners = blocks.owners if blocks else ()
        self.blocks = blocks
        self._slots = self._owners.update(owners)
        owner_is_gone = bool(self.chosen_owner) and self.chosen_owner not in owners
        block_is_gone = self.pointed_block >= count
        # both are put right before anybody hears of either
        self.chosen_owner = "" if owner_is_gone else self.chosen_owner
        self.pointed_block = NONE if block_is_gone else self.pointed_block
        if count != self._grid.num_blocks:
            self._fit()
        self._dirty = True
        self._clock.wake()
        if owner_is_gone:
            self.chosen.emit("")
        if block_is_gone:
            self.pointed.emit(NONE)

    def owner_color(self, owner: str) -> str:
        """The colour of a request that holds blocks."""
        colors = theme().series.owners
        return colors[(self._owners.slot(owner) or 0) % len(colors)]

    def choose(self, owner: str) -> None:
        """Light up the blocks of one request; "" shows all alike again, and so does a request that
        holds none: it waits, or has ended in the meantime."""
        if self.blocks is None or owner not in self.blocks.owners:
            owner = ""
        if owner != self.chosen_owner:
            self.chosen_owner = owner
            self.redraw()
            self.chosen.emit(owner)

    def point_at(self, block: int) -> None:
        if block != self.pointed_block:
            self.pointed_block = block
            self.update()
            self.pointed.emit(block)

    def owners_of(self, block: int) -> list[str]:
        """Every request that holds a block."""
        if self.blocks is None:
            return []
        pairs = zip(self.blocks.owners, self.blocks.tables, strict=True)
        return [owner for owner, table in pairs if block in table]

    # Drawing -----------------------------------------------------------------------------------

    def wants_redraw(self) -> bool:
        return self._dirty

    def redraw(self) -> None:
        """Make the picture anew."""
        self._dirty = False
        if self.blocks is None or not self._grid.num_blocks:
            self._image = QImage()
        else:
            table = theme()
            colors = Colors(
                table.panel, table.series.free, table.series.kv_cached, table.text,
                table.series.owners,
            )  # fmt: skip
            pixels = paint(self.blocks, self._slots, colors, self._grid, self._chosen_blocks())
            self._image = to_image(pixels)
            self._image.setDevicePixelRatio(self.devicePixelRatioF())
        self.update()

    def _chosen_blocks(self) -> np.ndarray | None:
        if not self.chosen_owner or self.blocks is None:
            return None
        lit = np.zeros(self.blocks.num_blocks, np.bool_)
        lit[list(self.blocks.tables[self.blocks.owners.index(self.chosen_owner)])] = True
        return lit

    def paintEvent(self, event: QPaintEvent) -> None:
        began = work_time()
        painter = QPainter(self)
        painter.drawImage(0, 0, self._image)
        if self.pointed_block != NONE and not self._image.isNull():
            painter.setPen(QPen(theme().color("accent"), 2))
            painter.drawRect(self.cell_rect(self.pointed_block).adjusted(-1, -1, 0, 0))
        painter.end()
        self._clock.charge(work_time() - began)

    # Geometry ----------------------------------------------------------------------------------

    def cell_rect(self, block: int) -> QRect:
        """A block's cell, in this widget's coordinates."""
        ratio = self.devicePixelRatioF()
        left, top = (round(value / ratio) for value in self._grid.place(block))
        side = round(self._grid.cell / ratio)
        return QRect(left, top, side, side)

    @property
    def grid(self) -> Grid:
        return self._grid

    def sizeHint(self) -> QSize:
        return QSize(420, 240)

    def minimumSizeHint(self) -> QSize:
        return QSize(120, 60)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        count = self.blocks.num_blocks if self.blocks else 0
        if not count:
            self._grid = Grid(0, 1, 1)
            return
        ratio = self.devicePixelRatioF()
        area = self.parentWidget() or self  # the viewport: this widget may be higher than it
        self._grid = fit(count, int(self.width() * ratio), int(area.height() * ratio))
        self.setMinimumHeight(int(self._grid.height / ratio) if self._is_scrolled(area) else 0)
        self.redraw()

    def _is_scrolled(self, area: QWidget) -> bool:
        return self._grid.height > area.height() * self.devicePixelRatioF()

    # Mouse and keyboard ------------------------------------------------------------------------

    def _at(self, event: QMouseEvent) -> int:
        ratio = self.devicePixelRatioF()
        position = event.position() * ratio
        block = self._grid.block_at(position.x(), position.y()) if self.blocks else None
        return NONE if block is None else block

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            text = self.tip() if self.pointed_block != NONE else ""
            place = self.cell_rect(self.pointed_block) if text else QRect()
            QToolTip.showText(event.globalPos(), text, self, place)
            return True
        return super().event(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self.point_at(self._at(event))

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        if not self.hasFocus():
            self.point_at(NONE)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        if not self.underMouse():
            self.point_at(NONE)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        super().mousePressEvent(event)
        if event.button() == Qt.MouseButton.LeftButton:
            self.point_at(self._at(event))
            self._choose_pointed()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        count = self._grid.num_blocks
        steps = {
            Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1,
            Qt.Key.Key_Up: -self._grid.columns, Qt.Key.Key_Down: self._grid.columns,
            Qt.Key.Key_Home: -count, Qt.Key.Key_End: count,
        }  # fmt: skip
        key = Qt.Key(event.key())
        if key in steps and count:
            start = self.pointed_block
            target = 0 if start == NONE else min(max(start + steps[key], 0), count - 1)
            self.point_at(target)
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self._choose_pointed()
        elif key == Qt.Key.Key_Escape and (self.chosen_owner or self.pointed_block != NONE):
            self.choose("")
            self.point_at(NONE)
        else:
            super().keyPressEvent(event)

    def _choose_pointed(self) -> None:
        """Of a block that several hold: one after the other."""
        owners = self.owners_of(self.pointed_block)
        if self.chosen_owner in owners:
            following = owners.index(self.chosen_owner) + 1
            self.choose(owners[following] if following < len(owners) else "")
        else:
            self.choose(owners[0] if owners else "")
