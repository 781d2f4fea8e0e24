"""Choices of the Bench page: sweep, search or ladder; workload, arrivals, goals; Run and Cancel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QBoxLayout,
    QDoubleSpinBox,
    QHBoxLayout,
    QSpinBox,
    QTabBar,
    QWidget,
)

from app.bench.load import Pace
from app.bench.rungs import first_rung_problem
from app.bench.sweep import AXES
from app.bench.workload import Workload
from app.features.bench.goal_fields import GoalFields
from app.features.bench.jobs import BenchPlan
from app.features.bench.modes import (
    LADDER_COUNT,
    TUNED,
    AxisRow,
    LadderFields,
    TuneFields,
    axes_of,
    axis_row,
    count_text,
    settings_names,
)
from app.features.bench.prompts import Source
from app.features.bench.workload_box import WorkloadBox
from app.features.tune.load_plan import why_not
from app.link.bridge import EngineBridge
from engine.errors import ErrorInfo, InferdeckError
from widgets.controls.combo import ElidedCombo
from widgets.controls.frames import FittedFrame
from widgets.controls.layouts import STRETCH, button, dressed, hbox, label, vbox, wrapped
from widgets.controls.progress_bar import ProgressBar
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_2, SPACE_3, SPACE_4


class Mode(StrEnum):
    SWEEP = "Sweep"
    TUNE = "Search"
    LADDER = "Ladder"

    @property
    def tip(self) -> str:
        return {
            Mode.SWEEP: "Measure every value of one or two settings or loads",
            Mode.TUNE: "Find the best settings that meet the goals",
            Mode.LADDER: "Measure the gain of each serving technique, one after the other",
        }[self]


NO_MODEL = "Open a model to measure it"


class BenchForm(FittedFrame):
    """`run_wanted(BenchPlan)`, `cancel_wanted`, `mode_changed(Mode)`."""

    run_wanted = Signal(object)
    cancel_wanted = Signal()
    mode_changed = Signal(object)

    def __init__(
        self, bridge: EngineBridge, sources: Sequence[Source], engines: Callable[[], list[str]],
        parent: QWidget,
    ) -> None:  # fmt: skip
        """sources: of prompts, beside presets and files. engines: names of those to compare."""
        super().__init__(parent)
        self.setProperty("panel", True)
        self._bridge, self._engines = bridge, engines
        self._rows: list[tuple[QHBoxLayout, tuple[QHBoxLayout, ...]]] = []
        self.workload = WorkloadBox(sources)
        self.workload.chosen.connect(self._on_prompts)
        self.workload.failed.connect(self._show_error)
        self._make_load()
        self._make_modes()
        self.goal_fields = GoalFields()
        self.run = button("Run", self.press_run, kind="primary")
        keeps = "Stop the run and keep the results so far"
        self.cancel = button("Cancel", self.cancel_wanted.emit, keeps)
        self.bar = ProgressBar()
        self.bar.setMaximumWidth(scaled(160))
        self.status, self.error = wrapped("muted"), wrapped("warning")
        self._arrange()
        self._on_pacing()
        self._show_error(None)
        self._on_mode()
        self.show_state(False, "", 0.0, None)
        self.show_why_not(NO_MODEL)

    def _make_load(self) -> None:
        self.requests = dressed(
            QSpinBox(minimum=1, maximum=100_000, value=16), "Requests",
            "Requests per run, at least twice the concurrency",
        )  # fmt: skip
        self.requests.valueChanged.connect(self._count)
        self.per_run = label("", "muted")
        self.pacing = dressed(ElidedCombo(), "Arrivals")
        for text in ("concurrent", "Poisson", "bursty"):
            self.pacing.addItem(text)
        self.pacing.currentIndexChanged.connect(self._on_pacing)
        self.concurrency = dressed(QSpinBox(minimum=1, maximum=4096, value=8), "Concurrency")
        self.concurrency.valueChanged.connect(self._count)
        self.rate = dressed(
            QDoubleSpinBox(minimum=0.01, maximum=10_000, value=2, suffix=" req/s"), "Request rate"
        )
        self.burstiness = dressed(
            QDoubleSpinBox(minimum=0.01, maximum=1.0, value=0.5, singleStep=0.1), "Burstiness",
            "Burstiness of arrivals (gamma shape). 1: Poisson; lower: burstier",
        )  # fmt: skip

    def _make_modes(self) -> None:
        self.tabs = dressed(QTabBar(), "Kind of run")
        self.tabs.setExpanding(False)
        self.tabs.setDrawBase(False)
        for place, mode in enumerate(Mode):
            self.tabs.addTab(mode.value)
            self.tabs.setTabToolTip(place, mode.tip)
        names = settings_names()
        none = "no second sweep"
        self.axes = [axis_row("Sweep", [*AXES, *names]),
                     axis_row("Second sweep", [*AXES, *names], none)]  # fmt: skip
        self.varied = [axis_row(f"Setting {n}", names, "no other setting") for n in range(1, 5)]
        for row, name in zip(self.varied, TUNED, strict=True):
            row.box.setCurrentIndex(row.box.findData(name))
        for row in (*self.axes, *self.varied):
            row.box.currentIndexChanged.connect(lambda _, row=row: self._suggest(row))
            row.suggest(self._bridge.config, self._engines())
            row.line.textChanged.connect(self._count)
            row.line.editingFinished.connect(partial(self._reach, row))
        self.tune, self.ladder = TuneFields(), LadderFields()
        self.rounds = dressed(
            QSpinBox(minimum=1, maximum=30, value=3), "Repetitions",
            "Runs of each point; several give a 95 % interval",
        )  # fmt: skip
        self.warmups = dressed(
            QSpinBox(maximum=100, value=1), "Warm-up requests",
            "Requests before each run that are not measured. 0 turns the warm-up off.",
        )  # fmt: skip

    def _arrange(self) -> None:
        self._arrivals = QWidget()
        hbox(label("Arrivals", "muted"), self.pacing, self.concurrency, self.rate,
             self.burstiness, of=self._arrivals)  # fmt: skip
        load = self._row(
            hbox(label("Workload", "muted"), (self.workload, 1), label("Requests", "muted"),
                 self.requests, self.per_run),
            hbox(self._arrivals, label("Warm-up", "muted"), self.warmups, STRETCH),
        )  # fmt: skip
        (first, some), (second, others) = self.axes
        repeat = hbox(label("Repetitions", "muted"), self.rounds, STRETCH)
        sweep = self._panel(
            (hbox(label("Sweep", "muted"), (first, 1), (some, 1), label("×", "muted"),
                  (second, 1), (others, 1)), repeat),
        )  # fmt: skip
        self._rows[-1][0].setStretch(0, 3)  # names and values before the number of repetitions
        pairs = [hbox((row.box, 1), (row.line, 1)) for row in self.varied]
        vary = hbox(label("Vary", "muted"), (pairs[0], 1))
        tune = self._panel((vary, pairs[1]), (pairs[2], pairs[3], self.tune.row))
        ladder = self._panel((self.ladder.row, self.ladder.cost_row))
        self._panels = dict(zip(Mode, (sweep, tune, ladder), strict=True))
        progress = hbox(self.bar, (self.status, 1))
        head = hbox(self.tabs, STRETCH, self.run, self.cancel)
        margins = (SPACE_3, SPACE_2, SPACE_3, SPACE_3)
        vbox(
            head, load, *self._panels.values(), self.goal_fields, progress, self.error,
            of=self, margins=margins,
        )  # fmt: skip
        self.tabs.currentChanged.connect(self._on_mode)

    def _panel(self, *rows: tuple[QHBoxLayout, ...]) -> QWidget:
        panel = QWidget()
        vbox(*(self._row(*parts) for parts in rows), of=panel)
        return panel

    def _row(self, *parts: QHBoxLayout) -> QHBoxLayout:
        row = hbox(*((part, 1) for part in parts), spacing=SPACE_4)
        self._rows.append((row, parts))
        return row

    def fit(self) -> None:
        """The parts of a row are below each other where they would be cut side by side."""
        room, directions = self.contentsRect().width() - 2 * SPACE_3, QBoxLayout.Direction
        for row, parts in self._rows:
            least = sum(part.minimumSize().width() for part in parts) + SPACE_4 * (len(parts) - 1)
            direction = directions.LeftToRight if least <= room else directions.TopToBottom
            if row.direction() != direction:  # a spacing that is set asks for a layout: no end
                row.setDirection(direction)
                row.setSpacing(SPACE_4 if least <= room else SPACE_2)

    # Choices ------------------------------------------------------------------------------------

    @property
    def mode(self) -> Mode:
        return list(Mode)[self.tabs.currentIndex()]

    def choose(self, mode: Mode) -> None:
        self.tabs.setCurrentIndex(list(Mode).index(mode))

    def plan(self) -> BenchPlan:
        """Raises ConfigError for values that are none of the swept setting."""
        kind, mode = self.pacing.currentIndex(), self.mode
        pace = Pace(self.concurrency.value()) if not kind else Pace(
            None, self.rate.value(), self.burstiness.value() if kind == 2 else 1.0
        )  # fmt: skip
        work, variant = self.workload.choice
        work = replace(work, num_requests=self.requests.value())
        rounds, warmups = self.rounds.value(), self.warmups.value()
        if mode is Mode.LADDER:
            return BenchPlan(work, variant, (), Pace(), 1, warmups, ladder=self.ladder.choice)
        if mode is Mode.TUNE:
            axes = axes_of(self.varied)
            return BenchPlan(work, variant, axes, pace, 1, warmups, tune=self.tune.choice)
        return BenchPlan(work, variant, axes_of(self.axes), pace, rounds, warmups)

    def press_run(self) -> None:
        try:
            plan = self.plan()
        except InferdeckError as error:
            self._show_error(ErrorInfo(error.cause, error.remedy))
            return
        config, memory = self._bridge.config, self._bridge.plan
        problem = None
        if config is not None and memory is not None:
            capacity = memory.num_blocks * config.block_size or None
            problem = why_not(plan.workload, config, capacity)
        self._show_error(problem)
        if problem is None:
            self.run_wanted.emit(plan)

    def open_file(self, file: Path) -> None:
        """Offer and choose the prompts of a file; an unreadable one is an error here."""
        self.workload.open_file(file)

    def _on_prompts(self, work: Workload) -> None:
        self._show_error(None)
        self.requests.setValue(work.num_requests)

    def _on_pacing(self) -> None:
        kind = self.pacing.currentIndex()
        self.concurrency.setVisible(kind == 0)
        self.rate.setVisible(kind > 0)
        self.burstiness.setVisible(kind == 2)
        self._count()

    def _count(self) -> None:
        """What each run measures, where that is more than the requests that are chosen."""
        axes = [*self.axes] if self.mode is Mode.SWEEP else []
        loads = (self.concurrency.value(),) * (self.pacing.currentIndex() == 0)
        few = self.requests.value()
        text = LADDER_COUNT if self.mode is Mode.LADDER else count_text(few, axes, loads)
        self.per_run.setText(text)
        self.per_run.setVisible(bool(text))
        self.fit()

    def _suggest(self, row: AxisRow) -> None:
        """Its usual values."""
        row.suggest(self._bridge.config, self._engines())
        self._reach(row)
        self._count()

    def _reach(self, row: AxisRow) -> None:
        """So much load that the largest of the batch limits is reached."""
        self.concurrency.setValue(max(self.concurrency.value(), row.most_running))

    def _on_mode(self) -> None:
        mode = self.mode
        for one, panel in self._panels.items():
            panel.setVisible(one is mode)
        self._arrivals.setVisible(mode is not Mode.LADDER)  # which searches the concurrency
        self.ladder.offer(self._bridge.config)
        self._count()
        self.mode_changed.emit(mode)

    # State --------------------------------------------------------------------------------------

    def show_why_not(self, why_not: str) -> None:
        """Why no run can start now; "" if one can."""
        self.run.setEnabled(not why_not)
        self.run.setToolTip(why_not or self.mode.tip)

    def show_state(
        self, is_running: bool, text: str, share: float, problem: ErrorInfo | None
    ) -> None:
        bridge = self._bridge
        config, model, plan = bridge.config, bridge.model, bridge.plan
        if not is_running and config is not None and model is not None and plan is not None:
            self.ladder.warn(first_rung_problem(config, model, plan))
        self.tabs.setEnabled(not is_running)
        self.run.setVisible(not is_running)
        self.cancel.setVisible(is_running)
        self.bar.setVisible(is_running)
        self.bar.show_fraction(share)
        self.status.setText(text)
        self.status.setVisible(is_running)
        if problem is not None or is_running:
            self._show_error(problem)

    def _show_error(self, problem: ErrorInfo | None) -> None:
        self.error.setText("" if problem is None else f"{problem.cause} {problem.remedy}".strip())
        self.error.setVisible(problem is not None)
