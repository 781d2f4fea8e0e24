"""The look: one table of named colours per mode, and what Qt is told about it.

Widgets use the names (`theme().accent`, `theme().color("kv_used")`), never a literal, and paint
again when `theme_notifier().changed` says that the table was exchanged. The tables are
`light.json` and `dark.json` in the theme folder.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QColor, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication, QWidget

from widgets.theme.colors import MINIMUM_GRAPHIC_CONTRAST, readable
from widgets.theme.fonts import figure_font, mono_font, point_size, ui_font
from widgets.theme.restyling import Change, restyling

__all__ = [
    "RADIUS", "SPACE_1", "SPACE_2", "SPACE_3", "SPACE_4", "SPACE_6", "SPACE_8",
    "SeriesColors", "Theme", "apply_theme", "figure_font", "load_theme", "mono_font",
    "point_size", "renew_look", "restyle", "set_theme_folder", "styled_together", "theme",
    "theme_mode", "theme_notifier", "ui_font",
]  # fmt: skip

Mode = Literal["light", "dark"]
ModeSetting = Literal["light", "dark", "system"]

# The 4-pixel grid.
SPACE_1, SPACE_2, SPACE_3, SPACE_4, SPACE_6, SPACE_8 = 4, 8, 12, 16, 24, 32
RADIUS = 6  # corners of panels; controls have 4


@dataclass(frozen=True, slots=True)
class SeriesColors:
    """What a colour means in every chart, map and timeline (Okabe-Ito, safe for the colour-blind).

    `owners` colours blocks by the request that holds them, in turn.
    """

    weights: str
    kv_used: str
    kv_cached: str
    other: str
    limit: str
    gpu_memory: str
    queued: str
    prefill: str
    cached: str
    decode: str
    draft: str
    preempted: str
    free: str
    p50: str
    p99: str
    tokens_in: str
    tokens_out: str
    running: str
    waiting: str
    kv_usage: str
    arithmetic: str
    launch: str
    python: str
    prefix_hits: str
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Theme:
    """Named colours of one mode, each "#rrggbb". Surfaces: window, panel and raised."""

    mode: Mode
    window: str
    panel: str
    raised: str
    border: str
    border_strong: str
    text: str
    text_muted: str
    text_disabled: str
    accent: str
    accent_text: str
    accent_hover: str
    accent_pressed: str
    hover: str
    pressed: str
    selection: str
    selection_text: str
    danger: str
    danger_text: str
    warning: str
    success: str
    badge_live: str
    badge_rebuild: str
    badge_reload: str
    state_idle: str
    state_busy: str
    state_loading: str
    state_error: str
    code_background: str
    code_text: str
    code_keyword: str
    code_string: str
    code_number: str
    code_comment: str
    code_function: str
    code_name: str
    user_bubble: str
    scrollbar: str
    grid: str
    axis: str
    sample_dot: str
    series: SeriesColors

    @property
    def is_dark(self) -> bool:
        return self.mode == "dark"

    def value(self, name: str) -> str:
        """A colour, or a series colour, by name. Raises KeyError for an unknown one."""
        for table in (self, self.series):
            found = getattr(table, name, None)
            if isinstance(found, str) and found.startswith("#"):
                return found
        raise KeyError(f"The theme has no colour named {name!r}.")

    def color(self, name: str, alpha: float = 1.0) -> QColor:
        """`value(name)` as a QColor with opacity `alpha` (0 to 1)."""
        found = QColor(self.value(name))
        found.setAlphaF(alpha)
        return found

    def line_color(self, name: str) -> str:
        """A series colour for a thin line on a panel: at least 3:1 against it."""
        return _readable(self.value(name), self.panel, MINIMUM_GRAPHIC_CONTRAST)

    def label_color(self, name: str, surface: str = "panel") -> str:
        """A series colour for text on `surface`: at least 4.5:1 against it."""
        return _readable(self.value(name), self.value(surface), 4.5)


_readable = cache(readable)


class ThemeNotifier(QObject):
    """Says that another theme is in force; holds what lives as long as the application."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setting: ModeSetting = "light"
        # coloured images that the stylesheet refers to; removed when the process ends
        self.images = TemporaryDirectory(prefix="inferdeck-theme-")
        self.preparations: list[Callable[[Theme], Iterator[None]]] = []
        """What is worth doing, piece by piece, before a theme is put in force."""
        self.follows: QGuiApplication | None = None

    def follow(self, app: QGuiApplication) -> None:
        """React when the desktop changes between light and dark, from now on."""
        if self.follows is not app:
            self.follows = app
            app.styleHints().colorSchemeChanged.connect(self._system_changed)

    def _system_changed(self) -> None:
        app = QApplication.instance()
        if self.setting == "system" and isinstance(app, QApplication):
            _put_in_force(app, _system_mode(app))


_folder = Path(__file__).parents[2] / "resources" / "theme"
_current: Theme | None = None
_wanted: Theme | None = None  # the one in force, or about to be


@cache
def theme_notifier() -> ThemeNotifier:
    """The one notifier: connect to its `changed`."""
    notifier = ThemeNotifier()
    restyling().exchanged.connect(notifier.changed)
    return notifier


def set_theme_folder(path: Path) -> None:
    """Where light.json and dark.json are; call before `apply_theme`."""
    global _folder
    _folder = Path(path)
    load_theme.cache_clear()


