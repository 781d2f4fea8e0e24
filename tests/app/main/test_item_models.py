"""Models of lists and tables keep Qt's rules, also while they change under a view."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from PySide6.QtCore import QAbstractItemModel, QModelIndex, Qt
from PySide6.QtTest import QAbstractItemModelTester
from PySide6.QtWidgets import QTableView
from pytestqt.qtbot import QtBot

from app.features.inspect import log_view
from app.features.inspect.log_view import LogFilter, LogModel
from app.features.serve.calls_table import CallsTable
from app.log import LogLine
from app.server.call_log import KEPT, CallLog, CallRecord
from engine.units import NOTHING
from widgets.chat.conversation_list import ConversationModel
from widgets.chat.records import ConversationRecord
from widgets.plot.table import ValuesDialog, ValuesTable

FATAL = QAbstractItemModelTester.FailureReportingMode.Fatal


@pytest.fixture
def watched(qtbot: QtBot) -> Iterator[list[QAbstractItemModelTester]]:
    """Holds what watches a model: Qt ends the program where a rule is broken."""
    testers: list[QAbstractItemModelTester] = []
    yield testers
    testers.clear()


def watch(testers: list[QAbstractItemModelTester], *models: QAbstractItemModel) -> None:
    testers += [QAbstractItemModelTester(model, FATAL) for model in models]


def lines(first: int, count: int) -> list[LogLine]:
    levels = (logging.INFO, logging.WARNING, logging.ERROR)
    numbers = range(first, first + count)
    return [LogLine(float(n), levels[n % 3], "app", f"line {n}") for n in numbers]


def test_the_log_and_what_is_filtered_of_it(
    watched: list[QAbstractItemModelTester], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_view, "MAX_LINES", 20)
    model, shown = LogModel(), LogFilter()
    shown.setSourceModel(model)
    watch(watched, model, shown)
    model.add(lines(0, 12))
    shown.choose(logging.WARNING, "")
    assert shown.rowCount() == 8
    model.add(lines(12, 12))  # the oldest go
    assert model.rowCount() == 20 and model.lines[0].text == "line 4"
    shown.choose(logging.NOTSET, "line 23")
    assert [shown.index(row, 3).data() for row in range(shown.rowCount())] == ["line 23"]
    assert model.data(QModelIndex()) is None


def test_the_calls_of_a_server(watched: list[QAbstractItemModelTester]) -> None:
    log = CallLog()
    table = CallsTable(log)
    watch(watched, table)

    def called(times: int, path: str) -> None:
        for _ in range(times):
            log.end(CallRecord(0, 1.7e9, "127.0.0.1", "GET", path, 200, 0.01))
        table.renew()

    called(3, "/v1/chat/completions")
    called(2, "/health")
    assert table.rowCount() == 3
    table.show_polls(True)
    assert table.rowCount() == 5
    called(KEPT - 2, "/v1/chat/completions")
    called(KEPT, "/v1/chat/completions")
    assert table.rowCount() == KEPT


def test_a_call_shows_its_times_in_the_unit_of_each() -> None:
    log = CallLog()
    log.end(CallRecord(0, 1.7e9, "127.0.0.1", "POST", "/v1/completions", 200, 81.294, 9, 0.0635))
    log.end(CallRecord(0, 1.7e9, "127.0.0.1", "GET", "/v1/files", 404, 0.00085))
    table = CallsTable(log)
    table.renew()
    times = [CallsTable.HEADINGS.index(name) for name in ("TTFT", "Total")]
    shown = [[table.index(row, column).data() for column in times] for row in range(2)]
    assert shown == [[NOTHING, "850 µs"], ["63.5 ms", "81 s"]]


def test_the_conversations(watched: list[QAbstractItemModelTester]) -> None:
    model = ConversationModel()
    watch(watched, model)
    assert model.data(QModelIndex()) is None
    records = [ConversationRecord(f"c{n}", f"Chat {n}", "14:05") for n in range(30)]
    for shown in (records, records[::-1], records[:3], [], records[5:9]):
        model.set_rows([(record.id, record.hit) for record in shown], shown.__getitem__)
        titles = [model.index(row).data() for row in range(model.rowCount())]
        assert titles == [record.title for record in shown]
    model.update_record(records[6]._replace(title="Renamed"))
    assert model.index(1).data() == "Renamed"
    assert model.setData(model.index(0), "  A  name ") and model.index(0).data() == "A name"
    assert not model.flags(QModelIndex()) & Qt.ItemFlag.ItemIsEditable


def test_the_values_of_a_chart(qtbot: QtBot, watched: list[QAbstractItemModelTester]) -> None:
    table = ValuesTable(("s", "p50", "of"), ((-1.0, 2.5, "a"), (0.0, None, "b")), (1, 2, 0))
    for values in (table, ValuesTable(("s", "p50"), ((-1.0, 2.5), (0.0, None)))):
        dialog = ValuesDialog("TTFT", values)
        qtbot.addWidget(dialog)
        view = dialog.findChild(QTableView)
        assert view is not None
        watch(watched, view.model())
        assert view.model().rowCount() == 2
    watched.clear()  # before what they watch
