"""The "not reported" texts, tooltips and the engine's clock."""

from __future__ import annotations

import textwrap
import weakref
from collections.abc import Mapping
from functools import cache

import shiboken6
from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from engine.snapshot import EngineSnapshot, Part

PLAIN = "OpenAI-compatible"
"""Device name of a server of unknown make."""


def server_name(device: str) -> str:
    """ "vLLM", or "this server" where the make is unknown."""
    return "this server" if device in ("", PLAIN) else device


def not_reported(snapshot: EngineSnapshot, *parts: Part) -> str:
    """ "not reported by vLLM" where no part of `parts` is reported, "" where one is."""
    if not parts or not snapshot.missing.issuperset(parts):
        return ""
    return f"not reported by {server_name(snapshot.model.device)}"


def not_reported_text(snapshot: EngineSnapshot, what: str, *parts: Part, instead: str = "") -> str:
    """Text of an empty view: "KV blocks: not reported by vLLM." and what to do instead."""
    words = not_reported(snapshot, *parts)
    return f"{what}: {words}. {instead}".strip() if words else ""


TIP_WIDTH = 60
"""Characters of a tooltip's line."""


def wrapped_tip(text: str) -> str:
    """A long tooltip in lines: Qt leaves plain text as wide as it is."""
    return "\n".join(
        textwrap.fill(line, TIP_WIDTH, break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )


class ShortcutTexts(QObject):
    """Shortcuts of commands, in the platform's words."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._words: dict[str, str] = {}

    def of(self, command: str) -> str:
        return self._words.get(command, "")

    def tell(self, words: Mapping[str, str]) -> None:
        """Set the shortcuts of commands; "" is none."""
        self._words.update(words)
        self.changed.emit()


@cache
def shortcut_texts() -> ShortcutTexts:
    """The shared table."""
    return ShortcutTexts()


def with_keys(text: str, command: str) -> str:
    """`text` with the command's current shortcut."""
    keys = shortcut_texts().of(command)
    return f"{text} ({keys})" if keys else text


def set_key_tip(widget: QWidget, text: str, command: str) -> None:
    """Set a widget's tooltip with the shortcut, and keep it up to date."""
    _follow()
    _bound[widget] = (text, command)
    widget.setToolTip(with_keys(text, command))


_bound: weakref.WeakKeyDictionary[QWidget, tuple[str, str]] = weakref.WeakKeyDictionary()


@cache
def _follow() -> None:
    shortcut_texts().changed.connect(_renew)


def _renew() -> None:
    for widget, (text, command) in list(_bound.items()):
        if shiboken6.isValid(widget):
            widget.setToolTip(with_keys(text, command))
