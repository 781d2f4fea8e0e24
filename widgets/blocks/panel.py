"""`BlocksPanel`: the KV block map with its legend, usage and the pointed block."""

from __future__ import annotations

from html import escape

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFrame, QWidget

from engine.snapshot import BlockDetails, BlockSnapshot, EngineSnapshot, Part
from engine.units import kv_precision_text
from widgets.blocks.block_map import BlockMap
from widgets.blocks.scales import Bars, Grid
from widgets.blocks.texts import (
    Name,
    contents,
    describe,
    describe_range,
    describe_row,
    losses,
    stored_summary,
    summary,
)
from widgets.controls.layouts import centered, hbox, stack, vbox
from widgets.controls.lines import ElidedLine
from widgets.controls.swatches import Swatch, Swatches, of
from widgets.controls.text import not_reported_text
from widgets.plot.clock import RedrawClock
from widgets.plot.header import NoteLabel
from widgets.plot.painted import NONE
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3

EMPTY_TEXT = "Open a model to see its KV blocks."
HINT = "Hover over a block to see its tokens. Click it to highlight its request."
_IN_USE = Swatch("in use, by request", lambda table: table.series.owners[:3])
_SHARED = Swatch("shared", lambda table: table.series.owners[:1], mark="text")
_OTHERS = Swatch("cached", of("kv_cached")), Swatch("free", of("free"))
_STORED = Swatch("in the prefix cache", of("kv_cached")), Swatch("other", of("free"))
STORED_ONLY = (
    "From the server's KV events: blocks stored since the window connected, in that order. Blocks "
    "in use are not reported."
)
ASK_AFTER_MS = 80
"""Delay before the block's text is requested."""


