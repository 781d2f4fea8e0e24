"""`BroadcastView`: one prompt as many concurrent requests, a cell per reply."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QComboBox, QGridLayout, QScrollArea, QWidget

from app.features.chat.conversation import NUM_ALTERNATIVES
from app.features.chat.sampling import DEFAULT_PRESET, built_in_presets
from app.features.compare.replies import Reply, totals_text
from app.features.compare.reply_view import PromptView, ReplyView, spin
from app.features.compare.requests import Broadcast, lines, seeds
from app.link.bridge import EngineBridge
from engine.sampling_params import SamplingParams
from widgets.controls.frames import scroll_by_keys
from widgets.controls.layouts import button, dressed, hbox, label, vbox
from widgets.controls.lines import ElidedLine
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2

LEAST_WIDTH = 300
"""Of a cell: pixels at the default text size."""
MOST = 64
FIGURES_MS = 250
EMPTY = (
    "Send one prompt as many concurrent requests to the same engine. The requests also appear in "
    "the step timeline, the request table and the KV block map."
)
_SEEDS, _LINES = "seeds", "lines"


class ReplyCell(ReplyView):
    """A reply with its state and figures. `keep` turns it into a chat."""

    reply: Reply
    least_lines = 12

    def __init__(self, reply: Reply, name: str, keep: Callable[[Reply], None]) -> None:
        super().__init__(f"Reply {reply.number} text")
        self.setAccessibleName(f"Reply {reply.number}")
        self.figures = ElidedLine("text_muted")
        self.title.set_text(name)
        tip = "Open a chat with this prompt and reply"
        self.keep = button("Continue as chat", lambda: keep(self.reply), tip, "link")
        self.keep.setAccessibleName(f"Continue reply {reply.number} as chat")
        self.head.addWidget(self.keep)
        self.column.insertWidget(1, self.figures)
        self.show_reply(reply)
        self.show_figures()

    def show_figures(self) -> None:
        self.figures.set_text(self.reply.summary)
        self.keep.setEnabled(not self.reply.stage.is_open and bool(self.reply.text))


class ReplyGrid(QScrollArea):
    """Replies beside each other as far as there is room; few fill the height, many scroll.
    `keep(reply)` continues one as a chat."""

    def __init__(self, keep: Callable[[Reply], None]) -> None:
        super().__init__(widgetResizable=True)
        dressed(self, "Replies", bare=True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._keep = keep
        self.cells: list[ReplyCell] = []
        self.num_columns = 0
        content = dressed(QWidget(), bare=True)
        self._grid = QGridLayout(content)
        self._grid.setContentsMargins(0, 0, SPACE_1, 0)
        self._grid.setSpacing(SPACE_2)
        self.setWidget(content)
        scroll_by_keys(self)

    def show_replies(self, replies: Sequence[Reply]) -> None:
        """Replace the cells by one per reply."""
        for cell in self.cells:
            self._grid.removeWidget(cell)
            cell.deleteLater()
        by_seed = len({reply.prompt for reply in replies}) < 2
        self.cells = [ReplyCell(r, _name(r, by_seed), self._keep) for r in replies]
        self.num_columns = 0
        self._place_cells()

    def _place_cells(self) -> None:
        """As many columns as fit at a readable width."""
        room = self.viewport().width()
        count = max(1, min(len(self.cells), room // (scaled(LEAST_WIDTH) + SPACE_2)))
        if count == self.num_columns:
            return
        self.num_columns = count
        rows = -(-len(self.cells) // count)
        for place, cell in enumerate(self.cells):
            self._grid.addWidget(cell, place // count, place % count)
            cell.show()
        for column in range(self._grid.columnCount()):
            self._grid.setColumnStretch(column, int(column < count))
        for row in range(self._grid.rowCount()):
            self._grid.setRowStretch(row, int(row < rows))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place_cells()


class BroadcastView(PromptView):
    """A prompt, the number of requests, and their replies in a grid. `keep(reply)` turns one into a
    chat."""

    def __init__(
        self,
        bridge: EngineBridge,
        broadcast: Broadcast,
        keep: Callable[[Reply, str], None],
    ) -> None:
        """`keep(reply, model)` continues a reply as a chat."""
        super().__init__(broadcast, self._show_figures, FIGURES_MS, self.send)
        self._bridge, self.broadcast = bridge, broadcast
        self._keep = lambda reply: keep(reply, self.broadcast.model)
        self._make_parts()
        self._arrange()
        broadcast.begun.connect(self._show_replies)
        broadcast.appended.connect(self._append)
        broadcast.changed.connect(self._on_changed)
        bridge.state_changed.connect(self._show_buttons)
        self._show_replies()

    # Building ----------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        self.prompt.setAccessibleName("Broadcast prompt")
        self.prompt.setFixedHeight(scaled(92))
        self.prompt.textChanged.connect(self._show_buttons)
        tip = "Send one prompt with different seeds, or each line as a separate prompt"
        self.kind = dressed(QComboBox(), "Prompts", tip)
        self.kind.addItem("One prompt, many seeds", _SEEDS)
        self.kind.addItem("One prompt per line", _LINES)
        self.kind.currentIndexChanged.connect(self._show_buttons)
        self.count = spin("Replies", "Number of concurrent requests", 1, MOST, 8)
        self.count.setSuffix(" replies")
        self.count.valueChanged.connect(self._show_buttons)
        self.seed.setToolTip("Seed for the first reply; incremented by 1 for each subsequent reply")
        self.preset = dressed(QComboBox(), "Sampling preset", "Sampling preset")
        for preset in built_in_presets():
            self.preset.addItem(preset.name, preset.params)
        self.preset.setCurrentText(DEFAULT_PRESET)
        tip = "Stop all queued and running replies"
        self.stop = button("Stop all", self.broadcast.stop, tip)
        self.start = button("", self.send, kind="primary")
        self.together = dressed(ElidedLine(), "Totals")
        self.empty = label(EMPTY, "small")
        self.empty.setWordWrap(True)

    def _arrange(self) -> None:
        choices = QGridLayout()
        choices.setSpacing(SPACE_2)
        places = (
            (self.kind, 0, 0), (self.count, 0, 1), (self.preset, 1, 0), (self.seed, 1, 1),
            (self.max_tokens, 2, 1),
        )  # fmt: skip
        for widget, row, place in places:
            choices.addWidget(widget, row, place)
        head = hbox((self.prompt, 1), choices)
        foot = hbox((self.together, 1), self.stop, self.start)
        self.replies = ReplyGrid(self._keep)
        vbox(head, foot, self.empty, (self.replies, 1), of=self)

    # What the user does ------------------------------------------------------------------------

    def send(self) -> None:
        if self.start.isEnabled():
            self.broadcast.start(self._asked())

    def _asked(self) -> list[tuple[str, SamplingParams]]:
        chosen: SamplingParams = self.preset.currentData()
        params = dataclasses.replace(
            chosen, seed=self.seed.value(), max_tokens=self.max_tokens.value(),
            logprobs=NUM_ALTERNATIVES,
        )  # fmt: skip
        text = self.prompt.toPlainText()
        if self.kind.currentData() == _LINES:
            return lines(text, params, MOST)
        return seeds(text.strip(), params, self.count.value()) if text.strip() else []

    # Showing -----------------------------------------------------------------------------------

    @property
    def cells(self) -> list[ReplyCell]:
        return self.replies.cells

    def _show_replies(self) -> None:
        self.replies.show_replies(self.broadcast.replies)
        self.empty.setVisible(not self.cells)
        self._show_figures()

    def _append(self, reply: Reply, text: str) -> None:
        self.cells[reply.number - 1].append(text)

    def _on_changed(self, reply: Reply) -> None:
        self.cells[reply.number - 1].show_figures()
        if not self.broadcast.is_running:
            self._show_figures()

    def _show_figures(self) -> None:
        for cell in self.cells:
            cell.show_figures()
        replies = self.broadcast.replies
        self.together.set_text(totals_text(replies) if replies else "")
        self.run_timer()
        self._show_buttons()

    def _show_buttons(self, *_: object) -> None:
        is_by_line = self.kind.currentData() == _LINES
        self.count.setEnabled(not is_by_line)
        self.prompt.setPlaceholderText(
            f"One prompt per line, up to {MOST}" if is_by_line else "Prompt for all replies"
        )
        asked, is_running = len(self._asked()), self.broadcast.is_running
        self.start.setEnabled(bool(asked) and not is_running and self._bridge.is_ready)
        self.start.setText(f"Send {asked:,}" if asked else "Send")
        self.start.setToolTip(
            "Open a model first" if not self._bridge.is_ready
            else "Wait for the running replies to finish, or stop them" if is_running
            else "Send all requests at once (Ctrl+Return)"
        )  # fmt: skip
        self.stop.setEnabled(is_running)


def _name(reply: Reply, by_seed: bool) -> str:
    if by_seed:
        return f"{reply.number} · seed {reply.params.seed}"
    return f"{reply.number} · {' '.join(reply.prompt.split())}"
