"""The table of requests: figures, sorting, what one can do with a request."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.modeltest import ModelTester
from pytestqt.qtbot import QtBot

from engine.snapshot import (
    FinishReason,
    RequestSnapshot,
    RequestState,
    RequestTimes,
    TokenEvent,
)
from tests.figures import numbers
from widgets.requests.model import COLUMNS, ENDS, MOST_ENDED, MOST_TIMES, RequestModel
from widgets.requests.panel import RequestsPanel

RUNNING, WAITING, PREEMPTED = RequestState.RUNNING, RequestState.WAITING, RequestState.PREEMPTED


def times(arrival: float, *tokens: float) -> RequestTimes:
    events = tuple(TokenEvent(at, 1) for at in tokens)
    return RequestTimes(arrival, arrival + 0.05 if tokens else None, events)


def request(
    name: str, state: RequestState = RUNNING, computed: int = 100, when: RequestTimes | None = None
) -> RequestSnapshot:
    when = when or times(1.0, 1.2, 1.25, 1.3)
    return RequestSnapshot(name, state, 100, 64, computed, len(when.tokens), 7, 2, when)


def texts(panel: RequestsPanel, column: str) -> list[str]:
    """What a column says, from top to bottom."""
    number = [c.title for c in COLUMNS].index(column)
    rows = panel._sorted.rowCount()
    return [panel._sorted.index(row, number).data() for row in range(rows)]


def sort(panel: RequestsPanel, column: str, order: Qt.SortOrder) -> None:
    panel.table.sortByColumn([c.title for c in COLUMNS].index(column), order)


@pytest.fixture
def panel(qtbot: QtBot) -> RequestsPanel:
    made = RequestsPanel()
    made.set_names({"a": "Tell me a story", "b": "What is TTFT?", "c": "Hi"}.__getitem__)
    qtbot.addWidget(made)
    made.resize(1000, 260)
    made.show()
    return made


def test_a_running_request_in_figures(panel: RequestsPanel) -> None:
    assert panel._stack.currentIndex() == 0  # says what will appear
    panel.update_requests([request("a"), request("b", WAITING, 0, times(2.0))])
    assert panel._stack.currentIndex() == 1
    assert numbers(panel.note.text()) == [2, 0]
    assert texts(panel, "Request") == ["What is TTFT?", "Tell me a story"]  # newest first
    sort(panel, "Request", Qt.SortOrder.AscendingOrder)
    assert texts(panel, "State") == ["decode", "waiting"]
    assert [texts(panel, title)[0] for title in ("Prompt", "Cached", "Output", "Blocks")] == [
        "100", "64", "3", "7",
    ]  # fmt: skip
    assert texts(panel, "Queue") == ["50 ms", "–"]
    assert texts(panel, "TTFT") == ["200 ms", "–"] and texts(panel, "Mean ITL")[0] == "50 ms"
    assert texts(panel, "Preempted") == ["2", "2"]


def test_states_follow_the_engine(panel: RequestsPanel) -> None:
    for state, computed, when, word in (
        (WAITING, 0, times(1.0), "waiting"),
        (RUNNING, 40, times(1.0), "prefill"),
        (RUNNING, 101, times(1.0, 1.2), "decode"),
        (PREEMPTED, 0, times(1.0, 1.2), "preempted"),
    ):
        panel.update_requests([request("a", state, computed, when)])
        assert texts(panel, "State") == [word]
    panel.finish("a", FinishReason.LENGTH, times(1.0, 1.2, 1.3, 1.4, 1.5), 100, 64, 0)
    panel.update_requests([request("a")])  # a snapshot from before the end
    assert texts(panel, "State") == ["decode"] and numbers(panel.note.text()) == [1, 0]
    panel.update_requests([])
    assert texts(panel, "State") == [ENDS[FinishReason.LENGTH]] and texts(panel, "Output") == ["4"]
    assert texts(panel, "Mean ITL") == ["100 ms"] and texts(panel, "Blocks") == ["0"]
    assert numbers(panel.note.text()) == [0, 1]
    panel.update_requests([request("a")])  # a snapshot from before the end
    assert texts(panel, "State") == [ENDS[FinishReason.LENGTH]]


def test_columns_sort_by_number_and_what_is_unknown_is_least(panel: RequestsPanel) -> None:
    panel.update_requests(
        [
            request("a", when=times(1.0, 1.9, 2.0)),
            request("b", when=times(1.1, 11.2, 11.3)),
            request("c", WAITING, 0, times(1.2)),
        ]
    )
    sort(panel, "TTFT", Qt.SortOrder.AscendingOrder)
    assert texts(panel, "TTFT") == ["–", "900 ms", "10.1 s"]
    sort(panel, "TTFT", Qt.SortOrder.DescendingOrder)
    assert texts(panel, "Request") == ["What is TTFT?", "Tell me a story", "Hi"]


def test_abort_and_blocks_act_on_the_selected(qtbot: QtBot, panel: RequestsPanel) -> None:
    aborted: list[str] = []
    shown: list[str] = []
    panel.abort_requested.connect(aborted.append)
    panel.blocks_wanted.connect(shown.append)
    panel.update_requests([request("a"), request("b")])
    assert not panel.abort_button.isEnabled()
    panel.select("b")
    assert panel.selected is not None and panel.selected.request_id == "b"
    qtbot.mouseClick(panel.abort_button, Qt.MouseButton.LeftButton)
    qtbot.keyClick(panel.table, Qt.Key.Key_Delete)
    qtbot.mouseClick(panel.blocks_button, Qt.MouseButton.LeftButton)
    assert aborted == ["b", "b"] and shown == ["b"]
    panel.finish("b", FinishReason.ABORT, times(1.0), 100, 64, 0)
    panel.update_requests([request("a")])
    assert not panel.abort_button.isEnabled() and not panel.blocks_button.isEnabled()
    qtbot.keyClick(panel.table, Qt.Key.Key_Delete)
    assert aborted == ["b", "b"]
    qtbot.mouseClick(panel.clear_button, Qt.MouseButton.LeftButton)
    assert texts(panel, "Request") == ["Tell me a story"] and not panel.clear_button.isEnabled()


def test_one_that_holds_no_blocks_offers_none(qtbot: QtBot, panel: RequestsPanel) -> None:
    shown: list[str] = []
    panel.blocks_wanted.connect(shown.append)
    waits = RequestSnapshot("a", WAITING, 100, 0, 0, 0, 0, 0, times(1.0))
    panel.update_requests([waits])
    panel.select("a")
    assert panel.abort_button.isEnabled()
    assert not panel.blocks_button.isEnabled() and not panel.latency_button.isEnabled()
    panel._show_blocks()
    panel._inspect()
    assert shown == []
    panel.update_requests([request("a")])
    assert panel.blocks_button.isEnabled() and panel.latency_button.isEnabled()


def test_inspect_offers_the_times_of_running_and_ended_requests(
    qtbot: QtBot, panel: RequestsPanel
) -> None:
    wanted: list[str] = []
    panel.latency_wanted.connect(wanted.append)
    running, whole = times(1.0, 1.2), times(1.0, 1.2, 1.3, 1.4)
    panel.update_requests([request("a", when=running), request("b", when=running)])
    panel.select("b")
    qtbot.mouseClick(panel.latency_button, Qt.MouseButton.LeftButton)
    assert panel.model.times["b"] is running
    panel.finish("b", FinishReason.LENGTH, whole, 100, 64, 0)
    panel.update_requests([request("a", when=running)])
    qtbot.keyClick(panel.table, Qt.Key.Key_Return)
    row = panel.table.visualRect(panel.table.selectionModel().selectedRows()[0])
    qtbot.mouseClick(panel.table.viewport(), Qt.MouseButton.LeftButton, pos=row.center())
    qtbot.mouseDClick(panel.table.viewport(), Qt.MouseButton.LeftButton, pos=row.center())
    assert wanted == ["b", "b", "b"] and panel.model.times["b"] is whole
    panel.update_requests([request("b", when=running)])  # a snapshot from before the end
    assert panel.model.times["b"] is whole
    panel.model.clear_ended()
    assert list(panel.model.times) == ["a"]


def test_the_model_keeps_qt_s_rules(qtbot: QtBot, qtmodeltester: ModelTester) -> None:
    model = RequestModel()
    qtmodeltester.check(model)
    model.update([request(f"r{number}") for number in range(5)])
    model.finish("r1", FinishReason.STOP, times(1.0, 1.1), 100, 64, 0)
    model.update([request("r7", WAITING)])
    model.clear_ended()
    qtmodeltester.check(model)
    assert [record.request_id for record in model.records] == ["r0", "r2", "r3", "r4", "r7"]
    assert all(model.row_of(r.request_id) == row for row, r in enumerate(model.records))


def test_only_the_last_ended_requests_are_kept(qtbot: QtBot) -> None:
    model = RequestModel()
    model.update([request("stays")])
    for number in range(MOST_ENDED + 20):
        model.update([request(f"r{number}")])
        model.finish(f"r{number}", FinishReason.STOP, times(1.0, 1.1), 100, 64, 0)
    assert len(model.records) == MOST_ENDED + 1 == len(model.times)
    assert model.records[0].request_id == "stays" and model.records[1].request_id == "r20"


def test_the_times_of_the_last_ended_requests_are_kept(
    panel: RequestsPanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many times at most, but those of the last request and of what runs always."""
    monkeypatch.setattr("widgets.requests.model.MOST_TIMES", 5)
    panel.update_requests([request("a"), request("b"), request("c")])
    for name, count in (("a", 3), ("b", 2)):
        whole = times(1.0, *(1.1 + i for i in range(count)))
        panel.finish(name, FinishReason.STOP, whole, 100, 64, 0)
    panel.update_requests([request("c")])
    assert set(panel.model.times) == {"a", "b", "c"}
    panel.select("a")
    assert panel.latency_button.isEnabled() and "Enter" in panel.latency_button.toolTip()
    panel.finish("c", FinishReason.STOP, times(1.0, *(1.1 + i for i in range(9))), 100, 64, 0)
    panel.update_requests([])
    assert set(panel.model.times) == {"c"} and len(panel.model.records) == 3
    assert not panel.latency_button.isEnabled()
    assert f"{MOST_TIMES:,}" in panel.latency_button.toolTip()
    panel.select("c")
    assert panel.latency_button.isEnabled()
    panel.model.clear_ended()
    assert not panel.model.times


