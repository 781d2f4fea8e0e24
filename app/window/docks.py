"""Docks around the page: plans, title bars, and the area that arranges them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from PySide6.QtCore import QByteArray, QEvent, QRectF, Qt, QTimer, Signal, SignalInstance
from PySide6.QtGui import QGuiApplication, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QDockWidget, QMainWindow, QTabBar, QTabWidget, QWidget

from app.window.commands import Command
from widgets.controls.buttons import IconButton
from widgets.controls.frames import Contained
from widgets.controls.layouts import STRETCH, hbox, label
from widgets.theme.fonts import scaled
from widgets.theme.theme import RADIUS, SPACE_1, SPACE_2, SPACE_3, theme, theme_notifier

LAYOUT_VERSION, FIRST_VERSION = 4, 3
"""Increase it when the pages' plans change: states of an earlier version stand for what was planned
then, and only what the user saved under a name is restored from it. `FIRST_VERSION`: the first with
the docks of today."""


@dataclass(frozen=True, slots=True)
class DockPlan:
    """Where the docks are at the first visit of a page. `has_settings`: the engine settings are
    open, at the left on every page. `below`: stacks of tabs, side by side; `height`: theirs, and at
    most `share` of the window's, or what leaves `beside` pixels of it (at 100 % text) if that is
    more. A dock that is not named is closed."""

    has_settings: bool = False
    below: tuple[tuple[str, ...], ...] = ()
    height: int = 372
    share: float = 0.4
    beside: int = 10_000

    def height_in(self, window: int) -> int:
        """Of the docks below the page, in a window of this height."""
        return min(self.height, max(round(window * self.share), window - scaled(self.beside)))


CLOSED_DOCKS = DockPlan()
ALL_DOCKS = DockPlan(
    True,
    (
        (
            "live-charts", "kv-blocks", "step-timeline", "requests", "speculation", "bottleneck",
            "memory",
        ),
    ),
)  # fmt: skip
TUNE_DOCKS = DockPlan(
    True,
    (("kv-blocks", "memory"), ("step-timeline", "requests", "bottleneck", "speculation")),
    620,
    share=0.32,  # a small window is for the charts
    beside=510,  # two rows of charts, and what is above them
)


class PanelDock(QDockWidget):
    """A dock whose content has its own panels: a title on the window's background."""

    def __init__(self, title: str, name: str, content: QWidget) -> None:
        super().__init__(title)
        self.setObjectName(name)
        self.title_bar = _TitleBar(self)
        self.setTitleBarWidget(self.title_bar)
        self.setWidget(Contained(content))  # what a panel writes moves no other

    def bring_to_front(self) -> None:
        self.show()
        self.raise_()


class CardDock(PanelDock):
    """A dock that looks like a panel: a rounded card with the title inside."""

    def __init__(self, title: str, name: str, content: QWidget) -> None:
        super().__init__(title, name, content)
        theme_notifier().changed.connect(self.update)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(theme().color("border"))
        painter.setBrush(theme().color("panel"))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), RADIUS, RADIUS)


class _TitleBar(QWidget):
    """Title and close button; QDockWidget drags by the rest. A dock behind tabs has its title
    there."""

    def __init__(self, dock: QDockWidget) -> None:
        super().__init__(dock)
        self.title = label(dock.windowTitle(), "title")
        close = IconButton("close", "Close (reopen from the View menu)", dock.close)
        close.setAccessibleName(f"Close {dock.windowTitle()}")
        self._above = SPACE_2 if isinstance(dock, CardDock) else 0
        self._row = hbox(self.title, STRETCH, close, of=self, spacing=-1)
        self.show_title(True)

    def show_title(self, is_shown: bool) -> None:
        self.title.setVisible(is_shown)
        above, below = (self._above, SPACE_1) if is_shown else (1, 0)
        self._row.setContentsMargins(SPACE_3, above, SPACE_2, below)


