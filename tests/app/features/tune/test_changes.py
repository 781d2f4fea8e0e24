"""The history of changes: what is one change, and the way back to any state. No Qt."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.features.tune.changes import ChangeHistory, differences
from engine.config import SETTINGS
from tests.figures import numbers
from widgets.live.metric_store import PASSED_S

SEQS, TOKENS = "max_num_seqs", "max_num_batched_tokens"
STATES = st.dictionaries(st.sampled_from([SEQS, TOKENS]), st.integers(1, 99), max_size=2)


def history(*states: dict[str, Any], every: float = 2 * PASSED_S) -> ChangeHistory:
    made = ChangeHistory()
    made.open(0.0, "", "Opened", {})
    for number, state in enumerate(states, 1):
        made.add(number * every, "", f"change {number}", state)
    return made


@given(st.lists(STATES, max_size=8), st.data())
def test_going_back_sets_exactly_what_differs(states: list[dict[str, Any]], data: Any) -> None:
    made = history(*states)
    entry = data.draw(st.sampled_from(made.entries))
    now = {name: made.entries[-1].state.get(name, SETTINGS[name].default) for name in SETTINGS}
    then = {name: entry.state.get(name, SETTINGS[name].default) for name in SETTINGS}
    assert {**now, **made.way_back(entry)} == then
    assert not made.way_back(made.entries[-1])


@given(STATES, STATES)
def test_differences_turn_round(a: dict[str, Any], b: dict[str, Any]) -> None:
    back = {name: (new, old) for name, (old, new) in differences(b, a).items()}
    assert differences(a, b) == back and differences(a, a) == {}


def test_a_value_that_is_stepped_through_is_one_change() -> None:
    made = history({SEQS: 15}, {SEQS: 14}, {SEQS: 3}, every=1.0)
    assert len(made.entries) == 2 and made.latest is not None
    assert (made.latest.since, made.latest.at) == (1.0, 3.0)
    assert numbers(made.latest.text) == [16, 3]


def test_a_quiet_change_leaves_the_result_and_merges_with_none() -> None:
    made = history({SEQS: 15}, {SEQS: 2}, every=10.0)
    shown = made.latest
    made.add(21.0, "", "back", {SEQS: 15}, is_quiet=True)
    assert made.latest is shown and made.entries[-1].state == {SEQS: 15}
    made.add(22.0, "", "next", {SEQS: 4})
    assert made.latest is made.entries[-1] and len(made.entries) == 5


def test_a_change_that_is_taken_back_at_once_is_none() -> None:
    made = history({SEQS: 15}, {}, every=1.0)
    assert made.latest is None and len(made.entries) == 1


def test_other_settings_and_later_steps_are_changes_of_their_own() -> None:
    assert len(history({SEQS: 15}, {SEQS: 15, TOKENS: 64}, every=1.0).entries) == 3
    assert len(history({SEQS: 15}, {SEQS: 14}).entries) == 3


def test_the_steps_of_a_lesson_are_one_change_however_long_they_take() -> None:
    made = history()
    for at, (limit, is_quiet) in enumerate([(8, True), (1, False), (2, False), (8, True)]):
        state = {"max_num_seqs": limit}
        made.add(100.0 * at, "", f"to {limit}", state, is_quiet=is_quiet, is_lesson=True)
    setup, change, back = made.entries[1:]
    assert (setup.is_quiet, back.is_quiet) == (True, True)
    assert numbers(change.text) == [8, 2] and (change.since, change.at) == (100.0, 200.0)
