"""The program's settings as they are now: typed, kept in the ini file, told when they change."""

from __future__ import annotations

import json
from typing import Any

from PySide6.QtCore import QObject, QSettings, Signal

from app.preferences.schema import PREFERENCES, PreferenceError


class Preferences(QObject):
    """A value that cannot be read, or that this version refuses, is its default. Only what differs
    from its default stands in the file."""

    changed = Signal(str)  # name

    def __init__(self, ini: QSettings) -> None:
        super().__init__()
        self._ini = ini

    def get(self, name: str) -> Any:
        preference = PREFERENCES[name]
        stored = self._ini.value(preference.place)
        if not isinstance(stored, str):
            return preference.default
        try:
            value = _decode(stored, preference.default)
            preference.check(value)
        except (ValueError, TypeError, PreferenceError):
            return preference.default
        return value

    def set(self, name: str, value: Any) -> None:
        """Keep it. Raises PreferenceError for a value that is not allowed."""
        preference = PREFERENCES[name]
        preference.check(value)
        if value == self.get(name):
            return
        if value == preference.default:
            self._ini.remove(preference.place)
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            self._ini.setValue(preference.place, text)
        self.changed.emit(name)

    def reset(self, name: str) -> None:
        self.set(name, PREFERENCES[name].default)

    def is_changed(self, name: str) -> bool:
        return bool(self.get(name) != PREFERENCES[name].default)


def _decode(text: str, like: Any) -> Any:
    if isinstance(like, str):
        return text
    value = json.loads(text)
    if isinstance(like, tuple):
        return tuple(entry for entry in list(value) if isinstance(entry, str))
    return value
