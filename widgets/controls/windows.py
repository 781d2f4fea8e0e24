"""`FittingSize`: the size of a window follows the text size, within its screen."""

from __future__ import annotations

from PySide6.QtCore import QObject, QSize
from PySide6.QtWidgets import QWidget

from widgets.theme.fonts import text_scale
from widgets.theme.restyling import restyling

FRAME = (2, 40)
"""Pixels of the screen left for the desktop's frame and title bar."""


class FittingSize(QObject):
    """`size` and `least` are in pixels at the default text size. Larger text enlarges the window as
    far as the screen goes; text of the size before restores it, or what the user chose."""

    def __init__(
        self, window: QWidget, size: tuple[int, int], least: tuple[int, int] = (0, 0)
    ) -> None:
        super().__init__(window)
        self._window, self._size, self._least = window, QSize(*size), QSize(*least)
        self._applied = QSize()
        restyling().beginning.connect(self._learn)
        restyling().arranged.connect(self._apply)
        self._apply()

    def _learn(self) -> None:
        """The user has chosen another size since the last text size."""
        if self._window.size() != self._applied:
            self._size = self._window.size() / max(1.0, text_scale())

    def _apply(self) -> None:
        screen = self._window.screen().availableGeometry()
        room = screen.size() - QSize(*FRAME)
        self._window.setMinimumSize(self._least.boundedTo(room))
        self._window.resize((self._size * max(1.0, text_scale())).boundedTo(room))
        self._applied = self._window.size()
        if self._window.isVisible():
            frame = self._window.frameGeometry()
            beyond = frame.bottomRight() - screen.bottomRight()
            left = max(screen.left(), frame.left() - max(0, beyond.x()))
            top = max(screen.top(), frame.top() - max(0, beyond.y()))
            if (left, top) != (frame.left(), frame.top()):
                self._window.move(left, top)
