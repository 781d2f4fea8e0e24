"""One family of icons, in the theme's colours, crisp on every screen."""

from __future__ import annotations

import re

import pytest
from PySide6.QtCore import QSize
from PySide6.QtGui import QColor, QIcon, QImage
from PySide6.QtWidgets import QApplication, QToolButton

from widgets.theme import icons
from widgets.theme.icons import icon, icon_pixmap, set_icon
from widgets.theme.theme import apply_theme, theme

NEEDED = [
    "chat", "tune", "models", "benchmark", "server", "settings", "send", "stop", "regenerate",
    "edit", "copy", "delete", "undo", "search", "plus", "folder", "close", "chevron-down",
    "chevron-right", "chevron-left", "info", "warning", "error", "check", "chip", "memory",
    "play", "pause", "more", "moon", "sun", "system", "branch", "download",
]  # fmt: skip

NAMES = sorted(file.stem for file in icons._folder.glob("*.svg"))


@pytest.fixture(autouse=True)
def light(qapp: QApplication):
    apply_theme(qapp, "light")
    yield
    apply_theme(qapp, "light")


def ink(image: QImage) -> int:
    """Pixels that are drawn at all."""
    return sum(
        image.pixelColor(x, y).alpha() > 40
        for x in range(image.width())
        for y in range(image.height())
    )


def test_the_needed_icons_exist() -> None:
    assert set(NEEDED) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_icon_renders_inside_its_grid(name: str) -> None:
    image = icon_pixmap(name, size=24).toImage()
    assert ink(image) > 8
    border = [(i, j) for i in range(24) for j in (0, 23)]
    assert all(image.pixelColor(x, y).alpha() < 40 for a, b in border for x, y in ((a, b), (b, a)))


@pytest.mark.parametrize("name", NAMES)
def test_icons_are_one_family(name: str) -> None:
    svg = (icons._folder / f"{name}.svg").read_text(encoding="utf-8")
    assert 'viewBox="0 0 24 24"' in svg
    assert 'stroke="currentColor" stroke-width="1.75"' in svg
    assert not re.search(r"#[0-9a-fA-F]{3,6}\b", svg)  # colours come from the theme


def test_an_icon_is_crisp_at_200_percent() -> None:
    for size in (16, 20, 24, 32):
        pixmap = icon("chat").pixmap(QSize(size, size), 2.0)
        assert pixmap.devicePixelRatio() == 2.0
        assert pixmap.width() == 2 * size


def strongest(image: QImage) -> QColor:
    colors = [image.pixelColor(x, y) for x in range(image.width()) for y in range(image.height())]
    return max(colors, key=lambda color: color.alpha())


def test_disabled_and_active_icons_have_their_colours() -> None:
    size = QSize(48, 48)
    made = icon("stop")
    shades = {
        QIcon.Mode.Normal: theme().text_muted,
        QIcon.Mode.Active: theme().text,
        QIcon.Mode.Disabled: theme().text_disabled,
    }
    for mode, expected in shades.items():
        assert strongest(made.pixmap(size, mode).toImage()).name() == expected


def test_bound_icons_change_with_the_theme(qtbot, qapp: QApplication) -> None:
    button = QToolButton()
    qtbot.addWidget(button)
    set_icon(button, "stop", "text")
    before = strongest(button.icon().pixmap(24).toImage()).name()
    apply_theme(qapp, "dark")
    after = strongest(button.icon().pixmap(24).toImage()).name()
    assert (before, after) == ("#1a1d21", theme().text)


def test_unknown_names_are_errors() -> None:
    with pytest.raises(KeyError, match="'chta'"):
        icon("chta")
    with pytest.raises(KeyError, match="'txet'"):
        icon("chat", "txet")
