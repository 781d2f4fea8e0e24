"""Preferences: one declaration for storage, checks, editors and search.

Engine settings have their own registry, `engine.config.SETTINGS`; the dialog shows both.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from PySide6.QtCore import QObject, QSettings, Signal

from app.storage.model_sources import STARTER_TITLE
from engine.errors import ErrorInfo, InferdeckError, describe

log = logging.getLogger(__name__)

LAST, STARTER, NO_MODEL = "last", "starter", "none"
THREAD, PROCESS = "thread", "process"
SYSTEM, LIGHT, DARK = "system", "light", "dark"


class PreferenceError(InferdeckError):
    """The value is not allowed."""


class Applies(StrEnum):
    """When a change takes effect."""

    LIVE = "live"
    NEXT_MODEL = "next model load"
    NEXT_START = "next startup"


@dataclass(frozen=True, slots=True)
class Preference:
    """One preference. `choices`: (value, text); `minimum` and `maximum` are inclusive; `steps`:
    usual values, ascending; `words`: more search terms."""

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
    words: tuple[str, ...] = ()
    key: str = ""

    @property
    def place(self) -> str:
        """Its key in the file."""
        return self.key or f"preferences/{self.name}"

    @property
    def range(self) -> str:
        """The allowed values as text; "" for a switch or a list."""
        if self.choices:
            return ", ".join(text for _, text in self.choices)
        if self.minimum is None or self.maximum is None:
            return ""
        return f"{self.minimum:,g} to {self.with_unit(self.maximum)}"

    def with_unit(self, value: float) -> str:
        return f"{value:,g} {self.unit}".rstrip()

    def text(self, value: Any) -> str:
        """A value as shown in the dialog."""
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
            raise self._error(f"{value!r}", f"Enter {_KINDS[type(self.default)]}.")
        elif isinstance(value, tuple) and not all(isinstance(entry, str) for entry in value):
            raise self._error(f"{value!r}", "Enter a list of folders.")
        elif not self._is_in_range(value):
            raise self._error(f"{self.with_unit(value)} is out of range", f"Enter {self.range}.")

    def _is_in_range(self, value: Any) -> bool:
        if self.minimum is None or self.maximum is None:
            return True
        return bool(self.minimum <= value <= self.maximum)

    def _error(self, what: str, remedy: str) -> PreferenceError:
        return PreferenceError(f"{self.label}: {what}.", remedy)


_KINDS = {bool: "on or off", int: "a whole number", tuple: "a list of folders"}
_ALL = (
    Preference(
        "theme", "Appearance", "Theme", "Light, dark, or follow the system.", SYSTEM,
        ((LIGHT, "Light"), (DARK, "Dark"), (SYSTEM, "System")),
        words=("look", "colour", "color", "mode"), key="look/theme",
    ),
    Preference(
        "text_size", "Appearance", "Text size",
        "Relative to the system font size. If set, overrides the layout's text size.",
        100,
        minimum=80, maximum=160, unit="%", steps=(80, 90, 100, 110, 120, 130, 140, 150, 160),
        words=("look", "font", "zoom", "scale", "large", "small", "accessibility"),
    ),
    Preference(
        "chart_span", "Appearance", "Live chart range",
        "Time range for the live charts below the pages and on the Tune page.", 120,
        ((30, "30 s"), (60, "1 min"), (120, "2 min"), (300, "5 min"), (600, "10 min"),
         (1200, "20 min")),
        words=("look", "window", "length", "history", "seconds", "minutes", "graph", "time"),
    ),
    Preference(
        "open_at_start", "Startup", "Initial model",
        "Model to load at startup. A model on the command line takes precedence.", LAST,
        ((LAST, "Last model"), (STARTER, STARTER_TITLE), (NO_MODEL, "None")),
        applies=Applies.NEXT_START, words=("launch", "start", "open", "load"),
    ),
    Preference(
        "single_instance", "Startup", "Single window",
        "Starting Inferdeck again focuses the open window. Off: opens an additional window that "
        "does not save chats.", True,
        applies=Applies.NEXT_START, words=("one", "single", "instance", "process", "twice"),
    ),
    Preference(
        "engine_place", "Engine process", "Run engine in",
        "A separate process keeps the window responsive and protects it from engine crashes. "
        "Startup is slightly slower. Applies on the next model load.", THREAD,
        ((THREAD, "This process (thread)"), (PROCESS, "Separate process")),
        applies=Applies.NEXT_MODEL,
        words=("isolated", "isolation", "crash", "child", "interpreter", "gil", "worker"),
    ),
    Preference(
        "serve_at_start", "Startup", "Start server",
        "Start the API server automatically with the settings from the Server page.",
        False, applies=Applies.NEXT_START, words=("api", "openai", "http", "port", "launch"),
    ),
    Preference(
        "confirm_links", "Confirmations", "Confirm before opening links",
        "Ask before opening a link from a reply in the browser. A model can output any URL.", True,
        words=("questions", "confirmation", "browser", "web", "address", "safety"),
    ),
    Preference(
        "confirm_leave", "Confirmations", "Confirm exit during a job",
        "Ask before closing the window while a quantization or evaluation is running.", True,
        words=("questions", "confirmation", "quit", "close", "quantize", "evaluate", "leave"),
    ),
    Preference(
        "chat_titles", "Chats", "Automatic titles",
        "The model names a chat after its first reply, once nothing else runs. Off: the first "
        "words of the message are the title. Not used for the demo model or remote servers.", True,
        words=("chat", "name", "title", "rename", "background", "idle"),
    ),
    Preference(
        "model_folders", "Folders", "Model folders",
        "Scanned for models, up to two levels deep. Removing a folder here deletes no files.", (),
        words=("path", "directory", "library", "checkpoint", "local"), key="models/folders",
    ),
    Preference(
        "notice_seconds", "Notifications", "Hide info messages after",
        "Messages at the top of the page. Warnings and errors stay until closed; all remain in the "
        "notification list.", 0,
        ((0, "Never"), (10, "10 s"), (30, "30 s"), (120, "2 min")),
        words=("notice", "banner", "transient", "finished", "good", "news"),
    ),
    Preference(
        "notices_kept", "Notifications", "Notification limit",
        "Older notifications are removed. The list is cleared on exit; the log is kept.", 200,
        minimum=10, maximum=2000, steps=(10, 20, 50, 100, 200, 500, 1000, 2000),
        words=("history", "notices", "number", "kept"),
    ),
    Preference(
        "log_level", "Log", "Log level",
        "Minimum severity for the log file and the Log panel.", "info",
        (("info", "Info"), ("warning", "Warning"), ("error", "Error")),
        words=("logging", "verbose", "report", "all"),
    ),
    Preference(
        "log_size", "Log", "Log file size",
        "The log file rotates at this size; one previous file is kept.", 1,
        minimum=1, maximum=100, unit="MB", steps=(1, 2, 5, 10, 20, 50, 100),
        words=("logging", "disk", "megabytes", "rotate"),
    ),
)  # fmt: skip
PREFERENCES = {preference.name: preference for preference in _ALL}


class Preferences(QObject):
    """Values in the ini file. An unreadable or disallowed one is replaced by its default; defaults
    are not written. `failures`: the last error of each preference whose effect failed."""

    changed = Signal(str)  # name
    failed = Signal(str)  # name

    def __init__(self, ini: QSettings) -> None:
        super().__init__()
        self._ini = ini
        self._effects: dict[str, list[Callable[[Any], object]]] = {}
        self.failures: dict[str, ErrorInfo] = {}

    def get(self, name: str) -> Any:
        preference = PREFERENCES[name]
        stored = self._ini.value(preference.place)
        if not isinstance(stored, str):
            return preference.default
        try:
            value = _decode(stored, preference.default)
            preference.check(value)
        except (ValueError, TypeError, RecursionError, PreferenceError):
            return preference.default
        return value

    def set(self, name: str, value: Any) -> None:
        """Store a value. Raises PreferenceError if it is not allowed."""
        preference = PREFERENCES[name]
        preference.check(value)
        if value == self.get(name):
            return
        if value == preference.default:
            self._ini.remove(preference.place)
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            self._ini.setValue(preference.place, text)
        for do in self._effects.get(name, ()):
            self._apply(name, do, value)
        self.changed.emit(name)

    def bind(self, name: str, do: Callable[[Any], object]) -> None:
        """Call `do` with the current value of `name`, and with every later one."""
        self._apply(name, do, self.get(name))
        self.follow(name, do)

    def _apply(self, name: str, do: Callable[[Any], object], value: Any) -> None:
        """A failure stops neither the other effects nor the start."""
        try:
            do(value)
        except Exception as error:
            log.exception("an effect of the preference %s failed", name)
            self.failures[name] = describe(error)
            self.failed.emit(name)

    def follow(self, name: str, do: Callable[[Any], object]) -> None:
        self._effects.setdefault(name, []).append(do)

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
