"""The engine's settings beside the page: turn a knob, and read below it what it does.

Live settings are sent when the hand rests; settings that cost a cache rebuild or a reload are
collected and applied together. What is known is in `SettingsModel`; this is its face.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QLabel, QVBoxLayout, QWidget

from app.features.models.device_words import Places
from app.features.models.precision import HEAD, WEIGHTS, Memory
from app.features.tune.draft_models import METHOD, MODEL, WITH_MODEL, DraftModels
from app.features.tune.hints import change_details, change_text, resolved, way
from app.features.tune.precision_rows import OF_IT, WAYS, PrecisionGuide
from app.features.tune.profile_menu import ProfileMenu
from app.features.tune.row_remarks import LAYERS, WITH_CEILING, RowRemarks
from app.features.tune.server_dialog import ServerDialog
from app.features.tune.servers import Facts
from app.features.tune.setting_list import SettingList, SettingsFoot
from app.features.tune.settings_model import Sent, SettingsModel, costliest
from app.link.bridge import EngineBridge, EngineState
from app.storage.profiles import Profile, ProfileStore
from app.units import format_bytes
from app.window.setting_specs import Machine
from engine import messages
from engine.config import SETTINGS, Change, EngineConfig
from engine.errors import LoadCancelled
from engine.snapshot import EngineSnapshot, ModelInfo, Part
from widgets.controls.number_control import NumberControl
from widgets.controls.paths import PathControl
from widgets.controls.setting_row import ChoiceControl, HintTone, SettingRow
from widgets.controls.text import server_name
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_3, SPACE_4, theme_notifier, ui_font

DEVICE = "device"
LEAST_WIDTH = (120, 180)
"""Of what does not change with the size of text, and of what does, at the usual size."""
BESIDE_WORDS = 44
"""Pixels of the panel beside the longest words that are not wrapped, those of a row's action."""
LIVE_DELAY_MS = 250
"""A slider that is dragged sends its last value, not every one that it passes."""
MESSAGE_MS = 6000
HINT_INTERVAL_S = 1.0


