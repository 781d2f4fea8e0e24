"""`KeptFocus`: keeps the focus in sight, and in place when its control is disabled or hidden.

Qt moves the focus to the next control, often because of the very click that disabled the first one:
the next Space or Enter then presses the wrong button.

    Qt:    [Test] disabled  -->  [Save] has the focus
    here:  [Test] disabled  -->  its parent has the focus: Space does nothing, Tab goes to [Save];
           [Test] enabled   -->  it has the focus again

A focus that the program sets explicitly is respected. Qt scrolls to the focused control only if the
focus was in the same scroll area before; `KeptFocus` always does.
"""

from __future__ import annotations

import weakref

from PySide6.QtCore import QEvent, QObject, Qt, Slot
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QApplication, QScrollArea, QWidget
from shiboken6 import isValid

_STEPS = {int(Qt.Key.Key_Tab): 1, int(Qt.Key.Key_Backtab): -1}
_REASONS = {1: Qt.FocusReason.TabFocusReason, -1: Qt.FocusReason.BacktabFocusReason}


class KeptFocus(QObject):
    """Installed on `application` for all of its windows."""

    def __init__(self, application: QApplication, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._last: weakref.ref[QWidget] | None = None  # what had the keyboard last
        self._lost: QWidget | None = None
        self._holder: QWidget | None = None  # what is around it
        application.focusChanged.connect(self._moved)

    @Slot()
    def _moved(self) -> None:
        now = QApplication.focusWidget()
        last = self._last() if self._last is not None else None
        if self._holder is not None and now is not self._holder:
            self._forget()
        # a page that is shown gives the keyboard to what had it before, even to a hidden widget
        self._last = weakref.ref(now) if now is not None and _is_usable(now) else None
        if now is not None and now.isVisible() and now.visibleRegion().isEmpty():
            _bring_to_sight(now)
        if last is None or not isValid(last) or now is last or _is_usable(last):
            return
        window = last.window()
        if window.isVisible() and (now is None or now.window() is window):
            self._hold(last)

    def _hold(self, lost: QWidget) -> None:
        around = lost.parentWidget()
        while around is not None:
            if _is_usable(around) and around.focusProxy() is None:
                around.setFocus(Qt.FocusReason.OtherFocusReason)
                if QApplication.focusWidget() is around:  # some hand it on to a child
                    break
            around = around.parentWidget()
        if around is not None:
            self._lost, self._holder = lost, around
            for watched in (lost, around):
                watched.installEventFilter(self)

    def _forget(self) -> None:
        for watched in (self._lost, self._holder):
            if watched is not None and isValid(watched):
                watched.removeEventFilter(self)
        self._lost = self._holder = None

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        lost = self._lost
        if lost is None or not isValid(lost):
            return False
        if watched is lost:
            if event.type() in (QEvent.Type.EnabledChange, QEvent.Type.Show) and _is_usable(lost):
                lost.setFocus(Qt.FocusReason.OtherFocusReason)
        elif event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent):
            step = _STEPS.get(event.key(), 0)
            following = _following(lost, step) if step else None
            if following is not None:
                following.setFocus(_REASONS[step])
                _bring_to_sight(following)
                return True
        return False


def _is_usable(widget: QWidget) -> bool:
    return widget.isVisible() and widget.isEnabled()


def _following(widget: QWidget, step: int) -> QWidget | None:
    """The next widget in tab order (1) or the previous one (-1) from `widget`, or None."""
    window, following = widget.window(), _next(widget, step)
    while following is not None and following is not widget:
        by_tab = Qt.FocusPolicy.TabFocus.value & following.focusPolicy().value
        is_own = following.focusProxy() is None and following.window() is window
        if by_tab and is_own and _is_usable(following):
            return following
        following = _next(following, step)
    return None


def _next(widget: QWidget, step: int) -> QWidget | None:
    return widget.nextInFocusChain() if step > 0 else widget.previousInFocusChain()


def _bring_to_sight(widget: QWidget) -> None:
    around = widget.parentWidget()
    while around is not None:
        if isinstance(around, QScrollArea):
            around.ensureWidgetVisible(widget)
        around = around.parentWidget()


def tab_through(before: QWidget, *then: QWidget) -> None:
    """Tab goes from `before`, or the last control before it, to `then`: widgets made late come
    after all else of their window."""
    last = before
    while then and last.focusPolicy() is Qt.FocusPolicy.NoFocus:
        last = last.previousInFocusChain() or then[-1]
        if last is before:  # nothing in this window takes focus
            break
    for one in then:
        QWidget.setTabOrder(last, one)
        last = one
