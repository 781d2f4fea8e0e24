"""The navigation rail: a button for each page, actions at the bottom."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QFontMetrics, QResizeEvent
from PySide6.QtWidgets import QButtonGroup, QFrame, QSizePolicy, QToolButton, QWidget

from widgets.controls.layouts import STRETCH, vbox
from widgets.controls.text import set_key_tip
from widgets.theme.fonts import scaled
from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_1, SPACE_2, theme_notifier, ui_font

WIDTH, BESIDE_ICON = 72, 14
"""Pixels with texts at their default size; beside an icon without."""
ICON = QSize(20, 20)


class NavRail(QFrame):
    """`page_chosen`: the index of the page."""

    page_chosen = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", True)
        self._fit()
        theme_notifier().changed.connect(self._fit)
        self._group = QButtonGroup(self)
        self._group.setExclusive(True)
        self._group.idClicked.connect(self.page_chosen)
        self._pages, self._actions = vbox(spacing=SPACE_1), vbox(spacing=SPACE_1)
        margins = (1, SPACE_2, 1, SPACE_2)
        vbox(self._pages, STRETCH, self._actions, of=self, spacing=-1, margins=margins)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def minimumSizeHint(self) -> QSize:
        """With icons alone."""
        count = len(self.findChildren(QToolButton))
        return QSize(self.width(), count * (ICON.height() + 3 * SPACE_2) + 2 * SPACE_2)

    def _fit(self) -> None:
        """Texts are below the icons in a window that is high enough for all of them; else the rail
        is as narrow as its icons. These grow with the text where there is room for both."""
        buttons = self.findChildren(QToolButton)
        line = QFontMetrics(ui_font("small")).height()
        needed = len(buttons) * (ICON.height() + line + 3 * SPACE_2) + 2 * SPACE_2
        styles = Qt.ToolButtonStyle
        has_room = needed <= self.height()
        side = scaled(ICON.height())
        if not has_room:
            needed -= len(buttons) * line
        is_roomy = needed + len(buttons) * (side - ICON.height()) <= self.height()
        icon = side if is_roomy else ICON.height()
        self.setFixedWidth(scaled(WIDTH) if has_room else icon + 2 * BESIDE_ICON)
        for button in buttons:
            button.setIconSize(QSize(icon, icon))
            button.setToolButtonStyle(
                styles.ToolButtonTextUnderIcon if has_room else styles.ToolButtonIconOnly
            )

    def add_page(self, text: str, icon: str) -> None:
        button = _nav_button(text, icon)
        button.setCheckable(True)
        index = len(self._group.buttons())
        set_key_tip(button, text, f"page.{text.lower()}")
        self._group.addButton(button, index)
        self._pages.addWidget(button)

    def add_action(
        self, text: str, icon: str, tip: str, command: str, run: Callable[[str], object]
    ) -> QToolButton:
        """A button that runs a command; its tooltip names the command's keys."""
        button = _nav_button(text, icon)
        set_key_tip(button, tip, command)
        button.clicked.connect(lambda: run(command))
        self._actions.addWidget(button)
        return button

    def choose(self, index: int) -> None:
        """Mark page `index`; emits nothing."""
        self._group.button(index).setChecked(True)


def _nav_button(text: str, icon: str) -> QToolButton:
    button = QToolButton()
    button.setProperty("kind", "nav")
    button.setText(text)
    button.setAccessibleName(text)
    button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextUnderIcon)
    button.setIconSize(ICON)
    button.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
    set_icon(button, icon)
    return button
