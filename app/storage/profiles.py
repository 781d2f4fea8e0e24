"""Named sets of engine settings (profiles). No Qt.

One JSON file with a version (see `app.storage.json_file`). Settings unknown to this version stay in
the profile and in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from app.storage.json_file import KeptFile
from engine.config import SETTINGS
from engine.errors import ConfigError, InferdeckError

VERSION = 1
LONGEST_NAME = 60


class ProfileError(InferdeckError):
    """A profile could not be saved."""


@dataclass(frozen=True, slots=True)
class Profile:
    """`settings`: what differs from the defaults. `unknown`: what this version cannot use."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)


class ProfileStore:
    """Profiles sorted by name. Every change is written at once; a failed write raises ProfileError
    and changes nothing."""

    def __init__(self, path: Path) -> None:
        self._file = KeptFile(path, VERSION, "Profiles", ProfileError)
        self.profiles: tuple[Profile, ...] = self._file.read(_Content, _parse, ())
        self.problem = self._file.problem
        """What happened to an unreadable file; "" if nothing."""

    def find(self, name: str) -> Profile | None:
        wanted = clean_name(name).casefold()
        return next((p for p in self.profiles if p.name.casefold() == wanted), None)

    def save(self, profile: Profile) -> None:
        """Save it, replacing one of the same name."""
        name = clean_name(profile.name)
        if not name:
            raise ProfileError("The profile has no name.", "Enter a name.")
        named = Profile(name, dict(profile.settings), dict(profile.unknown))
        others = [p for p in self.profiles if p.name.casefold() != name.casefold()]
        self._write(sorted([*others, named], key=lambda p: p.name.casefold()))

    def delete(self, name: str) -> None:
        self._write([p for p in self.profiles if p.name != name])

    def _write(self, profiles: list[Profile]) -> None:
        entries = [{"name": p.name, "settings": {**p.unknown, **p.settings}} for p in profiles]
        self._file.write({"profiles": entries})
        self.profiles = tuple(profiles)


def clean_name(name: str, longest: int = LONGEST_NAME) -> str:
    """On one line, without double spaces, at most `longest` characters."""
    return " ".join(name.split())[:longest].strip()


class _Entry(msgspec.Struct):
    name: str
    settings: dict[str, Any]


class _Content(msgspec.Struct):
    profiles: list[_Entry]


def _parse(stored: _Content) -> tuple[Profile, ...]:
    return tuple(_profile(entry.name, entry.settings) for entry in stored.profiles)


def _profile(name: str, settings: dict[str, Any]) -> Profile:
    known, unknown = {}, {}
    for key, value in settings.items():
        try:
            SETTINGS[key].check(value)
        except (KeyError, ConfigError):
            unknown[key] = value
        else:
            known[key] = value
    return Profile(clean_name(name), known, unknown)