def test_a_request_that_no_snapshot_listed_is_shown_once_it_ends(panel: RequestsPanel) -> None:
    panel.finish("a", FinishReason.LENGTH, times(1.0, 1.2, 1.25), 12, 3, 2)
    panel.update_requests([])
    assert numbers(panel.note.text()) == [0, 1]
    panel.update_requests([request("a"), request("b", WAITING, 0, times(2.0))])  # a late snapshot
    assert numbers(panel.note.text()) == [1, 1]
    assert texts(panel, "State") == ["waiting", ENDS[FinishReason.LENGTH]]
    shown = [texts(panel, title)[1] for title in ("Prompt", "Cached", "Output", "Blocks")]
    assert shown == ["12", "3", "2", "0"]
    assert texts(panel, "TTFT")[1] == "200 ms" and texts(panel, "Preempted")[1] == "2"
    panel.finish("b", FinishReason.STOP, times(2.0), 12, 3, 5)  # preempted since the snapshot
    panel.update_requests([])
    assert texts(panel, "Preempted")[0] == "5"
    panel.finish("c", FinishReason.STOP, times(3.0), 12, 3, -1)
    panel.update_requests([])
    assert texts(panel, "Preempted")[0] == "–"


NAMES = st.sampled_from("abcdef")


@settings(max_examples=25)
@given(st.lists(st.tuples(st.lists(NAMES, max_size=2), st.lists(NAMES, max_size=2)), max_size=8))
def test_the_table_counts_what_the_snapshot_counts(
    qapp: QApplication, turns: list[tuple[list[str], list[str]]]
) -> None:
    """The header shows the same snapshot. Ends arrive before the snapshot without the request."""
    panel, active, ended = RequestsPanel(), set[str](), set[str]()
    for begins, ends in turns:
        active |= set(begins) - ended
        for name in ends:
            if name in active:
                panel.finish(name, FinishReason.STOP, times(1.0, 1.2), 12, 3, 0)
        for now_ended in (set[str](), active & set(ends)):
            active, ended = active - now_ended, ended | now_ended
            panel.update_requests([request(name) for name in sorted(active)])
            assert (numbers(panel.note.text()) or [0, 0]) == [len(active), len(ended)]
    panel.deleteLater()
