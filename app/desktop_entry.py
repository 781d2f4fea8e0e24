"""The desktop entry and its icon, where the desktop looks for the user's own.

Desktop Entry Specification 1.5, Icon Theme Specification 0.13 and XDG base directories 0.8 of
freedesktop.org. No Qt.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from app.paths import APP_NAME, app_icon
from engine.errors import InferdeckError

_RESERVED = set(" \t\n\"'\\><~|&;$*?#()`")
"""An argument with one of these is quoted (Desktop Entry Specification, the Exec key)."""
_REFRESH_S = 10.0


class DesktopError(InferdeckError):
    """The desktop entry could not be written or removed."""


class Files(NamedTuple):
    """What `install` writes and `remove` deletes."""

    entry: Path
    icon: Path


def files() -> Files:
    """Their places for this user. Raises DesktopError on other systems than Linux."""
    if sys.platform != "linux":
        raise DesktopError(
            f"Desktop entries are a standard of Linux; this is {sys.platform}.",
            "Create a shortcut to the `inferdeck` program instead.",
        )
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    icons = data / "icons" / "hicolor" / "scalable" / "apps"
    return Files(data / "applications" / f"{APP_NAME}.desktop", icons / f"{APP_NAME}.svg")


def install() -> Files:
    """Write entry and icon, replacing earlier ones. Raises DesktopError."""
    places, text = files(), entry_text(own_command())
    try:
        for place in places:
            place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(app_icon(), places.icon)
        places.entry.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DesktopError(
            f"Could not write {error.filename}: {error.strerror}.",
            "Check the folder's permissions, or set XDG_DATA_HOME.",
        ) from error
    _refresh(places.entry.parent)
    return places


def remove() -> Files:
    """Delete both; absent ones are fine. Raises DesktopError."""
    places = files()
    try:
        for place in places:
            place.unlink(missing_ok=True)
    except OSError as error:
        raise DesktopError(
            f"Could not delete {error.filename}: {error.strerror}.", "Check its permissions."
        ) from error
    _refresh(places.entry.parent)
    return places


def own_command() -> list[str]:
    """How to start this program again: its script or executable, else this Python."""
    if getattr(sys, "frozen", False):
        return [sys.executable]
    script = Path(sys.argv[0]).absolute()
    if script.name == APP_NAME and os.access(script, os.X_OK):
        return [str(script)]
    beside = Path(sys.executable).with_name(APP_NAME)
    return [str(beside)] if os.access(beside, os.X_OK) else [sys.executable, "-m", "app"]


def entry_text(command: Sequence[str]) -> str:
    lines = {
        "Type": "Application",
        "Name": "Inferdeck",
        "GenericName": "LLM inference workstation",
        "Comment": "Chat with a model, tune its inference, and measure",
        "Exec": " ".join(map(quoted, command)),
        "Icon": APP_NAME,
        "Terminal": "false",
        "Categories": "Development;",
        "Keywords": "LLM;inference;chat;quantization;benchmark;",
        "StartupWMClass": APP_NAME,
        "X-GNOME-SingleWindow": "true",  # in version 1.5 SingleMainWindow, an error before
    }
    return "[Desktop Entry]\n" + "".join(f"{key}={value}\n" for key, value in lines.items())


def quoted(argument: str) -> str:
    """An argument of the Exec key. A value is unescaped as a string first, then as an argument: a
    backslash is doubled twice."""
    escaped = argument.replace("%", "%%")
    if argument and not _RESERVED & set(argument):
        return escaped
    for character in '\\"`$':
        escaped = escaped.replace(character, f"\\{character}")
    return '"' + escaped.replace("\\", "\\\\") + '"'


def _refresh(folder: Path) -> None:
    """Tell desktops that cache their entries; others watch the folder."""
    program = shutil.which("update-desktop-database")
    if program is not None:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([program, str(folder)], capture_output=True, timeout=_REFRESH_S)
