"""Gives every widget another stylesheet, without a stall.

`QApplication.setStyleSheet` styles a widget once for each of its ancestors, a dozen times in a
window such as ours (QStyleSheetStyle::repolish goes through all widgets, and below each of them
through all children): seconds. Here each is styled once, and what nobody sees comes last:

    hidden widgets are stripped   | in slices; nothing on the screen changes
    windows stand still           | updates are off, layouts wait: half of them would not fit
      those in view are stripped  | in slices
      all are muted               | in slices: Qt will not notify them
      the sheet is exchanged      | no widget has a style: nothing to be done by Qt
      all are unmuted             | in slices
      those in view are dressed   | in slices
    windows are painted           | once, all new
    hidden widgets are dressed    | in slices; what is shown meanwhile, before it is painted

A window is built without any style (`put_off`), and dressed like one that was stripped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from inspect import GEN_RUNNING, getgeneratorstate
from typing import NamedTuple

import shiboken6
from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Signal
from PySide6.QtWidgets import QApplication, QWidget

SLICE_S = 0.008
REST_MS = 4
"""Pause between two slices: the engine in this process needs the interpreter, too."""

_STYLED = Qt.WidgetAttribute.WA_StyleSheet  # set by QStyleSheetStyle::polish, reset by unpolish
_POLISHED = Qt.WidgetAttribute.WA_WState_Polished
_OWN_STYLE = Qt.WidgetAttribute.WA_SetStyle


class Change(NamedTuple):
    """`exchange` sets the application's colours and fonts at once. Before it, in slices: `prepare`,
    and `begin` while no widget has a style and nothing is painted."""

    exchange: Callable[[], None]
    prepare: Iterable[None] = ()
    begin: Iterable[None] = ()


class _Muted(NamedTuple):
    """`follows`: the application's style."""

    widget: QWidget
    is_polished: bool
    follows: bool


