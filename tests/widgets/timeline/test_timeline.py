"""The step timeline by mouse and keyboard, and what its panel says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from engine.snapshot import EngineSnapshot, StepEntry, StepRecord
from tests.figures import numbers
from tests.widgets import synthetic
from widgets.plot.clock import RedrawClock
from widgets.theme.tables import word
from widgets.theme.theme import apply_theme, theme
from widgets.timeline.history import StepHistory
from widgets.timeline.panel import EMPTY_TEXT, HINT, TimelinePanel
from widgets.timeline.picture import make_scene
from widgets.timeline.table import step_text, time_text
from widgets.timeline.view import NONE, PITCHES

NAMES = {"a": "Tell me a story", "b": "What is TTFT?"}


def steps(start: int, count: int) -> tuple[StepRecord, ...]:
    """Request "a" decodes all the time; every tenth step "b" prefills 64 tokens, 32 cached."""
    found = []
    for index in range(start, start + count):
        entries = [StepEntry("a", "decode", 1)]
        if index % 10 == 0:
            entries.append(StepEntry("b", "prefill", 64, 32))
        duration = 0.02 if index % 10 == 0 else 0.01
        found.append(
            StepRecord(index, index * 0.02, duration, tuple(entries), len(entries), 1,
                       model_s=0.75 * duration, sample_s=0.25 * duration)
        )  # fmt: skip
    return tuple(found)


def state(*records: StepRecord, at: float = 100.0) -> EngineSnapshot:
    return dataclasses.replace(synthetic.snapshot(at), steps=records)


@pytest.fixture
def clock(qapp: QApplication) -> Iterator[RedrawClock]:
    apply_theme(qapp, "dark")
    made = RedrawClock(rate_hz=20)
    yield made
    made._timer.stop()
    made._beat.stop()


@pytest.fixture
def panel(qtbot: QtBot, clock: RedrawClock) -> TimelinePanel:
    made = TimelinePanel(clock)
    made.set_names(NAMES.__getitem__)
    qtbot.addWidget(made)
    made.resize(700, 300)
    made.show()
    return made


@pytest.fixture
def full(panel: TimelinePanel) -> TimelinePanel:
    synthetic.feed(panel, state(*steps(0, 300)))
    panel.view.redraw()
    return panel


def place(panel: TimelinePanel, ordinal: int) -> QPoint:
    """A place in the column of a step."""
    view = panel.view
    right = view.width() - view.bar.sizeHint().width()
    return QPoint(right - (view.end - ordinal) * view.pitch + 1, 40)


def test_a_low_panel_leaves_the_room_to_the_steps(qtbot: QtBot, panel: TimelinePanel) -> None:
    panel.setMinimumSize(1, 1)
    for height in (155, 104):  # with the rows of jobs above the page; the least
        panel.resize(424, height)
        qtbot.waitUntil(lambda height=height: panel.height() == height)
        assert panel.legend.isHidden()
    text = panel._empty
    assert text.contentsRect().height() - 2 * text.margin() >= text.fontMetrics().height()
    panel.resize(424, 300)
    qtbot.waitUntil(lambda: panel.legend.isVisible())


def wheel(panel: TimelinePanel, notches: int, modifier: Qt.KeyboardModifier) -> None:
    at = QPointF(panel.view.rect().center())
    event = QWheelEvent(
        at, panel.view.mapToGlobal(at), QPoint(), QPoint(0, 120 * notches),
        Qt.MouseButton.NoButton, modifier, Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    QApplication.sendEvent(panel.view, event)


def test_it_says_what_it_will_show(panel: TimelinePanel) -> None:
    assert panel._empty.isVisible() and panel._empty.text() == EMPTY_TEXT
    synthetic.feed(panel, state(*steps(0, 3)))
    assert panel.view.isVisible() and not panel._empty.isVisible()
    assert numbers(panel.note.text()) == [2, 10, 1, 1]
    assert panel.line.text() == HINT
    panel.clear()
    assert panel._empty.isVisible() and panel.note.text() == ""


def test_it_goes_with_the_newest_step_until_it_is_held(
    qtbot: QtBot, full: TimelinePanel
) -> None:
    view = full.view
    assert view.follows and view.end == 300
    qtbot.mouseClick(full.follow_button, Qt.MouseButton.LeftButton)
    assert not view.follows and full.follow_button.isChecked()
    full.update_snapshot(state(*steps(300, 50)))
    assert view.end == 300
    qtbot.mouseClick(full.follow_button, Qt.MouseButton.LeftButton)
    assert view.follows and view.end == 350 and not full.follow_button.isChecked()


def test_a_step_says_how_many_threads_computed_it() -> None:
    (step,) = steps(4, 1)
    unsaid = numbers(step_text(step))
    assert unsaid[:2] == [4, 10]
    one, two = (dataclasses.replace(step, num_threads=n) for n in (1, 2))
    assert numbers(step_text(one)) == [4, 10, 1, *unsaid[2:]]
    assert numbers(step_text(two)) == [4, 10, 2, *unsaid[2:]]
    assert "threads" in step_text(two) and "threads" not in step_text(one)


def test_a_step_says_where_its_time_went() -> None:
    (step,) = steps(4, 1)
    assert time_text(step) == "model 75 % · sampling 25 %"
    assert time_text(dataclasses.replace(step, model_s=0.0)) == "sampling 25 %"


def test_pointing_reads_a_step_and_its_batch(qtbot: QtBot, full: TimelinePanel) -> None:
    qtbot.mouseMove(full.view, place(full, 290))
    qtbot.waitUntil(lambda: full.view.pointed_index == 290, timeout=2000)
    assert numbers(full.line.text()) == [290, 20, 1, 64, 32, 1, 75, 25]
    kinds = ("step", "decode", "prefill", "cached", "waiting", "model", "sampling")
    places = [full.line.text().index(kind) for kind in kinds]
    assert places == sorted(places)
    decode, prefill = full.batch.text().split("; ")
    assert "Tell me a story" in decode and "What is TTFT?" in prefill
    assert (numbers(decode), numbers(prefill)) == ([], [64, 32])
    assert full.view.accessibleDescription().startswith("step 290")


def test_the_wheel_goes_back_and_zooms(full: TimelinePanel) -> None:
    view = full.view
    none, control = Qt.KeyboardModifier.NoModifier, Qt.KeyboardModifier.ControlModifier
    wheel(full, 2, none)
    assert not view.follows and view.end < 300
    wheel(full, -9, none)
    assert view.follows
    before = view.pitch
    wheel(full, 1, control)
    assert view.pitch > before
    for _ in PITCHES:
        wheel(full, -1, control)
    assert view.pitch == PITCHES[0]
    wheel(full, 1000, none)  # further back than there is anything
    assert view.end - view.history.first == min(view.num_columns, 300)


def test_dragging_moves_through_time(qtbot: QtBot, full: TimelinePanel) -> None:
    view = full.view
    start = place(full, 280)
    qtbot.mousePress(view, Qt.MouseButton.LeftButton, pos=start)
    qtbot.mouseMove(view, start + QPoint(20 * view.pitch, 0))
    qtbot.waitUntil(lambda: view.end == 280, timeout=2000)
    qtbot.mouseRelease(view, Qt.MouseButton.LeftButton)
    assert not view.follows
    qtbot.mouseDClick(view, Qt.MouseButton.LeftButton, pos=start)
    assert view.follows


def test_the_keyboard_does_the_same(qtbot: QtBot, full: TimelinePanel) -> None:
    view = full.view
    view.setFocus()
    qtbot.keyClick(view, Qt.Key.Key_Left)
    assert view.pointed_index == 299 and not view.follows
    for _ in range(view.num_columns):
        qtbot.keyClick(view, Qt.Key.Key_Left)
    assert view.pointed_index == 299 - view.num_columns  # the screen went with the cursor
    assert view.end - view.num_columns <= view.pointed_index
    qtbot.keyClick(view, Qt.Key.Key_Home)
    assert view.end == view.num_columns
    qtbot.keyClick(view, Qt.Key.Key_PageDown)
    assert view.end == 2 * view.num_columns
    qtbot.keyClick(view, Qt.Key.Key_Plus)
    qtbot.keyClick(view, Qt.Key.Key_Escape)
    assert view.pointed_index == NONE
    qtbot.keyClick(view, Qt.Key.Key_End)
    assert view.follows


def test_a_cell_has_the_color_of_what_was_done(full: TimelinePanel) -> None:
    image = full.view.grab().toImage()
    series = theme().series
    row = 9  # the middle of the first row
    column = place(full, 295).x()
    assert image.pixel(column, row) == word(series.decode)
    column = place(full, 290).x()
    second = row + full.view.scene.row_height  # type: ignore[union-attr]
    assert image.pixel(column, second) == word(series.cached)
    assert image.pixel(column + 4, second) == word(series.prefill)


def many(count: int) -> StepRecord:
    entries = tuple(StepEntry(f"r{i}", "decode", 1) for i in range(count))
    return StepRecord(0, 0.0, 0.01, entries, count, 0)


def test_more_requests_than_rows_scroll(qtbot: QtBot, panel: TimelinePanel) -> None:
    panel.set_names(lambda name: name)
    synthetic.feed(panel, state(many(200)))
    view = panel.view
    view.redraw()
    scene = view.scene
    assert scene is not None and scene.num_above == 200 - len(scene.numbers) > 0
    assert view.bar.isVisible() and scene.numbers[-1] == 199
    view.setFocus()
    qtbot.keyClick(view, Qt.Key.Key_Up)
    assert view.scene is not None and view.scene.numbers[-1] == 198 and view.scene.num_below == 1
    view.bar.setValue(0)
    assert view.scene.numbers[0] == 0 and view.scene.num_above == 0
    panel.clear()
    assert not view.bar.isVisible()


def test_sixty_four_rows_have_names_on_a_full_page(panel: TimelinePanel) -> None:
    panel.set_names(lambda name: name)
    panel.resize(1200, 1000)
    synthetic.feed(panel, state(many(64)))
    panel.view.redraw()
    scene = panel.view.scene
    assert scene is not None and len(scene.numbers) == 64 and not panel.view.bar.isVisible()
    lowest = min(panel.view.row_heights)
    assert scene.row_height >= lowest >= 0.75 * panel.view.line_height - 1


@given(st.integers(1, 120), st.integers(20, 600), st.integers(0, 150))
def test_every_request_is_in_one_place_wherever_the_rows_are(
    count: int, room: int, below: int
) -> None:
    history = StepHistory()
    history.add([many(count)])
    scene = make_scene(history, 0, 1, 4, room, (18, 14, 10), below)
    assert scene.num_above + len(scene.numbers) + scene.num_below == count
    assert scene.numbers == list(range(scene.num_above, scene.num_above + len(scene.numbers)))
    assert scene.row_height * len(scene.numbers) <= max(room, 10)
    if scene.num_above or scene.num_below:
        assert scene.row_height == 10 and len(scene.numbers) == max(1, room // 10)


def test_a_click_and_enter_choose_a_step(qtbot: QtBot, full: TimelinePanel) -> None:
    view, chosen = full.view, list[int]()
    view.chosen.connect(chosen.append)
    qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=place(full, 290))
    assert chosen == [290] and view.follows
    view.setFocus()
    view.point_at(280)
    qtbot.keyClick(view, Qt.Key.Key_Return)
    qtbot.keyClick(view, Qt.Key.Key_Escape)
    assert chosen == [290, 280, NONE]


def test_latencies_share_the_axis_and_the_cursor(qtbot: QtBot, full: TimelinePanel) -> None:
    assert not full.latencies.isVisible()
    full.resize(700, 600)
    assert full.latencies.isVisible()
    at = QPoint(place(full, 290).x(), 20)
    qtbot.mouseMove(full.latencies, at)
    qtbot.waitUntil(lambda: full.view.pointed_index == 290, timeout=2000)
    qtbot.mouseClick(full.latencies, Qt.MouseButton.LeftButton, pos=at)
    assert full.view.chosen_index == 290
    rows = full.latencies.values_table().rows
    assert rows[0][0] == 299 and rows[0][1] == pytest.approx(20.0)
    assert not full.latencies.grab().isNull()


def test_ten_thousand_steps_are_kept_and_no_more(panel: TimelinePanel) -> None:
    for start in range(0, 12_000, 1_000):
        synthetic.feed(panel, state(*steps(start, 1_000)))
    view = panel.view
    assert view.history.end - view.history.first == 10_000
    view.point_at(view.history.first)
    synthetic.feed(panel, state(*steps(12_000, 10)))
    assert view.pointed_index == NONE  # the step that was pointed at is gone


def test_the_caption_is_of_the_chosen_step_once_nothing_points(
    qtbot: QtBot, full: TimelinePanel
) -> None:
    view = full.view
    qtbot.mouseClick(view, Qt.MouseButton.LeftButton, pos=place(full, 290))
    view.point_at(295)
    assert view.hasFocus() and numbers(full.line.text())[0] == 295
    QApplication.sendEvent(view, QEvent(QEvent.Type.Leave))
    assert numbers(full.line.text())[0] == 290
    view.choose(NONE)
    assert full.line.text() == HINT and not numbers(full.batch.text())


def test_a_step_that_left_the_view_has_no_caption(full: TimelinePanel) -> None:
    full.view.point_at(299)
    full.update_snapshot(state(*steps(300, 5)))
    assert numbers(full.line.text())[0] == 299
    full.update_snapshot(state(*steps(305, full.view.num_columns)))
    assert full.view.pointed_index == NONE and full.line.text() == HINT


def test_the_newest_step_is_the_last_one_once_nothing_runs(
    panel: TimelinePanel, clock: RedrawClock
) -> None:
    requests = tuple(synthetic.requests(1, 0))
    busy = dataclasses.replace(state(*steps(0, 10)), requests=requests)
    synthetic.feed(panel, busy)
    assert panel.note.text() == step_text(steps(9, 1)[0])
    synthetic.feed(panel, dataclasses.replace(busy, steps=(), requests=(), time=101.0))
    assert panel.note.text().startswith("idle") and numbers(panel.note.text())[0] == 9
    panel.hide()
    synthetic.feed(panel, dataclasses.replace(busy, steps=steps(10, 10), time=102.0))
    panel.show()  # what came while it was hidden
    assert panel.note.text() == step_text(steps(19, 1)[0])
    panel.rest()
    assert panel.note.text().startswith("idle")


def test_the_newest_step_is_named_though_no_snapshot_follows_it(
    qtbot: QtBot, panel: TimelinePanel
) -> None:
    """A long step follows: the engine reports nothing meanwhile, and the picture shows this one."""
    for count, at in ((3, 100.0), (5, 100.1)):
        running = synthetic.snapshot(at, num_running=1)
        panel.update_snapshot(dataclasses.replace(running, steps=steps(0, count)))
    qtbot.waitUntil(lambda: numbers(panel.note.text())[:1] == [4])
