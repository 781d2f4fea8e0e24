"""`SpeculationPanel`: does drafting pay, what stands at which place, and how it went over time."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QScrollArea,
    QStackedLayout,
    QVBoxLayout,
    QWidget,
)

from engine.snapshot import EngineSnapshot, Part, SpeculationSnapshot
from widgets.charts.clock import RedrawClock
from widgets.charts.series import Series
from widgets.charts.time_chart import TimeChart
from widgets.elided_line import ElidedLine
from widgets.engine_time import EngineTime
from widgets.read_area import scroll_by_keys
from widgets.speculation.positions import PositionBars
from widgets.speculation.words import acceptance, source, times, verdict
from widgets.theme import SPACE_1, SPACE_2, SPACE_3, restyle
from widgets.untold import untold_text

OFF_TEXT = (
    "Speculative decoding is off. A draft model, an n-gram lookup or an EAGLE-3 head proposes "
    "tokens, the model verifies them in one step: the same text in fewer steps. Here you see how "
    "many stand, and whether it pays."
)
_WORDS_INTERVAL_S = 0.5


class SpeculationPanel(QFrame):
    """`settings_wanted`: the user wants to choose a method."""

    settings_wanted = Signal()

    def __init__(self, clock: RedrawClock, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Speculative decoding")
        self._time = EngineTime()
        self._words_at = float("-inf")
        self._told: SpeculationSnapshot | None = None  # what a server counted, the last time
        self.chart = TimeChart(
            "Tokens of a round", "",
            (
                Series("length", "acceptance length", "draft",
                       tip="Accepted drafts of a round, and the model's own token"),
                Series("drafted", "drafted", "other", dashed=True, tip="Drafts of a round"),
            ),
            clock=clock, value_template="0.00", time_source=self._time.now,
            empty_text="The acceptance length appears while replies are written with drafts.",
        )  # fmt: skip
        self._build()
        self.clear()

    def _build(self) -> None:
        self.verdict, self.detail = QLabel(), QLabel()
        self.verdict.setProperty("role", "title")
        self.verdict.setWordWrap(True)
        self.detail.setWordWrap(True)
        self.detail.setProperty("role", "small")
        self.source, self.acceptance, self.times = (ElidedLine("text_muted") for _ in range(3))
        left = QVBoxLayout()
        left.setSpacing(SPACE_1)
        for widget in (self.verdict, self.detail, self.acceptance, self.times, self.source):
            left.addWidget(widget)
        left.addStretch(1)
        heading = ElidedLine("text_muted")
        heading.set_text("Accepted by position")
        self.positions = PositionBars()
        self._middle = QWidget()
        middle = QVBoxLayout(self._middle)
        middle.setContentsMargins(0, 0, 0, 0)
        middle.setSpacing(SPACE_1)
        middle.addWidget(heading)
        middle.addWidget(self.positions, 1)
        figures = QWidget()
        row = QHBoxLayout(figures)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_3)
        row.addLayout(left, 3)
        row.addWidget(self._middle, 2)
        row.addWidget(self.chart, 4)
        content = QWidget()
        content.setProperty("bare", True)
        self._stack = QStackedLayout(content)
        self._figures, self._off = figures, self._make_off()
        self._stack.addWidget(self._off)
        self._stack.addWidget(self._figures)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_3, 0, SPACE_3, SPACE_2)
        area = QScrollArea()  # words are read whole in a low panel too
        area.setProperty("bare", True)
        area.setAccessibleName("Speculative decoding")
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setWidgetResizable(True)
        area.setWidget(content)
        scroll_by_keys(area)
        column.addWidget(area)

    def _make_off(self) -> QWidget:
        off = QWidget()
        text = self._off_text = QLabel(OFF_TEXT)
        text.setProperty("role", "small")
        text.setWordWrap(True)
        text.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.choose = QPushButton("Choose a method")
        self.choose.setToolTip("Show the engine settings")
        self.choose.clicked.connect(self.settings_wanted)
        column = QVBoxLayout(off)
        column.setSpacing(SPACE_2)
        column.addStretch(1)
        # not aligned: a layout gives an aligned label the height of another width than it has
        middle = QHBoxLayout()
        middle.addStretch(1)
        middle.addWidget(text, 3)
        middle.addStretch(1)
        column.addLayout(middle)
        column.addWidget(self.choose, 0, Qt.AlignmentFlag.AlignHCenter)
        column.addStretch(1)
        return off

    # Feeding -----------------------------------------------------------------------------------

    def update_snapshot(self, snapshot: EngineSnapshot) -> None:
        """Take a state and its new steps; words change twice a second, the chart by its clock."""
        self._time.synchronise(snapshot.time)
        figures = snapshot.speculation
        words = untold_text(
            snapshot, "Drafts", Part.SPECULATION, instead="Set them where the server is started."
        )
        self._off_text.setText(words or OFF_TEXT)
        self.choose.setVisible(not words)
        self._stack.setCurrentWidget(self._off if figures is None else self._figures)
        if figures is None:
            return
        if figures.method:
            self._add_point(snapshot)
        else:
            self._add_told(snapshot.time, figures)
        due = snapshot.time - self._words_at >= _WORDS_INTERVAL_S or not snapshot.num_running
        if due and self.isVisible():
            self._words_at = snapshot.time
            self._show(figures)

    def clear(self) -> None:
        """No model is loaded, or another one."""
        self.chart.clear()
        self._told = None
        self._words_at = float("-inf")
        self._stack.setCurrentWidget(self._off)

    def _add_told(self, now: float, figures: SpeculationSnapshot) -> None:
        """What a server counted since it said something new."""
        before, self._told = self._told, figures
        if before is None or before == figures:
            return
        rounds = figures.rounds - before.rounds
        if rounds > 0:
            accepted = figures.accepted - before.accepted
            self.chart.append("length", now, 1 + accepted / rounds)
            self.chart.append("drafted", now, (figures.drafted - before.drafted) / rounds)
        elif figures.told_length is not None:
            self.chart.append("length", now, figures.told_length)

    def _add_point(self, snapshot: EngineSnapshot) -> None:
        """The rounds since the last snapshot, as one point; nothing where there were none."""
        rounds = [e for step in snapshot.steps for e in step.entries if e.num_draft]
        if not rounds:
            return
        accepted, drafted = sum(e.num_accepted for e in rounds), sum(e.num_draft for e in rounds)
        self.chart.append("length", snapshot.time, 1 + accepted / len(rounds))
        self.chart.append("drafted", snapshot.time, drafted / len(rounds))

    def _show(self, figures: SpeculationSnapshot) -> None:
        said = verdict(figures)
        self.verdict.setText(said.text)
        restyle(self.verdict, tone=said.tone)
        self.detail.setText(said.detail)
        self.source.set_text(source(figures))
        self.acceptance.set_text(acceptance(figures))
        self.times.set_text(times(figures))
        self._middle.setVisible(bool(figures.method))
        self.positions.show_counts(figures.drafted_per_position, figures.accepted_per_position)
