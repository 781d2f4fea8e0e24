"""The settings store: layout, appearance, recent models and their settings, in an ini file.

Every value has a typed property; an unreadable value is replaced by its default, so a damaged file
never prevents a start.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, cast

import msgspec
from PySide6.QtCore import QByteArray, QSettings

from app.clients.connection import from_text, to_text
from app.managed.launch import Launch
from app.paths import settings_file
from app.server.options import ServingChoice
from app.storage.errors import free_text, probe
from app.storage.json_file import kept_aside, private
from app.storage.profiles import ProfileStore
from app.window.keymap import KeyMap
from app.window.program_settings import Preferences
from engine.config import SETTINGS, EngineConfig
from engine.errors import ConfigError, ErrorInfo, InferdeckError
from engine.json_file import read_regular

VERSION = 1
MAX_RECENT = 10
_NUMBER = re.compile(r"[0-9]{1,9}")
ThemeMode = Literal["light", "dark", "system"]
NOT_REMEMBERED = ("model", "load_format")
"""Fields of the entry itself, not of its settings."""


@dataclass(frozen=True, slots=True)
class RecentModel:
    """A model that was opened. `settings`: the user's engine settings that differ from the
    defaults, without values that the engine resolved (dtype auto). `weights_bytes`, `precision`: as
    it was loaded last; `used`: when, in seconds since 1970. 0 and "" if not known."""

    path: str
    load_format: str = "auto"
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights_bytes: int = 0
    precision: str = ""
    used: float = 0.0

    @property
    def title(self) -> str:
        return self.name or Path(self.path).name

    def config(self) -> EngineConfig:
        """Its load configuration, without settings that this version rejects."""
        config = EngineConfig(model=self.path, load_format=self.load_format)
        for name, value in self.settings.items():
            try:
                config = config.replace(**{name: value})
            except ConfigError:
                continue
        return config

    def is_same(self, other: RecentModel) -> bool:
        return (self.path, self.load_format) == (other.path, other.load_format)


@dataclass(frozen=True, slots=True)
class LoadChoice:
    """The last background load. `is_open`: at a request rate, not at a concurrency. `prompts`: the
    path of a prompt file in place of the workload; `is_raw`: without chat template."""

    workload: str = "mixed-lengths"
    variant: str = "unique"
    concurrency: int = 8
    request_rate: float = 1.0
    is_open: bool = False
    prompts: str = ""
    is_raw: bool = False


@dataclass(frozen=True, slots=True)
class BenchChoice:
    """The last choices of the Bench page. sweep, varied: "name=values" of each row; goals in
    ms."""

    mode: str = ""
    workload: str = ""
    variant: str = ""
    arrivals: int = 0
    objective: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    goals: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = field(default_factory=dict)
    percentile: int = 99
    sweep: list[str] = field(default_factory=list)
    varied: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LastChat:
    """The chat that was open, "" for a new one. `message`, `character`: its first line on the
    screen; "" for the end."""

    chat: str = ""
    message: str = ""
    character: int = 0


def chosen_settings(config: EngineConfig) -> dict[str, Any]:
    """The settings of `config` (as requested) that differ from the defaults."""
    return {
        name: getattr(config, name)
        for name, setting in SETTINGS.items()
        if name not in NOT_REMEMBERED and getattr(config, name) != setting.default
    }


T = TypeVar("T")
Rates = dict[str, Annotated[float, msgspec.Meta(gt=0)]]


class _Stored(Generic[T]):
    """A value stored as text; `default` replaces unreadable text."""

    def __init__(
        self, key: str, read: Callable[[str], T], write: Callable[[T], str], default: str = ""
    ) -> None:
        self._key, self._read, self._write, self._default = key, read, write, default

    def __get__(self, store: SettingsStore, owner: type) -> T:
        try:
            return self._read(store.text(self._key, self._default))
        except (msgspec.DecodeError, RecursionError, ValueError):
            store.keep_unreadable(self._key)
            return self._read(self._default)

    def __set__(self, store: SettingsStore, value: T) -> None:
        store.set_text(self._key, self._write(value))


def _json(key: str, kind: type[T], default: str) -> _Stored[T]:
    decoder = msgspec.json.Decoder(kind)
    return _Stored(key, decoder.decode, lambda value: msgspec.json.encode(value).decode(), default)


class SettingsStore:
    """Typed access to the ini file and to profiles and key map beside it. Writes at once."""

    layout = _Stored("window/layout", str, str)
    """The name of the current layout."""
    last_chat = _json("chat/last", LastChat, "{}")
    load_choice = _json("tune/load", LoadChoice, "{}")
    bench_choice = _json("bench/choice", BenchChoice, "{}")
    serving = _Stored("server/choice", ServingChoice.from_text, ServingChoice.to_text)
    """The server's last settings; its key is in the keyring."""
    connections = _Stored("connections/list", from_text, to_text, "[]")
    """Remote engines of the user; their keys are in the keyring."""
    launches = _json("managed/launches", dict[str, Launch], "{}")
    """Engines that the window runs, by the id of their connection."""
    switch_times = _json("models/switch-times", dict[str, float], "{}")
    """Load time in seconds, by model and precision."""
    quantize_rates = _json("quantize/rates", Rates, "{}")
    """Quantization rate on this machine, by method."""
    recent = _json("models/recent", list[RecentModel], "[]")
    """Newest first."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or settings_file()
        self.problem = self._keep_unreadable_file()
        """What happened to a file that cannot be used as it is; "" if nothing."""
        with suppress(OSError), open(self.path, "xb", opener=private):
            pass  # QSettings keeps the mode of a file: its owner alone may read it
        self._ini = QSettings(str(self.path), QSettings.Format.IniFormat)
        self.problem = self.problem or self._keep_newer()
        self._ini.setValue("version", VERSION)
        self.preferences = Preferences(self._ini)
        self.profiles = ProfileStore(self.path.with_name("profiles.json"))
        self.keymap = KeyMap(self.path.with_name("shortcuts.json"))

    def _keep_unreadable_file(self) -> str:
        """Rename what is no regular file or too large: QSettings would read a device for ever, and
        replace it when it writes."""
        try:
            if self.path.exists():
                read_regular(self.path)
        except InferdeckError as error:
            return kept_aside(self.path, "Settings", error)
        return ""

    def _keep_newer(self) -> str:
        """Back up a file of a newer version: this version may read it differently."""
        stored = self.text("version", "")
        if not _NUMBER.fullmatch(stored) or int(stored) <= VERSION:
            return ""
        aside = self.path.with_suffix(f".version-{stored}.ini")
        what = f"The settings file has version {stored}; Inferdeck expects {VERSION}."
        try:
            shutil.copyfile(self.path, aside)
        except OSError as error:
            return f"{what} Backup to {aside} failed ({error.strerror or error})."
        return f"{what} Known settings were applied; backup saved to {aside}."

    def keep_unreadable(self, key: str) -> None:
        """Move a value that cannot be read to another key, where a person finds it."""
        self._ini.setValue(f"unreadable/{key}", self._ini.value(key))
        self._ini.remove(key)
        cause = f"{self.path}: the value of {key} is invalid. Using the default."
        self.problem = f"{self.problem} {cause} The value was moved to unreadable/{key}.".strip()

    def sync(self) -> None:
        """Write to the disk now."""
        self._ini.sync()

    @property
    def unwritten(self) -> ErrorInfo | None:
        """Why a change did not reach the file, once one did not; else None."""
        if self._ini.status() is not QSettings.Status.AccessError:
            return None
        number = probe(self.path.parent)
        if number is None and not os.access(self.path, os.W_OK):
            number = errno.EACCES
        reason = "the write failed" if number is None else os.strerror(number)
        return ErrorInfo(
            f"Settings were not saved to {self.path}: {reason} ({free_text(self.path)}).",
            "Check the permissions of the file and its folder, and the disk's free space. "
            "Unsaved changes are lost when this window closes.",
        )

    # The look ----------------------------------------------------------------------------------

    @property
    def theme(self) -> ThemeMode:
        return cast(ThemeMode, self.preferences.get("theme"))

    @theme.setter
    def theme(self, mode: ThemeMode) -> None:
        self.preferences.set("theme", mode)

    @property
    def geometry(self) -> QByteArray:
        return self._bytes("window/geometry")

    @geometry.setter
    def geometry(self, value: QByteArray) -> None:
        self._ini.setValue("window/geometry", value)

    def docks_of(self, page: str) -> QByteArray:
        return self._bytes(f"docks/{page.lower()}")

    def set_docks_of(self, page: str, value: QByteArray) -> None:
        self._ini.setValue(f"docks/{page.lower()}", value)

    def dock_height_of(self, page: str) -> int | None:
        """Height of the docks below a page, given room. 0: as planned."""
        stored = self.text(f"docks/{page.lower()}-height", "")
        return int(stored) if _NUMBER.fullmatch(stored) else None

    def set_dock_height_of(self, page: str, height: int | None) -> None:
        self._ini.setValue(f"docks/{page.lower()}-height", "" if height is None else f"{height}")

    def flag(self, name: str, default: bool) -> bool:
        """A stored boolean, such as whether the chat list is open."""
        return self.text(f"flags/{name}", "true" if default else "false") == "true"

    def set_flag(self, name: str, value: bool) -> None:
        self._ini.setValue(f"flags/{name}", "true" if value else "false")

    # Models ------------------------------------------------------------------------------------

    def remember_model(self, model: RecentModel) -> None:
        """Put `model` first in the recent list."""
        others = [known for known in self.recent if not known.is_same(model)]
        self.recent = [model, *others][:MAX_RECENT]

    def set_quantize_rate(self, method: str, rate: float) -> None:
        self.quantize_rates = {**self.quantize_rates, method: rate}

    def settings_of(self, path: str, load_format: str) -> Mapping[str, Any]:
        wanted = RecentModel(path, load_format)
        return next((known.settings for known in self.recent if known.is_same(wanted)), {})

    @property
    def folders(self) -> list[str]:
        """The user's model folders."""
        return list(self.preferences.get("model_folders"))

    @folders.setter
    def folders(self, paths: list[str]) -> None:
        self.preferences.set("model_folders", tuple(paths))

    # -------------------------------------------------------------------------------------------

    def text(self, key: str, default: str) -> str:
        value = self._ini.value(key, default)
        return value if isinstance(value, str) else default

    def set_text(self, key: str, text: str) -> None:
        self._ini.setValue(key, text)

    def _bytes(self, key: str) -> QByteArray:
        value = self._ini.value(key)
        return value if isinstance(value, QByteArray) else QByteArray()
