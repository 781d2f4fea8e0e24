"""The pace of text: it yields to work, and comes back when there is room."""

from __future__ import annotations

from app.link.dispatcher import LONGEST_MS, SHARE, SHORTEST_MS, SnapshotThrottle, TextThrottle


class Thread:
    """A thread in simulated time: every painting costs it `cost_s`, and the rest `other` of the
    time."""

    def __init__(self, cost_s: float, other: float = 0.0) -> None:
        self.cost_s, self.other = cost_s, other
        self.now = self.work = 0.0
        self.pace = TextThrottle(lambda: self.work, lambda: self.now)

    def paint_for(self, seconds: float) -> float:
        """The share of the thread's time that was spent."""
        work, until, began = self.work, self.now + seconds, self.now
        while self.now < until:
            wait = self.pace.interval_ms / 1e3
            self.now += wait
            self.work += self.cost_s + self.other * wait
            self.pace.mark()
        return (self.work - work) / (self.now - began)


def test_cheap_text_is_painted_as_often_as_the_eye_wants() -> None:
    thread = Thread(cost_s=0.001)
    thread.paint_for(10)
    assert thread.pace.interval_ms == SHORTEST_MS


def test_the_share_is_held_where_the_interval_can_hold_it() -> None:
    thread = Thread(cost_s=0.003, other=0.01)
    thread.paint_for(10)
    assert abs(thread.paint_for(20) - SHARE) < 0.004
    assert SHORTEST_MS < thread.pace.interval_ms < LONGEST_MS


def test_text_never_waits_longer_than_the_longest_interval() -> None:
    thread = Thread(cost_s=0.05)
    thread.paint_for(10)
    assert thread.pace.interval_ms == LONGEST_MS


def test_it_becomes_fluent_again() -> None:
    thread = Thread(cost_s=0.05)
    thread.paint_for(10)
    thread.cost_s = 0.0005
    thread.paint_for(10)
    assert thread.pace.interval_ms == SHORTEST_MS


def test_work_in_a_pause_does_not_count() -> None:
    thread = Thread(cost_s=0.001)
    thread.paint_for(5)
    thread.now += 60
    thread.work += 30
    thread.pace.mark()
    assert thread.pace.interval_ms == SHORTEST_MS


def cost_states(pace: SnapshotThrottle, work: list[float], *costs: float) -> None:
    for cost in costs:
        with pace.measure():
            work[0] += cost


def test_states_that_cost_nothing_are_shown_as_often_as_they_come() -> None:
    work = [0.0]
    pace = SnapshotThrottle(lambda: work[0])
    assert pace.interval_ms == SnapshotThrottle.SHORTEST_MS
    cost_states(pace, work, *[0.0005] * 5)
    assert pace.interval_ms == SnapshotThrottle.SHORTEST_MS


def test_states_that_cost_are_shown_as_often_as_their_share_allows() -> None:
    work = [0.0]
    pace = SnapshotThrottle(lambda: work[0])
    cost_states(pace, work, *[0.003] * 5)
    assert pace.interval_ms == round(3 / SnapshotThrottle.SHARE)
    cost_states(pace, work, 0.2)  # something done once in a while
    assert pace.interval_ms == round(3 / SnapshotThrottle.SHARE)
    cost_states(pace, work, *[0.2] * 5)
    assert pace.interval_ms == SnapshotThrottle.LONGEST_MS
