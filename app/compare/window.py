"""The window of a comparison: prompts, what stands on the right, and both answers.

+---------------------------------------------------+
| left: fp32                           [sampling v] |
| right: [model v] [settings v]        [sampling v] |
|        [int8 v] [head v] [KV v]            [seed] |
| prompt                          [Add] [File...]   |
| status                  [x] back    [Compare]     |
| prompts, and how far the answers are identical    |
| left answer             | right answer            |
+---------------------------------------------------+
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QCloseEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QCheckBox,
    QDialog,
    QFileDialog,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QPushButton,
    QSpinBox,
    QSplitter,
    QVBoxLayout,
    QWidget,
)

from app.compare.choice import PrecisionChoice
from app.compare.columns import Columns
from app.compare.export import as_json, as_markdown, verdict
from app.compare.prompt_table import PromptTable
from app.compare.record import Pair
from app.compare.runner import ComparisonRunner
from app.compare.side_choice import RightChoice, SamplingChoice
from app.compare.way import Setup, agrees
from app.engine_bridge import EngineBridge
from app.panels.precision import PrecisionGuide
from app.precision.words import precision_words
from app.settings_store import RecentModel, SettingsStore
from app.tasks import run_task
from engine.errors import ErrorInfo
from engine.evaluation.texts import DEFAULT_MAX_TOKENS, PromptLine, read_prompts
from widgets.elided_line import ElidedLine
from widgets.theme import SPACE_2, SPACE_4, restyle

SIZE = (1080, 760)
STATUS_MS = 500
JSON, MARKDOWN = "Comparison (*.json)", "Comparison as text (*.md)"
PROMPTS = "Prompts, one JSON object a line (*.jsonl *.json);;All files (*)"
READY = (
    "Both sides answer the same prompts from the same seed: by two engines at once where both fit "
    "the memory, else one after the other. Chats go on, and pause while settings are switched."
)


class CompareWindow(QDialog):
    """Kept until it is closed, results and all."""

    closed = Signal()

    def __init__(
        self,
        bridge: EngineBridge,
        guide: PrecisionGuide,
        runner: ComparisonRunner,
        store: SettingsStore,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle("Compare side by side")
        self._bridge, self._guide, self._runner, self._store = bridge, guide, runner, store
        self._waiting: list[Pair] = []  # prompts before the comparison begins
        self._make_parts()
        self._arrange()
        self._timer = QTimer(self)
        self._timer.setInterval(STATUS_MS)
        self._timer.timeout.connect(self._show_status)
        runner.changed.connect(self.refresh)
        guide.changed.connect(self.refresh)
        bridge.state_changed.connect(self.refresh)
        bridge.loaded.connect(self.refresh)
        self.resize(*SIZE)
        self.refresh()

    # Building ----------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        self.left = ElidedLine()
        self.choice = PrecisionChoice()
        self.choice.changed.connect(self.refresh)
        self.right = RightChoice()
        self.right.changed.connect(self.refresh)
        self.right.model_changed.connect(self._on_other_model)
        self.sampling = (SamplingChoice("left"), SamplingChoice("right"))
        for box in self.sampling:
            box.activated.connect(self.refresh)
        self.seed = QSpinBox()
        self.seed.setRange(0, 2**31 - 1)
        self.seed.setPrefix("seed ")
        self.seed.setAccessibleName("Seed of both sides")
        self.seed.setToolTip("Both sides draw their tokens from the same seed")
        self.together = QCheckBox("At the same time")
        self.together.setToolTip(
            "Where both engines are loaded, both answer at once and share the processor. Off: in "
            "turn, so that neither slows the other down"
        )
        self.together.toggled.connect(self._on_together)
        self.prompt = QPlainTextEdit()
        self.prompt.setAccessibleName("Prompt for both sides")
        self.prompt.setPlaceholderText("A prompt for both sides")
        self.prompt.setTabChangesFocus(True)
        self.prompt.setFixedHeight(64)
        self.prompt.textChanged.connect(self._show_buttons)
        self.max_tokens = QSpinBox()
        self.max_tokens.setRange(1, 4096)
        self.max_tokens.setValue(DEFAULT_MAX_TOKENS)
        self.max_tokens.setSuffix(" tokens")
        self.max_tokens.setAccessibleName("Longest answer")
        self.max_tokens.setToolTip("The longest answer to a prompt that is written here")
        self.add = _button("Add prompt", "Another prompt: all share one switch (Ctrl+Return)")
        self.add.clicked.connect(self.add_prompt)
        QShortcut(QKeySequence("Ctrl+Return"), self.prompt, self.add_prompt)
        self.way = ElidedLine("text_muted")
        self.file = _button(
            "From a file…", 'JSON, a line each: {"prompt": "..."} or {"messages": [...]}'
        )
        self.file.clicked.connect(self.ask_for_file)
        self.back = QCheckBox("Switch back at the end")
        self.back.setChecked(True)
        self.back.setToolTip("Off: where one engine serves both, it stays as the right side is")
        self.back.toggled.connect(self._on_back)
        self.export = _button("Export…", "Write the comparison as Markdown or JSON")
        self.export.clicked.connect(self.ask_for_export)
        self.start = _button("Compare", "Answer all prompts on both sides")
        self.start.setProperty("kind", "primary")
        self.start.clicked.connect(self.start_or_stop)
        self.status = QLabel()
        self.status.setWordWrap(True)
        self.status.setProperty("role", "muted")
        self.table = PromptTable()
        self.table.chosen.connect(lambda row: self._show_pair())
        self.columns = Columns()

    def _arrange(self) -> None:
        sides = QGridLayout()
        sides.setHorizontalSpacing(SPACE_2)
        sides.setVerticalSpacing(SPACE_2)
        precisions = QHBoxLayout()
        precisions.addWidget(self.choice)
        precisions.addStretch(1)
        sides.addWidget(QLabel("Left"), 0, 0)
        sides.addWidget(self.left, 0, 1)
        sides.addWidget(self.sampling[0], 0, 2)
        sides.addWidget(QLabel("Right"), 1, 0)
        sides.addWidget(self.right, 1, 1)
        sides.addWidget(self.sampling[1], 1, 2)
        sides.addLayout(precisions, 2, 1)
        sides.addWidget(self.seed, 2, 2)
        sides.setColumnStretch(1, 1)
        asking = QVBoxLayout()
        asking.setSpacing(SPACE_2)
        asking.addWidget(self.max_tokens)
        row = QHBoxLayout()
        row.addWidget(self.add)
        row.addWidget(self.file)
        asking.addLayout(row)
        prompt = QHBoxLayout()
        prompt.setSpacing(SPACE_2)
        prompt.addWidget(self.prompt, 1)
        prompt.addLayout(asking)
        foot = QHBoxLayout()
        foot.setSpacing(SPACE_2)
        foot.addWidget(self.status, 1)
        for widget in (self.together, self.back, self.export, self.start):
            foot.addWidget(widget)
        split = QSplitter(Qt.Orientation.Vertical)
        split.setChildrenCollapsible(False)
        split.addWidget(self.table)
        split.addWidget(self.columns)
        split.setStretchFactor(1, 1)
        split.setSizes([150, 400])
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        column.setSpacing(SPACE_2)
        column.addLayout(sides)
        column.addLayout(prompt)
        column.addLayout(foot)
        column.addWidget(self.way)
        column.addWidget(split, 1)

    # What the user does ------------------------------------------------------------------------

    def add_prompt(self) -> None:
        """What is written becomes a prompt of its own."""
        text = self.prompt.toPlainText().strip()
        if text:
            self.prompt.clear()
            self.add_prompts([self._line(text)])

    def add_prompts(self, lines: Sequence[PromptLine]) -> None:
        """Into the comparison that runs, else into the next one."""
        if self._runner.is_running:
            self._runner.add(lines)
        else:
            if self._runner.comparison is not None:  # what was answered is answered again
                self._waiting = [Pair(pair.prompt) for pair in self._runner.comparison.pairs]
                self._runner.comparison = None
            self._waiting += [Pair(line) for line in lines]
        self.refresh()

    def start_or_stop(self) -> None:
        if self._runner.is_running:
            self._runner.stop()
            return
        self.add_prompt()
        prompts = [pair.prompt for pair in self._pairs]
        if prompts:
            self._runner.stays = not self.back.isChecked()
            self._runner.together = self.together.isChecked()
            self._runner.start(prompts, self.setup)
            self._waiting = []

    def ask_for_file(self) -> None:
        dialog = QFileDialog(self, "Prompts", str(Path.home()), PROMPTS)
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.fileSelected.connect(lambda path: self.read(Path(path)))
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def read(self, path: Path) -> None:
        """Add the prompts of a JSONL file."""
        run_task(self, lambda: read_prompts(path), self.add_prompts, self._refuse)

    def ask_for_export(self) -> None:
        dialog = QFileDialog(self, "Export comparison", str(Path.home() / "comparison.md"))
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilters([MARKDOWN, JSON])
        dialog.setDefaultSuffix("md")
        dialog.filterSelected.connect(
            lambda chosen: dialog.setDefaultSuffix("json" if chosen == JSON else "md")
        )
        dialog.fileSelected.connect(lambda path: self.write(Path(path)))
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def write(self, path: Path) -> None:
        """Markdown, or JSON where the name ends so."""
        comparison = self._runner.comparison
        if comparison is not None:
            text = as_json(comparison) if path.suffix == ".json" else as_markdown(comparison)
            done = lambda _: self._say(f"Written to {path}.")
            run_task(self, lambda: path.write_text(text, "utf-8"), done, self._refuse)

    def _line(self, text: str) -> PromptLine:
        model = self._bridge.model
        is_chat = model is None or model.has_chat_template
        prompt = ({"role": "user", "content": text},) if is_chat else text
        return PromptLine(len(self._pairs) + 1, prompt, self.max_tokens.value())

    @property
    def setup(self) -> Setup:
        """What is chosen for the right side, and how both sample."""
        model, seed = self.right.chosen_model, self.seed.value()
        settings = {**self.right.settings, **self.choice.settings}
        name = self.choice.text if model is None else f"{model.title} · {self.choice.text}"
        left, right = self.sampling
        return Setup(
            settings, name, model, (left.params(seed), right.params(seed)), (left.name, right.name)
        )

    def _on_other_model(self) -> None:
        """Precisions are those of the model, or of the profile."""
        model, own = self.right.chosen_model, self.right.settings
        if model is not None:
            self.choice.show_model(model.config())
        else:
            self.choice.forget()
        chosen = {name: own[name] for name in self.choice.boxes if name in own}
        if chosen:
            self.choice.choose(chosen)
        elif self.right.profile.currentData() is not None and self._bridge.config is not None:
            config = self._bridge.config if model is None else model.config()
            self.choice.choose({name: getattr(config, name) for name in self.choice.boxes})
        self.refresh()

    def _on_together(self, is_on: bool) -> None:
        self._runner.together = is_on

    def _on_back(self, is_on: bool) -> None:
        self._runner.stays = not is_on

    # Showing -----------------------------------------------------------------------------------

    @property
    def _pairs(self) -> list[Pair]:
        comparison = self._runner.comparison
        return comparison.pairs if comparison is not None else self._waiting

    def refresh(self, *_: object) -> None:
        """Everything again."""
        runner, bridge = self._runner, self._bridge
        comparison = runner.comparison
        if not runner.is_running:
            others = [model for model in self._store.recent if not self._is_loaded(model)]
            self.right.offer(others, self._store.profiles.profiles)
            if bridge.config is not None and self.right.chosen_model is None:
                self.choice.show_engine(bridge.config, self._guide.checkpoint)
        names = ("no model", self.setup.name)
        if comparison is not None:
            names = (comparison.sides[0].title, comparison.sides[1].title)
        elif bridge.model is not None and bridge.config is not None:
            names = (precision_words(bridge.model, bridge.config), self.setup.name)
        self.way.set_text(comparison.way if comparison is not None else "")
        title = comparison.model if comparison is not None else getattr(bridge.model, "name", "")
        self.left.set_text("  ·  ".join(filter(None, (title, names[0]))))
        self.columns.show_comparison(names, comparison)
        self.table.show_pairs(self._pairs)
        self._show_pair()
        self._show_status()
        self._show_buttons()
        if runner.is_running != self._timer.isActive():
            (self._timer.start if runner.is_running else self._timer.stop)()

    def _is_loaded(self, model: RecentModel) -> bool:
        config = self._bridge.config
        return config is not None and model.is_same(RecentModel(config.model, config.load_format))

    def _show_pair(self) -> None:
        row = self.table.chosen_row
        self.columns.show_pair(self._pairs[row] if 0 <= row < len(self._pairs) else None)

    def _show_status(self) -> None:
        runner = self._runner
        if runner.problem:
            self._say(runner.problem, "error")
        elif runner.is_running:
            text = runner.status
            self._say(f"Stopping. {text}" if runner.is_stopping else text)
        elif runner.comparison is not None:
            self._say(verdict(runner.comparison) or "Nothing was answered by both sides.")
        else:
            self._say(self._refusal() or READY)

    def _show_buttons(self) -> None:
        is_running = self._runner.is_running
        has_prompts = bool(self._pairs or self.prompt.toPlainText().strip())
        can_start = has_prompts and not self._refusal()
        self.start.setText("Stop" if is_running else "Compare")
        self.start.setEnabled(not self._runner.is_stopping if is_running else can_start)
        self.start.setToolTip(
            "Stop, keep what was answered, and switch back" if is_running
            else self._refusal() or "Answer all prompts on both sides"
        )  # fmt: skip
        for widget in (self.choice, self.right, self.seed, *self.sampling):
            widget.setEnabled(not is_running)
        self.add.setEnabled(bool(self.prompt.toPlainText().strip()))
        self.export.setEnabled(self._runner.comparison is not None and not is_running)

    def _refusal(self) -> str:
        """Why nothing can be compared now; "" where it can."""
        config = self._bridge.config
        if config is None or not self._bridge.is_ready:
            return "Open a model to compare it with another, or with other settings."
        if self._bridge.look_only:
            return self._bridge.look_only
        setup = self.setup
        is_same = setup.model is None and agrees(config, setup.settings)
        if is_same and setup.sampling[0] == setup.sampling[1]:
            return "Choose another model, another precision, settings or sampling for the right."
        return ""

    def _say(self, text: str, role: str = "muted") -> None:
        self.status.setText(text)
        if self.status.property("role") != role:
            restyle(self.status, role=role)

    def _refuse(self, error: ErrorInfo) -> None:
        self._say(f"{error.cause} {error.remedy}".strip(), "error")

    def closeEvent(self, event: QCloseEvent) -> None:
        self._runner.changed.disconnect(self.refresh)  # it goes on to switch back, unseen
        self._timer.stop()
        self._runner.stop()
        super().closeEvent(event)
        self.closed.emit()

    def reject(self) -> None:
        self.close()  # Escape, too


def _button(text: str, tip: str) -> QPushButton:
    made = QPushButton(text)
    made.setToolTip(tip)
    made.setAutoDefault(False)
    return made