class EngineSettingsPanel(QWidget):
    """`changed` tells what was applied, for the charts' marks and the memory of the window."""

    # e.g. "max_num_seqs 8 → 16"; the same in the settings' own words; the settings chosen by now
    changed = Signal(str, object, object)
    actions_changed = Signal()  # something may have become possible or impossible
    notice = Signal(object)  # Notice

    def __init__(
        self,
        bridge: EngineBridge,
        profiles: ProfileStore,
        machine: Machine | None = None,
        parent: QWidget | None = None,
        *,
        recent: Callable[[], Sequence[tuple[str, str, str]]] = tuple,
        times: Memory | None = None,
    ) -> None:
        """`recent`: models that were open before, as (path, load format, title). `times`: where is
        kept how long changes took."""
        super().__init__(parent)
        self._bridge = bridge
        self.model = SettingsModel()
        self._machine = machine or Machine()
        self._capacity: int | None = None  # tokens of the KV cache
        self._hints_at = 0.0  # time of the snapshot that was shown last
        self._unsent: dict[str, Any] = {}
        self._weights = 0  # bytes, of the model that is loaded
        self._delay = QTimer(self)
        self._delay.setSingleShot(True)
        self._delay.setInterval(LIVE_DELAY_MS)
        self._delay.timeout.connect(self._send_live)
        self._message_timer = QTimer(self)
        self._message_timer.setSingleShot(True)
        self._message_timer.setInterval(MESSAGE_MS)
        self._message_timer.timeout.connect(self._show_state)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        self._list, self._others = self._make_list(), _not_ours()
        self._rows = self._list.rows
        layout.addWidget(self._list, 1)
        layout.addWidget(self._others, 1)
        self._fit()
        theme_notifier().changed.connect(self._fit)
        layout.addWidget(self._make_foot(profiles))
        path = self._rows[MODEL].control
        assert isinstance(path, PathControl)
        self.drafts = DraftModels(path, recent, self)
        self.drafts.checked.connect(self._on_draft_checked)
        self.drafts.found.connect(self._choose_draft)
        self.precision = PrecisionGuide(bridge, self._rows, times, self)
        self.precision.changed.connect(self._show_values)
        self._remarks = RowRemarks(self.model, self.precision)
        for name in WITH_CEILING:  # with the first reply: it would move what one aims at
            self._rows[name].keep_hint_lines(2)
        bridge.state_changed.connect(self._on_state)
        bridge.reconfigured.connect(self._on_reconfigured)
        bridge.reconfigure_failed.connect(self._on_refused)
        bridge.load_progress.connect(self._on_progress)
        self._show_values()

    def _fit(self) -> None:
        """The rows are cut in less."""
        fixed, text = LEAST_WIDTH
        words = max(map(QFontMetrics(ui_font()).horizontalAdvance, WAYS.values()))
        self.setMinimumWidth(max(fixed + scaled(text), words + BESIDE_WORDS))

    @property
    def machine(self) -> Machine:
        """What bounds the rows."""
        return self._machine

    def offer_gpus(self, names: tuple[str, ...]) -> None:
        """The driver told of these GPUs: the model can run there too, and on no others."""
        if names != self._machine.gpus:
            before = dict(self._machine.devices)
            self._machine = replace(self._machine, gpus=names)
            control = self._rows[DEVICE].control
            assert isinstance(control, ChoiceControl)
            for value in before.keys() - dict(self._machine.devices).keys():
                control.withdraw(value)
            for value, text in self._machine.devices:
                control.offer(value, text)
            self._tell_places()
            if self.model.applied is not None:
                self._enable_rows()
                self._show_hints()

    def _tell_places(self) -> None:
        """Where ranks or stages could be; of the CPU of another machine nobody tells."""
        nodes = 0 if self._bridge.is_remote else self._machine.num_nodes
        self._remarks.hints.places = Places(len(self._machine.gpus), nodes)

    def _offer_layers(self, model: ModelInfo | None) -> None:
        """As many as the model has."""
        control = self._rows[LAYERS].control
        assert isinstance(control, NumberControl)
        if model is not None and model.num_layers:
            control.set_highest(model.num_layers)

    @property
    def rows(self) -> dict[str, SettingRow]:
        return self._rows

    # Building ----------------------------------------------------------------------------------

    def _make_list(self) -> SettingList:
        made = SettingList(self._machine)
        made.chosen.connect(self._on_chosen)
        made.refused.connect(self._on_out_of_range)
        return made

    def _make_foot(self, profiles: ProfileStore) -> SettingsFoot:
        refusal = lambda: self._bridge.look_only
        self.profiles = ProfileMenu(profiles, self._chosen_now, self, refusal=refusal)
        self.profiles.chosen.connect(self.apply_profile)
        self.profiles.reset.connect(self.reset)
        self.profiles.notice.connect(self.notice)
        foot = SettingsFoot(self.profiles)
        self._message, self._progress, self._apply = foot.message, foot.progress, foot.apply
        self._undo, self._redo, self._copy = foot.undo, foot.redo, foot.copy
        self._apply.clicked.connect(self.apply)
        self._undo.clicked.connect(self.undo)
        self._redo.clicked.connect(self.redo)
        self._copy.clicked.connect(self.show_command)
        return foot

    # What the user does ------------------------------------------------------------------------

    def choose(self, name: str, value: Any) -> None:
        """As if the row of `name` had been set to `value` by the user."""
        self._rows[name].set_value(value)
        self._on_chosen(name, value)
        self.actions_changed.emit()

    def show_row(self, name: str) -> None:
        """Bring the row of `name` into sight, and the keyboard to it."""
        row = self._rows[name]
        self._list.ensureWidgetVisible(row, 0, SPACE_4)
        row.take_focus()

    def _on_out_of_range(self, name: str, why: str) -> None:
        self._remarks.out_of_range(name, why)
        self._show_hints()

    @property
    def message(self) -> str:
        """What happens to the settings just now, or why they cannot be changed."""
        return self._message.text()

    @property
    def apply_text(self) -> str:
        """What applying the collected changes costs; "" where none are collected."""
        return self._apply.text() if self.model.pending else ""

    def apply(self) -> None:
        """Send everything that was collected."""
        self._submit(self.model.apply())

    def change(self, settings: Mapping[str, Any]) -> None:
        """Set these now, as if they had been chosen and applied."""
        if self.may_change:
            for name in settings:
                self._unsent.pop(name, None)
            self._remarks.forget_what_was_written()
            self._submit(self.model.change(settings))

    def refusal_of(self, name: str, value: Any) -> str:
        """Why a setting cannot have a value now; "" where it can."""
        if self.model.applied is None:
            return self._why_not()
        if self._bridge.look_only:
            return self._bridge.look_only
        if any(sent.change is not Change.LIVE for sent in self.model.sent):
            return "Another change is being applied."
        known = self.precision.checkpoint
        if name == WEIGHTS and known is not None:
            choices = known.of_weights(self.model.shown(HEAD), self.model.applied.dtype)
            return next((choice.refusal for choice in choices if choice.value == value), "")
        return ""

    @property
    def may_change(self) -> bool:
        """Whether there are settings that this window may change."""
        return self.model.applied is not None and not self._bridge.look_only

    def undo(self) -> None:
        """Drop what was collected, else go back to before the change applied last."""
        self._remarks.forget_what_was_written()
        self._submit(self.model.undo())

    def redo(self) -> None:
        """Apply again what was undone last."""
        self._remarks.forget_what_was_written()
        self._submit(self.model.redo())

    def reset(self) -> None:
        """Everything the user chose back to its default, at once."""
        self._remarks.forget_what_was_written()
        self._submit(self.model.reset())

    def apply_profile(self, profile: Profile) -> None:
        """Be as the profile says, at once."""
        if not self.may_change:
            return
        self._delay.stop()
        self._unsent.clear()
        self._remarks.forget_what_was_written()
        self._submit(self.model.choose_all(profile.settings))
        if profile.unknown:
            self._say(f"Left out, not known to this version: {', '.join(profile.unknown)}.")

    def show_command(self) -> None:
        """The settings as command lines of other servers."""
        if self.model.applied is not None:
            # a server has another device: what was left to the engine is left to it as well
            config = self.model.applied.replace(dtype=self.model.chosen_value("dtype"))
            plan = self._bridge.plan
            facts = Facts(
                self._capacity, self.model.applied.dtype, 0 if plan is None else plan.host_layers
            )
            dialog = ServerDialog(config, facts, self.window())
            dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
            dialog.open()

    def _chosen_now(self) -> Mapping[str, Any] | None:
        """What a profile would hold: what the user chose of what is in force."""
        return dict(self.model.chosen) if self.model.applied is not None else None

    def _on_chosen(self, name: str, value: Any) -> None:
        if not self.may_change:
            return
        self._remarks.forget(name)
        if SETTINGS[name].change is Change.LIVE:
            self._unsent[name] = value
            self._delay.start()
            return
        self.model.choose(name, value)
        if name == MODEL:
            self.drafts.describe(value)
        elif name == METHOD:
            self.drafts.search(value)
        self._show_values()

    def _choose_draft(self) -> None:
        """What drafts best by the method chosen, where none is chosen that is known to."""
        needed = self.model.shown(METHOD) in WITH_MODEL
        if not needed or self.model.applied is None:
            return
        if self.drafts.knows(self.model.shown(MODEL)):
            self.drafts.describe(self.model.shown(MODEL))
        elif self.drafts.recommended is not None:
            self._on_chosen(MODEL, self.drafts.recommended)

    def _on_draft_checked(self, text: str, tone: HintTone) -> None:
        self._remarks.draft_note = (text, tone)
        self._show_hints()

    def _send_live(self) -> None:
        unsent, self._unsent = self._unsent, {}
        for name, value in unsent.items():
            self._submit(self.model.choose(name, value))

    def _submit(self, sent: Sent | None) -> None:
        if sent is not None:
            self._remarks.sent(sent.changes)
            self._bridge.reconfigure(**sent.changes)
        self._show_values()

    # What the engine says ----------------------------------------------------------------------

    def show_model(self, config: EngineConfig, chosen: Mapping[str, Any]) -> None:
        """A model was loaded with `config`, of which the user had chosen `chosen`."""
        self._unsent.clear()
        self._remarks.clear()
        self._weights = _weights_of(self._bridge.model)
        if self._its_own():
            self._show_values()
            return
        self.model.open(config, chosen)
        self.drafts.show_model(config)
        self.drafts.describe(config.speculative_model)
        self._show_values()

    def _on_state(self, state: EngineState) -> None:
        """Without a model there is nothing to set. While one is loaded again (precision, threads)
        the state stays READY; while another is loaded the one before serves no more."""
        if state is EngineState.READY:
            return
        self._delay.stop()
        self._unsent.clear()
        self._remarks.hints.clear()
        self.model.close()
        self._show_values()

    def _on_reconfigured(self, event: messages.Reconfigured) -> None:
        before = self.model.applied
        weights, self._weights = self._weights, _weights_of(event.model)
        sent = self.model.accept(event.config)
        changes = before.differences(event.config) if before is not None else {}
        if changes:
            self.changed.emit(
                change_text(changes), change_details(changes), dict(self.model.chosen)
            )
        if event.notices:
            self._say(" ".join(event.notices))
        elif sent is not None and sent.change is not Change.LIVE:
            text = f"{sent.change.value.capitalize()} done in {event.seconds:.2f} s."
            if weights and self._weights not in (0, weights):
                text += f" Weights {format_bytes(weights)} → {format_bytes(self._weights)}."
            self._say(text)
        self._show_values()

    def _on_refused(self, event: messages.ReconfigureFailed) -> None:
        sent = self.model.reject(event.config)
        if event.error.kind == LoadCancelled.__name__:
            self._say("Cancelled. The settings before are in force again.")
            self._show_values()
            return
        names = sent.changes if sent is not None else ()
        guilty = [name for name in names if name in event.error.cause] or names
        self._remarks.refused(guilty, event.error)
        self._show_values()

    def _on_progress(self, event: messages.LoadProgress) -> None:
        if self.model.sent:
            self._progress.setRange(0, 1000 if event.total else 0)
            self._progress.setValue(round(1000 * event.done / event.total) if event.total else 0)

    def update_snapshot(self, snapshot: EngineSnapshot) -> None:
        """Called with every snapshot; what is shown changes once a second, to be read."""
        if Part.SETTINGS in snapshot.missing:
            return
        self._remarks.hints.update(snapshot)
        self._capacity = snapshot.blocks.num_blocks * snapshot.blocks.block_size
        due = snapshot.time - self._hints_at >= HINT_INTERVAL_S or not snapshot.num_running
        if due and self.isVisible():
            self._hints_at = snapshot.time
            self._show_hints()

    # Showing -----------------------------------------------------------------------------------

    def _show_values(self) -> None:
        """Everything again: values, hints, buttons."""
        others = self._its_own()
        self._others.setText(others)
        self._others.setVisible(bool(others))
        self._list.setVisible(not others)
        self._remarks.plan = self._bridge.plan
        self._tell_places()
        self._offer_layers(self._bridge.model)
        self.precision.show(self.model.applied, {name: self.model.shown(name) for name in OF_IT})
        for name, row in self._rows.items():
            if name not in self._unsent:
                row.set_value(self.model.shown(name))
        self._enable_rows()
        self._show_state()

    def _enable_rows(self) -> None:
        for name, row in self._rows.items():
            row.setEnabled(self.may_change and not self._remarks.idle_because(name))

    def _show_state(self) -> None:
        model = self.model
        self._show_hints()
        self._apply.setVisible(bool(model.pending))
        if model.pending:
            self._apply.setText(f"Apply ({costliest(model.pending).value})")
        self._undo.setEnabled(model.can_undo and self.may_change)
        self._undo.setToolTip(self._undo_tip())
        self._redo.setEnabled(model.can_redo and self.may_change)
        self._redo.setToolTip(way("Forth to ", model.undone) or "Nothing to redo.")
        self._copy.setEnabled(model.applied is not None)
        slow = [sent for sent in model.sent if sent.change is not Change.LIVE]
        self._progress.setVisible(bool(slow))
        if slow:
            self._progress.setRange(0, 0)
            self._message_timer.stop()
            self._set_message(self._work_text(slow[0]))
        elif (wanted := self._reload_wanted()) is not None:
            self._message_timer.stop()
            self._set_message(self.precision.words_of(wanted))
        elif not self._message_timer.isActive():
            # of a server's own settings the panel speaks itself
            known = model.applied is not None or self._its_own()
            self._set_message(self._bridge.look_only if known else self._why_not())
        self.actions_changed.emit()

    def _reload_wanted(self) -> EngineConfig | None:
        """What the model would be loaded with, where what is collected loads it again."""
        model = self.model
        if model.applied is None or not model.pending:
            return None
        if costliest(model.pending) is not Change.RELOAD:
            return None
        return resolved(model.applied, model.pending)

    def _work_text(self, sent: Sent) -> str:
        if sent.change is not Change.RELOAD or self.model.applied is None:
            return "Rebuilding the cache; requests pause and resume."
        expected = self.precision.expected(resolved(self.model.applied, sent.changes))
        takes = f" Takes {expected.words}." if expected is not None else ""
        return f"Loading the model again; requests pause and resume.{takes}"

    def _why_not(self) -> str:
        if words := self._its_own():
            return words
        if self._bridge.state is EngineState.LOADING:
            return "Settings can be changed when the model has loaded."
        return "Open a model to change its settings."

    def _its_own(self) -> str:
        """Why the knobs of a server of another make cannot be turned here; "" where they can."""
        model = self._bridge.model
        if model is None or model.is_described:
            return ""
        who = server_name(model.device)
        return f"Set where it is started: {who} does not tell its settings."

    def _undo_tip(self) -> str:
        if self.model.pending:
            return "Drop the changes that were not applied."
        return way("Back to ", self.model.history) or "Nothing to undo."

    def _show_hints(self) -> None:
        for name, row in self._rows.items():
            row.set_hint(*self._remarks.of(name))

    def show_ceilings(self, ceilings: Mapping[str, str]) -> None:
        """What each setting could win at most, in words, by its name."""
        if ceilings == self._remarks.ceilings:
            return
        self._remarks.ceilings = ceilings
        if self.isVisible() and self.model.applied is not None:
            self._show_hints()

    def _say(self, text: str) -> None:
        """Show `text` for a few seconds."""
        self._set_message(text)
        self._message_timer.start()

    def _set_message(self, text: str) -> None:
        self._message.setText(text)
        self._message.setVisible(bool(text))


def _not_ours() -> QLabel:
    """In place of the knobs: why there are none."""
    label = QLabel()
    label.setProperty("role", "small")
    label.setWordWrap(True)
    label.setAlignment(Qt.AlignmentFlag.AlignCenter)
    label.setContentsMargins(SPACE_3, 0, SPACE_3, 0)
    return label


def _weights_of(model: ModelInfo | None) -> int:
    return model.weights_bytes if model is not None else 0
