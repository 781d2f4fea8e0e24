"""What of the program itself can be set: one declaration for storage, checks, editors and search.

Imports no Qt. The engine has a registry of its own, `engine.config.SETTINGS`; the dialog shows
both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from PySide6.QtCore import QObject, QSettings, Signal

from engine.errors import InferdeckError

LAST, STARTER, NO_MODEL = "last", "starter", "none"
THREAD, PROCESS = "thread", "process"
SYSTEM, LIGHT, DARK = "system", "light", "dark"


class PreferenceError(InferdeckError):
    """A value that a setting cannot have."""


class Applies(StrEnum):
    """When a change is seen."""

    LIVE = "live"
    NEXT_MODEL = "next model"
    NEXT_START = "next start"


@dataclass(frozen=True, slots=True)
class Preference:
    """One setting of the program. `choices`: (value, text); `minimum` and `maximum` are inclusive;
    `steps`: usual values, ascending; `words`: what else it may be searched by."""

    name: str
    section: str
    label: str
    help: str
    default: Any
    choices: tuple[tuple[Any, str], ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    unit: str = ""
    steps: tuple[float, ...] = ()
    applies: Applies = Applies.LIVE
    words: str = ""
    key: str = ""

    @property
    def place(self) -> str:
        """Where it stands in the file."""
        return self.key or f"preferences/{self.name}"

    @property
    def range(self) -> str:
        """What is allowed, in words; "" for a switch or a list."""
        if self.choices:
            return ", ".join(text for _, text in self.choices)
        if self.minimum is None or self.maximum is None:
            return ""
        return f"{self.minimum:,g} to {self.with_unit(self.maximum)}"

    def with_unit(self, value: float) -> str:
        return f"{value:,g} {self.unit}".rstrip()

    def text(self, value: Any) -> str:
        """A value as the dialog writes it."""
        if self.choices:
            return next((text for known, text in self.choices if known == value), f"{value}")
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, tuple):
            return ", ".join(value) or "none"
        return self.with_unit(value)

    def check(self, value: Any) -> None:
        """Raises PreferenceError unless `value` is allowed."""
        if self.choices:
            if value not in [known for known, _ in self.choices]:
                raise self._error(f"{value!r}", f"Choose one of {self.range}.")
        elif type(value) is not type(self.default):
            raise self._error(f"{value!r}", f"Give {_KINDS[type(self.default)]}.")
        elif isinstance(value, tuple) and not all(isinstance(entry, str) for entry in value):
            raise self._error(f"{value!r}", "Give folders.")
        elif not self._is_in_range(value):
            raise self._error(f"{self.with_unit(value)} is out of range", f"Give {self.range}.")

    def _is_in_range(self, value: Any) -> bool:
        if self.minimum is None or self.maximum is None:
            return True
        return bool(self.minimum <= value <= self.maximum)

    def _error(self, what: str, remedy: str) -> PreferenceError:
        return PreferenceError(f"{self.label}: {what}.", remedy)


_KINDS = {bool: "on or off", int: "a whole number", tuple: "folders"}
_ALL = (
    Preference(
        "theme", "Look", "Theme", "Light, dark, or as the system says.", SYSTEM,
        ((LIGHT, "Light"), (DARK, "Dark"), (SYSTEM, "As the system")),
        words="colour color appearance mode", key="look/theme",
    ),
    Preference(
        "text_size", "Look", "Text size",
        "Size of all text and figures, against that of the system. A layout may have its own: it "
        "holds until a size is chosen here.", 100,
        minimum=80, maximum=160, unit="%", steps=(80, 90, 100, 110, 120, 130, 140, 150, 160),
        words="font zoom scale large small accessibility",
    ),
    Preference(
        "chart_span", "Look", "Time in live charts",
        "How far back the live charts show, below the pages and on the Tune page.", 120,
        ((30, "30 s"), (60, "1 min"), (120, "2 min"), (300, "5 min"), (600, "10 min"),
         (1200, "20 min")),
        words="window length history seconds minutes graph",
    ),
    Preference(
        "open_at_start", "Start", "Open at the start",
        "What is loaded when the program starts and the command line names no model.", LAST,
        ((LAST, "The model of last time"), (STARTER, "The starter model"), (NO_MODEL, "Nothing")),
        applies=Applies.NEXT_START, words="launch startup load",
    ),
    Preference(
        "single_instance", "Start", "One window only",
        "A second start hands what it was asked to the window that is open. Where this is off it "
        "opens a window of its own, whose chats are not kept.", True,
        applies=Applies.NEXT_START, words="single instance process twice",
    ),
    Preference(
        "engine_place", "Process", "The engine runs in",
        "In a process of its own the engine and the window do not wait for each other's Python, "
        "and a fault in native code ends the engine alone: no chat goes with it. It takes a moment "
        "more to start. A change is for the next model that is opened.", THREAD,
        ((THREAD, "This program (a thread)"), (PROCESS, "A process of its own")),
        applies=Applies.NEXT_MODEL,
        words="isolated isolation crash child separate interpreter gil worker",
    ),
    Preference(
        "serve_at_start", "Start", "Start the server with the program",
        "Serve the engine to other programs from the start on, as chosen on the Server page.",
        False, applies=Applies.NEXT_START, words="api openai http serve port launch",
    ),
    Preference(
        "confirm_links", "Questions", "Ask before a link is opened",
        "Links in replies go to the browser: a model may write any address.", True,
        words="confirm confirmation browser web address safety",
    ),
    Preference(
        "confirm_leave", "Questions", "Ask before a run is stopped",
        "When the window is closed while a model is quantized or measured.", True,
        words="confirm confirmation quit close quantize evaluate",
    ),
    Preference(
        "model_folders", "Folders", "Folders of models",
        "Where models of your own are looked for, one or two levels deep. Taking a folder off the "
        "list deletes nothing.", (),
        words="path directory library checkpoint local", key="models/folders",
    ),
    Preference(
        "notice_seconds", "Notifications", "Good news stays on the page",
        "How long a notice that is neither a warning nor an error stays at the top of the page. In "
        "the list of notifications it remains.", 0,
        ((0, "Until it is closed"), (10, "10 s"), (30, "30 s"), (120, "2 min")),
        words="notice banner hide transient finished",
    ),
    Preference(
        "notices_kept", "Notifications", "Notifications kept",
        "Older ones leave the list. The list ends with the program; the log stays.", 200,
        minimum=10, maximum=2000, steps=(10, 20, 50, 100, 200, 500, 1000, 2000),
        words="history notices number",
    ),
    Preference(
        "log_level", "Log", "Level of the log",
        "What is written to the log, and shown in the Log panel.", "info",
        (("info", "All of it"), ("warning", "Warnings and errors"), ("error", "Errors alone")),
        words="logging verbose report",
    ),
    Preference(
        "log_size", "Log", "Size of the log file",
        "When it is reached, the log of before becomes the one kept beside it.", 1,
        minimum=1, maximum=100, unit="MB", steps=(1, 2, 5, 10, 20, 50, 100),
        words="logging disk megabytes rotate",
    ),
)  # fmt: skip
PREFERENCES = {preference.name: preference for preference in _ALL}


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


class Effects(QObject):
    """Setting -> what is to be done with its value."""

    def __init__(self, preferences: Preferences, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._preferences = preferences
        self._by_name: dict[str, list[Callable[[Any], object]]] = {}
        preferences.changed.connect(self._on_changed)

    def bind(self, name: str, do: Callable[[Any], object]) -> None:
        """Do it with the value that `name` has now, and with every later one."""
        do(self._preferences.get(name))
        self.follow(name, do)

    def follow(self, name: str, do: Callable[[Any], object]) -> None:
        """Do it with every later value."""
        self._by_name.setdefault(name, []).append(do)

    def _on_changed(self, name: str) -> None:
        for do in self._by_name.get(name, ()):
            do(self._preferences.get(name))
