"""A field that takes keys as they are pressed, not what they write."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QFocusEvent, QKeyEvent, QKeySequence
from PySide6.QtWidgets import QLineEdit

from app.window.commands import PORTABLE

WAITING = "Press the keys…  Backspace: none, Esc: leave it"
RESTING = "Enter or a click: press new keys"
_MODIFIERS = (
    Qt.Key.Key_Control, Qt.Key.Key_Shift, Qt.Key.Key_Alt, Qt.Key.Key_Meta, Qt.Key.Key_AltGr,
    Qt.Key.Key_CapsLock, Qt.Key.Key_NumLock, Qt.Key.Key_unknown,
)  # fmt: skip
_LEAVES = (Qt.Key.Key_Tab, Qt.Key.Key_Backtab)


class KeyRecorder(QLineEdit):
    """`pressed(keys)`: portable text, "" for none. It listens from `listen` until keys came, Esc,
    or the focus leaves."""

    pressed = Signal(str)
    stopped = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.is_listening = False
        self.setReadOnly(True)
        self.setAccessibleName("New keys")
        self.setAccessibleDescription(WAITING)
        self.setPlaceholderText(RESTING)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.NoContextMenu)

    def listen(self) -> None:
        """Take the next keys."""
        self.setFocus()
        self.is_listening = True
        self.setPlaceholderText(WAITING)

    def stop(self) -> None:
        """Take no keys until `listen` again."""
        if self.is_listening:
            self.is_listening = False
            self.setPlaceholderText(RESTING)
            self.stopped.emit()

    def mousePressEvent(self, event: object) -> None:
        self.listen()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.stop()

    def event(self, event: QEvent) -> bool:
        if not isinstance(event, QKeyEvent) or not self.is_listening:
            return super().event(event)
        if event.type() == QEvent.Type.ShortcutOverride:
            event.accept()  # ours, before any command that has these keys now
            return True
        if event.type() == QEvent.Type.KeyPress and not self._leaves(event):
            self._take(event)
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self.listen()
        else:
            super().keyPressEvent(event)

    def _leaves(self, event: QKeyEvent) -> bool:
        """Tab goes on to the next control, as everywhere."""
        held = event.modifiers() & ~Qt.KeyboardModifier.ShiftModifier
        return event.key() in _LEAVES and held == Qt.KeyboardModifier.NoModifier

    def _take(self, event: QKeyEvent) -> None:
        if event.key() in _MODIFIERS:
            return
        is_alone = event.modifiers() == Qt.KeyboardModifier.NoModifier
        if is_alone and event.key() == Qt.Key.Key_Escape:
            self.stop()
        elif is_alone and event.key() in (Qt.Key.Key_Backspace, Qt.Key.Key_Delete):
            self.stop()
            self.pressed.emit("")
        else:
            self.stop()
            self.pressed.emit(keys_of(event))


def keys_of(event: QKeyEvent) -> str:
    """What was pressed, as text that is the same on every platform."""
    pressed = event.keyCombination()
    without_pad = pressed.keyboardModifiers() & ~Qt.KeyboardModifier.KeypadModifier
    key = Qt.Key.Key_Tab if pressed.key() is Qt.Key.Key_Backtab else pressed.key()
    return QKeySequence(without_pad.value | key.value).toString(PORTABLE)
