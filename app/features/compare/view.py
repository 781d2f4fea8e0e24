"""`CompareView`: prompts, both sides and their replies.

+---------------------------------------------------+
| left: model, weights   | right: model, weights    |
| (more)                 | (more)                   |
| prompt                                            |
| status        [More] [Add] [Export] [Compare]     |
| prompts, where there are several                  |
| left reply             | right reply              |
+---------------------------------------------------+
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox, QPushButton, QSplitter, QWidget

from app.features.chat.file_actions import ask_for_file
from app.features.compare.columns import Columns, PromptTable
from app.features.compare.export import as_json, as_markdown, verdict
from app.features.compare.placement import Setup, needs_one
from app.features.compare.record import Comparison, PromptReplies, Side
from app.features.compare.replies import Reply
from app.features.compare.reply_view import PromptView
from app.features.compare.runner import ComparisonRunner
from app.features.compare.sides import SideChoice, another, as_loaded
from app.features.models.precision import precision_text
from app.features.tune.precision_rows import PrecisionGuide
from app.link.bridge import EngineBridge
from app.link.tasks import run_task
from app.storage.json_file import write_whole
from app.window.settings_store import RecentModel, SettingsStore
from engine.errors import ErrorInfo
from engine.evaluate.task import PROMPT_LINES, RAW_PROMPTS, PromptLine, read_prompts
from widgets.controls.frames import scroll_area
from widgets.controls.layouts import STRETCH, button, dressed, hbox, label, vbox
from widgets.controls.lines import ElidedLine
from widgets.theme.fonts import scaled
from widgets.theme.theme import restyle

STATUS_MS = 500
JSON, MARKDOWN = "Comparison (*.json)", "Comparison as Markdown (*.md)"
PROMPTS = ("Prompt files (*.jsonl *.ndjson *.csv *.txt)", "All files (*)")
READY = (
    "Both sides use the same prompts and seed. They run in two engines if memory allows, "
    "otherwise one after the other. Chats pause while settings change."
)


class CompareView(PromptView):
    def __init__(
        self,
        bridge: EngineBridge,
        guide: PrecisionGuide,
        runner: ComparisonRunner,
        store: SettingsStore,
        continue_chat: Callable[[Reply, Side, str], None],
        speeds: Callable[[Comparison], str],
    ) -> None:
        """`continue_chat(reply, side, model)` continues a reply as a chat. `speeds`: the difference
        in speed and size as a sentence."""
        super().__init__(runner, self._show_status, STATUS_MS, self.add_prompt)
        self._continue_chat, self._speeds = continue_chat, speeds
        self._bridge, self._guide, self._runner, self._store = bridge, guide, runner, store
        self._waiting: list[PromptReplies] = []  # prompts before the comparison begins
        self._notice: tuple[str, str] | None = None  # of a file, and its role
        self._brought: list[RecentModel] = []  # models to compare from elsewhere
        self._make_parts()
        self._arrange()
        runner.changed.connect(self.refresh)
        runner.appended.connect(self.columns.append)
        guide.changed.connect(self.refresh)
        bridge.state_changed.connect(self.refresh)
        bridge.loaded.connect(self.refresh)
        bridge.lock_changed.connect(self.refresh)
        for signal in (bridge.reconfiguring, bridge.reconfigure_failed):
            signal.connect(self.refresh)
        self.refresh()

    # Building ----------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        self.sides = (SideChoice("left"), SideChoice("right"))
        for side in self.sides:
            side.changed.connect(self.refresh)
        self.seed.setToolTip("Sampling seed for both sides")
        tip = (
            "Generate on both engines concurrently; they share the hardware. "
            "Off: one at a time, for independent timings"
        )
        self.together = dressed(QCheckBox("In parallel"), tip=tip)
        self.together.toggled.connect(self._set_options)
        self.raw = dressed(QCheckBox("Raw prompts"), tip=RAW_PROMPTS)
        self.raw.toggled.connect(self._set_options)
        self.prompt.setAccessibleName("Prompt for both sides")
        self.prompt.setPlaceholderText("Prompt for both sides")
        self.prompt.setFixedHeight(scaled(56))
        self.prompt.textChanged.connect(self._show_buttons)
        self.max_tokens.setToolTip("Max tokens per reply for new prompts")
        tip = "Add another prompt (Ctrl+Return). Each side is loaded once for all prompts"
        self.add = button("Add prompt", self.add_prompt, tip)
        self.placement = ElidedLine("text_muted")
        self.file = button("Import prompts…", self._ask_for_prompts, PROMPT_LINES)
        tip = "Off: keep the model and settings of the side loaded last"
        self.back = dressed(QCheckBox("Restore when done"), tip=tip)
        self.back.setChecked(True)
        self.back.toggled.connect(self._set_options)
        tip = "Export the comparison as Markdown or JSON"
        self.export = button("Export…", self._ask_for_export, tip)
        self.start = button("", self.start_or_stop, kind="primary")
        self.status = label(role="muted")
        self.status.setWordWrap(True)
        self.table = PromptTable()
        self.table.chosen.connect(self._show_pair)
        self.columns = Columns()
        self.columns.continued.connect(self._continue)

    def _arrange(self) -> None:
        sides = hbox(*((side, 1) for side in self.sides))
        self.more = QPushButton("More")
        self.more.setCheckable(True)
        self.more.setToolTip("KV cache, LM head, sampling, settings, seed and prompt files")
        self.more.toggled.connect(self._show_more)
        self._options = QWidget()
        vbox(
            hbox(self.max_tokens, self.seed, self.file, STRETCH),
            hbox(self.raw, self.together, self.back, STRETCH), of=self._options,
        )  # fmt: skip
        self._options.hide()
        row = hbox(STRETCH, self.more, self.add, self.export, self.start)
        split = QSplitter(Qt.Orientation.Vertical, childrenCollapsible=False)
        split.addWidget(self.table)
        split.addWidget(self.columns)
        split.setStretchFactor(1, 1)
        split.setSizes([120, 400])
        lines = vbox(self.status, self.placement, spacing=0)
        page = dressed(QWidget(), bare=True)
        vbox(sides, self.prompt, self._options, row, lines, (split, 1), of=page)
        self.area = scroll_area(page)  # in a low window
        vbox(self.area, of=self)

    def _show_more(self, is_on: bool) -> None:
        self._options.setVisible(is_on)
        for side in self.sides:
            side.more.setVisible(is_on)

    # What the user does ------------------------------------------------------------------------

    def add_prompt(self) -> None:
        text = self.prompt.toPlainText().strip()
        if text:
            self.prompt.clear()
            self.add_prompts([self._line(text)])

    def add_prompts(self, lines: Sequence[PromptLine]) -> None:
        """Add them to the running comparison, else to the next one."""
        self._notice = None
        if self._runner.is_running:
            self._runner.add(lines)
        else:
            self._again()
            self._waiting += [PromptReplies(line) for line in lines]
        self.refresh()

    def choose_sides(self, wanted: Sequence[tuple[RecentModel, Mapping[str, Any]]]) -> None:
        """Choose model and precision of both sides, unless a comparison runs."""
        if self._runner.is_running:
            return
        self._again()
        self._brought = [model for model, _ in wanted]
        self._offer()
        for side, (model, settings) in zip(self.sides, wanted, strict=True):
            side.choose(None if self._is_loaded(model) else model, settings)
        self.refresh()

    def _again(self) -> None:
        """Run the same prompts again."""
        if self._runner.comparison is not None:
            self._waiting = [PromptReplies(pair.prompt) for pair in self._runner.comparison.pairs]
            self._runner.comparison = None

    def start_or_stop(self) -> None:
        if self._runner.is_running:
            self._runner.stop()
            return
        if self._refusal():
            return
        self.add_prompt()
        prompts = [pair.prompt for pair in self._pairs]
        if prompts:
            self._notice = None
            self._set_options()
            self._runner.start(prompts, self.setups)
            self._waiting = []
            self.area.ensureWidgetVisible(self.columns)

    def _set_options(self) -> None:
        self._runner.stays = not self.back.isChecked()
        self._runner.together = self.together.isChecked()
        self._runner.is_raw = self.raw.isChecked()

    def _ask_for_prompts(self) -> None:
        read = lambda path: self.read(Path(path))
        ask_for_file(self, "Prompts", PROMPTS, read, folder=str(Path.home()))

    def read(self, path: Path) -> None:
        run_task(self, lambda: read_prompts(path), self.add_prompts, self._on_error)

    def _ask_for_export(self) -> None:
        write, file = lambda path: self.write(Path(path)), str(Path.home() / "comparison.md")
        ask_for_file(self, "Export comparison", [MARKDOWN, JSON], write, file)

    def write(self, path: Path) -> None:
        """Write JSON if the name ends in .json, else Markdown."""
        comparison = self._runner.comparison
        if comparison is not None:
            text = as_json(comparison) if path.suffix == ".json" else as_markdown(comparison)
            done = lambda _: self._notify(f"Exported to {path}.")
            run_task(self, lambda: write_whole(path, text), done, self._on_error)

    def _line(self, text: str) -> PromptLine:
        return PromptLine(len(self._pairs) + 1, text, self.max_tokens.value())

    def _continue(self, reply: Reply, place: int) -> None:
        comparison = self._runner.comparison
        if comparison is not None:
            self._continue_chat(reply, comparison.sides[place], comparison.model)

    @property
    def setups(self) -> tuple[Setup, Setup]:
        left, right = (side.setup(self.seed.value()) for side in self.sides)
        return left, right

    # Showing -----------------------------------------------------------------------------------

    @property
    def _pairs(self) -> list[PromptReplies]:
        comparison = self._runner.comparison
        return comparison.pairs if comparison is not None else self._waiting

    def refresh(self, *_: object) -> None:
        runner, bridge = self._runner, self._bridge
        comparison = runner.comparison
        if not runner.is_running:
            self._offer()
        setups = self.setups
        names = [setup.name for setup in setups]
        if comparison is not None:
            names = [side.title for side in comparison.sides]
        elif bridge.model is not None and (config := bridge.config) is not None:
            loaded = precision_text(bridge.model, config)
            names = [loaded if setup.is_loaded(config) else setup.name for setup in setups]
        self.placement.set_text(comparison.placement if comparison is not None else "")
        self.placement.setVisible(bool(self.placement.text()))
        title = comparison.model if comparison is not None else getattr(bridge.model, "name", "")
        for side, name in zip(self.sides, names, strict=True):
            named = side.chosen_model is not None or name.startswith(title)
            side.what.set_text("  ·  ".join(filter(None, ("" if named else title, name))))
        self.columns.show_comparison(names, comparison)
        self.table.show_pairs(self._pairs)
        self.table.setVisible(len(self._pairs) > 1)
        self._show_pair()
        self._show_status()
        self._show_buttons()
        self.run_timer()

    def _offer(self) -> None:
        """Offer the known models and profiles, and the loaded model's precisions."""
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
        """Show the status. A notice about a file stays until the user's next action: engine events
        must not replace it."""
        runner = self._runner
        notice, role = self._notice or ("", "muted")
        if runner.problem:
            self._say(runner.problem, "error")
        elif runner.is_running:
            text = f"Stopping. {runner.status}" if runner.is_stopping else runner.status
            self._say(f"{notice} {text}".strip(), role)
        elif notice:
            self._say(notice, role)
        elif runner.comparison is not None:
            self._say(self._verdict(runner.comparison))
        else:
            self._say(self._refusal() or READY)

    def _verdict(self, comparison: Comparison) -> str:
        count = len(comparison.done)
        if not count:
            return "No prompt was completed on both sides."
        shares = verdict(comparison) if count > 1 else ""  # of one, the line above the replies
        return " ".join(filter(None, (self._speeds(comparison), shares)))

    def _show_buttons(self) -> None:
        is_running = self._runner.is_running
        has_prompts = bool(self._pairs or self.prompt.toPlainText().strip())
        can_start = has_prompts and not self._refusal()
        self.start.setText("Stop" if is_running else "Compare")
        self.start.setEnabled(not self._runner.is_stopping if is_running else can_start)
        self.start.setToolTip(
            "Stop and restore the engine settings. Replies are kept." if is_running
            else self._refusal() or "Run all prompts on both sides"
        )  # fmt: skip
        for widget in (*self.sides, self.seed):
            widget.setEnabled(not is_running)
        self.add.setEnabled(bool(self.prompt.toPlainText().strip()))
        self.export.setEnabled(self._runner.comparison is not None and not is_running)

    def _refusal(self) -> str:
        """Why no comparison can start now; "" if one can."""
        config = self._bridge.config
        if config is None or not self._bridge.is_ready:
            return "Open a model first."
        if why := self._bridge.look_only or self._bridge.busy:
            return why
        left, right = self.setups
        if needs_one((left, right), config) and left.sampling == right.sampling:
            return "Both sides are identical. Change the model, precision, settings or sampling."
        return ""

    def _say(self, text: str, role: str = "muted") -> None:
        self.status.setText(text)
        if self.status.property("role") != role:
            restyle(self.status, role=role)

    def _notify(self, text: str, role: str = "muted") -> None:
        self._notice = (text, role)
        self._show_status()

    def _on_error(self, error: ErrorInfo) -> None:
        self._notify(f"{error.cause} {error.remedy}".strip(), "error")
