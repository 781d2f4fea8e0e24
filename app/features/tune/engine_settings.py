"""`EngineSettingsPanel`: the engine's settings beside the page, with hints, Apply and undo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QFontMetrics, QShowEvent
from PySide6.QtWidgets import QPushButton, QWidget

from app.features.models.precision import Memory
from app.features.tune.draft_models import METHOD, MODEL, WITH_MODEL, DraftModels
from app.features.tune.hints import resolved, way
from app.features.tune.pending import PendingCard
from app.features.tune.precision_rows import OF_IT, WAYS, PrecisionGuide
from app.features.tune.prediction import Pause, PauseModel
from app.features.tune.profile_menu import ProfileMenu
from app.features.tune.row_remarks import LAYERS, WITH_CEILING, Gains, RowRemarks
from app.features.tune.server_commands import Facts
from app.features.tune.server_dialog import ServerDialog
from app.features.tune.setting_list import SettingList, line
from app.features.tune.settings_commands import NO_STEP_YET, SettingsCommands
from app.features.tune.settings_model import Sent, SettingsModel
from app.link.bridge import EngineBridge
from app.storage.profiles import ProfileStore
from app.window.notices import Notice
from app.window.setting_specs import GIB, Machine, row_spec
from engine import messages
from engine.config import SETTINGS, Change, EngineConfig
from engine.snapshot import EngineSnapshot, Part
from widgets.controls.buttons import IconButton
from widgets.controls.layouts import STRETCH, Label, button, dressed, hbox, vbox
from widgets.controls.number_control import NumberControl
from widgets.controls.paths import PathControl
from widgets.controls.progress_bar import ProgressBar
from widgets.controls.setting_row import ChoiceControl, HintTone, SettingRow
from widgets.controls.text import set_key_tip
from widgets.live.metric_store import MetricStore
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_2, SPACE_3, theme_notifier, ui_font

LEAST_WIDTH = (120, 180)
"""Pixels: fixed, and scaled with the text size."""
BESIDE_TEXT = 44
"""Pixels beside the longest unwrapped text, a row's action."""
KV_CACHE = "kv_cache_memory_bytes"
KV_GRAIN = GIB // 1000
"""Bytes of the row's last decimal: its highest number is not above the room."""
LEAST_KV_ROOM = GIB // 32
MESSAGE_MS = 6000
HINT_INTERVAL_S = 1.0