class DockArea(QMainWindow):
    """The page in the middle and docks around it. `dragged(height)`, `divided(widths)`: the user
    resized the docks below the page. `pressed`, `released`: a separator."""

    resized = Signal()
    pressed = Signal()
    released = Signal()
    dragged = Signal(int)
    divided = Signal(tuple)

    def __init__(self, page: QWidget, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowFlags(Qt.WindowType.Widget)
        self.setObjectName("dock-area")
        self.setDockNestingEnabled(True)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.NoContextMenu)
        self.setCentralWidget(page)
        # The settings keep the full height; the charts lie below the page.
        areas = Qt.DockWidgetArea
        self.setCorner(Qt.Corner.BottomRightCorner, areas.RightDockWidgetArea)
        self.setCorner(Qt.Corner.BottomLeftCorner, areas.LeftDockWidgetArea)
        self.setTabPosition(areas.AllDockWidgetAreas, QTabWidget.TabPosition.North)
        self._pressed_at: tuple[int, tuple[int, ...]] = (0, ())
        self._untabbed = QByteArray()
        self._title_timer = QTimer(self, singleShot=True, interval=0)
        self._title_timer.timeout.connect(self._show_titles)

    # Titles --------------------------------------------------------------------------------------

    def _show_titles(self) -> None:
        """A dock in a group of tabs has its name there."""
        for dock in self.docks:
            if isinstance(dock, PanelDock):
                others = self.tabifiedDockWidgets(dock)
                is_tab = not dock.isFloating() and any(not other.isHidden() for other in others)
                dock.title_bar.show_title(not is_tab)
        policies, direct = Qt.FocusPolicy, Qt.FindChildOption.FindDirectChildrenOnly
        for bar in self.findChildren(QTabBar, options=direct):  # Qt keeps empty ones out of sight
            bar.setFocusPolicy(policies.TabFocus if bar.count() else policies.NoFocus)
            bar.setElideMode(Qt.TextElideMode.ElideNone)  # it scrolls

    # The size of the docks below -----------------------------------------------------------------

    def below(self) -> list[QDockWidget]:
        """The visible docks below the page, if they form one row."""
        place = Qt.DockWidgetArea.BottomDockWidgetArea
        seen = [
            dock for dock in self.docks
            if self.dockWidgetArea(dock) is place
            and not dock.isFloating() and not dock.visibleRegion().isEmpty()
        ]  # fmt: skip
        return seen if len({dock.height() for dock in seen}) == 1 else []

    @property
    def height_below(self) -> int:
        """0: none, or not in one row."""
        return next((dock.height() for dock in self.below()), 0)

    def set_height_below(self, height: int) -> None:
        docks = self.below()
        self.resizeDocks(docks, [height] * len(docks), Qt.Orientation.Vertical)

    @property
    def widths_below(self) -> tuple[int, ...]:
        """From left to right."""
        return tuple(dock.width() for dock in self._row_below())

    def divide_below(self, shares: Sequence[int]) -> None:
        """Resize the docks below, from left to right, to these shares of their width."""
        docks = self._row_below()
        if len(docks) == len(shares) and self.widths_below != tuple(shares):
            self.resizeDocks(docks, list(shares), Qt.Orientation.Horizontal)

    def _row_below(self) -> list[QDockWidget]:
        return sorted(self.below(), key=lambda dock: dock.x())

    def event(self, event: QEvent) -> bool:
        """Only presses on the separators arrive here."""
        if event.type() is QEvent.Type.MouseButtonPress:
            self._pressed_at = self.height_below, self.widths_below
            self.pressed.emit()
        taken = super().event(event)
        if event.type() is QEvent.Type.MouseButtonRelease:
            QTimer.singleShot(0, self, self._released)  # what was moved is laid out by then
        return taken

    def _released(self) -> None:
        height, widths = self.height_below, self.widths_below
        before, widths_before = self._pressed_at
        if height and height != before:
            self.dragged.emit(height)
        if widths != widths_before:
            self.divided.emit(widths)
        self.released.emit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.resized.emit()

    # Places --------------------------------------------------------------------------------------

    @property
    def docks(self) -> list[QDockWidget]:
        return self.findChildren(QDockWidget, options=Qt.FindChildOption.FindDirectChildrenOnly)

    def take(self, docks: Sequence[QDockWidget]) -> None:
        """Register the docks, closed and untabbed: otherwise Qt leaves an old tab bar in a corner
        of the page when it restores a state."""
        for dock in docks:
            self.addDockWidget(Qt.DockWidgetArea.BottomDockWidgetArea, dock)
            dock.hide()
            for changed in (dock.visibilityChanged, dock.topLevelChanged, dock.dockLocationChanged):
                changed.connect(self._title_timer.start)
        self._untabbed = self.saveState()

    def arrange(self, plan: DockPlan, settings: QDockWidget, others: Sequence[QDockWidget]) -> None:
        areas = Qt.DockWidgetArea
        self.restoreState(self._untabbed)  # dissolves stacks: Qt would leave their tab bars
        for dock in (settings, *others):
            dock.setFloating(False)
            self.removeDockWidget(dock)
        self.addDockWidget(areas.LeftDockWidgetArea, settings)
        settings.setVisible(plan.has_settings)
        by_name = {dock.objectName(): dock for dock in others}
        stacks = [[by_name[name] for name in names] for names in plan.below]
        for number, stack in enumerate(stacks):
            if number:
                self.splitDockWidget(stacks[number - 1][0], stack[0], Qt.Orientation.Horizontal)
            else:
                self.addDockWidget(areas.BottomDockWidgetArea, stack[0])
        for stack in stacks:
            for dock, following in pairwise(stack):
                self.tabifyDockWidget(dock, following)
            for dock in stack:
                dock.show()
            stack[0].raise_()
        named = [dock for stack in stacks for dock in stack]
        for dock in others:
            if dock not in named:  # it has a place, for when it is opened: one more tab
                self.addDockWidget(areas.BottomDockWidgetArea, dock)
                if named:
                    self.tabifyDockWidget(named[-1], dock)
                named.append(dock)
                dock.hide()

    def save(self) -> QByteArray:
        return self.saveState(LAYOUT_VERSION)

    def restore(self, state: QByteArray, version: int = LAYOUT_VERSION) -> bool:
        """Restore the docks; those that float on a missing screen dock again."""
        restored = not state.isEmpty() and self.restoreState(state, version)
        QTimer.singleShot(0, self, self.bring_home)
        return restored

    def bring_home(self) -> None:
        for dock in self.docks:
            if dock.isFloating() and not is_on_a_screen(dock):
                dock.setFloating(False)


def is_on_a_screen(window: QWidget) -> bool:
    """Whether enough of a window is visible to drag it."""
    frame = window.frameGeometry()
    for screen in QGuiApplication.screens():
        seen = frame.intersected(screen.availableGeometry())
        if seen.width() >= 64 and seen.height() >= 32:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the rail. `commands`: for the menus; `changed`: their state may have changed.
    `docks`: at the first visit. `may_close(window)` is called before the window closes; a page that
    returns False asks the user and closes the window itself. `shows(name)`: show the view of the
    dock of this name in the page itself; False where the page has none."""

    name: str
    icon: str
    widget: QWidget
    commands: tuple[Command, ...] = ()
    changed: tuple[SignalInstance, ...] = ()
    docks: DockPlan = CLOSED_DOCKS
    may_close: Callable[[QWidget], bool] = lambda window: True
    shows: Callable[[str], bool] = lambda name: False
