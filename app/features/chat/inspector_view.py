"""`InspectorView`: latency, KV blocks and drafts of one reply, in a panel beside the conversation.

Reply  What is paging?     x
Queue        3.0 ms
Prefill       81 ms  768 of 803 tokens cached
...
a bar per gap
KV blocks            76, 48 shared
Drafts               34 of 48 accepted
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QGridLayout, QLabel, QWidget

from app.features.chat.inspection import Drafts, OwnBlocks, Phases, Prompt
from engine.units import counted, duration_text
from widgets.blocks.block_map import BlockMap
from widgets.blocks.scales import fit
from widgets.controls.buttons import IconButton
from widgets.controls.frames import scroll_area
from widgets.controls.layouts import STRETCH, centered, dressed, hbox, label, stack, vbox, wrapped
from widgets.controls.lines import ElidedLine
from widgets.controls.swatches import Swatches
from widgets.controls.text import set_key_tip
from widgets.latency.reply import ReplyLatency
from widgets.latency.view import LatencyView
from widgets.plot.clock import RedrawClock
from widgets.plot.painted import NONE
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, figure_font
from widgets.tokens.paint import PAINTS
from widgets.tokens.record import TokenRecord
from widgets.tokens.strip import TokenStrip

EMPTY = "Send a message to see the latency, KV blocks and draft tokens of its reply."
NO_TIMES = "No token timings were recorded for this reply."
OWN_QUEUE, SERVED_QUEUE = "with tokenization", "with connection and client"
"""The time from arrival to the first step includes these, even where no request waits."""
NO_SERVED_DRAFTS = "Drafts: not reported by its server."
NOT_REPORTED = "not reported"
NO_DRAFTS = "No draft tokens: generated without speculative decoding."
MAP_HEIGHT, LEAST_WIDTH = 96, 200
PAINT = next(paint for paint in PAINTS if paint.shows_rejected)


class InspectorView(QWidget):
    def __init__(self, clock: RedrawClock, close: Callable[[], object]) -> None:
        super().__init__()
        self.setAccessibleName("Reply inspector")
        closes = IconButton("close", "Close", close)
        set_key_tip(closes, "Close", "chat.latency")
        self.prompt = ElidedLine("text_muted")
        self.phases = PhaseTable()
        self.latency, self.no_times = LatencyView(), wrapped("muted", NO_TIMES)
        self.blocks, self.drafts = BlocksSection(clock), DraftsSection()
        content = dressed(QWidget(), bare=True)
        vbox(
            self.phases, self.no_times, self.latency, SPACE_3, self.blocks, SPACE_3, self.drafts,
            STRETCH,
            of=content, margins=(SPACE_3, 0, SPACE_3, SPACE_3),
        )  # fmt: skip
        area = dressed(scroll_area(content, "Reply"), bare=True)
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the charts have it
        self._stack = stack(centered(EMPTY), area)
        margins = (SPACE_3, SPACE_2, SPACE_2, 0)
        head = hbox(label("Reply", "title"), (self.prompt, 1), closes, margins=margins)
        vbox(head, (self._stack, 1), of=self)
        self.show_nothing()

    def show_nothing(self) -> None:
        self._reply_id = ""
        self.prompt.set_text("")
        self._stack.setCurrentIndex(0)

    def show_prompt(self, reply_id: str, text: str) -> None:
        """Begin with the reply to this message. Its figures follow, and replace those of another
        reply at once."""
        self.prompt.set_text(text)
        if reply_id != self._reply_id:
            self._reply_id = reply_id
            self.phases.show_phases(Phases(), Prompt())
            self.no_times.hide()
            self.latency.hide()
        self._stack.setCurrentIndex(1)

    def show_latency(self, latency: ReplyLatency | None) -> None:
        """None: there are no times of tokens."""
        self.no_times.setVisible(latency is None)
        self.latency.setVisible(latency is not None)
        if latency is not None:
            self.latency.show_latency(latency)

    def take_focus(self) -> None:
        target = self._stack if self.latency.isHidden() else self.latency.chart
        target.setFocus(Qt.FocusReason.ShortcutFocusReason)


class PhaseTable(QWidget):
    """A row for each phase: name, duration, and what it consists of."""

    NAMES = ("Queue", "Prefill", "Decode", "End to end")

    def __init__(self) -> None:
        super().__init__()
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(SPACE_3)
        grid.setVerticalSpacing(SPACE_1)
        self.values: list[QLabel] = []
        self.details: list[ElidedLine] = []
        for row, name in enumerate(self.NAMES):
            value, detail = QLabel(), ElidedLine("text_muted")
            value.setFont(figure_font("body", QFont.Weight.DemiBold))
            value.setAlignment(Qt.AlignmentFlag.AlignRight)
            grid.addWidget(label(name, "muted"), row, 0)
            grid.addWidget(value, row, 1)
            grid.addWidget(detail, row, 2)
            self.values.append(value)
            self.details.append(detail)
        grid.setColumnStretch(2, 1)

    def show_phases(self, phases: Phases, prompt: Prompt) -> None:
        for value, seconds in zip(self.values, phases[: len(self.NAMES)], strict=True):
            value.setText(duration_text(seconds))
        count = counted(prompt.num_tokens, "token")
        if prompt.num_cached:
            count = f"{prompt.num_cached:,} of {count} cached"
        ttft = "" if phases.ttft is None else f"TTFT {duration_text(phases.ttft)}"
        missing = NOT_REPORTED if phases.ttft is not None and phases.queue is None else ""
        before = SERVED_QUEUE if prompt.is_served else OWN_QUEUE
        queue = missing or (before if phases.queue is not None else "")
        prefill = filter(None, [missing, count if prompt.num_tokens else ""])
        for detail, text in zip(self.details, (queue, ", ".join(prefill), "", ttft), strict=True):
            detail.set_text(text)


class _Section(QWidget):
    """A heading with a note at its right."""

    def __init__(self, title: str, *parts: QWidget) -> None:
        super().__init__()
        self.note = ElidedLine("text_muted", hugs=True)
        vbox(hbox(label(title, "title"), STRETCH, self.note), *parts, of=self)


class BlocksSection(_Section):
    def __init__(self, clock: RedrawClock) -> None:
        self.map = BlockMap(clock)
        self._holder, self._none = QWidget(), wrapped("muted")
        vbox(self.map, of=self._holder)
        super().__init__("KV blocks", self._holder, self._none)
        self.map.setAccessibleName("KV blocks of this reply")
        self.map.tip = self._tip
        self._blocks: OwnBlocks | None = None

    def show_none(self, text: str) -> None:
        """`text`: why there are none."""
        self._blocks = None
        self._none.setText(text)
        self._none.show()
        self._holder.hide()
        self.note.set_text("")
        self.map.update_blocks(None)

    def show_blocks(self, request_id: str, blocks: OwnBlocks) -> None:
        self._blocks = blocks
        self._none.hide()
        self._holder.show()
        count = counted(blocks.num_blocks, "block")
        self.note.set_text(f"{count} of {blocks.block_size} tokens, {blocks.num_shared:,} shared")
        grid = fit(blocks.num_blocks, max(self.width(), LEAST_WIDTH), MAP_HEIGHT)
        self._holder.setFixedHeight(grid.height if grid is not None else MAP_HEIGHT)
        self.map.update_blocks(blocks.as_snapshot(request_id))

    def _tip(self) -> str:
        place, blocks = self.map.pointed_block, self._blocks
        if blocks is None or place == NONE:
            return ""
        users = int(blocks.ref_count[place])
        shared = f" · shared by {users:,} requests" if users > 1 else ""
        tokens = f"{int(blocks.fill[place])} of {blocks.block_size} tokens"
        return f"Block {place + 1:,} of {blocks.num_blocks:,} · {tokens}{shared}"


class DraftsSection(_Section):
    """The text with accepted drafts coloured and rejected ones struck through; hidden while no
    token is known."""

    def __init__(self) -> None:
        self.strip, self._legend = TokenStrip(), Swatches(PAINT.legend, wraps=True)
        self.strip.paint_by(PAINT)
        self._none = wrapped("muted", NO_DRAFTS)
        super().__init__("Drafts", self._legend, self.strip, self._none)

    def show_tokens(self, records: Sequence[TokenRecord], instead: str = NO_DRAFTS) -> None:
        """instead: the text where there are no drafts."""
        self.setVisible(bool(records))
        drafts = Drafts.of(records)
        tried = drafts.num_accepted + drafts.num_rejected
        for part in (self.strip, self._legend):
            part.setVisible(bool(tried))
        self._none.setText(instead)
        self._none.setVisible(not tried)
        self.note.set_text(f"{drafts.num_accepted:,} of {tried:,} accepted" if tried else "")
        self.strip.show_tokens(records if tried else ())
        self.strip.point_at(NONE)