class EngineSettingsPanel(QWidget):
    """The view of `commands` and `model`."""

    actions_changed = Signal()  # something may have become possible or impossible
    notice = Signal(object)  # Notice
    edit_wanted = Signal()  # the settings of an engine that this window runs

    def __init__(
        self,
        bridge: EngineBridge,
        profiles: ProfileStore,
        machine: Machine | None = None,
        parent: QWidget | None = None,
        *,
        recent: Callable[[], Sequence[tuple[str, str, str]]] = tuple,
        times: Memory | None = None,
        metrics: MetricStore | None = None,
    ) -> None:
        """`recent`: recent models as (path, load format, title). `times`: stores how long changes
        took."""
        super().__init__(parent)
        self._bridge = bridge
        self.model = SettingsModel()
        self.machine = machine or Machine()  # bounds of the rows
        self._capacity: int | None = None  # tokens of the KV cache
        self._hints_at = 0.0  # time of the snapshot that was shown last
        self._message_timer = QTimer(self, singleShot=True, interval=MESSAGE_MS)
        self._message_timer.timeout.connect(self._show_state)
        self.list = SettingList(self.machine)
        self.list.chosen.connect(self._on_chosen)
        self.list.refused.connect(self._on_out_of_range)
        self._unreported = Label(wordWrap=True, alignment=Qt.AlignmentFlag.AlignCenter)
        dressed(self._unreported, role="small").setContentsMargins(SPACE_3, 0, SPACE_3, 0)
        self.edit = button("Edit settings", self.edit_wanted.emit)
        self._elsewhere = QWidget()
        inner = hbox(STRETCH, self.edit, STRETCH)
        vbox(STRETCH, self._unreported, inner, STRETCH, of=self._elsewhere, spacing=SPACE_3)
        self.rows: dict[str, SettingRow] = self.list.rows
        self.precision = PrecisionGuide(bridge, self.rows, times, self)
        self._remarks = RowRemarks(self.model, self.precision, metrics)
        self.pauses = PauseModel()
        self.commands = SettingsCommands(bridge, self.model, self.precision, self._remarks, self)
        path = self.rows[MODEL].control
        assert isinstance(path, PathControl)
        self.drafts = DraftModels(path, recent, self)
        foot = self._make_foot(profiles)
        vbox((self.list, 1), (self._elsewhere, 1), foot, of=self, spacing=0)
        self._fit()
        theme_notifier().changed.connect(self._fit)
        for name in WITH_CEILING:  # avoids rows moving with the first reply
            self.rows[name].keep_hint_lines(2)
        self.drafts.checked.connect(self._on_draft_checked)
        self.drafts.found.connect(self._choose_draft)
        self.precision.changed.connect(self._show_values)
        self.commands.said.connect(self._say)
        self.commands.refused.connect(self._refuse)
        self.commands.refreshed.connect(self._show_values)
        bridge.load_progress.connect(self._on_progress)
        bridge.reconfigured.connect(self._on_reconfigured)
        self._show_values()

    def _make_foot(self, profiles: ProfileStore) -> QWidget:
        """Message, progress and Apply are hidden while empty."""
        refusal = lambda: self._bridge.locked
        self.profiles = ProfileMenu(profiles, self._chosen_now, self, refusal=refusal)
        self.profiles.chosen.connect(self.commands.apply_profile)
        self.profiles.reset.connect(self.commands.reset)
        self.profiles.notice.connect(self.notice)
        self._message = dressed(Label(wordWrap=True), role="small")
        self._progress = ProgressBar("Applying settings")
        self.pending = PendingCard(self._bridge, self.commands.apply, self.commands.discard)
        self._undo = IconButton("undo", "Undo setting change", self.commands.undo)
        self._redo = IconButton("redo", "Redo setting change", self.commands.redo)
        menu = dressed(QPushButton("Profiles"), tip="Apply, save or delete settings profiles")
        menu.setMenu(self.profiles)
        self._copy = button("Copy as…", self.show_command)
        set_key_tip(
            self._copy, "Copy these settings as a vLLM, SGLang or TensorRT-LLM command line",
            "tune.server_command",
        )  # fmt: skip
        shown_at_times = self._message, self._progress, self.pending
        for widget in shown_at_times:
            widget.hide()
        foot, margins = QWidget(), (SPACE_3, SPACE_2, SPACE_3, SPACE_3)
        buttons = hbox(self._undo, self._redo, (menu, 1), (self._copy, 1))
        vbox(line(), *shown_at_times, buttons, of=foot, margins=margins)
        return foot

    def _fit(self) -> None:
        """The least width at which rows are not cut."""
        fixed, text = LEAST_WIDTH
        longest = max(map(QFontMetrics(ui_font()).horizontalAdvance, WAYS.values()))
        self.setMinimumWidth(max(fixed + scaled(text), longest + BESIDE_TEXT))

    # The machine -------------------------------------------------------------------------------

    def offer_gpus(self, names: tuple[str, ...]) -> None:
        if names != self.machine.gpus:
            before = dict(self.machine.devices)
            self.machine = replace(self.machine, gpus=names)
            control = self.rows["device"].control
            assert isinstance(control, ChoiceControl)
            for value in before.keys() - dict(self.machine.devices).keys():
                control.withdraw(value)
            for value, text in self.machine.devices:
                control.offer(value, text)
            if self.model.applied is not None:
                self._enable_rows()
                self._show_hints()

    # What the user does ------------------------------------------------------------------------

    def choose(self, name: str, value: Any) -> None:
        """As if the user had set the row of `name` to `value`."""
        self.rows[name].set_value(value)
        self._on_chosen(name, value)
        self.actions_changed.emit()

    def show_row(self, name: str) -> None:
        """Unfold and scroll to the row of `name`, and focus it."""
        self.list.reveal(name)

    def _on_chosen(self, name: str, value: Any) -> None:
        self.commands.choose(name, value)
        if self.commands.may_change and name == MODEL:
            self.drafts.describe(value)
        elif self.commands.may_change and name == METHOD:
            self.drafts.search(value)

    def _on_out_of_range(self, name: str, why: str) -> None:
        if why:
            self._remarks.out_of_range[name] = why
        else:
            self._remarks.out_of_range.pop(name, None)
        self._show_hints()

    def _choose_draft(self) -> None:
        """Choose the recommended draft model unless a suitable one is chosen."""
        if self.model.shown(METHOD) not in WITH_MODEL or self.model.applied is None:
            return
        if self.drafts.knows(self.model.shown(MODEL)):
            self.drafts.describe(self.model.shown(MODEL))
        elif self.drafts.recommended is not None:
            self._on_chosen(MODEL, self.drafts.recommended)

    def _on_draft_checked(self, text: str, tone: HintTone) -> None:
        self._remarks.draft_note = (text, tone)
        self._show_hints()

    def show_command(self, changes: Mapping[str, Any] = MappingProxyType({})) -> None:
        """The settings, with changes, as command lines of other servers."""
        if self.model.applied is not None:
            # auto stays auto: the server's device may differ, and the budget was measured for the
            # kernels here. Whether another machine's budget was chosen is not reported.
            names = ("dtype",) if self._bridge.is_remote else ("dtype", "max_num_batched_tokens")
            chosen = {name: self.model.chosen_value(name) for name in names}
            config = self.model.applied.replace(**{**chosen, **changes})
            plan = self._bridge.plan
            facts = Facts(
                self._capacity, self.model.applied.dtype, 0 if plan is None else plan.host_layers
            )
            dialog = ServerDialog(config, facts, self.window())
            dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
            dialog.open()

    def _chosen_now(self) -> Mapping[str, Any] | None:
        """What a profile saves: the user's choices."""
        return dict(self.model.chosen) if self.model.applied is not None else None

    # What the engine reports -------------------------------------------------------------------

    def show_opening(self, chosen: Mapping[str, Any]) -> None:
        """A model is loading with these choices of the user."""
        self.model.expect(chosen)
        self._show_values()

    def show_model(self, config: EngineConfig, chosen: Mapping[str, Any]) -> None:
        """A model was loaded with `config`, of which the user chose `chosen`."""
        self.commands.open()
        self.pauses.clear()
        if not self.commands.unreported:
            self.model.open(config, chosen)
            self.drafts.show_model(config)
            self.drafts.describe(config.speculative_model)
        self._show_values()

    def _on_progress(self, event: messages.LoadProgress) -> None:
        if self.model.sent:
            self._progress.show_fraction(event.done / event.total if event.total else None)

    def _on_reconfigured(self, event: messages.Reconfigured) -> None:
        if event.change is Change.CACHE_REBUILD:
            self.pauses.learn_rebuild(event.seconds)

    def update_snapshot(self, snapshot: EngineSnapshot) -> None:
        """Takes every snapshot; hints change once a second."""
        if Part.SETTINGS in snapshot.missing:
            return
        self._remarks.hints.update(snapshot)
        self.pauses.update(snapshot)
        self._capacity = snapshot.blocks.num_blocks * snapshot.blocks.block_size
        due = snapshot.time - self._hints_at >= HINT_INTERVAL_S or not snapshot.num_running
        if due and self.isVisible():
            self._hints_at = snapshot.time
            self._show_hints()
            self._show_pending()

    def show_ceilings(self, ceilings: Gains) -> None:
        """The potential gain of settings."""
        if ceilings == self._remarks.ceilings:
            return
        self._remarks.ceilings = ceilings
        if self.isVisible() and self.model.applied is not None:
            self._show_hints()

    # Showing -----------------------------------------------------------------------------------

    def showEvent(self, event: QShowEvent) -> None:
        """Hints are not updated while the panel is hidden."""
        super().showEvent(event)
        self._show_hints()
        self._show_pending()

    def _show_values(self) -> None:
        reason = self.commands.unreported
        self._unreported.setText(reason)
        self._elsewhere.setVisible(bool(reason))
        self.edit.setVisible(self.commands.is_run_here())
        self.list.setVisible(not reason)
        self._remarks.plan = self._bridge.plan
        layers, model = self.rows[LAYERS].control, self._bridge.model
        assert isinstance(layers, NumberControl)
        if model is not None and model.num_layers:
            layers.set_highest(model.num_layers)
        self._bound_kv_cache()
        self.precision.show(self.model.applied, {name: self.model.shown(name) for name in OF_IT})
        for name, row in self.rows.items():
            if name not in self.commands.pending:
                row.set_value(self.model.shown(name))
        self._enable_rows()
        self._show_state()

    def _bound_kv_cache(self) -> None:
        """At most what the loaded model leaves, as planned last; the machine's memory where the
        cache is divided or its room changes with a reload."""
        row, plan, room = self.rows[KV_CACHE], self._bridge.plan, self.machine.memory_bytes
        if plan is not None and not plan.host_layers and not self.model.reloads:
            left = plan.limit - plan.weights - plan.activations
            shown = self.model.shown(KV_CACHE)
            least = max(shown or 0, LEAST_KV_ROOM)
            room = max(least, left - left % KV_GRAIN)
        assert isinstance(row.control, NumberControl)
        row.control.set_spec(row_spec(SETTINGS[KV_CACHE], replace(self.machine, memory_bytes=room)))

    def _enable_rows(self) -> None:
        unused = {name for name in self.rows if self._remarks.idle_because(name)}
        for name, row in self.rows.items():
            row.setEnabled(self.commands.may_change and name not in unused)
        self.list.set_unused(unused)

    def _show_hints(self) -> None:
        for name, row in self.rows.items():
            row.set_hint(*self._remarks.of(name))

    def _show_state(self) -> None:
        model = self.model
        self._show_hints()
        self._show_pending()
        self._undo.setEnabled(model.can_undo and self.commands.may_change)
        undo = way("Undo: restore ", model.history) or "Nothing to undo."
        redo = way("Redo: ", model.undone) or "Nothing to redo."
        if model.sent:
            undo = redo = NO_STEP_YET
        self._undo.setToolTip("Discard pending changes." if model.pending else undo)
        self._redo.setEnabled(model.can_redo and self.commands.may_change)
        self._redo.setToolTip(redo)
        self._copy.setEnabled(model.applied is not None)
        slow = [sent for sent in model.sent if sent.change is not Change.LIVE]
        self._progress.setVisible(bool(slow))
        if slow:
            self._progress.show_fraction(None)
            self._message_timer.stop()
            self._set_message(self._work_text(slow[0]))
        elif not self._message_timer.isActive():
            known = model.applied is not None or self.commands.unreported  # shown in the list
            self._set_message(self._bridge.locked if known else self.commands.why_not)
        self.actions_changed.emit()

    def _show_pending(self) -> None:
        pending, ceilings = self.model.pending, self._remarks.ceilings
        found = (ceilings.get(name, {}).get(value) for name, value in pending.items())
        gains = [gain for gain in found if gain]
        self.pending.show_changes(self.model.applied, pending, self._pause, gains)

    def _pause(self, change: Change, config: EngineConfig) -> Pause:
        """Of applying `config` now."""
        expected = self.precision.expected(config) if change is Change.RELOAD else None
        return self.pauses.predict(change, expected.seconds if expected is not None else None)

    def _work_text(self, sent: Sent) -> str:
        if sent.change is not Change.RELOAD or self.model.applied is None:
            return "Rebuilding the KV cache; requests pause and resume."
        expected = self.precision.expected(resolved(self.model.applied, sent.changes))
        takes = f" Takes {expected.words}." if expected is not None else ""
        return f"Reloading the model; requests pause and resume.{takes}"

    @property
    def message(self) -> str:
        """The state of a change, or why settings cannot be changed."""
        return self._message.text()

    def _say(self, text: str) -> None:
        """Show `text` for a few seconds."""
        self._set_message(text)
        self._message_timer.start()

    def _refuse(self, text: str) -> None:
        """Where the user sees it: a shortcut works on pages without this panel."""
        self._say(text)
        if not self.isVisible():
            self.notice.emit(Notice("tune.refused", text))

    def _set_message(self, text: str) -> None:
        self._message.setText(text)
        self._message.setVisible(bool(text))