class BlocksPanel(QFrame):
    """`details_wanted(block)`: answer with `show_details`."""

    details_wanted = Signal(int)

    def __init__(self, clock: RedrawClock, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("KV blocks")
        self.map = BlockMap(clock)
        self.map.pointed.connect(self._pointed)
        self.map.chosen.connect(lambda owner: self._show_text())
        self.map.scale_changed.connect(self._on_scale)
        self.map.tip = self._tip
        self._snapshot: EngineSnapshot | None = None
        self._is_stored_only = False  # which blocks are in use is not reported
        self._clock = clock
        clock.beat.connect(self._on_beat)
        self._details: BlockDetails | None = None
        self._ask = QTimer(self)
        self._ask.setSingleShot(True)
        self._ask.setInterval(ASK_AFTER_MS)
        self._ask.timeout.connect(self._ask_for_details)
        self._build()
        self._show_text()

    @property
    def name(self) -> Name:
        return self.map.name

    @name.setter
    def name(self, name: Name) -> None:
        self.map.name = name

    def _build(self) -> None:
        self.note = ElidedLine("text_muted")
        self._empty = centered(EMPTY_TEXT)
        self._stack = stack(self._empty, self.map)
        legend = Swatches((_IN_USE, _SHARED, *_OTHERS), wraps=True)
        self.legend, self.losses = legend, NoteLabel()
        self.line, self.text = ElidedLine(), ElidedLine("text_muted")
        vbox(
            self.note, (self._stack, 1), hbox(self.legend, (self.losses, 1), spacing=SPACE_3),
            self.line, self.text,
            of=self, spacing=SPACE_1, margins=(SPACE_3, 0, SPACE_3, SPACE_2),
        )  # fmt: skip

    # Feeding -----------------------------------------------------------------------------------

    def update_snapshot(self, snapshot: EngineSnapshot) -> None:
        """Take a snapshot; text changes twice a second, the map by its clock."""
        words = not_reported_text(
            snapshot, "KV blocks", Part.BLOCKS, instead="See the KV cache chart for usage."
            if Part.KV_USAGE not in snapshot.missing else "",
        )  # fmt: skip
        if words and not snapshot.blocks.num_blocks:
            self.clear()
            self._empty.setText(words)
            return
        if bool(words) != self._is_stored_only:
            self._is_stored_only = bool(words)
            self._on_scale()
        self._snapshot = snapshot
        self._empty.setText(EMPTY_TEXT)
        self._stack.setCurrentWidget(self.map)
        self.map.update_blocks(snapshot.blocks)
        self._clock.take_snapshot()

    def _on_beat(self) -> None:
        if self.isVisible():
            self._show_text()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._show_text()  # it does not follow while hidden, and an idle engine sends no snapshot

    def clear(self) -> None:
        """No model is loaded."""
        self._snapshot = None
        self.map.update_blocks(None)
        self._stack.setCurrentWidget(self._empty)
        self._show_text()

    def show_details(self, details: BlockDetails | None) -> None:
        """Show the engine's answer, if the block is still pointed at."""
        if details is not None and details.block == self.map.pointed_block:
            self._details = details
            self._show_text()

    def _on_scale(self) -> None:
        cells = self.map.cells
        marks_shared = isinstance(cells, Grid) and cells.per_cell == 1
        used = (_IN_USE, *([_SHARED] if marks_shared else []), *_OTHERS)
        self.legend.set_swatches(_STORED if self._is_stored_only else used)
        self._show_text()

    # Words -------------------------------------------------------------------------------------

    def _pointed(self, cell: int) -> None:
        self._details = None
        if self.map.pointed_block == NONE:
            self._ask.stop()
        else:
            self._ask.start()
        self._show_text()

    def _ask_for_details(self) -> None:
        if self.map.pointed_block != NONE:
            self.details_wanted.emit(self.map.pointed_block)

    def _show_text(self) -> None:
        snapshot, cell = self._snapshot, self.map.pointed_index
        if snapshot is None:
            for widget in (self.note, self.losses, self.line, self.text):
                widget.set_text("")
            return
        if self._is_stored_only:
            self.note.set_text(
                " · ".join(filter(None, (stored_summary(snapshot.blocks), self._scale_text())))
            )
            self.losses.set_text(f"evictions {snapshot.counters.evictions:,}")
            self.line.set_text(STORED_ONLY)
            self.text.set_text("")
            self.map.setAccessibleDescription(STORED_ONLY)
            return
        plan = snapshot.memory.plan
        kv = kv_precision_text(plan.key_dtype, plan.value_dtype)
        note = summary(snapshot.blocks, kv)
        self.note.set_text(" · ".join(filter(None, (note, self._scale_text()))))
        self.losses.set_text(losses(snapshot.blocks, snapshot.counters))
        if cell != NONE:
            line = self._cell_text(snapshot.blocks, cell)
            text = contents(self._details, snapshot.time) if self._details else ""
        else:
            line, text = self._chosen_text(snapshot), ""
        self.line.set_text(line)
        self.text.set_text(text)
        self.map.setAccessibleDescription(f"{line} {text}".strip())

    def _cell_text(self, blocks: BlockSnapshot, cell: int) -> str:
        cells, block = self.map.cells, self.map.pointed_block
        if block != NONE:
            return describe(blocks, block, self.map.owners_of(block), self.name)
        if isinstance(cells, Bars):
            return describe_row(blocks, cells.rows[cell], self.map.row_name(cells.rows[cell]))
        return describe_range(blocks, cells.blocks(cell), self.name)

    def _scale_text(self) -> str:
        """What a cell stands for, where that is not one block."""
        cells = self.map.cells
        if isinstance(cells, Bars):
            return "one row per request"
        return f"{cells.per_cell} blocks per cell" if cells.per_cell > 1 else ""

    def _tip(self) -> str:
        """The text of the lines below the map, which may be elided."""
        lines = [line.text() for line in (self.line, self.text) if line.text()]
        is_cut = self.line.is_cut() or self.text.is_cut()
        return "<br>".join(map(escape, lines)) if is_cut else ""

    def _chosen_text(self, snapshot: EngineSnapshot) -> str:
        owner = self.map.chosen_owner
        if not owner:
            return HINT
        table = snapshot.blocks.tables[snapshot.blocks.owners.index(owner)]
        shared = int((snapshot.blocks.ref_count[list(table)] > 1).sum())
        return f"“{self.name(owner)}” · {len(table):,} blocks, {shared:,} shared · Esc: show all"
