"""`BottleneckPanel`: where the time of a step goes, and the ceiling of every knob."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QBoxLayout,
    QComboBox,
    QFrame,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QPushButton,
    QScrollArea,
    QStackedLayout,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.panels.step_account import Account, Chosen, StepAccount
from engine.ceilings import Ceiling
from engine.messages import PeaksMeasured
from engine.peaks import Peaks
from engine.snapshot import EngineSnapshot
from engine.step_cost import Split, Work
from widgets.elided_line import ElidedLine
from widgets.parts_bar import Part, PartsBar
from widgets.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4, figure_font, theme, theme_notifier

EMPTY_TEXT = "Where the time of a step goes appears with the first reply: send a message."
NO_MODEL = "Where the time of a step goes appears when a model is loaded and writes a reply."
NO_PEAKS = "The machine's peaks are measured as soon as the engine rests: half a second."
NOT_THERE = "None of the last steps is of this kind."
_INTERVAL_S = 1.0
_SIDE_BY_SIDE = 720  # pixels from which the knobs stand beside the parts
_PARTS_WIDTH = 420
PARTS = (
    ("Reading weights", "weights", "weights", "bytes of the weights that a step reads, at peak"),
    ("Reading KV", "kv_used", "kv", "keys and values of all requests of the step, at peak"),
    ("Arithmetic", "arithmetic", "arithmetic", "beyond what is hidden behind the reading"),
    ("Launch and rest", "launch", "launch",
     "the model's measured time less what was counted: starting operations, small ones, and "
     "reading or computing slower than the peaks"),
    ("Python", "python", "python", "scheduling, sampling and commit, measured"),
    ("Drafting", "draft", "draft", "the draft model or lookup proposes tokens, measured"),
    ("Between steps", "queued", "queue", "requests wait for the next step, measured"),
)  # fmt: skip
_COLUMNS = ("Knob", "Set to", "At most", "Because")


class BottleneckPanel(QFrame):
    """`measure_wanted`: the machine's peaks are not known, or should be measured again."""

    measure_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Where a step goes")
        self.model = StepAccount()
        self._config: Any = None
        self._is_open = False  # a model is loaded
        self._is_idle = False
        self._asked = False
        self._is_live = True
        self._shown_at = float("-inf")
        self._build()
        self._show_account()
        theme_notifier().changed.connect(self._paint_factors)

    def _build(self) -> None:
        self._empty = QLabel(NO_MODEL)
        self._empty.setProperty("role", "small")
        self._empty.setWordWrap(True)
        self._empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        content = QWidget()
        content.setProperty("bare", True)
        self._sides = QBoxLayout(QBoxLayout.Direction.LeftToRight, content)
        self._sides.setContentsMargins(SPACE_3, 0, SPACE_3, SPACE_2)
        self._sides.setSpacing(SPACE_4)
        self._left = self._make_left()
        self.table = KnobTable()
        self._sides.addWidget(self._left)
        self._sides.addWidget(self.table, 1)
        self._area = QScrollArea()
        self._area.setProperty("bare", True)
        self._area.setWidgetResizable(True)
        self._area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._area.setWidget(content)
        self._stack = QStackedLayout(self)
        self._stack.addWidget(self._empty)
        self._stack.addWidget(self._area)

    def _make_left(self) -> QWidget:
        self.verdict = QLabel()
        self.verdict.setProperty("role", "title")
        self.verdict.setWordWrap(True)
        self.note = ElidedLine("text_muted")
        self.counted, self.peaks_line = _wrapped(), _wrapped()
        self.chosen = QComboBox()
        self.chosen.addItems([kind.value.capitalize() for kind in Chosen])
        self.chosen.setAccessibleName("Steps that count")
        self.chosen.setToolTip("Steps that only decode make ITL, steps with prefill make TTFT")
        self.chosen.currentIndexChanged.connect(lambda index: self._show_account())
        self.bar = PartsBar("Where the time of a step goes")
        self.measure = QPushButton("Measure again")
        self.measure.setToolTip(
            "Measure how fast this machine reads memory and computes: half a second, while the "
            "engine rests"
        )
        self.measure.clicked.connect(self._measure)
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        head.addWidget(self.note, 1)
        head.addWidget(self.chosen)
        foot = QHBoxLayout()
        foot.setSpacing(SPACE_2)
        foot.addWidget(self.peaks_line, 1)
        foot.addWidget(self.measure)
        left = QWidget()
        column = QVBoxLayout(left)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_1)
        column.addWidget(self.verdict)
        column.addLayout(head)
        column.addWidget(self.bar)
        column.addWidget(self.counted)
        column.addLayout(foot)
        column.addStretch(1)
        return left

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        wide = self.width() >= _SIDE_BY_SIDE
        directions = QBoxLayout.Direction
        self._sides.setDirection(directions.LeftToRight if wide else directions.TopToBottom)
        self._left.setMaximumWidth(_PARTS_WIDTH if wide else 16_777_215)
        self._left.setMinimumWidth(_PARTS_WIDTH if wide else 0)

    # Feeding -----------------------------------------------------------------------------------

    def update_snapshot(self, snapshot: EngineSnapshot) -> None:
        """Take the new steps; what is read changes once a second, and while it is seen."""
        self.model.update(snapshot)
        self._config = snapshot.config
        self._is_idle = not snapshot.requests
        if not self.isVisible():
            return
        self._ask_if_unknown()
        if snapshot.time - self._shown_at >= _INTERVAL_S or self._is_idle:
            self._shown_at = snapshot.time
            self._show_account()

    def show_peaks(self, event: PeaksMeasured) -> None:
        """The engine's answer."""
        self.measure.setEnabled(self._is_live)
        if event.peaks is None:
            self._asked = False  # asked again when the engine rests
            self.peaks_line.setText(f"Not measured now. {event.why_not}")
            return
        self.model.peaks = event.peaks
        self.peaks_line.setText(_peaks_words(event.peaks))
        self._show_account()

    def open_model(self) -> None:
        """A model was loaded: nothing is known of it."""
        self.model.clear()
        self._is_open, self._asked, self._is_idle = True, False, False
        self._shown_at = float("-inf")
        self.peaks_line.setText("")
        self._show_account()

    def close_model(self) -> None:
        """No model is loaded."""
        self.model.clear()
        self._is_open, self._asked, self._is_idle = False, False, False
        self._show_account()

    def set_recorded(self) -> None:
        """What is shown was recorded: nothing can be measured."""
        self._is_live = False
        self.measure.hide()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._ask_if_unknown()
        self._show_account()

    def _ask_if_unknown(self) -> None:
        if self.model.peaks is None and self._is_idle and not self._asked and self.isVisible():
            self._measure()

    def _measure(self) -> None:
        if self._is_live:
            self._asked = True
            self.measure.setEnabled(False)
            self.peaks_line.setText("Measuring how fast this machine reads and computes")
            self.measure_wanted.emit()

    # Showing -----------------------------------------------------------------------------------

    def _show_account(self) -> None:
        if not self.isVisible():
            return
        account = self.model.account(list(Chosen)[self.chosen.currentIndex()])
        if account is None and not (self.model.has_steps and self.model.peaks):
            self._empty.setText(self._why_empty())
            self._stack.setCurrentWidget(self._empty)
            return
        self._stack.setCurrentWidget(self._area)
        if account is None:
            self.verdict.setText(NOT_THERE)
            self.note.set_text("")
            self.counted.setText("")
            self.bar.show_parts([])
            self.table.show_ceilings((), self._config)
            return
        self.verdict.setText(account.verdict[:1].upper() + account.verdict[1:])
        self.note.set_text(
            f"mean of {account.num_steps:,} step{'s' * (account.num_steps != 1)} · "
            f"{_ms(account.split.total)} each"
        )
        self.bar.show_parts(_parts(account.split))
        self.counted.setText(_counted_words(account))
        self.table.show_ceilings(account.ceilings, self._config)

    def _why_empty(self) -> str:
        if not self._is_open:
            return NO_MODEL
        if self.model.has_steps:
            return NO_PEAKS if self._is_live else "The recording has no peaks of its machine."
        return EMPTY_TEXT

    def _paint_factors(self) -> None:
        self.table.paint_factors()


