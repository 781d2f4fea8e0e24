"""Times of the server in the window's clock: within half a round trip, and never backwards."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.clients.attached_session import LEAST_S, Clock


def test_before_the_first_exchange_times_stay() -> None:
    clock = Clock()
    assert clock.here(5.0) == 5.0


@given(st.floats(-1e5, 1e5), st.lists(st.tuples(st.floats(0, 0.2), st.floats(0, 0.2)), min_size=1))
def test_a_correction_stays_within_a_round_trip(
    offset: float, ways: list[tuple[float, float]]
) -> None:
    """`ways`: seconds there and back of every exchange."""
    clock, now = Clock(), 1000.0
    for there, back in ways:
        clock.heard(now, now + there - offset, now + there + back)
        now += 1.0
    best = min(there + back for there, back in ways)
    later = now + 100.0 - offset  # when a correction has been drawn out
    # a new exchange changes nothing that lies within its own error
    assert abs(clock.here(later) - (now + 100.0)) <= best + LEAST_S + 1e-6


@given(st.lists(st.tuples(st.floats(-0.4, 0.4), st.floats(0, 0.05)), min_size=2, max_size=30))
def test_what_came_later_is_never_shown_earlier(steps: list[tuple[float, float]]) -> None:
    """The clocks are moved against each other at will."""
    clock = Clock()
    shown, offset = [], 0.0
    for second, (jump, round_trip) in enumerate(steps):
        clock.reset()
        offset += jump
        sent = float(second)
        clock.heard(sent, sent + round_trip / 2 - offset, sent + round_trip)
    times = [-1.0 + i * 0.05 for i in range(20 * (len(steps) + 14))]
    shown = [clock.here(time) for time in times]
    assert all(a <= b + 1e-9 for a, b in pairwise(shown))


def test_a_time_is_put_in_the_same_place_again() -> None:
    clock = Clock()
    clock.heard(0.0, 10.0, 0.2)
    before = clock.here(10.5)
    clock.heard(5.0, 15.4, 5.01)
    assert clock.here(10.5) == before
    assert clock.here(20.0) != 20.0 - 9.9


def test_a_machine_that_slept_is_put_right_at_once() -> None:
    clock = Clock()
    clock.heard(0.0, 0.0, 0.01)
    clock.reset()
    clock.heard(10.0, 3610.0, 10.01)  # an hour passed there, ten seconds here
    assert abs(clock.here(3611.0) - 11.0) < 0.02
