"""The look comes from one table per mode, is readable, and really reaches the screen."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import msgspec
import pytest
from PySide6.QtGui import QColor, QFont, QPalette
from PySide6.QtWidgets import (
    QApplication,
    QFrame,
    QLabel,
    QMenu,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from widgets.controls.layouts import button
from widgets.theme import tables
from widgets.theme import theme as theme_module
from widgets.theme.fonts import figure_font, has_tabular_digits, mono_font, point_size, ui_font
from widgets.theme.tables import contrast, mix, readable
from widgets.theme.theme import (
    Mode,
    SeriesColors,
    Theme,
    apply_theme,
    load_theme,
    restyle,
    theme,
    theme_notifier,
)

MODES: tuple[Mode, ...] = ("light", "dark")
SURFACES = ("window", "panel", "raised", "hover", "user_bubble", "code_background")
TEXTS = (
    "text", "text_muted", "accent", "danger", "warning", "success", "badge_live", "badge_rebuild",
    "badge_reload",
)  # fmt: skip
PAIRS = [
    *((text, surface) for text in TEXTS for surface in SURFACES),
    *((text, "pressed") for text in ("text", "text_muted")),
    *((text, "selection") for text in ("selection_text", "text", "text_muted")),
    *(("accent_text", surface) for surface in ("accent", "accent_hover", "accent_pressed")),
    ("danger_text", "danger"),
    *(
        (field.name, "code_background")
        for field in msgspec.structs.fields(Theme)
        if field.name.startswith("code_") and field.name != "code_background"
    ),
]
SERIES = [field.name for field in msgspec.structs.fields(SeriesColors) if field.name != "owners"]


@pytest.fixture
def qapp_light(qapp: QApplication):
    yield qapp
    apply_theme(qapp, "light")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("text", "surface"), PAIRS)
def test_text_is_readable_on_every_surface(mode: Mode, text: str, surface: str) -> None:
    table = load_theme(mode)
    assert contrast(table.value(text), table.value(surface)) >= 4.5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SERIES)
def test_series_are_visible_as_lines_and_readable_as_labels(mode: Mode, name: str) -> None:
    table = load_theme(mode)
    assert contrast(table.line_color(name), table.panel) >= 3.0
    assert contrast(table.label_color(name), table.panel) >= 4.5
    assert contrast(table.label_color(name, "raised"), table.raised) >= 4.5


@pytest.mark.parametrize("mode", MODES)
def test_the_three_surfaces_differ_and_are_nearly_grey(mode: Mode) -> None:
    table = load_theme(mode)
    surfaces = [table.window, table.panel, table.raised]
    assert len(set(surfaces)) == 3
    for surface in surfaces:
        color = QColor(surface)
        assert max(color.getRgb()[:3]) - min(color.getRgb()[:3]) <= 12


def test_a_colour_means_the_same_in_every_chart() -> None:
    for mode in MODES:
        series = load_theme(mode).series
        assert series.decode == series.tokens_out == series.kv_used == series.kv_usage
        assert series.prefill == series.tokens_in
        assert series.cached == series.kv_cached == series.prefix_hits
        assert len({series.weights, series.kv_used, series.kv_cached, series.other}) == 4
        assert len({series.prefill, series.cached, series.decode, series.draft,
                    series.preempted}) == 5  # fmt: skip


LEGENDS = (
    ("weights", "kv_used", "kv_cached", "kv_reserved", "other"),
    ("queued", "cached", "prefill", "decode", "draft", "preempted"),
    ("weights", "kv_used", "arithmetic", "launch", "python", "draft", "queued"),
    ("sample_dot", "p50", "p99"),
    ("tokens_in", "tokens_out"),
    ("running", "waiting"),
    ("kv_usage", "prefix_hits"),
    ("decode", "kv_cached", "other"),
    ("prefill", "preempted"),
)


def oklab(color: str) -> tuple[float, float, float]:
    """Lightness and two hue axes of equal visual distance (Ottosson's Oklab)."""
    red, green, blue = (tables._linear(c) for c in tables.rgb(color))
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("legend", LEGENDS)
def test_the_colours_of_a_legend_differ(mode: Mode, legend: tuple[str, ...]) -> None:
    table = load_theme(mode)
    for one, other in itertools.combinations(legend, 2):
        lines = oklab(table.line_color(one)), oklab(table.line_color(other))
        assert math.dist(*lines) > 0.085, (one, other)


@pytest.mark.parametrize("mode", MODES)
def test_weights_and_cached_blocks_have_different_hues(mode: Mode) -> None:
    table = load_theme(mode)
    hues = [QColor(table.value(name)).hsvHue() for name in ("weights", "kv_used", "kv_cached")]
    apart = [abs(a - b) for a, b in itertools.combinations(hues, 2)]
    assert min(min(d, 360 - d) for d in apart) > 30


@pytest.mark.parametrize("mode", MODES)
def test_the_theme_reaches_the_screen(qtbot, qapp_light: QApplication, mode: Mode) -> None:
    apply_theme(qapp_light, mode)
    window = QWidget()
    qtbot.addWidget(window)
    panel = QFrame()
    panel.setProperty("panel", True)
    button = QPushButton("OK")
    button.setProperty("kind", "primary")
    layout = QVBoxLayout(window)
    layout.addWidget(panel)
    layout.addWidget(button)
    window.resize(200, 200)
    window.show()
    image = window.grab().toImage()
    table = load_theme(mode)
    assert image.pixelColor(2, 2).name() == table.window
    assert image.pixelColor(panel.geometry().center()).name() == table.panel
    corner = button.geometry().topLeft()
    assert image.pixelColor(corner.x() + 8, corner.y() + 8).name() == table.accent
    assert qapp_light.palette().color(QPalette.ColorRole.Window).name() == table.window


def test_changing_the_mode_says_so_once(qtbot, qapp_light: QApplication) -> None:
    apply_theme(qapp_light, "light")
    with qtbot.waitSignal(theme_notifier().changed, timeout=1000):
        apply_theme(qapp_light, "dark")
    assert theme().is_dark
    said = []
    theme_notifier().changed.connect(lambda: said.append(1))
    apply_theme(qapp_light, "dark")
    assert not said


def test_system_mode_follows_the_desktop(
    qtbot, qapp_light: QApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    desktop: list[Mode] = ["light"]
    monkeypatch.setattr(theme_module, "_system_mode", lambda app: desktop[0])
    apply_theme(qapp_light, "system")
    assert not theme().is_dark
    desktop[0] = "dark"
    qapp_light.styleHints().colorSchemeChanged.emit(qapp_light.styleHints().colorScheme())
    assert theme().is_dark
    apply_theme(qapp_light, "light")  # chosen by the user: no longer follows
    qapp_light.styleHints().colorSchemeChanged.emit(qapp_light.styleHints().colorScheme())
    assert not theme().is_dark


def test_restyle_applies_a_property_at_once(qtbot, qapp_light: QApplication) -> None:
    apply_theme(qapp_light, "light")
    label = QLabel("reload")
    qtbot.addWidget(label)
    label.show()
    restyle(label, badge="reload")
    assert label.palette().color(QPalette.ColorRole.WindowText).name() == theme().badge_reload


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accent": None}, "light.json: .* missing .* `accent`"),
        ({"accnet": "#000000"}, "unknown field `accnet`"),
        ({"accent": "blue"}, r"\$\.accent"),
        ({"mode": "dim"}, r"\$\.mode"),
    ],
)
def test_a_broken_theme_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str | None], message: str
) -> None:
    values = json.loads((tables._folder / "light.json").read_text(encoding="utf-8"))
    for name, value in change.items():
        if value is None:
            del values[name]
        else:
            values[name] = value
    (tmp_path / "light.json").write_text(json.dumps(values), encoding="utf-8")
    monkeypatch.setattr(tables, "_folder", tmp_path)
    with pytest.raises(ValueError, match=message):
        load_theme.__wrapped__("light")  # not the one that is kept


