"""State of the settings panel: applied, pending and sent changes, undo history. No Qt.

    choose --live-->    send ---------------> answered --> applied, history
           --others-->  pending --(Apply)---> send

A live change is sent at once; one that costs a cache rebuild or a reload waits in `pending` until
the user applies all of them together. Commands are answered in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from engine.config import SETTINGS, Change, EngineConfig, costliest

MAX_HISTORY = 50


class Step(Enum):
    """Settings to apply in order to go back, or forth, one change."""

    NEW = auto()
    UNDO = auto()
    REDO = auto()


@dataclass(frozen=True, slots=True)
class Sent:
    """A change that was sent to the engine. `before`: the user's choices until then."""

    changes: Mapping[str, Any]
    before: Mapping[str, Any]
    step: Step = Step.NEW

    @property
    def change(self) -> Change:
        return costliest(self.changes)


@dataclass
class SettingsModel:
    """Settings of the loaded model. `chosen`: the user's choices that differ from the defaults;
    `applied`: the engine's configuration, with `auto` resolved, None while it loads. `history` and
    `undone`: steps to undo and redo."""

    applied: EngineConfig | None = None
    chosen: dict[str, Any] = field(default_factory=dict)
    pending: dict[str, Any] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    history: list[Mapping[str, Any]] = field(default_factory=list)
    undone: list[Mapping[str, Any]] = field(default_factory=list)

    def open(self, applied: EngineConfig, chosen: Mapping[str, Any]) -> None:
        """A model was loaded: clear pending changes and history."""
        self.close()
        self.applied, self.chosen = applied, dict(chosen)

    def expect(self, chosen: Mapping[str, Any]) -> None:
        """A model is loading with these choices."""
        self.close()
        self.chosen = dict(chosen)

    def close(self) -> None:
        self.applied, self.chosen = None, {}
        for changes in (self.pending, self.sent, self.history, self.undone):
            changes.clear()

    def shown(self, name: str) -> Any:
        """The value to show: pending, else sent, else applied, else chosen."""
        for changes in (self.pending, *(sent.changes for sent in reversed(self.sent))):
            if name in changes:
                return changes[name]
        return getattr(self.applied, name, self.chosen_value(name))

    def chosen_value(self, name: str) -> Any:
        """The user's choice, `auto` unresolved; the default if none."""
        return self.chosen.get(name, SETTINGS[name].default)

    def wanted(self, name: str) -> Any:
        """The choice including pending changes; the default if none."""
        return self.pending.get(name, self._before(name))

    def is_pending(self, name: str) -> bool:
        return name in self.pending

    @property
    def reloads(self) -> bool:
        """Whether a reload is pending or sent."""
        changes = (self.pending, *(sent.changes for sent in self.sent))
        return any(costliest(some) is Change.RELOAD for some in changes if some)

    def choose(self, name: str, value: Any) -> Sent | None:
        """Set `name`. Returns a live change to send now, or None."""
        SETTINGS[name].check(value)
        if value == self.shown(name):
            return None
        if SETTINGS[name].change is Change.LIVE:
            return self._send({name: value})
        under_way = any(name in sent.changes for sent in self.sent)
        if not under_way and value in (getattr(self.applied, name), self.chosen_value(name)):
            self.pending.pop(name, None)
        else:
            self.pending[name] = value
        return None

    def change(self, settings: Mapping[str, Any]) -> Sent | None:
        """Set `settings` together and at once, whatever they cost; other pending changes stay. One
        step of the history."""
        for name, value in settings.items():
            SETTINGS[name].check(value)
            self.pending.pop(name, None)
        changes = {name: v for name, v in settings.items() if v != self.shown(name)}
        return self._send(changes) if changes else None

    def apply(self) -> Sent | None:
        changes, self.pending = self.pending, {}
        return self._send(changes) if changes else None

    @property
    def can_undo(self) -> bool:
        return bool(self.pending or self.history)

    def undo(self) -> Sent | None:
        """Drop pending changes; else undo the last applied one."""
        if self.pending:
            self.pending.clear()
            return None
        if not self.history:
            return None
        return self._send(self.history.pop(), Step.UNDO)

    @property
    def can_redo(self) -> bool:
        return bool(self.undone and not self.pending)

    def redo(self) -> Sent | None:
        return self._send(self.undone.pop(), Step.REDO) if self.can_redo else None

    def choose_all(self, settings: Mapping[str, Any]) -> Sent | None:
        """Set all settings at once, whatever they cost; those not in `settings` return to their
        defaults. One step of the history."""
        for name, value in settings.items():
            SETTINGS[name].check(value)
        self.pending.clear()
        asked = {*self.chosen, *(name for sent in self.sent for name in sent.changes)}
        wanted = {name: SETTINGS[name].default for name in asked} | dict(settings)
        changes = {name: v for name, v in wanted.items() if v != self._before(name)}
        return self._send(changes) if changes else None

    def accept(self, config: EngineConfig) -> Sent | None:
        """The engine applied `config`. Returns our change that this answers, if any."""
        self.applied = config
        if not self.sent:
            return None
        sent = self.sent.pop(0)
        self._remember(sent.changes)
        stack = self.undone if sent.step is Step.UNDO else self.history
        stack.append(sent.before)
        del stack[:-MAX_HISTORY]
        if sent.step is Step.NEW:
            self.undone.clear()
        return sent

    def reject(self, config: EngineConfig) -> Sent | None:
        """The engine refused and keeps `config`. Returns the change that failed."""
        self.applied = config
        if not self.sent:
            return None
        sent = self.sent.pop(0)
        if sent.step is not Step.NEW:  # it can be tried again
            (self.history if sent.step is Step.UNDO else self.undone).append(sent.changes)
        return sent

    def _send(self, changes: Mapping[str, Any], step: Step = Step.NEW) -> Sent:
        before = {name: self._before(name) for name in changes}
        sent = Sent(dict(changes), before, step)
        self.sent.append(sent)
        return sent

    def _before(self, name: str) -> Any:
        """The user's choices, including changes that were sent."""
        for sent in reversed(self.sent):
            if name in sent.changes:
                return sent.changes[name]
        return self.chosen_value(name)

    def _remember(self, changes: Mapping[str, Any]) -> None:
        for name, value in changes.items():
            if value == SETTINGS[name].default:
                self.chosen.pop(name, None)
            else:
                self.chosen[name] = value