class KnobTable(QTableWidget):
    """A row for each knob: what it could win, and why not more."""

    def __init__(self) -> None:
        super().__init__(0, len(_COLUMNS))
        self._ceilings: tuple[Ceiling, ...] = ()
        self.setAccessibleName("The most that each knob could win")
        self.setHorizontalHeaderLabels(_COLUMNS)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.setWordWrap(False)
        self.setMinimumHeight(96)
        self.verticalHeader().hide()
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setStretchLastSection(True)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        for column in range(3):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.ResizeToContents)
        self._take_fonts()
        theme_notifier().changed.connect(self._take_fonts)

    def _take_fonts(self) -> None:
        self.setFont(figure_font("small"))
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + SPACE_2)

    def show_ceilings(self, ceilings: tuple[Ceiling, ...], config: Any) -> None:
        """`config`: of the engine, to know which of the knobs it has."""
        self._ceilings = ceilings
        self.setRowCount(len(ceilings))
        for row, one in enumerate(ceilings):
            why = one.why
            if one.loose is not None:
                why += f" {_factor(one.loose)}: if launch and rest shrank with it."
            if not hasattr(config, one.setting):
                why += " This engine does not have it yet."
            for column, text in enumerate((one.label, one.value, _gain(one), why)):
                self._put(row, column, text, why)
        self.paint_factors()

    def _put(self, row: int, column: int, text: str, tip: str) -> None:
        item = self.item(row, column)
        if item is None:
            item = QTableWidgetItem()
            self.setItem(row, column, item)
        item.setText(text)
        item.setToolTip(tip)

    def paint_factors(self) -> None:
        """What is worth trying stands out."""
        for row, one in enumerate(self._ceilings):
            color = theme().color("text" if one.is_worth_trying else "text_muted")
            for column in range(3):
                item = self.item(row, column)
                if item is not None:
                    item.setForeground(color)