def test_numbers_that_change_do_not_jump(qapp: QApplication) -> None:
    for weight in (QFont.Weight.Normal, QFont.Weight.DemiBold):
        for role in ("small", "body", "large"):
            assert has_tabular_digits(figure_font(role, weight))
    assert has_tabular_digits(mono_font())


def test_there_are_two_text_sizes_and_a_large_one(qapp: QApplication) -> None:
    assert point_size("small") < point_size("body") < point_size("large")
    assert ui_font("small").pointSizeF() == pytest.approx(point_size("small"))


def test_readable_moves_a_colour_no_further_than_needed() -> None:
    assert readable("#000000", "#ffffff") == "#000000"
    darker = readable("#e69f00", "#ffffff")
    assert 4.5 <= contrast(darker, "#ffffff") < 4.8
    assert mix("#000000", "#ffffff", 0.5) == "#808080"
    with pytest.raises(ValueError, match="rrggbb"):
        contrast("red", "#ffffff")


@pytest.mark.parametrize("mode", ("light", "dark"))
def test_the_arrow_of_a_menu_is_seen_on_a_primary_button(
    qtbot, qapp_light: QApplication, mode: Mode
) -> None:
    apply_theme(qapp_light, mode)
    made = button("", lambda: None, kind="primary")
    qtbot.addWidget(made)
    made.setMenu(QMenu(made))
    made.resize(60, 30)
    made.show()
    image, ink = made.grab().toImage(), QColor(theme().accent_text)
    colors = [QColor(image.pixel(x, y)) for x in range(40, 56) for y in range(8, 22)]
    near = [c for c in colors if abs(c.lightness() - ink.lightness()) < 40]
    assert 8 <= len(near) < 60  # an arrow of 12 pixels


def test_every_picture_of_the_stylesheet_exists(qapp_light: QApplication) -> None:
    apply_theme(qapp_light, "dark")
    pictures = list(Path(theme_notifier().images.name).glob("dark-*.svg"))
    assert pictures
    for picture in pictures:
        assert f'url("{picture.as_posix()}")' in qapp_light.styleSheet()
