"""One clock draws everything: at its rate, within its budget, and only where someone looks."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QScrollArea, QWidget

from widgets.plot.clock import BEAT_S, RedrawClock, work_time


class Member(QWidget):
    def __init__(self, clock: RedrawClock) -> None:
        super().__init__()
        self.clock = clock
        self.num_redraws = 0
        self.is_dirty = True
        self.cost_s = 0.0

    def wants_redraw(self) -> bool:
        return self.is_dirty

    def redraw(self) -> None:
        self.num_redraws += 1
        end = work_time() + self.cost_s
        while work_time() < end:
            pass


@pytest.fixture
def clock(qapp):
    made = RedrawClock(rate_hz=50)
    yield made
    made._timer.stop()
    made._rest.stop()
    made._beat.stop()


def test_everyone_shows_the_newest_snapshot_at_a_readable_pace(qtbot, clock: RedrawClock) -> None:
    """Of an engine that is idle for a moment between short requests too."""
    newest, shown = 0, list[tuple[int, int]]()
    pace_ms = 1e3 * BEAT_S  # a coarse timer of Qt keeps it within 5 %
    clock.beat.connect(lambda: shown.append((newest, 0)))
    clock.beat.connect(lambda: shown.append((newest, 1)))

    def take(number: int) -> None:
        nonlocal newest
        newest = number
        for _ in range(3):
            clock.take_snapshot()

    take(1)
    qtbot.waitUntil(lambda: len(shown) == 2, timeout=400)
    for number in range(2, 6):
        take(number)
        assert len(shown) == 2 and 0.5 * pace_ms < clock._beat.remainingTime() <= 1.05 * pace_ms
    qtbot.waitUntil(lambda: len(shown) == 4, timeout=3000)
    assert shown == [(1, 0), (1, 1), (5, 0), (5, 1)] and not clock._beat.isActive()


def test_a_beat_is_drawn_at_once_and_takes_the_place_of_a_tick(qtbot, clock: RedrawClock) -> None:
    clock.rate_hz = 2
    member, beats = Member(clock), list[bool]()
    qtbot.addWidget(member)
    clock.add(member)
    member.redraw = lambda: beats.append(clock.is_beat)  # type: ignore[method-assign]
    member.show()
    clock.wake()
    clock.take_snapshot()
    assert clock._timer.remainingTime() > 100
    qtbot.waitUntil(lambda: bool(beats), timeout=400)
    assert beats == [True] and clock.is_beat
    clock.take_snapshot()
    clock._tick()
    assert beats == [True, False] and clock.is_beat
    clock._draw_beat()
    assert beats == [True, False, True] and clock._timer.remainingTime() > 600


def test_the_clock_draws_what_is_visible_and_wants_it(qtbot, clock: RedrawClock) -> None:
    shown, hidden, content = Member(clock), Member(clock), Member(clock)
    content.is_dirty = False
    for member in (shown, hidden, content):
        qtbot.addWidget(member)
        clock.add(member)
    shown.show()
    content.show()
    clock.wake()
    qtbot.waitUntil(lambda: shown.num_redraws >= 3, timeout=3000)
    assert hidden.num_redraws == content.num_redraws == 0


def test_the_clock_stops_when_nobody_looks_and_starts_again(qtbot, clock: RedrawClock) -> None:
    member = Member(clock)
    qtbot.addWidget(member)
    clock.add(member)
    member.show()
    clock.wake()
    qtbot.waitUntil(lambda: member.num_redraws >= 1, timeout=3000)
    member.hide()
    qtbot.waitUntil(lambda: not clock.is_running, timeout=3000)
    before = member.num_redraws
    member.show()
    clock.wake()
    qtbot.waitUntil(lambda: member.num_redraws > before, timeout=3000)
    member.is_dirty = False
    qtbot.waitUntil(lambda: not clock.is_running, timeout=3000)


def test_what_is_scrolled_away_is_not_drawn(qtbot, clock: RedrawClock) -> None:
    area, member = QScrollArea(), Member(clock)
    content = QWidget()
    content.setFixedSize(100, 2000)
    member.setParent(content)
    member.setGeometry(0, 1500, 50, 50)
    area.setWidget(content)
    area.resize(150, 150)
    qtbot.addWidget(area)
    clock.add(member)
    seen = Member(clock)
    qtbot.addWidget(seen)
    clock.add(seen)
    area.show()
    seen.show()
    clock.wake()
    qtbot.waitUntil(lambda: seen.num_redraws >= 3, timeout=3000)
    assert member.num_redraws == 0
    area.verticalScrollBar().setValue(1450)
    qtbot.waitUntil(lambda: member.num_redraws >= 1, timeout=3000)


def test_the_clock_slows_down_to_hold_its_budget(qtbot, clock: RedrawClock) -> None:
    clock.budget_ms_per_s = 100.0
    member = Member(clock)
    member.cost_s = 0.03
    qtbot.addWidget(member)
    clock.add(member)
    member.show()
    clock.wake()
    assert clock.interval_ms == 20
    qtbot.waitUntil(lambda: member.num_redraws >= 3, timeout=5000)
    assert clock.interval_ms >= 290  # 30 ms of work, 100 ms a second: about 3 times a second
    assert clock.redraw_ms_per_s > 0
    clock.budget_ms_per_s = 1.0
    assert clock.interval_ms == 1000  # never slower than this


def test_what_takes_long_is_drawn_in_turns_of_its_own(qtbot, clock: RedrawClock) -> None:
    members = [Member(clock) for _ in range(3)]
    for member in members:
        member.cost_s = 0.006
        qtbot.addWidget(member)
        clock.add(member)
        member.show()
    clock._tick()
    assert sum(member.num_redraws for member in members) == 1
    qtbot.waitUntil(lambda: all(member.num_redraws for member in members), timeout=3000)
    clock._rest.stop()


def test_painting_is_charged_too(clock: RedrawClock) -> None:
    clock.charge(0.010)
    clock.charge(0.015)
    assert clock.redraw_ms_per_s == pytest.approx(5.0)  # 25 ms in the last 5 s


def test_the_clock_keeps_nothing_alive(qtbot, clock: RedrawClock) -> None:
    member = Member(clock)
    clock.add(member)
    member.show()
    clock.wake()
    member.deleteLater()
    qtbot.waitUntil(lambda: not clock.is_running, timeout=3000)
    del member
    assert len(clock._members) == 0