@cache
def load_theme(mode: Mode) -> Theme:
    """The table of one mode. Raises ValueError that names missing, unknown or malformed colours."""
    path = _folder / f"{mode}.json"
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    series: dict[str, Any] = values.pop("series", {})
    _check_names(path, Theme, {*values, "series"})
    _check_names(path, SeriesColors, set(series))
    owners = tuple(series.pop("owners"))
    found = Theme(**values, series=SeriesColors(**series, owners=owners))
    colors = [v for k, v in values.items() if k != "mode"] + [*series.values(), *owners]
    bad = [c for c in colors if not QColor.isValidColorName(c) or len(c) != 7]
    if bad or found.mode != mode:
        raise ValueError(f"{path}: not a colour of the form #rrggbb: {bad}, mode {found.mode}")
    return found


def _check_names(path: Path, table: type, names: set[str]) -> None:
    expected = {field.name for field in dataclasses.fields(table)}
    if names != expected:
        missing, unknown = sorted(expected - names), sorted(names - expected)
        raise ValueError(f"{path}: missing {missing}, unknown {unknown}")


def theme() -> Theme:
    """The theme in force (light until `apply_theme` was called)."""
    return _current or load_theme("light")


def theme_mode() -> ModeSetting:
    """What the user chose: light, dark, or to follow the system."""
    return theme_notifier().setting


def apply_theme(app: QApplication, mode: ModeSetting = "system") -> None:
    """Give the whole application our look in `mode`; call again to change it."""
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


@contextmanager
def styled_together(app: QApplication) -> Iterator[None]:
    """Build many widgets inside: the stylesheet is put on all of them at the end. With it in force
    Qt styles a widget, and all that is in it, anew whenever it is put into another."""
    sheet = app.styleSheet()
    app.setStyleSheet("")
    try:
        yield
    finally:
        app.setStyleSheet(sheet)


def _system_mode(app: QApplication) -> Mode:
    return "dark" if app.styleHints().colorScheme() is Qt.ColorScheme.Dark else "light"


def _put_in_force(app: QApplication, mode: Mode) -> None:
    global _wanted
    found = load_theme(mode)
    if found is not _wanted or not app.styleSheet():
        _wanted = found
        renew_look(app, partial(_set_current, app, found), _prepared(found))
    else:
        _tell_desktop(app)


def _set_current(app: QApplication, table: Theme) -> None:
    global _current
    _current = table
    _tell_desktop(app)


def _tell_desktop(app: QApplication) -> None:
    """What the desktop draws of our windows follows the user's choice."""
    schemes = {"dark": Qt.ColorScheme.Dark, "light": Qt.ColorScheme.Light}
    chosen = schemes.get(theme_notifier().setting)
    if chosen is not None:
        app.styleHints().setColorScheme(chosen)


def _prepared(table: Theme) -> Iterator[None]:
    for prepare in theme_notifier().preparations:
        yield from prepare(table)


def renew_look(app: QApplication, change: Callable[[], None], prepare: Iterable[None] = ()) -> None:
    """Give the application its look again once `change` has exchanged the theme, or fonts."""

    def exchange() -> None:
        change()
        app.setFont(ui_font())
        app.setPalette(palette(theme()))

    restyling().put(Change(exchange, prepare), _sheet)


def _sheet() -> str:
    from widgets.theme.stylesheet import stylesheet  # imports this module

    return stylesheet(theme(), Path(theme_notifier().images.name))


def palette(table: Theme) -> QPalette:
    """The palette that Fusion paints with where the stylesheet says nothing."""
    roles: dict[QPalette.ColorRole, str] = {
        QPalette.ColorRole.Window: table.window,
        QPalette.ColorRole.WindowText: table.text,
        QPalette.ColorRole.Base: table.panel,
        QPalette.ColorRole.AlternateBase: table.raised,
        QPalette.ColorRole.Text: table.text,
        QPalette.ColorRole.PlaceholderText: table.text_muted,
        QPalette.ColorRole.Button: table.raised,
        QPalette.ColorRole.ButtonText: table.text,
        QPalette.ColorRole.BrightText: table.danger,
        QPalette.ColorRole.ToolTipBase: table.raised,
        QPalette.ColorRole.ToolTipText: table.text,
        QPalette.ColorRole.Highlight: table.selection,
        QPalette.ColorRole.HighlightedText: table.selection_text,
        QPalette.ColorRole.Link: table.accent,
        QPalette.ColorRole.LinkVisited: table.accent,
        QPalette.ColorRole.Accent: table.accent,
        QPalette.ColorRole.Light: table.raised,
        QPalette.ColorRole.Midlight: table.border,
        QPalette.ColorRole.Mid: table.border,
        QPalette.ColorRole.Dark: table.border_strong,
        QPalette.ColorRole.Shadow: table.border_strong,
    }
    made = QPalette()
    for role, color in roles.items():
        made.setColor(role, QColor(color))
    texts = (QPalette.ColorRole.WindowText, QPalette.ColorRole.Text, QPalette.ColorRole.ButtonText)
    for role in texts:
        made.setColor(QPalette.ColorGroup.Disabled, role, QColor(table.text_disabled))
    return made


def restyle(widget: QWidget, **properties: object) -> None:
    """Set properties that the stylesheet asks for (kind, badge, role...) and apply their style."""
    for name, value in properties.items():
        widget.setProperty(name, value)
    style = widget.style()
    style.unpolish(widget)
    style.polish(widget)
    widget.update()
