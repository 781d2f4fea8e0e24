"""`SettingsCommands`: choose, apply, undo, redo, reset, sent to the engine.

Live settings are sent after a short delay; settings that need a cache rebuild or a reload are
collected and applied together (see `SettingsModel`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.features.models.precision import HEAD, WEIGHTS
from app.features.tune.hints import change_details
from app.features.tune.precision_rows import PrecisionGuide
from app.features.tune.row_remarks import RowRemarks
from app.features.tune.settings_model import Sent, SettingsModel
from app.link.bridge import EngineBridge, EngineState
from app.managed.launch import PARALLEL, parallel_flags
from app.storage.profiles import Profile
from engine import messages
from engine.config import SETTINGS, Change, differences_text
from engine.errors import LoadCancelled
from widgets.controls.text import server_name

LIVE_DELAY_MS = 250
"""A dragged slider sends its last value only."""
BUSY = "Another change is being applied."
NO_STEP_YET = "A change is being applied. Undo and redo are available once it is done."


class SettingsCommands(QObject):
    """`changed(text, details, chosen)`: settings took effect. `refreshed`: show the values again.
    `chosen`: a live setting, which is sent soon. `said(text)`: a result to show for a few seconds.
    `refused(text)`: why a command did nothing. `parallel_skipped(source, flags)`: see
    `ModelSession`."""

    changed = Signal(str, object, object)
    refreshed = Signal()
    chosen = Signal()
    said = Signal(str)
    refused = Signal(str)
    parallel_skipped = Signal(str, object)

    def __init__(
        self,
        bridge: EngineBridge,
        model: SettingsModel,
        precision: PrecisionGuide,
        remarks: RowRemarks,
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._bridge, self._model = bridge, model
        self._precision, self._remarks = precision, remarks
        self.is_run_here: Callable[[], bool] = lambda: False
        """Whether this window runs the remote engine in use."""
        self.pending: dict[str, Any] = {}
        self._delay = QTimer(self, singleShot=True, interval=LIVE_DELAY_MS)
        self._delay.timeout.connect(self.send_live)
        bridge.state_changed.connect(self._on_state)
        bridge.lock_changed.connect(self.refreshed)
        bridge.reconfigured.connect(self._on_reconfigured)
        bridge.reconfigure_failed.connect(self._on_failed)

    # Whether settings can be changed ------------------------------------------------------------

    @property
    def may_change(self) -> bool:
        return self._model.applied is not None and not self._bridge.locked

    @property
    def unreported(self) -> str:
        """Why a remote server's settings are not shown, or ""."""
        model = self._bridge.model
        if model is None or model.is_described:
            return ""
        name = server_name(model.device)
        if self.is_run_here():
            return f"{name} must restart to apply new settings."
        return f"{name} does not report settings. Change them on the server."

    @property
    def why_not(self) -> str:
        if reason := self.unreported:
            return reason
        if self._bridge.state is EngineState.LOADING:
            return "Settings are available once the model is loaded."
        return "Open a model to change its settings."

    def refusal_of(self, name: str, value: Any) -> str:
        """Why a setting cannot be set to `value` now, or ""."""
        applied = self._model.applied
        if applied is None:
            return self.why_not
        if self._bridge.locked:
            return self._bridge.locked
        if any(sent.change is not Change.LIVE for sent in self._model.sent):
            return BUSY
        known = self._precision.checkpoint
        if name == WEIGHTS and known is not None:
            choices = known.of_weights(self._model.shown(HEAD), applied.dtype)
            return next((choice.refusal for choice in choices if choice.value == value), "")
        return ""

    @property
    def wanted(self) -> dict[str, Any]:
        """The settings that are chosen and not in force: collected, sent, or to be sent soon."""
        changes = (*(sent.changes for sent in self._model.sent), self._model.pending, self.pending)
        found = {name: value for some in changes for name, value in some.items()}
        applied = self._model.applied
        return {n: value for n, value in found.items() if value != getattr(applied, n, None)}

    # Commands -----------------------------------------------------------------------------------

    def choose(self, name: str, value: Any) -> None:
        """Set `name`: send it soon if live, else collect it."""
        if not self.may_change:
            return
        self._remarks.forget(name)
        if SETTINGS[name].change is Change.LIVE:
            self.pending[name] = value
            self._delay.start()
            self.chosen.emit()
        else:
            self._model.choose(name, value)
            self.refreshed.emit()

    def apply(self) -> None:
        if not self._refuses():
            self._submit(self._model.apply())

    def discard(self) -> None:
        """Drop the collected changes."""
        self._remarks.out_of_range.clear()
        self._model.pending.clear()
        self.refreshed.emit()

    def change(self, settings: Mapping[str, Any]) -> None:
        """Set and apply `settings` now."""
        if not self._refuses() and self.may_change:
            for name in settings:
                self.pending.pop(name, None)
            self._submit_for_all(self._model.change(settings))

    def undo(self) -> None:
        """Drop the changes that were not sent, else undo the last applied change."""
        if self.pending:
            self._drop_unsent()
            self._model.pending.clear()
            self.refreshed.emit()
        elif not self._refuses() and (self._model.pending or self._may_step()):
            self._submit_for_all(self._model.undo())

    def redo(self) -> None:
        if not self._refuses() and self._may_step():
            self._submit_for_all(self._model.redo())

    def _refuses(self) -> bool:
        """Whether settings are locked; then it says why."""
        if why := self._bridge.locked:
            self.refused.emit(why)
        return bool(why)

    def _may_step(self) -> bool:
        """A sent change joins the history with its answer: until then, undo would take back an
        older one."""
        if self._model.sent:
            self.refused.emit(NO_STEP_YET)
        return not self._model.sent

    def reset(self) -> None:
        """Set every changed setting to its default."""
        self.restore({})

    def restore(self, choices: Mapping[str, Any]) -> None:
        """Apply `choices`; other settings return to their defaults."""
        if not self._refuses() and self.may_change:
            self._drop_unsent()
            self._submit_for_all(self._model.choose_all(choices))

    def apply_profile(self, profile: Profile) -> None:
        self.restore(profile.settings)
        if not self.may_change:
            return
        if flags := parallel_flags(profile.unknown):
            self.parallel_skipped.emit(f"Profile “{profile.name}”", flags)
        if unknown := [name for name in profile.unknown if name not in PARALLEL]:
            self.said.emit(f"Skipped unknown settings: {', '.join(unknown)}.")

    def send_live(self) -> None:
        """Send the live settings that were chosen, without further delay."""
        self._delay.stop()
        pending, self.pending = self.pending, {}
        if pending and self._refuses():
            self.refreshed.emit()
            return
        for name, value in pending.items():
            self._submit(self._model.choose(name, value))

    def _drop_unsent(self) -> None:
        self._delay.stop()
        self.pending.clear()

    def _submit_for_all(self, sent: Sent | None) -> None:
        """Send a change of many settings, an edit as any other."""
        self._remarks.out_of_range.clear()
        self._submit(sent)

    def _submit(self, sent: Sent | None) -> None:
        if sent is not None:
            self._remarks.sent(sent.changes)
            self._bridge.reconfigure(**sent.changes)
        self.refreshed.emit()

    # The engine's answers -----------------------------------------------------------------------

    def open(self) -> None:
        self._drop_unsent()
        self._remarks.clear()

    def _on_state(self, state: EngineState) -> None:
        """Reset without a model. A reload of the same model keeps the state READY."""
        if state is EngineState.READY:
            return
        self._drop_unsent()
        self._remarks.hints.clear()
        self._model.close()
        self.refreshed.emit()

    def _on_reconfigured(self, event: messages.Reconfigured) -> None:
        before = self._model.applied
        self._model.accept(event.config)
        self._remarks.out_of_range.clear()
        changes = before.differences(event.config) if before is not None else {}
        if changes:
            self.changed.emit(
                differences_text(changes), change_details(changes), dict(self._model.chosen)
            )
        if event.notices:
            self.said.emit(" ".join(event.notices))
        self.refreshed.emit()

    def _on_failed(self, event: messages.ReconfigureFailed) -> None:
        sent = self._model.reject(event.config)
        if event.error.kind == LoadCancelled.__name__:
            self.said.emit("Cancelled. The previous settings remain in effect.")
        else:
            names = sent.changes if sent is not None else ()
            named = [name for name in names if name in event.error.cause] or names
            self._remarks.refused(named, event.error)
        self.refreshed.emit()
