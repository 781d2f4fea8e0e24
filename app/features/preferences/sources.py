"""Sources of the dialog's rows: preferences, or the engine settings panel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.features.tune.engine_settings import EngineSettingsPanel
from app.window.program_settings import PREFERENCES, PreferenceError, Preferences
from engine.config import SETTINGS
from widgets.controls.combo import described_items
from widgets.controls.number_control import NumberControl
from widgets.controls.paths import PathControl
from widgets.controls.setting_row import ChoiceControl, HintTone, SettingRow


@dataclass(frozen=True, slots=True)
class RowState:
    """`default`: text of the default if the value differs; `remark`: replaces the description."""

    value: Any
    default: str = ""
    is_enabled: bool = True
    remark: str = ""
    tone: HintTone = "small"


class ProgramSource(QObject):
    """Preferences: they apply at once or at the next start."""

    changed = Signal()  # a value or remark may have changed

    def __init__(self, preferences: Preferences, parent: QObject) -> None:
        super().__init__(parent)
        self._preferences = preferences
        self._errors: dict[str, str] = {}
        preferences.changed.connect(self._forget)

    def state(self, name: str) -> RowState:
        preference, value = PREFERENCES[name], self._preferences.get(name)
        error = self._errors.get(name, "")
        is_changed = self._preferences.is_changed(name)
        default = preference.text(preference.default) if is_changed else ""
        return RowState(value, default, True, error, "error" if error else "small")

    def choose(self, name: str, value: Any) -> None:
        self._errors.pop(name, None)
        try:
            self._preferences.set(name, value)
        except PreferenceError as error:
            self.refuse(name, f"{error}")

    def refuse(self, name: str, why: str) -> None:
        """Show why a value is refused; "" for one that is taken."""
        self._errors[name] = why
        self.changed.emit()

    def reset(self, name: str) -> None:
        self._errors.pop(name, None)
        self._preferences.reset(name)
        self.changed.emit()

    def dress(self, row: SettingRow) -> None:
        """Preferences add nothing to the declared choices."""

    def _forget(self, name: str) -> None:
        self._errors.pop(name, None)
        self.changed.emit()


class EngineSource(QObject):
    """Settings of the open model. The panel applies them, and both show the same."""

    changed = Signal()

    def __init__(self, panel: EngineSettingsPanel, parent: QObject) -> None:
        super().__init__(parent)
        self._panel = panel
        panel.actions_changed.connect(self.changed)

    def state(self, name: str) -> RowState:
        model, shown = self._panel.model, self._panel.rows[name]
        setting = SETTINGS[name]
        is_changed = model.applied is not None and model.wanted(name) != setting.default
        default = _words(shown, setting.default) if is_changed else ""
        # without effect now, pending, or refused
        remark = shown.hint if shown.hint_tone != "small" or not shown.isEnabled() else ""
        value = shown.value()
        return RowState(value, default, shown.isEnabled(), remark, shown.hint_tone)

    def choose(self, name: str, value: Any) -> None:
        self._panel.choose(name, value)

    def refuse(self, name: str, why: str) -> None:
        """Show why a value is refused."""
        self._panel.rows[name].refused.emit(name, why)
        self.changed.emit()

    def reset(self, name: str) -> None:
        self._panel.choose(name, SETTINGS[name].default)

    def dress(self, row: SettingRow) -> None:
        """Copy from the panel: refused choices, known folders, limits."""
        known = self._panel.rows[row.spec.name].control
        if isinstance(row.control, PathControl) and isinstance(known, PathControl):
            row.control.set_known(known.known)
        elif isinstance(row.control, NumberControl) and isinstance(known, NumberControl):
            row.control.set_spec(known.spec)
        elif isinstance(row.control, ChoiceControl) and isinstance(known, ChoiceControl):
            row.describe_choices(described_items(known))

    def browse(self, name: str) -> None:
        control = self._panel.rows[name].control
        if isinstance(control, PathControl):
            control.browse_wanted.emit()


def _words(row: SettingRow, value: Any) -> str:
    """A value as the row shows it."""
    spec = row.spec
    if value is None:
        return spec.auto or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if spec.choices:
        return next((text for known, text in spec.choices if known == value), f"{value}")
    if isinstance(value, (int, float)):
        return f"{value / spec.scale:,g} {spec.unit}".rstrip()
    return f"{value}"
