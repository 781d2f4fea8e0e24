"""The settings store: layout, appearance, recent models and their settings, in an ini file.

Every value has a typed property; an unreadable value is replaced by its default, so a damaged file
never prevents a start.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from PySide6.QtCore import QByteArray, QSettings

from app.clients.connection import Connection, from_text, to_text
from app.paths import settings_file
from app.server.options import ServingChoice
from app.storage.profiles import ProfileStore
from app.window.keymap import KeyMap
from app.window.program_settings import Preferences
from engine.config import SETTINGS, EngineConfig
from engine.errors import ConfigError

VERSION = 1
MAX_RECENT = 10
ThemeMode = Literal["light", "dark", "system"]
NOT_REMEMBERED = ("model", "load_format")
"""Part of the entry itself, not of its settings."""


@dataclass(frozen=True, slots=True)
class RecentModel:
    """A model that was opened. `settings`: the user's engine settings that differ from the
    defaults, without values that the engine resolved (dtype auto)."""

    path: str
    load_format: str = "auto"
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.name or Path(self.path).name

    def config(self) -> EngineConfig:
        """Its load configuration, without settings that this version refuses."""
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
    """The last background load. `is_open`: at a request rate, not at a concurrency."""

    workload: str = "mixed-lengths"
    variant: str = "unique"
    concurrency: int = 8
    request_rate: float = 1.0
    is_open: bool = False


def chosen_settings(config: EngineConfig) -> dict[str, Any]:
    """The settings of `config` (as requested) that differ from the defaults."""
    return {
        name: getattr(config, name)
        for name, setting in SETTINGS.items()
        if name not in NOT_REMEMBERED and getattr(config, name) != setting.default
    }


class SettingsStore:
    """Typed access to the ini file and to profiles and key map beside it. Writes at once."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or settings_file()
        self._ini = QSettings(str(self.path), QSettings.Format.IniFormat)
        self.problem = self._keep_newer()
        """What happened to a file of a newer version; "" if nothing."""
        self._ini.setValue("version", VERSION)
        self.preferences = Preferences(self._ini)
        self.profiles = ProfileStore(self.path.with_name("profiles.json"))
        self.keymap = KeyMap(self.path.with_name("shortcuts.json"))

    def _keep_newer(self) -> str:
        """Back up the file of a newer version: this one may read it differently."""
        stored = self._text("version", "")
        if not stored.isdigit() or int(stored) <= VERSION:
            return ""
        aside = self.path.with_suffix(f".version-{stored}.ini")
        what = f"The settings file has version {stored}; this program reads {VERSION}."
        try:
            shutil.copyfile(self.path, aside)
        except OSError as error:
            return f"{what} Backup to {aside} failed ({error.strerror or error})."
        return f"{what} Known settings apply; a backup is in {aside}."

    def sync(self) -> None:
        """Write to the disk now."""
        self._ini.sync()

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
        """The dock state of a page."""
        return self._bytes(f"docks/{page.lower()}")

    def set_docks_of(self, page: str, value: QByteArray) -> None:
        self._ini.setValue(f"docks/{page.lower()}", value)

    def dock_height_of(self, page: str) -> int | None:
        """Height of the docks below a page, given room. 0: as planned."""
        stored = self._text(f"docks/{page.lower()}-height", "")
        return int(stored) if stored.isdigit() else None

    def set_dock_height_of(self, page: str, height: int | None) -> None:
        self._ini.setValue(f"docks/{page.lower()}-height", "" if height is None else f"{height}")

    @property
    def layout(self) -> str:
        """The name of the current layout."""
        return self._text("window/layout", "")

    @layout.setter
    def layout(self, name: str) -> None:
        self._ini.setValue("window/layout", name)

    @property
    def load_choice(self) -> LoadChoice:
        try:
            stored = LoadChoice(**json.loads(self._text("tune/load", "{}")))
        except (ValueError, TypeError):
            return LoadChoice()
        known = LoadChoice()
        fields = (f.name for f in dataclasses.fields(known))
        if any(type(getattr(stored, name)) is not type(getattr(known, name)) for name in fields):
            return known
        return stored

    @load_choice.setter
    def load_choice(self, choice: LoadChoice) -> None:
        self._ini.setValue("tune/load", json.dumps(asdict(choice)))

    @property
    def serving(self) -> ServingChoice:
        """The server's last settings; its key is in the keyring."""
        return ServingChoice.from_text(self._text("server/choice", ""))

    @serving.setter
    def serving(self, choice: ServingChoice) -> None:
        self._ini.setValue("server/choice", choice.to_text())

    @property
    def connections(self) -> list[Connection]:
        """Remote engines of the user; their keys are in the keyring."""
        return from_text(self._text("connections/list", "[]"))

    @connections.setter
    def connections(self, connections: list[Connection]) -> None:
        self._ini.setValue("connections/list", to_text(connections))

    @property
    def switch_times(self) -> Mapping[str, float]:
        """Load time in seconds, by model and precision."""
        try:
            stored = json.loads(self._text("models/switch-times", "{}"))
            return {name: float(seconds) for name, seconds in stored.items()}
        except (ValueError, TypeError, AttributeError):
            return {}

    @switch_times.setter
    def switch_times(self, times: Mapping[str, float]) -> None:
        self._ini.setValue("models/switch-times", json.dumps(dict(times)))

    @property
    def quantize_rates(self) -> dict[str, float]:
        """Quantization rate on this machine, by method."""
        try:
            stored = json.loads(self._text("quantize/rates", "{}"))
            return {str(k): float(v) for k, v in stored.items() if float(v) > 0}
        except (ValueError, TypeError, AttributeError):
            return {}

    def set_quantize_rate(self, method: str, rate: float) -> None:
        self._ini.setValue("quantize/rates", json.dumps({**self.quantize_rates, method: rate}))

    def flag(self, name: str, default: bool) -> bool:
        """A stored boolean, such as whether the chat list is open."""
        return self._text(f"flags/{name}", "true" if default else "false") == "true"

    def set_flag(self, name: str, value: bool) -> None:
        self._ini.setValue(f"flags/{name}", "true" if value else "false")

    # Models ------------------------------------------------------------------------------------

    @property
    def recent(self) -> list[RecentModel]:
        """Recent models, newest first."""
        try:
            entries = json.loads(self._text("models/recent", "[]"))
            return [RecentModel(**entry) for entry in entries][:MAX_RECENT]
        except (ValueError, TypeError):
            return []

    def remember_model(self, model: RecentModel) -> None:
        """Put `model` first in the recent list."""
        others = [known for known in self.recent if not known.is_same(model)]
        self._write_recent([model, *others])

    def forget_model(self, model: RecentModel) -> None:
        self._write_recent([known for known in self.recent if not known.is_same(model)])

    def settings_of(self, path: str, load_format: str) -> Mapping[str, Any]:
        """The user's engine settings for this model."""
        wanted = RecentModel(path, load_format)
        return next((known.settings for known in self.recent if known.is_same(wanted)), {})

    @property
    def folders(self) -> list[str]:
        """The user's model folders."""
        return list(self.preferences.get("model_folders"))

    @folders.setter
    def folders(self, paths: list[str]) -> None:
        self.preferences.set("model_folders", tuple(paths))

    def _write_recent(self, models: list[RecentModel]) -> None:
        entries = [asdict(model) for model in models[:MAX_RECENT]]
        self._ini.setValue("models/recent", json.dumps(entries))

    # -------------------------------------------------------------------------------------------

    def _text(self, key: str, default: str) -> str:
        value = self._ini.value(key, default)
        return value if isinstance(value, str) else default

    def _bytes(self, key: str) -> QByteArray:
        value = self._ini.value(key)
        return value if isinstance(value, QByteArray) else QByteArray()