class Restyling(QObject):
    """Applies a stylesheet in slices. `beginning`: visible widgets are about to change.
    `exchanged`: every visible widget has the new style; `arranged`: and its place. They are not
    painted yet."""

    beginning = Signal()
    exchanged = Signal()
    arranged = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.is_gradual = False
        """Whether open windows are restyled in slices."""
        self.num_dressed = 0
        """Number of widgets styled so far, for tests."""
        self._changes: list[tuple[Change, Callable[[], str]]] = []
        self._bare: dict[QWidget, None] = {}  # stripped, parents first
        self._still: list[QWidget] = []  # windows
        self._holds_layouts = False
        self._unplaced: dict[QWidget, None] = {}  # their layouts wait
        self._watched: set[QObject] = set()
        self._work: Generator[None, None, None] | None = None
        self._later = QTimer(self)
        self._later.setSingleShot(True)
        self._later.timeout.connect(self._do_slice)

    @property
    def is_busy(self) -> bool:
        """Whether some widget has no style, or the previous one."""
        return self._work is not None or bool(self._changes)

    def put(self, change: Change, sheet: Callable[[], str]) -> None:
        """Perform `change` and apply `sheet`: before returning, or soon if `is_gradual` and a
        window is open."""
        self._changes.append((change, sheet))
        if not self.is_gradual or not _windows():
            self.finish()
        elif not self._later.isActive():
            self._later.start(0)

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Context for building a window before it shows. Its widgets have no style, which would
        be applied again whenever one gets another parent; then each is styled when it is shown,
        or by `go_on`. `leave` ends that."""
        app = _application()
        sheet = app.styleSheet()
        app.setStyleSheet("")
        try:
            yield
        finally:
            widgets = [w for w in _all_widgets() if w.testAttribute(_POLISHED)]
            muted: list[_Muted] = []
            for _ in _mute(widgets, muted):
                pass
            app.setStyleSheet(sheet)
            for _ in _unmute(muted):
                pass
            self._bare.update(dict.fromkeys(widgets))
            for _ in self._dress_those_in_view():  # of other windows
                pass
            self._watch()

    def go_on(self) -> None:
        """Style in slices what `put_off` has left."""
        self._later.start(REST_MS)

    def leave(self) -> None:
        """The window that was built has closed: what has no style gets none."""
        self.finish()
        self._stop_watching()
        self._bare.clear()

    def finish(self) -> None:
        """Do the remaining work now."""
        self._later.stop()
        is_running = self._work is not None and getgeneratorstate(self._work) == GEN_RUNNING
        if self.is_busy and not is_running:  # else the round sees to it
            for _ in self._rounds():
                pass

    # In slices -------------------------------------------------------------------------------

    def _do_slice(self) -> None:
        work = self._rounds()
        until = time.perf_counter() + SLICE_S
        for _ in work:
            if time.perf_counter() >= until:
                self._later.start(REST_MS)
                return

    def _rounds(self) -> Generator[None, None, None]:
        if self._work is None:
            self._work = self._run()
        return self._work

    def _run(self) -> Generator[None, None, None]:
        try:
            yield from self._steps()
        finally:  # also where the sheet's pictures could not be written
            self._lay_out()
            self._move()
            self._stop_watching()
            self._work = None

    def _steps(self) -> Generator[None, None, None]:
        while self._changes or self._bare:
            if self._changes:
                yield from self._change()
            yield from self._dress_all()

    def _change(self) -> Generator[None, None, None]:
        for change, _ in list(self._changes):
            for _ in change.prepare:
                yield
        self._watch()
        yield from self._strip(lambda widget: not widget.isVisible())
        self._stand_still()
        self.beginning.emit()
        yield from self._strip(QWidget.isVisible)
        yield from self._exchange()
        yield from self._dress_those_in_view()
        self.exchanged.emit()
        yield
        yield from self._dress_those_in_view()  # that were shown meanwhile
        self._lay_out()
        yield
        self.arranged.emit()
        yield
        self._move()
        yield
        self._watch()
        yield

    def _strip(self, which: Callable[[QWidget], bool]) -> Iterator[None]:
        for widget in _all_widgets():
            if shiboken6.isValid(widget) and which(widget):
                self._strip_one(widget)
                yield

    def _strip_one(self, widget: QWidget) -> None:
        if widget.testAttribute(_STYLED):
            self._bare[widget] = None
            QApplication.style().unpolish(widget)

    def _dress_those_in_view(self) -> Iterator[None]:
        for widget in [w for w in self._bare if shiboken6.isValid(w) and w.isVisible()]:
            self._dress_one(widget)
            yield

    def _dress_all(self) -> Iterator[None]:
        while self._bare and not self._changes:
            self._dress_one(next(iter(self._bare)))
            yield

    def _dress_one(self, widget: QWidget) -> None:
        was_bare = widget in self._bare
        self._bare.pop(widget, None)
        if was_bare and shiboken6.isValid(widget):
            self.num_dressed += 1
            QApplication.style().polish(widget)
            QApplication.sendEvent(widget, QEvent(QEvent.Type.StyleChange))

    # The exchange ----------------------------------------------------------------------------

    def _exchange(self) -> Iterator[None]:
        """Exchange the sheet while no widget has a style, without Qt notifying any."""
        app, changes, muted = _application(), self._changes, list[_Muted]()
        self._changes = []
        for change, _ in changes:
            yield from change.begin
        try:
            yield from _mute(app.allWidgets(), muted)
            for widget in app.allWidgets():
                self._strip_one(widget)  # made, or styled anew, since the others were stripped
            app.setStyleSheet("")
            for change, _ in changes:
                change.exchange()
            app.setStyleSheet(changes[-1][1]())
            yield
        except BaseException:  # also where it ends early: a generator may not yield then
            for _ in _unmute(muted):
                pass
            raise
        yield from _unmute(muted)

    def _stand_still(self) -> None:
        """Suspend painting and layouts of the windows. (Docks that were squeezed once stay so.)"""
        if self.is_gradual:
            _application().installEventFilter(self)
            self._holds_layouts = True
            self._still = [w for w in _windows() if w.updatesEnabled()]
            for window in self._still:
                window.setUpdatesEnabled(False)

    def _lay_out(self) -> None:
        """Do the layouts that were requested meanwhile."""
        if self._holds_layouts:
            _application().removeEventFilter(self)
            self._holds_layouts = False
        waiting, self._unplaced = self._unplaced, {}
        for widget in waiting:
            if shiboken6.isValid(widget):
                QApplication.postEvent(widget, QEvent(QEvent.Type.LayoutRequest))

    def _move(self) -> None:
        for window in self._still:
            if shiboken6.isValid(window):
                window.setUpdatesEnabled(True)
        self._still = []

    # What is shown meanwhile -------------------------------------------------------------------

    def _watch(self) -> None:
        """Watch for hidden branches that become visible."""
        self._stop_watching()
        seen: list[QObject] = list(QApplication.topLevelWidgets())
        while seen:
            widget = seen.pop()
            if not isinstance(widget, QWidget):
                continue
            if widget.isVisible():
                seen += widget.children()
            elif widget.isHidden():
                widget.installEventFilter(self)
                self._watched.add(widget)

    def _stop_watching(self) -> None:
        for widget in self._watched:
            if shiboken6.isValid(widget):
                widget.removeEventFilter(self)
        self._watched.clear()

    def eventFilter(self, target: QObject, event: QEvent) -> bool:
        kind = event.type()
        if kind == QEvent.Type.LayoutRequest and self._holds_layouts:
            if isinstance(target, QWidget):
                self._unplaced[target] = None
                return True
        elif kind == QEvent.Type.Show and target in self._watched:
            self._dress_below(target)
        return False

    def _dress_below(self, shown: QObject) -> None:
        for widget in (shown, *shown.findChildren(QWidget)):
            if not isinstance(widget, QWidget) or widget not in self._bare:
                continue
            if widget.isVisible():
                self._dress_one(widget)
            elif widget.isHidden() and _is_in_view(widget.parentWidget()):
                widget.installEventFilter(self)
                self._watched.add(widget)


@cache
def restyling() -> Restyling:
    """The one of the application."""
    return Restyling()


def _application() -> QApplication:
    app = QApplication.instance()
    assert isinstance(app, QApplication)
    return app


def _mute(widgets: list[QWidget], muted: list[_Muted]) -> Iterator[None]:
    """Until `_unmute` none of the `widgets` gets the style of a sheet that is set, nor notice of
    it. Notes in `muted` what it takes from each."""
    for widget in widgets:
        if shiboken6.isValid(widget):
            one = _Muted(
                widget, widget.testAttribute(_POLISHED), not widget.testAttribute(_OWN_STYLE)
            )
            muted.append(one)
            if one.is_polished:
                widget.setAttribute(_POLISHED, False)
            if one.follows:
                widget.setAttribute(_OWN_STYLE, True)
            yield


def _unmute(muted: list[_Muted]) -> Iterator[None]:
    for widget, is_polished, follows in muted:
        if shiboken6.isValid(widget):
            if is_polished:
                widget.setAttribute(_POLISHED, True)
            if follows:
                widget.setAttribute(_OWN_STYLE, False)
            yield


def _is_in_view(widget: QWidget | None) -> bool:
    return widget is not None and widget.isVisible()


def _windows() -> list[QWidget]:
    return [w for w in QApplication.topLevelWidgets() if w.isVisible()]


def _all_widgets() -> list[QWidget]:
    """All widgets, parents before their children."""
    found: dict[QWidget, None] = {}
    for top in QApplication.topLevelWidgets():
        if top.parentWidget() is None:
            found[top] = None
            found.update(dict.fromkeys(top.findChildren(QWidget)))
    return list(found)
