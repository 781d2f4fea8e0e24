"""`LocalKeys`: the keys of one widget."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from PySide6.QtCore import QEvent, QKeyCombination, QObject, Qt
from PySide6.QtGui import QKeyEvent, QKeySequence
from PySide6.QtWidgets import QWidget

_TYPES = (QEvent.Type.ShortcutOverride, QEvent.Type.KeyPress)


class LocalKeys(QObject):
    """Calls on keys in `widget` and in its children, where they do not use the key themselves.

    They precede the window's commands with the same keys. With a `QShortcut` instead, Qt finds the
    keys ambiguous and runs neither."""

    def __init__(
        self,
        widget: QWidget,
        keys: Mapping[str, Callable[[], object]],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """`keys`: in Qt's portable text. `is_wanted`: False leaves the keys to the window."""
        super().__init__(widget)
        self._keys = dict(keys)
        self._is_wanted = is_wanted
        widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if not isinstance(event, QKeyEvent) or event.type() not in _TYPES:
            return False
        modifiers = event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier
        pressed = QKeySequence(QKeyCombination(modifiers, Qt.Key(event.key())))
        do = self._keys.get(pressed.toString())
        if do is None or not self._is_wanted():
            return False
        event.accept()
        if event.type() == QEvent.Type.KeyPress:
            do()
        return True
