"""Dock positions per page: from this run, the last run, or the page's plan.

Qt shrinks the docks below the page in a low or narrow window and does not grow them again as they
were, and widens docks for larger text for ever: this restores the sizes that the user or the plan
chose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from PySide6.QtCore import QByteArray, QObject, Qt, QTimer, Signal

from app.window.dock_fold import DockFold
from app.window.docks import FIRST_VERSION, LAYOUT_VERSION, DockArea, DockPlan, PanelDock
from app.window.settings_store import SettingsStore
from widgets.theme.fonts import scaled, text_scale
from widgets.theme.restyling import restyling

SETTINGS_WIDTH = 320
_WIDTH = "docks/settings-width"
"""Stored: of the engine settings on every page, in pixels at the default text size."""


class DockLayouts(QObject):
    """`pages`: names, the first one shown first. `plan(page)`: docks at the first visit of a page.
    `unreadable(page)`: its stored state has another version."""

    unreadable = Signal(str)

    def __init__(
        self,
        area: DockArea,
        settings_dock: PanelDock,
        others: Sequence[PanelDock],
        pages: Sequence[str],
        store: SettingsStore,
        plan: Callable[[str], DockPlan],
    ) -> None:
        super().__init__(area)
        self._area, self._settings, self._others = area, settings_dock, others
        self._fold = DockFold(area, settings_dock)
        self._pages, self._store, self._plan = pages, store, plan
        self._page = pages[0] if pages else ""
        self._is_placed = False  # the docks of a page; before that they have no place to store
        self._states: dict[str, QByteArray] = {}
        # of the docks below, by page; 0: as planned, None: not known
        self._heights: dict[str, int | None] = {}
        self._shares: dict[str, tuple[int, ...]] = {}  # of their widths, by page
        self._later = QTimer(self)
        self._later.setSingleShot(True)
        self._later.timeout.connect(self._give_back)
        area.resized.connect(self._later.start)
        area.dragged.connect(self._keep_height)
        area.divided.connect(self._keep_shares)
        stored = store.text(_WIDTH, "")
        self._width = int(stored) if stored.isdecimal() else SETTINGS_WIDTH
        self._pressed_at = 0  # pixels of the settings
        area.pressed.connect(self._on_pressed)
        area.released.connect(self._on_released)
        self._widen = QTimer(self, singleShot=True)
        self._widen.timeout.connect(self._place_settings)
        self._widen.timeout.connect(self._divide)
        settings_dock.visibilityChanged.connect(self._on_seen)
        restyling().arranged.connect(self._after_text_size)

    def show_page(self, page: str) -> None:
        """Store the docks of the current page and restore those of another."""
        self._store_state()
        self._page = page
        self.restore()

    def _store_state(self) -> None:
        if self._is_placed:
            self._states[self._page] = self._fold.state()

    def reset(self) -> None:
        """Arrange this page as at its first visit."""
        self._is_placed = True
        self._fold.forget()
        self._area.arrange(self._plan(self._page), self._settings, self._others)
        self._size()

    def restore(self) -> None:
        """Restore this page; without a stored state, as at its first visit."""
        state = self._state(self._page)
        self._fold.forget()
        if self._area.restore(state):
            self._is_placed = True
            self._later.start()
            self._widen.start()
            return
        self.reset()
        if not state.isEmpty():
            self.unreadable.emit(self._page)
        # Sizes of docks hold only once the window has its own.
        QTimer.singleShot(0, self, self._size)

    def restore_earlier(self) -> bool:
        """Restore this page from a state of an earlier version."""
        state = self._state(self._page)
        versions = range(FIRST_VERSION, LAYOUT_VERSION)
        return any(self._area.restore(state, version) for version in versions)

    def states(self) -> dict[str, bytes]:
        """The states of every page visited in this layout."""
        self._store_state()
        found = {page: self._state(page) for page in self._pages}
        return {page: bytes(state.data()) for page, state in found.items() if not state.isEmpty()}

    def adopt(self, states: Mapping[str, bytes]) -> None:
        """Replace the states of all pages; pages not in `states` are as at a first visit."""
        self._states = {page: QByteArray(states.get(page, b"")) for page in self._pages}
        self._heights = dict.fromkeys(self._pages)  # as these states have them
        self._shares = {}
        self.write()
        self.restore()

    def keep(self) -> None:
        """Store all states for the next run."""
        self._store.set_text(_WIDTH, f"{self._width}")
        self._store_state()
        self.write()

    def write(self) -> None:
        for page, state in self._states.items():
            self._store.set_docks_of(page, state)
        for page, height in self._heights.items():
            self._store.set_dock_height_of(page, height)

    def _state(self, page: str) -> QByteArray:
        known = self._states.get(page)
        return known if known is not None else self._store.docks_of(page)

    def _size(self) -> None:
        plan, sizes = self._plan(self._page), Qt.Orientation
        self._width = SETTINGS_WIDTH
        self._place_settings()
        self._heights[self._page] = 0
        height = self._planned_height()
        by_name = {dock.objectName(): dock for dock in self._others}
        stacks = [by_name[names[0]] for names in plan.below]
        self._area.resizeDocks(stacks, [height] * len(stacks), sizes.Vertical)
        self._shares[self._page] = (1,) * len(stacks)
        self._area.resizeDocks(stacks, [1] * len(stacks), sizes.Horizontal)
        self._later.start()

    def _planned_height(self) -> int:
        return self._plan(self._page).height_in(self._area.window().height())

    # The engine settings -------------------------------------------------------------------------

    @property
    def _width_now(self) -> int:
        """Pixels of the docked settings; 0 if they are closed, behind a tab or floating."""
        is_seen = not self._settings.visibleRegion().isEmpty()
        return self._settings.width() if is_seen and not self._settings.isFloating() else 0

    def _on_seen(self, is_seen: bool) -> None:
        if is_seen:
            self._widen.start()

    def _on_pressed(self) -> None:
        self._pressed_at = self._width_now

    def _on_released(self) -> None:
        """Learn the width that the user dragged; the window and the page's text change it too."""
        width = self._width_now
        if width and width != self._pressed_at:
            self._width = round(width / max(1.0, text_scale()))

    def _place_settings(self) -> None:
        self._area.resizeDocks([self._settings], [scaled(self._width)], Qt.Orientation.Horizontal)

    def _after_text_size(self) -> None:
        self._place_settings()
        self._later.start()
        height = self._height_wanted()
        if height and self._area.height_below > height:
            self._area.set_height_below(height)

    # In a window that changes its size -----------------------------------------------------------

    def _keep_height(self, height: int) -> None:
        self._heights[self._page] = height

    def _keep_shares(self, widths: tuple[int, ...]) -> None:
        self._shares[self._page] = widths

    def _height_wanted(self) -> int:
        """0: not known."""
        if self._page not in self._heights:
            self._heights[self._page] = self._store.dock_height_of(self._page)
        height = self._heights[self._page]
        return 0 if height is None else height or self._planned_height()

    def _give_back(self) -> None:
        if self._fold.fit(self._planned_height()):
            self._widen.start()
        if 0 < self._area.height_below < (height := self._height_wanted()):
            self._area.set_height_below(height)
        self._divide()

    def _divide(self) -> None:
        widths = self._area.widths_below
        if not widths:
            return
        shares = self._shares.setdefault(self._page, widths)  # as the restored state has them
        if len(shares) != len(widths):  # a dock was opened or closed since
            self._shares[self._page] = widths
        elif len(widths) > 1:
            self._area.divide_below(shares)
