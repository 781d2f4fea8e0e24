"""`LoadBar`: workload, rate, start and stop of the background load, and its counters."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from PySide6.QtCore import QLocale, QSize, Qt, QTimer
from PySide6.QtWidgets import (
    QBoxLayout,
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QFileDialog,
    QGridLayout,
    QLabel,
    QSizePolicy,
    QSpinBox,
    QWidget,
)

from app.bench.load import Pace
from app.bench.workload import Workload, of_prompts, preset, preset_names
from app.features.tune.load import MOST_IN_FLIGHT, BackgroundLoad
from app.features.tune.load_plan import LoadPlan, LoadState
from app.link.bridge import EngineBridge
from app.link.tasks import run_task
from app.window.settings_store import LoadChoice, SettingsStore
from engine.errors import ErrorInfo
from engine.evaluate.task import PROMPT_LINES, RAW_PROMPTS
from engine.units import counted, duration_text
from widgets.controls.combo import ElidedCombo
from widgets.controls.frames import FittedFrame
from widgets.controls.layouts import STRETCH, Label, button, dressed, hbox, vbox
from widgets.controls.lines import ElidedLine
from widgets.controls.text import set_key_tip
from widgets.theme.fonts import scaled
from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, figure_font, restyle, theme_notifier

SHOW_MS = 250
PACE_DELAY_MS = 300
"""Debounces the spin boxes: each change is a mark on the charts."""
WORKLOAD_WIDTH, FIELD_WIDTH, BUTTON_WIDTH = 360, 76, 104
START, STOP = "Start load", "Stop load"
MOST_CONCURRENT = 256
MOST_PER_SECOND = 200.0
CLOSED, OPEN = "closed", "open"
FROM_FILE = "Prompt file…"
PROMPT_FILES = ["Prompt files (*.jsonl *.ndjson *.csv *.txt)", "All files (*)"]
TIP = Qt.ItemDataRole.ToolTipRole


class Choice(NamedTuple):
    """A workload in one of its variants."""

    workload: Workload
    variant: str

    @property
    def title(self) -> str:
        if self.workload.prompts:
            return f"{self.workload.title} · {counted(len(self.workload.prompts), 'prompt')}"
        if len(self.workload.variants) == 1:
            return self.workload.title
        return f"{self.workload.title} · {self.variant} prompts"

    @property
    def tip(self) -> str:
        work = self.workload
        tip = f"{work.description}\n\nPrompts: {work.prompts_text}. Replies: {work.output} tokens."
        shared = work.variants[self.variant]
        return tip if work.prompts else f"{tip} Shared prefix: {shared:,} tokens."


def choices() -> list[Choice]:
    """Every preset in each of its variants."""
    workloads = [preset(name) for name in preset_names()]
    return [Choice(work, variant) for work in workloads for variant in work.variants]


class LoadBar(FittedFrame):
    """A row of controls, and a status line."""

    def __init__(
        self,
        load: BackgroundLoad,
        bridge: EngineBridge,
        settings: SettingsStore,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setProperty("panel", True)
        self.setAccessibleName("Background load")
        self._load, self._bridge, self._settings = load, bridge, settings
        self._choices = choices()
        self._num_presets = len(self._choices)
        self._file = ""  # the prompt file, the last choice but one
        self._make_controls()
        self._arrange()
        self._recall(settings.load_choice)
        self._due = QTimer(self, singleShot=True, interval=SHOW_MS)
        self._due.timeout.connect(self._show_counts)
        self._pace_due = QTimer(self, singleShot=True, interval=PACE_DELAY_MS)
        self._pace_due.timeout.connect(lambda: load.set_pace(self.pace))
        self.workload.currentIndexChanged.connect(self._on_workload)
        self.workload.activated.connect(self._on_activated)
        self.raw.toggled.connect(self._on_workload)
        self.pacing.currentIndexChanged.connect(self._on_pace)
        self.concurrency.valueChanged.connect(self._on_pace)
        self.rate.valueChanged.connect(self._on_pace)
        load.changed.connect(self._on_load)
        bridge.state_changed.connect(lambda state: self._show_state())
        self._show_state()

    # Building ----------------------------------------------------------------------------------

    def _make_controls(self) -> None:
        self.workload = dressed(ElidedCombo(), "Workload")
        for choice in self._choices:
            self._offer(choice)
        self.workload.addItem(FROM_FILE)
        self.workload.setItemData(self.workload.count() - 1, PROMPT_LINES, TIP)
        self.raw = dressed(QCheckBox("Raw prompts"), "Raw prompts", RAW_PROMPTS)
        self.workload.setMinimumContentsLength(14)
        self.workload.setMaximumWidth(WORKLOAD_WIDTH)
        self.workload.setSizeAdjustPolicy(
            QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon
        )
        self.pacing = dressed(
            ElidedCombo(), "Arrival mode",
            "concurrent: constant number of requests (closed loop).\nreq/s: "
            "random arrivals at this mean rate (Poisson, open loop).",
        )  # fmt: skip
        self.pacing.addItem("concurrent", CLOSED)
        self.pacing.addItem("req/s", OPEN)
        self.concurrency = QSpinBox(minimum=1, maximum=MOST_CONCURRENT)
        self.rate = QDoubleSpinBox(decimals=1, minimum=0.1, maximum=MOST_PER_SECOND, singleStep=0.5)
        self.rate.setLocale(QLocale.c())
        for field, name in (
            (self.concurrency, "Concurrent requests"), (self.rate, "Requests per second"),
        ):  # fmt: skip
            dressed(field, name, f"{name}; adjustable while the load is running")
            field.setKeyboardTracking(False)
            field.setFont(figure_font())
        self.button = button(START, self.toggle, kind="primary")
        self._fit_fields()
        theme_notifier().changed.connect(self._fit_fields)
        self.status = ElidedLine("text_muted")
        self.problem = dressed(Label(wordWrap=True), role="error")
        self.problem.hide()

    def _offer(self, choice: Choice) -> None:
        index = self._choices.index(choice)
        self.workload.insertItem(index, choice.title)
        self.workload.setItemData(index, choice.tip, TIP)

    def _arrange(self) -> None:
        self._title = dressed(QLabel("Background load"), role="title")
        self.lesson = ElidedLine()
        self.lesson.hide()
        self._title.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Preferred)
        numbers = QGridLayout()  # one place for either number
        numbers.setContentsMargins(0, 0, 0, 0)
        numbers.addWidget(self.concurrency, 0, 0)
        numbers.addWidget(self.rate, 0, 0)
        self._pace, self._act = hbox(numbers, self.pacing), hbox(self.button, self.raw, STRETCH)
        self._how = hbox(self._pace, (self._act, 1))
        what = hbox(self._title, (self.workload, 1), (self.lesson, 1))
        self._row = hbox((what, 2), (self._how, 1))
        margins = SPACE_3, SPACE_2, SPACE_3, SPACE_2
        vbox(self._row, self.status, self.problem, of=self, spacing=SPACE_1, margins=margins)

    def fit(self) -> None:
        """Two or three rows where one is too narrow; the title hides first."""
        self._fit_fields()  # the style is known late
        room = self.width() - 2 * SPACE_3
        what = self.workload.minimumSizeHint().width()
        how = self._pace.minimumSize().width() + SPACE_2 + self._act.minimumSize().width()
        both, directions = what + SPACE_2 + how, QBoxLayout.Direction
        is_one_row = both <= room
        for row, fits in ((self._row, is_one_row), (self._how, how <= room)):
            row.setDirection(directions.LeftToRight if fits else directions.TopToBottom)
        self.workload.setMaximumWidth(WORKLOAD_WIDTH if is_one_row else max(WORKLOAD_WIDTH, room))
        fits = both + SPACE_2 + self._title.sizeHint().width() <= room
        self._title.setVisible(fits and not self._is_lesson)

    def _fit_fields(self) -> None:
        """Widths independent of the current text."""
        for field in (self.concurrency, self.rate):
            field.setFixedWidth(scaled(FIELD_WIDTH))
        least, words = scaled(BUTTON_WIDTH), self.button.fontMetrics().horizontalAdvance
        beside = self.button.sizeHint().width() - words(self.button.text())
        self.button.setMinimumWidth(max(least, beside + max(words(START), words(STOP))))

    def minimumSizeHint(self) -> QSize:
        """The title may hide."""
        return QSize(0, super().minimumSizeHint().height())

    # What is chosen ----------------------------------------------------------------------------

    @property
    def choice(self) -> Choice:
        return self._choices[min(self.workload.currentIndex(), len(self._choices) - 1)]

    @property
    def pace(self) -> Pace:
        if self.pacing.currentData() == OPEN:
            return Pace(request_rate=round(self.rate.value(), 1))
        return Pace(concurrency=self.concurrency.value())

    def plan(self) -> LoadPlan:
        work = replace(self.choice.workload, is_raw=self.raw.isChecked())
        return LoadPlan(work, self.choice.variant, self.pace)

    def choose(self, workload: str, variant: str | None = None) -> None:
        """Choose a workload by its name, in its first variant where none is given."""
        for index, choice in enumerate(self._choices):
            if choice.workload.name == workload and variant in (None, choice.variant):
                self.workload.setCurrentIndex(index)
                return

    def use_prompts(self, file: Path) -> None:
        """Read a prompt file and choose it."""
        run_task(self, lambda: of_prompts(file), partial(self._have_prompts, file), self._refuse)

    def _have_prompts(self, file: Path, workload: Workload) -> None:
        if len(self._choices) > self._num_presets:
            self._choices.pop()
            self.workload.removeItem(self._num_presets)
        self._file = str(file)
        choice = Choice(workload, next(iter(workload.variants)))
        self._choices.append(choice)
        self._offer(choice)
        self.workload.setCurrentIndex(self._num_presets)
        self._on_workload()

    def _refuse(self, error: ErrorInfo) -> None:
        self._load.problem = error
        self._show_state()

    def _on_activated(self, index: int) -> None:
        """The last entry asks for a file; the choice stays until one is read."""
        if index < len(self._choices):
            self._before = index
            return
        self.workload.setCurrentIndex(self._before)
        dialog = QFileDialog(self.window(), "Open prompt file")
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.setNameFilters(PROMPT_FILES)
        dialog.fileSelected.connect(lambda path: self.use_prompts(Path(path)))
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def toggle(self) -> None:
        if self._load.is_on:
            self._load.stop()
        else:
            self._load.start(self.plan())

    def _recall(self, stored: LoadChoice) -> None:
        self.choose(stored.workload, stored.variant)
        self._before = self.workload.currentIndex()
        self.raw.setChecked(stored.is_raw)
        if stored.prompts:
            self.use_prompts(Path(stored.prompts))
        self.concurrency.setValue(stored.concurrency)
        self.rate.setValue(stored.request_rate)
        self.pacing.setCurrentIndex(self.pacing.findData(OPEN if stored.is_open else CLOSED))
        self._show_pace()

    def _on_workload(self) -> None:
        self._remember()
        self._load.problem = None
        self._show_state()

    def _on_pace(self) -> None:
        self._show_pace()
        self._remember()
        self._pace_due.start()

    def _remember(self) -> None:
        self._settings.load_choice = LoadChoice(
            self.choice.workload.name, self.choice.variant, self.concurrency.value(),
            self.rate.value(), self.pacing.currentData() == OPEN,
            self._file if self.choice.workload.prompts else "", self.raw.isChecked(),
        )  # fmt: skip

    # Showing -----------------------------------------------------------------------------------

    @property
    def _is_other(self) -> bool:
        """Whether the current or last load has another workload than the one chosen here."""
        plan = self._load.plan
        return plan is not None and plan.workload.name != self.choice.workload.name

    @property
    def _is_lesson(self) -> bool:
        plan = self._load.plan
        return self._load.is_on and plan is not None and plan.is_lesson

    def _show_pace(self) -> None:
        is_open, is_lesson = self.pacing.currentData() == OPEN, self._is_lesson
        self.rate.setVisible(is_open and not is_lesson)
        self.concurrency.setVisible(not is_open and not is_lesson)
        self.pacing.setVisible(not is_lesson)
        self.workload.setVisible(not is_lesson)
        self.lesson.setVisible(is_lesson)
        if is_lesson and self._load.plan is not None:
            work = self._load.plan.workload
            self.lesson.set_text(
                f"Lesson load · {self._load.plan.pace} · prompts {work.prompts_text}, "
                f"replies {work.output} tokens"
            )

    def _on_load(self) -> None:
        if self._load.state is LoadState.RUNNING and self.button.text() == STOP:
            if not self._due.isActive():
                self._due.start()
        else:
            self._show_state()

    def _show_state(self) -> None:
        is_on = self._load.is_on
        self.button.setText(STOP if is_on else START)
        tip = (
            "Stop the load and abort its requests" if is_on
            else "Send requests from this workload until stopped"
        )  # fmt: skip
        set_key_tip(self.button, tip, "tune.load")
        set_icon(self.button, *(("stop", "text") if is_on else ("play", "accent_text")))
        restyle(self.button, kind="" if is_on else "primary")
        self.button.setEnabled(is_on or self._bridge.is_ready)
        self.workload.setEnabled(not is_on)
        self._show_pace()
        self.workload.setToolTip(self.choice.tip)
        model = self._bridge.model
        has_template = model is None or model.has_chat_template
        has_raw = bool(self.choice.workload.prompts) and has_template
        self.raw.setVisible(has_raw and not self._is_lesson)
        self.raw.setEnabled(not is_on)
        problem = self._load.problem
        self.problem.setVisible(problem is not None)
        self.status.setVisible(problem is None)
        self.problem.setText(f"{problem.cause} {problem.remedy}" if problem is not None else "")
        self._show_counts()

    def _show_counts(self) -> None:
        load, counts = self._load, self._load.counts
        if load.state is LoadState.PREPARING:
            self.status.set_text("Reading the vocabulary…")
            return
        if load.plan is None or (not load.is_on and not load.seconds):
            self.status.set_text(
                "Start a background load, change a setting and watch the charts."
                if self._bridge.is_ready
                else "Open a model to start a background load."
            )
            return
        parts = [f"{counts.completed:,} completed", f"{counts.failed:,} failed"]
        if not load.is_on:
            parts.insert(0, "stopped")
        elif load.plan.pace.concurrency is None:  # else the field beside says it
            parts.insert(0, f"{counts.in_flight:,} concurrent")
        if self._is_other and not load.is_on:
            parts.insert(0, load.plan.workload.title)
        if counts.aborted:
            parts.append(f"{counts.aborted:,} aborted")
        if counts.dropped:
            parts.append(f"{counts.dropped:,} dropped (limit: {MOST_IN_FLIGHT} concurrent)")
        parts.append(f"duration {duration_text(int(load.seconds))}")
        self.status.set_text(" · ".join(parts))
