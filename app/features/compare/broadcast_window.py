"""`ReplyCell`: one reply of a broadcast as it is written, with its figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QCloseEvent, QKeySequence, QResizeEvent, QShortcut, QTextCursor
from PySide6.QtWidgets import (
    QComboBox,
    QDialog,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QPushButton,
    QScrollArea,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from app.features.chat.sampling import DEFAULT_PRESET, NUM_ALTERNATIVES, built_in_presets
from app.features.compare.broadcast import Broadcast, lines, seeds
from app.features.compare.broadcast_replies import Reply, Stage, together
from app.link.bridge import EngineBridge
from engine.sampling_params import SamplingParams
from widgets.controls.frames import scroll_by_keys
from widgets.controls.lines import ElidedLine
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4

HEIGHT, LEAST_WIDTH = 168, 260
_WAITING = "Its tokens appear here as soon as the engine has a place for it."


class ReplyCell(QFrame):
    """`keep_wanted(reply)`: the user wants it as a chat."""

    keep_wanted = Signal(object)

    def __init__(self, reply: Reply, name: str) -> None:
        super().__init__()
        self.reply = reply
        self.setProperty("panel", True)
        self.setFixedHeight(HEIGHT)
        self.setMinimumWidth(LEAST_WIDTH)
        self.setAccessibleName(f"Reply {reply.number}")
        self.title, self.figures = ElidedLine(), ElidedLine("text_muted")
        self.title.set_text(name)
        self.keep = QPushButton("Keep as chat")
        self.keep.setProperty("kind", "link")
        self.keep.setToolTip("Make an ordinary chat of this prompt and reply, and open it")
        self.keep.setAccessibleName(f"Keep reply {reply.number} as a chat")
        self.keep.clicked.connect(lambda: self.keep_wanted.emit(self.reply))
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setProperty("bare", True)
        self.text.setFrameShape(QFrame.Shape.NoFrame)
        self.text.setTabChangesFocus(True)
        self.text.setPlaceholderText(_WAITING)
        self.text.document().setDocumentMargin(0)
        self.text.setAccessibleName(f"Text of reply {reply.number}")
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        head.addWidget(self.title, 1)
        head.addWidget(self.keep)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_3, SPACE_2, SPACE_2, SPACE_2)
        column.setSpacing(SPACE_1)
        column.addLayout(head)
        column.addWidget(self.figures)
        column.addWidget(self.text, 1)
        self.show_figures()

    def append(self, text: str) -> None:
        """More of its text; the end stays in view where it was."""
        bar = self.text.verticalScrollBar()
        follows = bar.value() == bar.maximum()
        cursor = QTextCursor(self.text.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(text)
        if follows:
            bar.setValue(bar.maximum())

    def show_figures(self) -> None:
        reply = self.reply
        words = reply.words
        if reply.stage is Stage.FAILED and reply.error is not None:
            words = f"{reply.error.cause} {reply.error.remedy}".strip()
        self.figures.set_text(words)
        self.keep.setEnabled(not reply.stage.is_open and bool(reply.text))


SIZE = (1080, 760)
MOST = 64
FIGURES_MS = 250
EMPTY = (
    "One prompt goes to many conversations at once, through the same engine: their replies appear "
    "here side by side, and in the timeline, the requests and the KV blocks like any others."
)
NO_MODEL = "Open a model to send something."
_SEEDS, _LINES = "seeds", "lines"


class BroadcastWindow(QDialog):
    """Kept until it is closed, replies and all. `keep(reply)` makes a chat of one."""

    closed = Signal()

    def __init__(
        self,
        bridge: EngineBridge,
        broadcast: Broadcast,
        keep: Callable[[Reply], None],
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle("Broadcast")
        self._bridge, self.broadcast, self._keep = bridge, broadcast, keep
        self.cells: list[ReplyCell] = []
        self._num_columns = 0
        self._make_parts()
        self._arrange()
        self._timer = QTimer(self)
        self._timer.setInterval(FIGURES_MS)
        self._timer.timeout.connect(self._show_figures)
        broadcast.begun.connect(self._show_replies)
        broadcast.appended.connect(self._append)
        broadcast.changed.connect(self._on_changed)
        bridge.state_changed.connect(self._show_buttons)
        self.resize(*SIZE)
        self._show_replies()

    # Building ----------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        self.prompt = QPlainTextEdit()
        self.prompt.setAccessibleName("Prompt of the broadcast")
        self.prompt.setTabChangesFocus(True)
        self.prompt.setFixedHeight(96)
        self.prompt.textChanged.connect(self._show_buttons)
        QShortcut(QKeySequence("Ctrl+Return"), self.prompt, self.send)
        self.kind = QComboBox()
        self.kind.setAccessibleName("What differs between the conversations")
        self.kind.setToolTip("One prompt from many seeds, or every line a prompt of its own")
        self.kind.addItem("one prompt, many seeds", _SEEDS)
        self.kind.addItem("every line a prompt", _LINES)
        self.kind.currentIndexChanged.connect(self._show_buttons)
        self.count = _spin("Conversations", "How many replies are written at once", 1, MOST, 8)
        self.count.setSuffix(" replies")
        self.count.valueChanged.connect(self._show_buttons)
        self.seed = _spin("First seed", "Each conversation draws from the next", 0, 2**31 - 65, 0)
        self.seed.setPrefix("seed ")
        self.max_tokens = _spin("Longest reply", "Tokens after which a reply ends", 1, 8192, 128)
        self.max_tokens.setSuffix(" tokens")
        self.preset = QComboBox()
        self.preset.setAccessibleName("Sampling of the conversations")
        self.preset.setToolTip("How tokens are chosen")
        for preset in built_in_presets():
            self.preset.addItem(preset.name, preset.params)
        self.preset.setCurrentText(DEFAULT_PRESET)
        self.stop = QPushButton("Stop all")
        self.stop.setToolTip("Stop every reply that waits or is being written")
        self.stop.setAutoDefault(False)
        self.stop.clicked.connect(self.broadcast.stop)
        self.start = QPushButton("Send")
        self.start.setProperty("kind", "primary")
        self.start.setAutoDefault(False)
        self.start.clicked.connect(self.send)
        self.together = ElidedLine()
        self.together.setAccessibleName("All replies together")
        self.empty = QLabel(EMPTY)
        self.empty.setProperty("role", "small")
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
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        head.addWidget(self.prompt, 1)
        head.addLayout(choices)
        foot = QHBoxLayout()
        foot.setSpacing(SPACE_2)
        foot.addWidget(self.together, 1)
        foot.addWidget(self.stop)
        foot.addWidget(self.start)
        content = QWidget()
        content.setProperty("bare", True)
        self._grid = QGridLayout(content)
        self._grid.setContentsMargins(0, 0, SPACE_1, 0)
        self._grid.setSpacing(SPACE_2)
        self._area = QScrollArea()
        self._area.setProperty("bare", True)
        self._area.setAccessibleName("Replies")
        self._area.setWidgetResizable(True)
        self._area.setWidget(content)
        scroll_by_keys(self._area)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        column.setSpacing(SPACE_2)
        column.addLayout(head)
        column.addLayout(foot)
        column.addWidget(self.empty)
        column.addWidget(self._area, 1)

    # What the user does ------------------------------------------------------------------------

    def send(self) -> None:
        """Send what is written to all conversations at once."""
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

    def _show_replies(self) -> None:
        """A cell for every reply, in place of those before."""
        for cell in self.cells:
            self._grid.removeWidget(cell)
            cell.deleteLater()
        by_seed = len({reply.prompt for reply in self.broadcast.replies}) < 2
        self.cells = [ReplyCell(r, _name(r, by_seed)) for r in self.broadcast.replies]
        for cell in self.cells:
            cell.append(cell.reply.text)
            cell.keep_wanted.connect(self._keep)
        self.empty.setVisible(not self.cells)
        self._num_columns = 0
        self._place_cells()
        self._show_figures()

    def _place_cells(self) -> None:
        """As many beside each other as are wide enough to be read."""
        room = self._area.viewport().width()
        count = max(1, min(len(self.cells), room // (LEAST_WIDTH + SPACE_2)))
        if count == self._num_columns:
            return
        self._num_columns = count
        for place, cell in enumerate(self.cells):
            self._grid.addWidget(cell, place // count, place % count)
            cell.show()
        self._grid.setRowStretch(self._grid.rowCount(), 1)

    def _append(self, reply: Reply, text: str) -> None:
        self.cells[reply.number - 1].append(text)

    def _on_changed(self, reply: Reply) -> None:
        self.cells[reply.number - 1].show_figures()
        if not self.broadcast.is_running:
            self._show_figures()

    def _show_figures(self) -> None:
        for cell in self.cells:
            cell.show_figures()
        replies, is_running = self.broadcast.replies, self.broadcast.is_running
        self.together.set_text(together(replies).words if replies else "")
        if is_running != self._timer.isActive():
            (self._timer.start if is_running else self._timer.stop)()
        self._show_buttons()

    def _show_buttons(self, *_: object) -> None:
        is_by_line = self.kind.currentData() == _LINES
        self.count.setEnabled(not is_by_line)
        self.prompt.setPlaceholderText(
            f"A prompt a line, at most {MOST}" if is_by_line else "A prompt for all conversations"
        )
        asked, is_running = len(self._asked()), self.broadcast.is_running
        self.start.setEnabled(bool(asked) and not is_running and self._bridge.is_ready)
        self.start.setText(f"Send to {asked:,}" if asked else "Send")
        self.start.setToolTip(
            NO_MODEL if not self._bridge.is_ready
            else "Stop the replies that are being written first" if is_running
            else "Send to all conversations at once (Ctrl+Return)"
        )  # fmt: skip
        self.stop.setEnabled(is_running)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place_cells()

    def closeEvent(self, event: QCloseEvent) -> None:
        self.broadcast.stop()
        self._timer.stop()
        for signal, slot in (
            (self.broadcast.begun, self._show_replies), (self.broadcast.appended, self._append),
            (self.broadcast.changed, self._on_changed),
        ):  # fmt: skip
            signal.disconnect(slot)
        super().closeEvent(event)
        self.closed.emit()

    def reject(self) -> None:
        """Escape, too: while replies are written it stops them, and they stay to be kept."""
        if self.broadcast.is_running:
            self.broadcast.stop()
        else:
            self.close()


def _name(reply: Reply, by_seed: bool) -> str:
    if by_seed:
        return f"{reply.number} · seed {reply.params.seed}"
    return f"{reply.number} · {' '.join(reply.prompt.split())}"


def _spin(name: str, tip: str, least: int, most: int, value: int) -> QSpinBox:
    made = QSpinBox()
    made.setRange(least, most)
    made.setValue(value)
    made.setAccessibleName(name)
    made.setToolTip(tip)
    return made
