"""Choices of a sweep: workload, arrivals, axes, repetitions, goals; Run and Cancel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QBoxLayout,
    QDoubleSpinBox,
    QFileDialog,
    QHBoxLayout,
    QLineEdit,
    QProgressBar,
    QSpinBox,
    QWidget,
)

from app.bench.axes import parse_axes
from app.bench.goals import PERCENTILES, Goals
from app.bench.load import Pace
from app.bench.record import AXES
from app.bench.workload import Workload, of_prompts, preset, preset_names
from app.features.bench.controller import BenchPlan
from app.features.bench.prompts import Source
from app.features.tune.load_plan import why_not
from app.link.bridge import EngineBridge
from engine.config import SETTINGS
from engine.errors import ErrorInfo, InferdeckError, describe
from engine.evaluate.task import PROMPT_LINES
from engine.units import setting_text
from widgets.controls.combo import ElidedCombo
from widgets.controls.frames import FittedFrame
from widgets.controls.layouts import STRETCH, button, dressed, hbox, label, vbox, wrapped
from widgets.controls.lines import ElidedLine
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_2, SPACE_3, SPACE_4

FROM_FILE = "Prompt file…"
FILES = "Prompt files (*.jsonl *.ndjson *.csv *.txt);;All files (*)"
VALUES = {"concurrency": "1, 2, 4, 8", "request_rate": "0.5, 1, 2, 4"}
LIMITS = (("ttft", "TTFT"), ("itl", "ITL"), ("e2el", "E2E"))
NO_GOAL = "none"
Choice = tuple[Workload, str]


class BenchForm(FittedFrame):
    """`run_wanted(BenchPlan)`, `cancel_wanted`, `goals_changed(Goals)`."""

    run_wanted = Signal(object)
    cancel_wanted = Signal()
    goals_changed = Signal(object)

    def __init__(self, bridge: EngineBridge, sources: Sequence[Source], parent: QWidget) -> None:
        """sources: of prompts, beside presets and files."""
        super().__init__(parent)
        self.setProperty("panel", True)
        self._bridge = bridge
        self._sources = {source.title: source for source in sources}
        self._rows: list[tuple[QHBoxLayout, tuple[QHBoxLayout, ...]]] = []
        self._choices: list[Choice] = [
            (work, variant)
            for work in map(preset, preset_names()) for variant in work.variants
        ]  # fmt: skip
        self._make_load()
        self._make_sweep()
        self._make_goals()
        self.run = button("Run", self.press_run, "Measure every point", "primary")
        self.cancel = button("Cancel", self.cancel_wanted.emit, "Keep what is measured")
        self.bar = dressed(QProgressBar(maximum=1000, textVisible=False), "Progress")
        self.bar.setMaximumWidth(scaled(160))
        self.status, self.error = ElidedLine("text_muted"), wrapped("warning")
        self._arrange()
        self._on_pacing()
        self._show_error(None)
        self.show_state(False, "", 0.0, None)

    def _make_load(self) -> None:
        self.workload = dressed(ElidedCombo(), "Workload")
        for work, variant in self._choices:
            more = f", {variant} prompts" if len(work.variants) > 1 else ""
            self.workload.addItem(f"{work.title}{more}")
        for title in (*self._sources, FROM_FILE):
            self.workload.addItem(title)
        self.workload.setToolTip(PROMPT_LINES)
        self.workload.setMinimumContentsLength(16)
        names = [f"{work.name}" for work, _ in self._choices]
        self.workload.setCurrentIndex(names.index("query-rewrite"))
        self.workload.activated.connect(self._on_workload)
        self.pacing = dressed(ElidedCombo(), "Arrivals")
        for text in ("concurrent", "Poisson", "bursty"):
            self.pacing.addItem(text)
        self.pacing.currentIndexChanged.connect(self._on_pacing)
        self.concurrency = dressed(QSpinBox(minimum=1, maximum=4096, value=8), "Concurrency")
        self.rate = dressed(
            QDoubleSpinBox(minimum=0.01, maximum=10_000, value=2, suffix=" req/s"), "Request rate"
        )
        self.burstiness = dressed(
            QDoubleSpinBox(minimum=0.01, maximum=1.0, value=0.5, singleStep=0.1), "Burstiness",
            "Shape of the gamma distribution of arrival intervals: 1 is Poisson, less has bursts",
        )  # fmt: skip

    def _make_sweep(self) -> None:
        names = [*AXES, *(name for name in SETTINGS if name != "model")]
        self.axes: list[tuple[ElidedCombo, QLineEdit]] = []
        for place, title in enumerate(("Sweep", "Second sweep")):
            box = dressed(ElidedCombo(), title)
            if place:
                box.addItem("no second sweep", "")
            for name in names:
                text = AXES.get(name) or f"{SETTINGS[name].label} ({SETTINGS[name].change.value})"
                box.addItem(text, name)
            box.setMinimumContentsLength(14)
            line = dressed(QLineEdit(), f"{title}: values", "Values, separated by commas")
            line.setMinimumWidth(scaled(110))
            box.currentIndexChanged.connect(lambda _, place=place: self._suggest(place))
            self.axes.append((box, line))
            self._suggest(place)
        self.rounds = dressed(
            QSpinBox(minimum=1, maximum=30, value=3), "Repetitions",
            "Runs of each point; several give a 95 % interval",
        )  # fmt: skip
        self.warmups = dressed(QSpinBox(maximum=100, value=1), "Warm-up requests")
        self.requests = dressed(
            QSpinBox(minimum=1, maximum=100_000, value=16), "Requests",
            "Requests of each run; at least two for each concurrent one",
        )  # fmt: skip

    def _make_goals(self) -> None:
        self.limits: dict[str, QDoubleSpinBox] = {}
        for name, title in LIMITS:
            box = QDoubleSpinBox(minimum=0, maximum=1e6, decimals=1, suffix=" ms")
            box.setSpecialValueText(NO_GOAL)
            dressed(box, f"{title} goal", f"Upper limit of {title}; also by dragging its line")
            box.valueChanged.connect(lambda _: self.goals_changed.emit(self.goals))
            self.limits[name] = box
        self.percentile = dressed(ElidedCombo(), "Percentile of the goals")
        for percent in PERCENTILES:
            self.percentile.addItem(f"p{percent}", percent)
        self.percentile.setCurrentIndex(len(PERCENTILES) - 1)
        self.percentile.currentIndexChanged.connect(
            lambda _: self.goals_changed.emit(self.goals)
        )

    def _arrange(self) -> None:
        load = self._row(
            hbox(label("Workload", "muted"), (self.workload, 1), label("Requests", "muted"),
                 self.requests),
            hbox(label("Arrivals", "muted"), self.pacing, self.concurrency, self.rate,
                 self.burstiness, STRETCH, self.run, self.cancel),
        )  # fmt: skip
        (first, some), (second, others) = self.axes
        sweep = self._row(
            hbox(label("Sweep", "muted"), first, (some, 1), label("×", "muted"), second,
                 (others, 1)),
            hbox(label("Repetitions", "muted"), self.rounds, label("Warm-up", "muted"),
                 self.warmups, STRETCH),
        )  # fmt: skip
        goals: list[QWidget] = [label("Goals", "muted")]
        for name, title in LIMITS:
            goals += [label(f"{title} ≤"), self.limits[name]]
        last = self._row(
            hbox(*goals, label("at", "muted"), self.percentile), hbox(self.bar, (self.status, 1))
        )
        margins = (SPACE_3, SPACE_3, SPACE_3, SPACE_3)
        vbox(load, sweep, last, self.error, of=self, margins=margins)

    def _row(self, *parts: QHBoxLayout) -> QHBoxLayout:
        row = hbox(*parts, spacing=SPACE_4)
        self._rows.append((row, parts))
        return row

    def fit(self) -> None:
        """The parts of a row are below each other where they would be cut side by side."""
        room, directions = self.contentsRect().width() - 2 * SPACE_3, QBoxLayout.Direction
        for row, parts in self._rows:
            fits = sum(part.minimumSize().width() for part in parts) + SPACE_4 <= room
            row.setDirection(directions.LeftToRight if fits else directions.TopToBottom)
            row.setSpacing(SPACE_4 if fits else SPACE_2)

    # Choices ------------------------------------------------------------------------------------

    @property
    def goals(self) -> Goals:
        limits = {name: box.value() or None for name, box in self.limits.items()}
        return Goals(**limits, percentile=self.percentile.currentData())

    def set_goals(self, goals: Goals) -> None:
        """As the user would."""
        for name, box in self.limits.items():
            box.setValue(getattr(goals, name) or 0.0)
        self.percentile.setCurrentIndex(PERCENTILES.index(goals.percentile))

    def plan(self) -> BenchPlan:
        """Raises ConfigError for values that are none of the swept setting."""
        texts = [f"{box.currentData()}={line.text()}" for box, line in self.axes
                 if box.currentData()]  # fmt: skip
        axes = parse_axes(texts)
        kind = self.pacing.currentIndex()
        pace = Pace(self.concurrency.value()) if not kind else Pace(
            None, self.rate.value(), self.burstiness.value() if kind == 2 else 1.0
        )  # fmt: skip
        work, variant = self._choices[self.workload.currentIndex()]
        fields = {name: getattr(work, name) for name in work.__slots__}
        work = Workload(**{**fields, "num_requests": self.requests.value()})
        return BenchPlan(work, variant, axes, pace, self.rounds.value(), self.warmups.value())

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
        self._offer(lambda: of_prompts(file))

    def _offer(self, read: Callable[[], Workload]) -> None:
        """Choose what `read` returns; for what it raises, the first workload."""
        try:
            work = read()
        except (InferdeckError, OSError) as error:
            self._show_error(describe(error))
            self.workload.setCurrentIndex(0)
            return
        self._show_error(None)
        place = len(self._choices)
        self._choices.append((work, next(iter(work.variants))))
        self.workload.insertItem(place, f"{work.title} ({work.prompts_text})")
        self.workload.setCurrentIndex(place)
        self.requests.setValue(work.num_requests)

    def _on_workload(self, row: int) -> None:
        if row < len(self._choices):
            return
        source = self._sources.get(self.workload.itemText(row))
        if source is not None:
            self._offer(source.read)
            return
        file, _ = QFileDialog.getOpenFileName(self, "Prompt file", "", FILES)
        if file:
            self.open_file(Path(file))
        else:
            self.workload.setCurrentIndex(0)

    def _on_pacing(self) -> None:
        kind = self.pacing.currentIndex()
        self.concurrency.setVisible(kind == 0)
        self.rate.setVisible(kind > 0)
        self.burstiness.setVisible(kind == 2)

    def _suggest(self, place: int) -> None:
        """Usual values of a chosen axis."""
        box, line = self.axes[place]
        name, config = box.currentData(), self._bridge.config
        line.setVisible(bool(name))
        if not name:
            return
        if name in VALUES:
            line.setText(VALUES[name])
            return
        setting = SETTINGS[name]
        value = getattr(config, name) if config is not None else setting.default
        if setting.choices:
            line.setText(", ".join(setting.choices))
        elif setting.type is bool:
            line.setText("on, off")
        elif setting.type is int and value:
            most = setting.maximum or float("inf")
            some = {max(1, value // 4), max(1, value // 2), value, min(2 * value, int(most))} \
                if most != float("inf") else {max(1, value // 4), max(1, value // 2), value}
            line.setText(", ".join(map(str, sorted(some))))
        else:
            line.setText("" if value is None else setting_text(value))

    # State --------------------------------------------------------------------------------------

    def show_state(
        self, is_running: bool, text: str, share: float, problem: ErrorInfo | None
    ) -> None:
        ready = self._bridge.is_ready
        self.run.setVisible(not is_running)
        self.run.setEnabled(ready)
        self.run.setToolTip("Measure every point" if ready else "Open a model to measure it")
        self.cancel.setVisible(is_running)
        self.bar.setVisible(is_running)
        self.bar.setValue(round(1000 * share))
        self.status.set_text(text)
        self.status.setVisible(is_running)
        if problem is not None or is_running:
            self._show_error(problem)

    def _show_error(self, problem: ErrorInfo | None) -> None:
        self.error.setText("" if problem is None else f"{problem.cause} {problem.remedy}".strip())
        self.error.setVisible(problem is not None)
