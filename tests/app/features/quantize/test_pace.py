"""Time left of a measurement: nothing is promised before it is known, then it goes down to zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.features.quantize.run import Pace
from app.features.quantize.work import Stage
from engine.evaluate.task import CANDIDATE, REFERENCE, SPEED, TEXT

WORK = (("reading weights", 1 << 20), (TEXT, 4000), (SPEED, 4))
seconds = st.lists(st.floats(0.5, 500.0), min_size=len(WORK), max_size=len(WORK))


@given(lasting=seconds)
def test_both_sides_take_as_long_so_the_end_is_known_when_the_first_is(
    lasting: list[float],
) -> None:
    pace, now, whole = Pace(SPEED, has_reference=True), 0.0, 2 * sum(lasting)
    for side in (REFERENCE, CANDIDATE):
        for (kind, total), length in zip(WORK, lasting, strict=True):
            for done in (0, total // 4, total // 2):
                at = now + length * done / total
                found = pace.left(Stage(f"{side}: {kind}", done, total), at)
                if side == REFERENCE and kind != SPEED:
                    assert found is None
                elif side == CANDIDATE or done:
                    assert found == pytest.approx(whole - at, rel=1e-6, abs=1e-6)
            now += length


def test_of_one_model_alone_only_the_last_part_is_known() -> None:
    pace = Pace(TEXT, has_reference=False)
    assert pace.left(Stage("Model: reading weights", 5, 10), 1.0) is None
    assert pace.left(Stage(f"{CANDIDATE}: {TEXT}", 0, 10), 2.0) is None
    assert pace.left(Stage(f"{CANDIDATE}: {TEXT}", 5, 10), 6.0) == pytest.approx(4.0)


def test_a_stage_that_only_one_side_has_disturbs_nothing() -> None:
    pace = Pace(TEXT, has_reference=True)
    pace.left(Stage("Reference: arranging weights", 0, 10), 0.0)
    pace.left(Stage(f"{REFERENCE}: {TEXT}", 0, 10), 3.0)
    assert pace.left(Stage(f"{REFERENCE}: {TEXT}", 5, 10), 8.0) == pytest.approx(5 + 3 + 10)
    assert pace.left(Stage("Model: checking", 0, 0), 13.0) is None  # nobody knows how long it takes
    assert pace.left(Stage(f"{CANDIDATE}: {TEXT}", 0, 10), 14.0) == pytest.approx(10.0)
    assert pace.left(Stage("", 0, 0), 14.0) is None
