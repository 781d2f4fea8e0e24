"""The key map: default keys of the commands and the user's changes. No Qt.

Keys are Qt's portable text: "Ctrl+Shift+P"; "" is none. No two commands have the same keys: the
user's choice precedes a default, and an earlier choice a later one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from app.storage.json_file import KeptFile

VERSION = 1
EDITING = ("C", "V", "X", "A", "Z", "Y")
"""With Ctrl, these edit text in any text field."""
ALONE = ("Esc", *(f"F{number}" for number in range(1, 13)))
"""Keys that type nothing, so they need no Ctrl or Alt."""


class KeyMap:
    """The registry declares the commands; `file` stores the user's changes."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = KeptFile(file, VERSION, "Keyboard shortcuts") if file is not None else None
        self._defaults: dict[str, str] = {}
        self._chosen: dict[str, str] = self._file.read(_Content, _parse, {}) if self._file else {}
        self._keys: dict[str, str] = {}

    @property
    def problem(self) -> str:
        """Why the file could not be read; "" if it could."""
        return self._file.problem if self._file is not None else ""

    # What there is -----------------------------------------------------------------------------

    def declare(self, defaults: Mapping[str, str]) -> None:
        """Add commands with their default keys."""
        self._defaults.update(defaults)
        self._resolve()

    def withdraw(self, command: str) -> None:
        """Remove a command and its keys."""
        self._defaults.pop(command, None)
        if self._chosen.pop(command, None) is not None:
            self._write()
        self._resolve()

    def __iter__(self) -> Iterator[str]:
        return iter(self._defaults)

    def keys(self, command: str) -> str:
        """The command's current keys."""
        return self._keys.get(command, "")

    def default(self, command: str) -> str:
        return self._defaults[command]

    def is_changed(self, command: str) -> bool:
        return self.keys(command) != self._defaults[command]

    @property
    def num_changed(self) -> int:
        return sum(map(self.is_changed, self._defaults))

    def owner(self, keys: str) -> str:
        """The command with these keys; "" if they are free."""
        return next((c for c, owned in self._keys.items() if owned and owned == keys), "")

    # What the user does ------------------------------------------------------------------------

    def bind(self, command: str, keys: str) -> None:
        """Give `keys` to `command`; their previous owner has none. Raises NotWrittenError: the
        change then lasts for this session."""
        owner = self.owner(keys)
        if owner and owner != command:
            self._choose(owner, "")
        self._choose(command, keys)
        self._resolve()
        self._write()

    def reset(self, command: str) -> None:
        """Restore a command's default. The current owner of these keys gets its own default, or
        none."""
        default = self._defaults[command]
        owner = self.owner(default)
        self._chosen.pop(command, None)
        if owner and owner != command:
            self._choose(owner, "" if self._defaults[owner] == default else self._free(owner))
        self._resolve()
        self._write()

    def reset_all(self) -> None:
        """Restore the defaults of all declared commands."""
        self._chosen = {c: keys for c, keys in self._chosen.items() if c not in self._defaults}
        self._resolve()
        self._write()

    # -------------------------------------------------------------------------------------------

    def _free(self, command: str) -> str:
        """The default of a command if it is free, else ""."""
        default = self._defaults[command]
        return default if self.owner(default) in ("", command) else ""

    def _choose(self, command: str, keys: str) -> None:
        self._chosen.pop(command, None)
        if keys != self._defaults[command]:
            self._chosen[command] = keys

    def _resolve(self) -> None:
        taken: set[str] = set()
        found: dict[str, str] = {}
        for command, keys in self._chosen.items():
            if command in self._defaults:
                found[command] = "" if keys in taken else keys
                taken.add(keys)
        for command, keys in self._defaults.items():
            if command not in found:
                found[command] = "" if keys in taken else keys
                taken.add(keys)
        self._keys = {command: found[command] for command in self._defaults}

    def _write(self) -> None:
        if self._file is not None:
            self._file.write({"shortcuts": self._chosen})


def objection(keys: str) -> str:
    """Why keys cannot be assigned; "" if they can."""
    *held, key = keys.replace("++", "+Plus").split("+")
    held = [modifier for modifier in held if modifier]
    if not held and key not in ALONE:
        return f"{keys} alone types text or moves the cursor. Add Ctrl or Alt."
    if held == ["Shift"] and key not in ALONE:
        return f"{keys} types text. Add Ctrl or Alt."
    if held == ["Ctrl"] and key in EDITING:
        return f"{keys} edits text. Choose another shortcut."
    return ""


class _Content(msgspec.Struct):
    shortcuts: dict[str, str]


def _parse(stored: _Content) -> dict[str, str]:
    return stored.shortcuts
