"""`BlocksPanel`: the KV block map with its legend, usage and the pointed block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import QFrame, QWidget

from engine.snapshot import (
    BLOCK_CACHED,
    BLOCK_FREE,
    BlockDetails,
    BlockSnapshot,
    Counters,
    EngineSnapshot,
    Part,
)
from widgets.blocks.block_map import BlockMap
from widgets.controls.frames import scroll_area
from widgets.controls.layouts import centered, hbox, stack, vbox
from widgets.controls.lines import ElidedLine
from widgets.controls.swatches import Swatch, Swatches, of
from widgets.controls.text import not_reported_text
from widgets.live.figures import kv_precision
from widgets.plot.clock import RedrawClock
from widgets.plot.header import NoteLabel
from widgets.plot.painted import NONE
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3

Name = Callable[[str], str]
"""Request id to display name."""

_SHOWN_TEXT = 160


def summary(blocks: BlockSnapshot, precision: str = "") -> str:
    """ "1,152 blocks × 16 tokens · KV int8 · used 62 % · cached 24 % · free 14 %"."""
    count = blocks.num_blocks
    shares = (
        ("used", blocks.num_used), ("cached", blocks.num_cached), ("free", blocks.num_free),
    )  # fmt: skip
    parts = [f"{word} {100 * number / count:.0f} %" for word, number in shares]
    named = [precision] if precision else []
    return " · ".join([f"{count:,} blocks × {blocks.block_size} tokens", *named, *parts])


def losses(blocks: BlockSnapshot, counters: Counters) -> str:
    """Unused slots in partly filled blocks, prefix hits and evictions."""
    slots = blocks.num_used * blocks.block_size
    lost = f"{100 * blocks.num_wasted_tokens / slots:.1f} %" if slots else "0 %"
    hits = f"{100 * counters.prefix_hit_rate:.0f} %" if counters.prefix_queries else "–"
    return f"unused slots {lost} · prefix hits {hits} · evictions {counters.evictions:,}"


def describe(blocks: BlockSnapshot, block: int, owners: Sequence[str], name: Name) -> str:
    """A block in one line: state, tokens, requests."""
    owner, size = int(blocks.owner[block]), blocks.block_size
    if owner == BLOCK_FREE:
        return f"Block {block:,} · free"
    if owner == BLOCK_CACHED:
        return f"Block {block:,} · cached prefix, evictable"
    tokens = f"{int(blocks.fill[block])} of {size} tokens"
    holders = int(blocks.ref_count[block])
    names = [f"“{name(o)}”" for o in owners[:2]] or [f"“{name(blocks.owners[owner])}”"]
    more = holders - len(names)
    held = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    shared = f"shared by {holders} requests: " if holders > 1 else ""
    return f"Block {block:,} · {tokens} · {shared}{held}"


def contents(details: BlockDetails, now: float) -> str:
    """A block's text, hash, parent hash and age."""
    text = details.text.replace("\n", "⏎")
    if len(text) > _SHOWN_TEXT:
        text = text[:_SHOWN_TEXT] + "…"
    parts = [f"“{text}”" if text else f"{len(details.token_ids)} tokens, no text"]
    if not details.token_ids:
        parts = []
    if details.block_hash:
        parent = details.parent_hash[:8]
        parts.append(f"hash {details.block_hash[:8]}")
        parts.append(f"parent hash {parent}" if parent else "first block of its sequence")
    if details.published is not None:
        parts.append(f"cached {_ago(max(0.0, now - details.published))} ago")
    return " · ".join(parts)


def _ago(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


EMPTY_TEXT = "Open a model to see its KV blocks."
HINT = "Hover over a block to see its tokens. Click it to highlight its request."
LEGEND = (
    Swatch("in use (one color per request)", lambda table: table.series.owners[:3]),
    Swatch("shared", lambda table: table.series.owners[:1], mark="text"),
    Swatch("cached", of("kv_cached")),
    Swatch("free", of("free")),
)
ASK_AFTER_MS = 80
"""Delay before the block's text is requested."""
_WORDS_INTERVAL_S = 0.5


class BlocksPanel(QFrame):
    """`details_wanted(block)`: answer with `show_details`."""

    details_wanted = Signal(int)

    def __init__(self, clock: RedrawClock, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("KV blocks")
        self.name: Name = lambda request_id: request_id[:8]
        self.map = BlockMap(clock)
        self.map.pointed.connect(self._pointed)
        self.map.chosen.connect(lambda owner: self._show_text())
        self.map.tip = self._tip
        self._snapshot: EngineSnapshot | None = None
        self._words_at = float("-inf")
        self._details: BlockDetails | None = None
        self._ask = QTimer(self)
        self._ask.setSingleShot(True)
        self._ask.setInterval(ASK_AFTER_MS)
        self._ask.timeout.connect(self._ask_for_details)
        self._build()
        self._show_text()

    def _build(self) -> None:
        self.note = ElidedLine("text_muted")
        self._view = scroll_area(self.map)
        self._view.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the map takes the focus
        bar = self._view.verticalScrollBar().sizeHint().width()
        self._view.setMinimumWidth(self.map.minimumSizeHint().width() + bar)
        self._view.viewport().setAutoFillBackground(False)
        self.map.setAutoFillBackground(False)
        self._empty = centered(EMPTY_TEXT)
        self._stack = stack(self._empty, self._view)
        self.legend, self.losses = Swatches(LEGEND), NoteLabel()
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
        if words:
            self.clear()
            self._empty.setText(words)
            return
        self._snapshot = snapshot
        self._empty.setText(EMPTY_TEXT)
        self._stack.setCurrentWidget(self._view)
        self.map.update_blocks(snapshot.blocks)
        due = snapshot.time - self._words_at >= _WORDS_INTERVAL_S or not snapshot.num_running
        if due and self.isVisible():
            self._words_at = snapshot.time
            self._show_text()

    def clear(self) -> None:
        """No model is loaded."""
        self._snapshot = None
        self.map.update_blocks(None)
        self._stack.setCurrentWidget(self._empty)
        self._show_text()

    def show_details(self, details: BlockDetails | None) -> None:
        """Show the engine's answer, if the block is still pointed at."""
        if details is not None and details.block == self.map.pointed_index:
            self._details = details
            self._show_text()

    # Words -------------------------------------------------------------------------------------

    def _pointed(self, block: int) -> None:
        self._details = None
        if block == NONE:
            self._ask.stop()
        else:
            self._ask.start()
            center = self.map.cell_rect(block).center()
            self._view.ensureVisible(center.x(), center.y(), 20, 20)
        self._show_text()

    def _ask_for_details(self) -> None:
        if self.map.pointed_index != NONE:
            self.details_wanted.emit(self.map.pointed_index)

    def _show_text(self) -> None:
        snapshot, block = self._snapshot, self.map.pointed_index
        if snapshot is None:
            for widget in (self.note, self.losses, self.line, self.text):
                widget.set_text("")
            return
        self.note.set_text(summary(snapshot.blocks, kv_precision(snapshot.memory.plan)))
        self.losses.set_text(losses(snapshot.blocks, snapshot.counters))
        if block != NONE:
            owners = self.map.owners_of(block)
            line = describe(snapshot.blocks, block, owners, self.name)
            text = contents(self._details, snapshot.time) if self._details else ""
        else:
            line, text = self._chosen_text(snapshot), ""
        self.line.set_text(line)
        self.text.set_text(text)
        self.map.setAccessibleDescription(f"{line} {text}".strip())

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
