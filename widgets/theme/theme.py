"""The theme in force: applying it, its notifier, the palette, spacing, the size of all text.

Widgets use colour names (`theme().accent`, `theme().color("kv_used")`), never a literal, and
repaint on `theme_notifier().changed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

import shiboken6
from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication, QWidget

from widgets.theme.fonts import (
    SizeRole,
    figure_font,
    mono_font,
    point_size,
    set_text_scale,
    ui_font,
)
from widgets.theme.restyling import Change, restyling
from widgets.theme.stylesheet import stylesheet
from widgets.theme.tables import Mode, SeriesColors, Theme, load_theme

__all__ = [
    "RADIUS", "SPACE_1", "SPACE_2", "SPACE_3", "SPACE_4", "SPACE_6", "SPACE_8", "SeriesColors",
    "Theme", "apply_text_size", "apply_theme", "figure_font", "load_theme", "mono_font",
    "point_size", "renew_look", "restyle", "theme", "theme_notifier", "ui_font",
]  # fmt: skip

ModeSetting = Literal["light", "dark", "system"]

# The 4-pixel grid.
SPACE_1, SPACE_2, SPACE_3, SPACE_4, SPACE_6, SPACE_8 = 4, 8, 12, 16, 24, 32
RADIUS = 6  # corners of panels; controls have 4


class ThemeNotifier(QObject):
    """Emits `changed`; owns objects that live as long as the application."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setting: ModeSetting = "light"  # what the user chose
        # coloured images that the stylesheet refers to; removed when the process ends
        self.images = TemporaryDirectory(prefix="inferdeck-theme-")
        self.preparations: list[Callable[[Theme], Iterator[None]]] = []
        """Work to do in slices before a theme is applied."""
        self.follows: QGuiApplication | None = None

    def follow(self, app: QGuiApplication) -> None:
        """Follow the desktop between light and dark from now on."""
        if self.follows is not app:
            self.follows = app
            app.styleHints().colorSchemeChanged.connect(self._system_changed)

    def _system_changed(self) -> None:
        app = QApplication.instance()
        if self.setting == "system" and isinstance(app, QApplication):
            _put_in_force(app, _system_mode(app))


_current: Theme | None = None
_wanted: Theme | None = None  # the one in force, or about to be


@cache
def theme_notifier() -> ThemeNotifier:
    """The notifier of the application: connect to its `changed`."""
    notifier = ThemeNotifier()
    restyling().exchanged.connect(notifier.changed)
    return notifier


def theme() -> Theme:
    """The current theme (light until `apply_theme` was called)."""
    return _current or load_theme("light")


def apply_theme(app: QApplication, mode: ModeSetting = "system") -> None:
    """Apply the theme of `mode` to the whole application."""
    notifier = theme_notifier()
    notifier.setting = mode
    notifier.follow(app)
    if not app.styleSheet() and app.style().name().lower() != "fusion":
        app.setStyle("Fusion")  # under a stylesheet, which has no name, it is there already
    if mode == "system":
        app.styleHints().unsetColorScheme()
        _put_in_force(app, _system_mode(app))
    else:
        _put_in_force(app, mode)


def _system_mode(app: QApplication) -> Mode:
    return "dark" if app.styleHints().colorScheme() is Qt.ColorScheme.Dark else "light"


def _put_in_force(app: QApplication, mode: Mode) -> None:
    global _wanted
    found = load_theme(mode)
    if found is not _wanted or not app.styleSheet():
        _wanted = found
        prepare = (done for each in theme_notifier().preparations for done in each(found))
        renew_look(app, partial(_set_current, app, found), prepare)
    else:
        _tell_desktop(app)


def _set_current(app: QApplication, table: Theme) -> None:
    global _current
    _current = table
    _tell_desktop(app)


def _tell_desktop(app: QApplication) -> None:
    """Window decorations follow the user's choice."""
    schemes = {"dark": Qt.ColorScheme.Dark, "light": Qt.ColorScheme.Light}
    chosen = schemes.get(theme_notifier().setting)
    if chosen is not None:
        app.styleHints().setColorScheme(chosen)


def renew_look(
    app: QApplication, change: Callable[[], None] = lambda: None,
    prepare: Iterable[None] = (), begin: Iterable[None] = (),
) -> None:  # fmt: skip
    """Restyle the application after `change` has exchanged the theme. `prepare` and `begin`: work
    before it, see `Change`."""

    def exchange() -> None:
        change()
        app.setFont(ui_font())
        app.setPalette(palette(theme()))

    images = Path(theme_notifier().images.name)
    restyling().put(Change(exchange, prepare, begin), lambda: stylesheet(theme(), images))


_PALETTE = {
    "window": "Window",
    "panel": "Base",
    "raised": "AlternateBase Button ToolTipBase Light",
    "text": "WindowText Text ButtonText ToolTipText",
    "text_muted": "PlaceholderText",
    "danger": "BrightText",
    "selection": "Highlight",
    "selection_text": "HighlightedText",
    "accent": "Link LinkVisited Accent",
    "border": "Midlight Mid",
    "border_strong": "Dark Shadow",
}
"""Theme colour -> palette roles."""


def palette(table: Theme) -> QPalette:
    """The palette that Fusion uses where the stylesheet says nothing."""
    made, roles = QPalette(), QPalette.ColorRole
    for color, names in _PALETTE.items():
        for name in names.split():
            made.setColor(roles[name], table.color(color))
    for role in (roles.WindowText, roles.Text, roles.ButtonText):
        made.setColor(QPalette.ColorGroup.Disabled, role, table.color("text_disabled"))
    return made


def restyle(widget: QWidget, **properties: object) -> None:
    """Set properties used by the stylesheet (kind, badge, role...) and apply their style."""
    if all(widget.property(name) == value for name, value in properties.items()):
        return
    for name, value in properties.items():
        widget.setProperty(name, value)
    style = widget.style()
    style.unpolish(widget)
    style.polish(widget)
    widget.update()


KEPT_FONT = "_q_styleSheetWidgetFont"
"""The property in which QStyleSheetStyle stores a widget's own font, to restore it with every new
sheet."""
_wanted_scale = 1.0  # text_scale(), or what it is about to be


def apply_text_size(app: QApplication, percent: int) -> None:
    """Set the text size of all current and future widgets to `percent` of the system's."""
    global _wanted_scale
    if percent / 100 == _wanted_scale:
        return
    _wanted_scale = percent / 100
    if app.styleSheet():
        renew_look(app, begin=_scale_fonts(app, _wanted_scale))
    else:
        for _ in _scale_fonts(app, _wanted_scale):
            pass


def _scale_fonts(app: QApplication, scale: float) -> Iterator[None]:
    """Of all widgets that have a font of their own, in slices."""
    roles: tuple[SizeRole, ...] = get_args(SizeRole)
    before = {point_size(role): role for role in roles}
    set_text_scale(scale)
    for widget in app.allWidgets():
        yield
        if not shiboken6.isValid(widget) or not widget.testAttribute(
            Qt.WidgetAttribute.WA_SetFont
        ):
            continue
        font = widget.font()  # its own: the application's does not reach it
        role = before.get(round(font.pointSizeF(), 1))
        if role is not None:
            font.setPointSizeF(point_size(role))
            widget.setFont(font)
            if widget.property(KEPT_FONT) is not None:
                widget.setProperty(KEPT_FONT, font)
