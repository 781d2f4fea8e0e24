"""Docks that were put where they were in the run before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QApplication, QLabel, QTabBar
from pytestqt.qtbot import QtBot

from app.main.application import Application
from app.window.docks import CardDock, DockArea
from tests.app import window_fixtures


@contextmanager
def next_run(qapp: QApplication) -> Iterator[Application]:
    """The next run, on the Chat page with the docks of tuning."""
    with window_fixtures.next_run(qapp) as made:
        if made.settings.layout != "Tuning":
            made.window.commands.run("layout.tuning")
        made.window.show_page(0)
        QApplication.processEvents()  # the docks take their planned sizes
        yield made


def over_the_page(made: Application) -> list[tuple[int, ...]] | None:
    """Tab bars of docks that lie over the page; None while nothing is laid out yet."""
    area = made.window.dock_area
    central = area.centralWidget()
    bars = area.findChildren(QTabBar, options=Qt.FindChildOption.FindDirectChildrenOnly)
    shown = [bar.geometry() for bar in bars if bar.isVisible() and bar.count()]
    if central is None or not any(place.top() >= central.geometry().bottom() for place in shown):
        return None
    return [place.getRect() for place in shown if place.intersects(central.geometry())]


@pytest.mark.slow
def test_no_tab_bar_lies_over_the_page_in_the_second_run(qapp: QApplication, qtbot: QtBot) -> None:
    """Qt left one behind, in the corner where a chat is begun."""
    for _ in range(2):
        with next_run(qapp) as made:
            made.show()
            qtbot.waitUntil(lambda window=made: over_the_page(window) == [])


def squeeze(qtbot: QtBot, made: Application, low: int) -> None:
    """Make the window so low that the docks below the page have hardly any room."""
    area = made.window.dock_area
    made.window.resize(1200, low)
    qtbot.waitUntil(lambda: made.window.height() == low and area.height_below > 0)


def test_docks_that_a_low_window_squeezed_have_their_height_back_in_a_high_one(
    qapp: QApplication, qtbot: QtBot
) -> None:
    with next_run(qapp) as made:
        made.show()
        area = made.window.dock_area
        made.window.resize(1200, 950)
        qtbot.waitUntil(lambda: area.height_below > 300)
        planned = area.height_below
        squeeze(qtbot, made, 640)
        qtbot.waitUntil(lambda: area.height_below < planned - 60)
        made.window.resize(1200, 950)
        qtbot.waitUntil(lambda: abs(area.height_below - planned) < 8)
        squeeze(qtbot, made, 640)
        qtbot.waitUntil(lambda: area.height_below < planned - 60)
    with next_run(qapp) as made:  # in which it begins low
        made.show()
        area = made.window.dock_area
        qtbot.waitUntil(lambda: 0 < area.height_below < planned - 60)
        made.window.resize(1200, 950)
        qtbot.waitUntil(lambda: abs(area.height_below - planned) < 8)


def drag(area: DockArea, place: QPoint, down: int = 0, *, right: int = 0) -> None:
    """Take hold of what is at `place` and move it."""
    left = Qt.MouseButton.LeftButton
    for kind, at in (
        (QEvent.Type.MouseButtonPress, place),
        (QEvent.Type.MouseMove, place + QPoint(right // 2, down // 2)),
        (QEvent.Type.MouseMove, place + QPoint(right, down)),
        (QEvent.Type.MouseButtonRelease, place + QPoint(right, down)),
    ):
        held = Qt.MouseButton.NoButton if kind is QEvent.Type.MouseButtonRelease else left
        where, none = QPointF(at), Qt.KeyboardModifier.NoModifier
        event = QMouseEvent(kind, where, QPointF(area.mapToGlobal(at)), left, held, none)
        QApplication.sendEvent(area, event)
        QApplication.processEvents()


@pytest.mark.slow
def test_docks_that_were_dragged_low_stay_low(qapp: QApplication, qtbot: QtBot) -> None:
    with next_run(qapp) as made:
        made.show()
        area = made.window.dock_area
        made.window.resize(1200, 950)
        qtbot.waitUntil(lambda: area.height_below > 300)
        page = area.centralWidget().geometry()
        drag(area, QPoint(page.center().x(), page.bottom() + 4), 100)
        qtbot.waitUntil(lambda: area.height_below < 300)
        dragged = area.height_below
        made.window.resize(1200, 1000)
        QApplication.processEvents()
        qtbot.waitUntil(lambda: made.window.height() == 1000)
        assert area.height_below == dragged
    with next_run(qapp) as made:
        made.show()
        area = made.window.dock_area
        qtbot.waitUntil(lambda: area.height_below > 0)
        made.window.resize(1200, 950)
        qtbot.waitUntil(lambda: abs(area.height_below - dragged) < 8)


@pytest.mark.slow
def test_docks_side_by_side_have_their_shares_back_in_a_wide_window(
    qapp: QApplication, qtbot: QtBot
) -> None:
    with next_run(qapp) as made:
        made.show()
        area = made.window.dock_area
        made.window.show_page_named("Tune")

        def share() -> float:
            """Of the left one; 0 while there are not two."""
            widths = area.widths_below
            return widths[0] / sum(widths) if len(widths) == 2 else 0.0

        def has_share_back(wanted: float) -> None:
            made.window.resize(1400, 900)
            qtbot.waitUntil(lambda: abs(share() - wanted) < 0.01)
            made.window.resize(900, 900)
            qtbot.waitUntil(lambda: 0 < share() < wanted - 0.05)  # the right one needs more
            made.window.resize(1400, 900)
            qtbot.waitUntil(lambda: abs(share() - wanted) < 0.01)

        has_share_back(0.5)
        left = min((dock.geometry() for dock in area.below()), key=lambda place: place.x())
        drag(area, QPoint(left.right() + 4, left.center().y()), right=100)
        qtbot.waitUntil(lambda: share() > 0.55, timeout=3000)
        has_share_back(share())


def test_in_place_of_a_tab_that_is_closed_its_neighbour_is_seen(
    qapp: QApplication, qtbot: QtBot
) -> None:
    with next_run(qapp) as made:
        made.show()
        by_name = {dock.objectName(): dock for dock in made.window.dock_area.docks}

        def is_seen(name: str) -> bool:
            return not by_name[name].visibleRegion().isEmpty()

        qtbot.waitUntil(lambda: is_seen("live-charts"))
        for closed, neighbour in (
            ("kv-blocks", "step-timeline"), ("live-charts", "step-timeline"),
            ("requests", "speculation"), ("memory", "bottleneck"),
        ):  # fmt: skip
            by_name[closed].raise_()
            qtbot.waitUntil(lambda name=closed: is_seen(name))
            by_name[closed].close()
            qtbot.waitUntil(lambda name=neighbour: is_seen(name))


def test_a_tab_bar_without_tabs_is_no_tab_stop(qtbot: QtBot, qapp: QApplication) -> None:
    with next_run(qapp) as made:
        made.show()
        made.window.show_page_named("Tune")
        made.window.show_page_named("Models")
        direct, none = Qt.FindChildOption.FindDirectChildrenOnly, Qt.FocusPolicy.NoFocus

        def stops_are_tabs() -> bool:
            bars = made.window.dock_area.findChildren(QTabBar, options=direct)
            return all(bool(bar.count()) or bar.focusPolicy() == none for bar in bars)

        qtbot.waitUntil(stops_are_tabs)


def test_a_dock_behind_tabs_has_its_name_once(qtbot: QtBot, qapp: QApplication) -> None:
    area = DockArea(QLabel("page"))
    qtbot.addWidget(area)
    docks = [CardDock(name, name, QLabel(name)) for name in ("one", "two")]
    area.take(docks)
    area.resize(600, 400)
    area.show()
    area.tabifyDockWidget(*docks)
    for dock in docks:
        dock.show()
    qtbot.waitUntil(lambda: all(dock.title_bar.title.isHidden() for dock in docks))
    docks[1].hide()
    qtbot.waitUntil(lambda: not docks[0].title_bar.title.isHidden())


def test_the_settings_open_at_the_left_of_a_page_that_an_earlier_run_showed(
    qapp: QApplication, qtbot: QtBot
) -> None:
    """The second run begins on another page: the first one's docks are not those of its start."""
    for visits in (["Chat", "Tune"], ["Chat"], []):
        with window_fixtures.next_run(qapp) as made:
            names = [page.name for page in made.window.pages]
            for name in visits:
                made.window.show_page(names.index(name))
            made.settings_dock.bring_to_front()
            area = made.window.dock_area
            assert area.dockWidgetArea(made.settings_dock) is Qt.DockWidgetArea.LeftDockWidgetArea
            made.settings_dock.hide()
