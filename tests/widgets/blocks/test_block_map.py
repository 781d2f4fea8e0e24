"""The block map by mouse and keyboard, and what its panel says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from PySide6.QtCore import QEvent, QPoint, Qt
from PySide6.QtGui import QHelpEvent
from PySide6.QtWidgets import QApplication, QToolTip, QWidget
from pytestqt.qtbot import QtBot

from engine.snapshot import (
    BLOCK_CACHED,
    BLOCK_FREE,
    BlockDetails,
    BlockSnapshot,
    Counters,
    EngineSnapshot,
    Part,
)
from tests.figures import numbers
from tests.widgets import synthetic
from widgets.blocks.block_map import NONE
from widgets.blocks.panel import EMPTY_TEXT, HINT, STORED_ONLY, BlocksPanel
from widgets.blocks.scales import Bars, Grid, Use
from widgets.plot.clock import RedrawClock
from widgets.theme.tables import word
from widgets.theme.theme import apply_theme, theme

# Blocks 0 and 1 are a prefix that two requests share; 2 and 3 are the rest of each.
BLOCKS = BlockSnapshot(
    16,
    ("chat-1", "chat-2"),
    np.array([1, 1, 0, 1, BLOCK_CACHED, *[BLOCK_FREE] * 11], np.int32),
    np.array([2, 2, 1, 1, 0, *[0] * 11], np.int32),
    np.array([16, 16, 9, 4, 16, *[0] * 11], np.int32),
    np.array([True, True, False, False, True, *[False] * 11]),
    ((0, 1, 2), (0, 1, 3)),
)


def state(blocks: BlockSnapshot = BLOCKS, at: float = 10.0) -> EngineSnapshot:
    made = synthetic.snapshot(at)
    counters = Counters(prefix_queries=100, prefix_hits=71, evictions=12)
    return dataclasses.replace(made, blocks=blocks, counters=counters)


@pytest.fixture
def clock(qapp: QApplication) -> Iterator[RedrawClock]:
    apply_theme(qapp, "dark")
    made = RedrawClock(rate_hz=20)
    yield made
    made._timer.stop()
    made._beat.stop()


@pytest.fixture
def panel(qtbot: QtBot, clock: RedrawClock) -> BlocksPanel:
    made = BlocksPanel(clock)
    made.name = {"chat-1": "Tell me a story", "chat-2": "What is TTFT?"}.__getitem__
    qtbot.addWidget(made)
    made.resize(600, 300)
    made.show()
    made.update_snapshot(state())
    return made


def center(panel: BlocksPanel, block: int) -> QPoint:
    return panel.map.cell_rect(block).center()


def pixel(panel: BlocksPanel, block: int) -> int:
    place = panel.map.cell_rect(block).topLeft() + QPoint(1, panel.map.cells.pitch - 3)
    return panel.map.grab().toImage().pixel(place)


def test_it_says_what_it_will_show(qtbot: QtBot, clock: RedrawClock) -> None:
    empty = BlocksPanel(clock)
    qtbot.addWidget(empty)
    empty.show()
    assert empty._empty.isVisible() and empty._empty.text() == EMPTY_TEXT
    empty.update_snapshot(state())
    assert not empty._empty.isVisible() and empty.map.isVisible()
    empty.clear()
    assert empty._empty.isVisible() and empty.line.text() == ""


def test_figures_and_hint(panel: BlocksPanel) -> None:
    assert numbers(panel.note.text()) == [25, 6, 69, 16, 16]
    assert numbers(panel.losses.text()) == [29.7, 12]
    assert panel.line.text() == HINT


STORED = BlockSnapshot(
    32, (), np.array([BLOCK_CACHED] * 4 + [BLOCK_FREE] * 12, np.int32), np.zeros(16, np.int32),
    np.array([32] * 4 + [0] * 12, np.int32), np.array([True] * 4 + [False] * 12),
)  # fmt: skip


def test_a_narrow_panel_names_every_colour(qtbot: QtBot, panel: BlocksPanel) -> None:
    panel.resize(190, 260)
    legend = panel.legend
    needed = lambda: legend.heightForWidth(legend.width())
    qtbot.waitUntil(lambda: legend.height() == needed() > legend.sizeHint().height())
    assert panel.map.height() > 0


def test_a_server_that_publishes_its_prefix_cache_alone(panel: BlocksPanel) -> None:
    """What is in use is not reported: no figure claims it."""
    missing = frozenset((Part.BLOCKS,))
    panel.update_snapshot(dataclasses.replace(state(STORED, 12.0), missing=missing))
    panel._show_text()
    assert numbers(panel.note.text()) == [25, 16, 32] and numbers(panel.losses.text()) == [12]
    assert panel.line.text() == STORED_ONLY and panel._stack.currentWidget() is panel.map
    assert len(panel.legend._swatches) == 2
    panel.update_snapshot(dataclasses.replace(state(at=14.0), missing=missing - missing))
    panel._show_text()
    assert panel.line.text() == HINT and len(panel.legend._swatches) > 2


def test_without_blocks_it_says_that_they_are_not_reported(panel: BlocksPanel) -> None:
    none = BlockSnapshot(16, (), *[np.empty(0, np.int32)] * 3, np.empty(0, np.bool_))
    found = dataclasses.replace(state(none, 12.0), missing=frozenset((Part.BLOCKS,)))
    panel.update_snapshot(found)
    assert panel._stack.currentWidget() is not panel.map


def test_figures_of_a_hidden_panel_are_current_when_it_shows(panel: BlocksPanel) -> None:
    before = panel.note.text()
    panel.hide()
    free = dataclasses.replace(
        BLOCKS, owners=(), tables=(), owner=np.full(16, BLOCK_FREE, np.int32),
        ref_count=np.zeros(16, np.int32),
    )  # fmt: skip
    panel.update_snapshot(dataclasses.replace(state(), blocks=free))
    panel.show()
    assert panel.note.text() != before and numbers(panel.note.text())[:3] == [0, 0, 100]


def test_the_picture_of_a_panel_behind_a_tab_is_current_when_it_comes_back(
    qtbot: QtBot, clock: RedrawClock
) -> None:
    """Docks behind a tab are out of sight without being hidden, and an idle engine sends nothing
    after they come back: the picture then is of the snapshot of the text."""
    window = QWidget()
    qtbot.addWidget(window)
    window.resize(420, 400)
    panel = BlocksPanel(clock, window)
    panel.resize(420, 400)
    panel.update_snapshot(state())
    window.show()
    qtbot.waitUntil(lambda: not panel.map.wants_redraw())
    cached = panel.map.grab().toImage().pixel(panel.map.cell_rect(4).center())
    panel.move(-2000, -2000)
    empty = dataclasses.replace(
        BLOCKS, owners=(), tables=(), owner=np.full(16, BLOCK_FREE, np.int32),
        ref_count=np.zeros(16, np.int32), fill=np.zeros(16, np.int32), hashed=np.zeros(16, bool),
    )  # fmt: skip
    panel.update_snapshot(state(empty, 20.0))
    qtbot.waitUntil(lambda: not clock.is_running)
    assert panel.isVisible() and panel.map.wants_redraw()
    panel.move(0, 0)
    qtbot.waitUntil(lambda: not panel.map.wants_redraw())
    assert panel.map.grab().toImage().pixel(panel.map.cell_rect(4).center()) != cached


def test_the_mouse_reads_blocks(qtbot: QtBot, panel: BlocksPanel) -> None:
    said = {
        0: "Block 0 · 16 of 16 tokens · shared by 2 requests: “Tell me a story”, “What is TTFT?”",
        2: "Block 2 · 9 of 16 tokens · “Tell me a story”",
        4: "Block 4 · cached prefix, evictable",
        9: "Block 9 · free",
    }
    for block, line in said.items():
        qtbot.mouseMove(panel.map, center(panel, block))
        qtbot.waitUntil(lambda b=block: panel.map.pointed_index == b, timeout=2000)  # type: ignore[misc]
        assert panel.line.text() == line
        assert panel.map.accessibleDescription() == line


def test_the_engine_is_asked_once_the_mouse_rests(qtbot: QtBot, panel: BlocksPanel) -> None:
    asked: list[int] = []
    panel.details_wanted.connect(asked.append)
    for block in (0, 1, 2):
        panel.map.point_at(block)
    qtbot.waitUntil(lambda: bool(asked), timeout=2000)
    assert asked == [2]
    panel.show_details(BlockDetails(1, (), (5,), "late"))
    assert panel.text.text() == ""
    panel.show_details(BlockDetails(2, ("chat-1",), (5, 6), "a\nb", "ab" * 32, "cd" * 32, 4.0))
    told = panel.text.text()
    assert all(part in told for part in ("“a⏎b”", "abababab", "cdcdcdcd", "6 s"))
    panel.map.point_at(3)
    assert panel.text.text() == ""


def test_a_click_lights_up_a_request_and_its_prefix(qtbot: QtBot, panel: BlocksPanel) -> None:
    bright = pixel(panel, 3)
    assert bright == word(theme().series.owners[1])
    qtbot.mouseClick(panel.map, Qt.MouseButton.LeftButton, pos=center(panel, 2))
    assert panel.map.chosen_owner == "chat-1"
    assert pixel(panel, 3) != bright and pixel(panel, 1) == bright  # the prefix is its own too
    panel.map.point_at(NONE)
    assert panel.line.text().startswith("“Tell me a story” ")
    assert numbers(panel.line.text()) == [3, 2]
    qtbot.mouseClick(panel.map, Qt.MouseButton.LeftButton, pos=center(panel, 0))
    assert panel.map.chosen_owner == "chat-2"  # the next one that holds the block
    qtbot.mouseClick(panel.map, Qt.MouseButton.LeftButton, pos=center(panel, 12))
    assert panel.map.chosen_owner == "" and pixel(panel, 3) == bright


def test_the_keyboard_does_the_same(qtbot: QtBot, panel: BlocksPanel) -> None:
    panel.map.setFocus()
    for key, block in (
        (Qt.Key.Key_Right, 0), (Qt.Key.Key_Right, 1), (Qt.Key.Key_End, 15), (Qt.Key.Key_Left, 14),
        (Qt.Key.Key_Home, 0), (Qt.Key.Key_Up, 0),
    ):  # fmt: skip
        qtbot.keyClick(panel.map, key)
        assert panel.map.pointed_index == block
    qtbot.keyClick(panel.map, Qt.Key.Key_Return)
    assert panel.map.chosen_owner == "chat-1"
    qtbot.keyClick(panel.map, Qt.Key.Key_Escape)
    assert panel.map.chosen_owner == "" and panel.map.pointed_index == NONE


def test_a_tooltip_tells_what_has_no_room_below(
    qtbot: QtBot, panel: BlocksPanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(QToolTip, "showText", lambda at, text, *rest: shown.append(text))
    panel.update_snapshot(state())
    where = panel.map.cell_rect(0).center()
    qtbot.mouseMove(panel.map, where)
    text = "a <b>word</b> and more"
    panel.show_details(BlockDetails(0, ("chat-1",), (5, 6), text, "ab" * 32, "cd" * 32, 4.0))
    hover = QHelpEvent(QEvent.Type.ToolTip, where, panel.map.mapToGlobal(where))
    QApplication.sendEvent(panel.map, hover)
    assert not panel.text.is_cut() and shown[-1] == ""
    panel.resize(240, 300)
    QApplication.sendEvent(panel.map, hover)
    assert panel.text.is_cut()
    assert "&lt;b&gt;word" in shown[-1] and "6 s" in shown[-1]
    panel.map.point_at(NONE)
    QApplication.sendEvent(panel.map, hover)
    assert shown[-1] == ""


def test_a_request_that_holds_no_blocks_lights_up_none(panel: BlocksPanel) -> None:
    panel.update_snapshot(state())
    panel.map.choose("chat-2")
    panel.map.choose("chat-3")  # waits for its first block
    assert panel.map.chosen_owner == "" and panel.line.text() == HINT
    panel.clear()
    panel.map.choose("chat-1")
    assert panel.map.chosen_owner == ""


def test_what_is_gone_is_forgotten(panel: BlocksPanel) -> None:
    panel.map.choose("chat-1")
    panel.map.point_at(15)
    smaller = BlockSnapshot(
        16, ("chat-2",), np.zeros(4, np.int32), np.ones(4, np.int32), np.full(4, 16, np.int32),
        np.zeros(4, np.bool_), ((0, 1, 2, 3),),
    )  # fmt: skip
    panel.update_snapshot(state(smaller, 11.0))
    assert panel.map.chosen_owner == "" and panel.map.pointed_index == NONE
    assert panel.map.cells.num_blocks == 4


def large(count: int, used: int) -> BlockSnapshot:
    """`used` blocks of "a", then as many of "b", then free ones."""
    owner = np.full(count, BLOCK_FREE, np.int32)
    owner[:used], owner[used : 2 * used] = 0, 1
    is_used = (owner >= 0).astype(np.int32)
    tables = tuple(range(used)), tuple(range(used, 2 * used))
    return BlockSnapshot(16, ("a", "b"), owner, is_used, 16 * is_used, owner > 9, tables)


def test_a_cell_of_a_range_reads_all_its_blocks(panel: BlocksPanel) -> None:
    panel.name = {"a": "first", "b": "second"}.__getitem__
    asked: list[int] = []
    panel.details_wanted.connect(asked.append)
    panel.update_snapshot(state(large(10_000, 101), 12.0))
    cells = panel.map.cells
    assert isinstance(cells, Grid) and cells.per_cell == 4
    assert f"{cells.per_cell} blocks per cell" in panel.note.text()
    panel.map.point_at(25)
    assert numbers(panel.line.text()) == [100, 103, 4, 3, 1]
    assert "“second” 3" in panel.line.text() and "“first” 1" in panel.line.text()
    panel._ask_for_details()
    assert not asked  # a range has no content
    panel.map._choose_pointed()
    assert panel.map.chosen_owner == "a"
    panel.map._choose_pointed()
    assert panel.map.chosen_owner == "b"
    panel.map.point_at(50)
    assert numbers(panel.line.text()) == [200, 203, 2, 2, 2]


def test_a_large_cache_in_a_low_panel_has_a_row_per_request(
    qtbot: QtBot, panel: BlocksPanel
) -> None:
    panel.name = {"a": "first", "b": "second"}.__getitem__
    panel.update_snapshot(state(large(100_000, 2000), 12.0))
    panel.resize(240, 170)
    cells = panel.map.cells
    assert isinstance(cells, Bars)
    assert [(row.use, row.num_blocks) for row in cells.rows] == [
        (Use.REQUEST, 2000), (Use.REQUEST, 2000), (Use.CACHED, 0), (Use.FREE, 96_000),
    ]  # fmt: skip
    qtbot.mouseMove(panel.map, panel.map.cell_rect(1).center())
    qtbot.waitUntil(lambda: panel.map.pointed_index == 1, timeout=2000)
    assert panel.line.text().startswith("“second”")
    assert numbers(panel.line.text()) == [2000, 32_000, 32_000]
    qtbot.mouseClick(
        panel.map, Qt.MouseButton.LeftButton, pos=panel.map.cell_rect(1).center()
    )  # fmt: skip
    assert panel.map.chosen_owner == "b"
    panel.hide()
    panel.update_snapshot(state(large(100_000, 3000), 13.0))
    assert panel.map.num_items == 0  # nothing is counted while nothing is seen
    panel.show()
    assert [row.num_blocks for row in panel.map.cells.rows[:2]] == [3000, 3000]  # type: ignore[union-attr]
    panel.resize(1200, 800)
    assert isinstance(panel.map.cells, Grid) and panel.map.pointed_index == NONE