def _wrapped() -> QLabel:
    label = QLabel()
    label.setProperty("role", "small")
    label.setWordWrap(True)
    return label


def _parts(split: Split) -> list[Part]:
    shares = split.shares()
    return [
        Part(
            label, color, getattr(shares, key),
            (_ms(getattr(split, key)), f"{100 * getattr(shares, key):.0f} %"), tip,
        )
        for label, color, key, tip in PARTS
    ]  # fmt: skip


def _gain(ceiling: Ceiling) -> str:
    if max(ceiling.factor, ceiling.loose or 0.0) < 1.005:
        return "nothing"
    widest = f" to {_factor(ceiling.loose)}" if ceiling.loose is not None else ""
    return f"{_factor(ceiling.factor)}{widest} {ceiling.gains}"


def _factor(factor: float) -> str:
    return f"{factor:.2f}×" if factor < 9.95 else f"{factor:.0f}×"


def _counted_words(account: Account) -> str:
    """What was counted, and how near the peak the reading came."""
    work, split = account.work, account.split
    model_s = split.floor + split.launch
    rate = (work.weights + work.kv) / model_s / 1e9 if model_s else 0.0
    return (
        f"a step reads {_bytes(work.weights)} weights and {_bytes(work.kv)} KV "
        f"({rate:.1f} GB/s) for {_operations(work)}"
    )


def _operations(work: Work) -> str:
    count = work.linear + work.attention
    for unit, factor in (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} FLOP"


def _bytes(count: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"


def _peaks_words(peaks: Peaks) -> str:
    day = datetime.fromtimestamp(peaks.measured_at)
    when = f"today {day:%H:%M}" if day.date() == date.today() else f"{day:%Y-%m-%d}"
    return (
        f"peaks: {peaks.read_bytes_per_s / 1e9:.1f} GB/s, {peaks.flops_per_s / 1e9:,.0f} GFLOP/s "
        f"in {peaks.dtype}, {peaks.num_threads} threads, measured {when}"
    )
