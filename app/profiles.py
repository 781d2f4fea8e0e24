"""Named sets of engine settings, kept between two runs. Imports no Qt.

One JSON file with a version. A file that cannot be read is kept aside under another name, never
overwritten; a setting that this version does not know stays in its profile and in the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.config import SETTINGS
from engine.errors import ConfigError, InferdeckError

VERSION = 1
LONGEST_NAME = 60


class ProfileError(InferdeckError):
    """A profile cannot be kept."""


@dataclass(frozen=True, slots=True)
class Profile:
    """`settings`: what differs from the defaults. `unknown`: what this version cannot use."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)


class ProfileStore:
    """The profiles in the order of their names. Every change is written at once; a change that
    cannot be written raises ProfileError and changes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        """What happened to a file that could not be read; empty where all is well."""
        self._profiles = self._read()

    @property
    def profiles(self) -> tuple[Profile, ...]:
        return self._profiles

    def find(self, name: str) -> Profile | None:
        wanted = clean_name(name).casefold()
        return next((p for p in self._profiles if p.name.casefold() == wanted), None)

    def save(self, profile: Profile) -> None:
        """Keep it, in place of one of the same name."""
        name = clean_name(profile.name)
        if not name:
            raise ProfileError("A profile needs a name.", "Give it one.")
        named = Profile(name, dict(profile.settings), dict(profile.unknown))
        others = [p for p in self._profiles if p.name.casefold() != name.casefold()]
        self._write(sorted([*others, named], key=lambda p: p.name.casefold()))

    def delete(self, name: str) -> None:
        self._write([p for p in self._profiles if p.name != name])

    # The file ----------------------------------------------------------------------------------

    def _read(self) -> tuple[Profile, ...]:
        if not self.path.exists():
            return ()
        try:
            return _parse(json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self.problem = self._keep_aside(error)
            return ()

    def _keep_aside(self, error: Exception) -> str:
        number = 1
        while (aside := self.path.with_suffix(f".damaged-{number}.json")).exists():
            number += 1
        try:
            self.path.rename(aside)
        except OSError:
            return f"The profiles cannot be read ({error})."
        return f"The profiles could not be read ({error}). The file is kept as {aside}."

    def _write(self, profiles: list[Profile]) -> None:
        entries = [{"name": p.name, "settings": {**p.unknown, **p.settings}} for p in profiles]
        text = json.dumps({"version": VERSION, "profiles": entries}, indent=2) + "\n"
        fresh = self.path.with_suffix(".new")
        try:
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, self.path)  # whole, or not at all
        except OSError as error:
            raise ProfileError(
                f"The profiles were not written to {self.path}: {error.strerror or error}.",
                "Check the folder's permissions and the disk's free space.",
            ) from error
        self._profiles = tuple(profiles)


def clean_name(name: str) -> str:
    """Without line ends and double blanks, and of bearable length."""
    return " ".join(name.split())[:LONGEST_NAME].strip()


def _parse(stored: Any) -> tuple[Profile, ...]:
    if stored["version"] != VERSION:
        raise ValueError(f"it is of version {stored['version']}, this program reads {VERSION}")
    return tuple(_profile(entry["name"], entry["settings"]) for entry in stored["profiles"])


def _profile(name: str, settings: dict[str, Any]) -> Profile:
    known = {key: value for key, value in settings.items() if _is_usable(key, value)}
    unknown = {key: value for key, value in settings.items() if key not in known}
    return Profile(clean_name(name), known, unknown)


def _is_usable(key: str, value: Any) -> bool:
    if key not in SETTINGS:
        return False
    try:
        SETTINGS[key].check(value)
    except ConfigError:
        return False
    return True
