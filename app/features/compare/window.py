"""The window of a comparison: prompts, what stands on the right, and both answers.

+---------------------------------------------------+
| left: model, settings, | right: model, settings,  |
| precision, sampling    | precision, sampling      |
| prompt              [longest] [seed] [Add] [File] |
| status                  [x] back    [Compare]     |
| prompts, and how far the answers are identical    |
| left answer             | right answer            |
+---------------------------------------------------+
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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

from app.features.compare.answers import Columns, PromptTable
from app.features.compare.export import as_json, as_markdown, verdict
from app.features.compare.record import Pair
from app.features.compare.runner import ComparisonRunner
from app.features.compare.sides import SideChoice, another, as_loaded
from app.features.compare.way import Setup, needs_one
from app.features.models.precision import precision_words
from app.features.tune.precision_rows import PrecisionGuide
from app.link.bridge import EngineBridge
from app.link.tasks import run_task
from app.window.settings_store import RecentModel, SettingsStore
from engine.errors import ErrorInfo
from engine.evaluate.task import DEFAULT_MAX_TOKENS, PROMPT_LINES, PromptLine, read_prompts
from widgets.controls.lines import ElidedLine
from widgets.theme.theme import SPACE_2, SPACE_4, restyle

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
        self._told: tuple[str, str] | None = None  # of a file, and its role
        self._brought: list[RecentModel] = []  # models that somebody wants compared
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
        self.sides = (SideChoice("left"), SideChoice("right"))
        for side in self.sides:
            side.changed.connect(self.refresh)
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
        self.file = _button("From a file…", PROMPT_LINES)
        self.file.clicked.connect(self.ask_for_file)
        self.back = QCheckBox("Switch back at the end")
        self.back.setChecked(True)
        self.back.setToolTip("Off: the engine of the window stays as the side that answered last")
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
        sides = QHBoxLayout()
        sides.setSpacing(SPACE_2)
        for side in self.sides:
            sides.addWidget(side, 1)
        asking = QGridLayout()
        asking.setSpacing(SPACE_2)
        asking.addWidget(self.max_tokens, 0, 0)
        asking.addWidget(self.seed, 0, 1)
        asking.addWidget(self.add, 1, 0)
        asking.addWidget(self.file, 1, 1)
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
        self._told = None
        if self._runner.is_running:
            self._runner.add(lines)
        else:
            self._again()
            self._waiting += [Pair(line) for line in lines]
        self.refresh()

    def choose_sides(self, stands: Sequence[tuple[RecentModel, Mapping[str, Any]]]) -> None:
        """Left and right: a model, and the settings of its precision. Not while one runs."""
        if self._runner.is_running:
            return
        self._again()
        self._brought = [model for model, _ in stands]
        self._offer()
        for side, (model, settings) in zip(self.sides, stands, strict=True):
            side.choose(None if self._is_loaded(model) else model, settings)
        self.refresh()

    def _again(self) -> None:
        """What was answered is answered again."""
        if self._runner.comparison is not None:
            self._waiting = [Pair(pair.prompt) for pair in self._runner.comparison.pairs]
            self._runner.comparison = None

    def start_or_stop(self) -> None:
        if self._runner.is_running:
            self._runner.stop()
            return
        self.add_prompt()
        prompts = [pair.prompt for pair in self._pairs]
        if prompts:
            self._told = None
            self._runner.stays = not self.back.isChecked()
            self._runner.together = self.together.isChecked()
            self._runner.start(prompts, self.setups)
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
            done = lambda _: self._tell(f"Written to {path}.")
            run_task(self, lambda: path.write_text(text, "utf-8"), done, self._refuse)

    def _line(self, text: str) -> PromptLine:
        model = self._bridge.model
        is_chat = model is None or model.has_chat_template
        prompt = ({"role": "user", "content": text},) if is_chat else text
        return PromptLine(len(self._pairs) + 1, prompt, self.max_tokens.value())

    @property
    def setups(self) -> tuple[Setup, Setup]:
        """What is chosen for both sides."""
        left, right = (side.setup(self.seed.value()) for side in self.sides)
        return left, right

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
            self._offer()
        setups = self.setups
        names = [setup.name for setup in setups]
        if comparison is not None:
            names = [side.title for side in comparison.sides]
        elif bridge.model is not None and (config := bridge.config) is not None:
            loaded = precision_words(bridge.model, config)
            names = [loaded if setup.is_loaded(config) else setup.name for setup in setups]
        self.way.set_text(comparison.way if comparison is not None else "")
        title = comparison.model if comparison is not None else getattr(bridge.model, "name", "")
        for side, name in zip(self.sides, names, strict=True):
            named = side.chosen_model is not None or name.startswith(title)
            side.what.set_text("  ·  ".join(filter(None, ("" if named else title, name))))
        self.columns.show_comparison(names, comparison)
        self.table.show_pairs(self._pairs)
        self._show_pair()
        self._show_status()
        self._show_buttons()
        if runner.is_running != self._timer.isActive():
            (self._timer.start if runner.is_running else self._timer.stop)()

    def _offer(self) -> None:
        """What there is to choose from, and what is loaded."""
        recent = self._store.recent
        brought = [m for m in self._brought if not any(m.is_same(known) for known in recent)]
        others = [model for model in (*recent, *brought) if not self._is_loaded(model)]
        config, known = self._bridge.config, self._guide.checkpoint
        for side in self.sides:
            side.offer(others, self._store.profiles.profiles)
        if config is not None:
            left, right = self.sides
            left.show_engine(config, known, as_loaded(config))
            right.show_engine(config, known, another(config, known))

    def _is_loaded(self, model: RecentModel) -> bool:
        config = self._bridge.config
        return config is not None and model.is_same(RecentModel(config.model, config.load_format))

    def _show_pair(self) -> None:
        row = self.table.chosen_row
        self.columns.show_pair(self._pairs[row] if 0 <= row < len(self._pairs) else None)

    def _show_status(self) -> None:
        """What was told of a file stands until something else is done: the engine's own news, of
        which there may be some at any time, do not take its place."""
        runner = self._runner
        if runner.problem:
            self._say(runner.problem, "error")
        elif runner.is_running:
            text = f"Stopping. {runner.status}" if runner.is_stopping else runner.status
            told, role = self._told or ("", "muted")
            self._say(f"{told} {text}".strip(), role)
        elif self._told is not None:
            self._say(*self._told)
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
        for widget in (*self.sides, self.seed):
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
        left, right = self.setups
        if needs_one((left, right), config) and left.sampling == right.sampling:
            return "Choose another model, another precision, settings or sampling for a side."
        return ""

    def _say(self, text: str, role: str = "muted") -> None:
        self.status.setText(text)
        if self.status.property("role") != role:
            restyle(self.status, role=role)

    def _tell(self, text: str, role: str = "muted") -> None:
        self._told = (text, role)
        self._show_status()

    def _refuse(self, error: ErrorInfo) -> None:
        self._tell(f"{error.cause} {error.remedy}".strip(), "error")

    def closeEvent(self, event: QCloseEvent) -> None:
        self._runner.changed.disconnect(self.refresh)  # it goes on to switch back, unseen
        self._timer.stop()
        self._runner.stop()
        super().closeEvent(event)
        self.closed.emit()

    def reject(self) -> None:
        """Escape, too: while something runs it stops that, and what was written stays."""
        if self._runner.is_running:
            self._runner.stop()
        else:
            self.close()


def _button(text: str, tip: str) -> QPushButton:
    made = QPushButton(text)
    made.setToolTip(tip)
    made.setAutoDefault(False)
    return made
