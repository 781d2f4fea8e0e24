"""The keys of commands as words, for tooltips and labels: "Open a model (Ctrl+O)".

    set_key_tip(button, "Open a model", "model.open")    now, and again whenever keys change

The window sets the shortcuts; without them no keys are shown.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import cache

import shiboken6
from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget


class KeyWords(QObject):
    """Command -> its keys in this platform's words."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._words: dict[str, str] = {}

    def of(self, command: str) -> str:
        return self._words.get(command, "")

    def tell(self, words: Mapping[str, str]) -> None:
        """These commands have these keys from now on; "" is none."""
        self._words.update(words)
        self.changed.emit()


@cache
def key_words() -> KeyWords:
    """The one table."""
    return KeyWords()


def with_keys(text: str, command: str) -> str:
    """`text` with the command's keys behind it, as they are now."""
    keys = key_words().of(command)
    return f"{text} ({keys})" if keys else text


def set_key_tip(widget: QWidget, text: str, command: str) -> None:
    """Give a widget its tooltip, now and after every change of the keys."""
    _follow()
    _bound[widget] = (text, command)
    widget.setToolTip(with_keys(text, command))


_bound: weakref.WeakKeyDictionary[QWidget, tuple[str, str]] = weakref.WeakKeyDictionary()


@cache
def _follow() -> None:
    key_words().changed.connect(_renew)


def _renew() -> None:
    for widget, (text, command) in list(_bound.items()):
        if shiboken6.isValid(widget):
            widget.setToolTip(with_keys(text, command))
