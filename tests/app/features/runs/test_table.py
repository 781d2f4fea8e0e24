"""The table of runs: which columns have the room."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.features.runs.table import (
    LEAST_VERDICT,
    MODEL,
    PRECISION,
    RESULT,
    VERDICT,
    WHEN,
    WIDTHS,
    RunsTable,
)
from app.storage.run_records import Kind, RunRecord, State
from widgets.controls.layouts import vbox
from widgets.theme.fonts import scaled

LONG = "INT4 weights (groups of 128), KV INT8"
CAUSE = "The device ran out of memory at layer 12."


@pytest.mark.parametrize("width", [700, 900, 1200, 1800])
def test_the_verdict_is_elided_before_precision_and_result(
    qtbot: QtBot, qapp: QApplication, width: int
) -> None:
    table, page = RunsTable(), QWidget()
    vbox(table.filters, table, of=page)
    qtbot.addWidget(page)
    page.show()
    runs = [
        RunRecord(f"{n}", Kind.QUANTIZE, "Qwen3-0.6B", LONG, f"2026-03-0{n + 1}T10:00:00",
                  state=State.RUNNING, cause=CAUSE)
        for n in range(2)
    ]  # fmt: skip
    table.show_runs(runs, ())
    page.resize(width, 300)
    view = table.view
    widths = {column: view.columnWidth(column) for column in (*WIDTHS, VERDICT)}
    assert widths[WHEN] >= WIDTHS[WHEN] and widths[VERDICT] >= LEAST_VERDICT
    for column in (RESULT, PRECISION):
        is_whole = widths[column] >= view.sizeHintForColumn(column)
        assert is_whole or widths[VERDICT] <= LEAST_VERDICT + 2
    is_sum = abs(sum(widths.values()) - view.viewport().width()) <= 2
    assert is_sum or width < sum(WIDTHS.values()) + LEAST_VERDICT


def test_columns_give_what_their_texts_do_not_need(qtbot: QtBot) -> None:
    table, page = RunsTable(), QWidget()
    vbox(table.filters, table, of=page)
    qtbot.addWidget(page)
    page.resize(scaled(sum(WIDTHS.values()) + LEAST_VERDICT), 300)
    page.show()
    run = RunRecord("1", Kind.BROADCAST, "Qwen3-0.6B", "FP32", "2026-03-01T10:00:00")
    table.show_runs([run], ())
    less = 24  # of frame and scroll bar
    assert table.view.columnWidth(PRECISION) >= scaled(WIDTHS[PRECISION]) - less
    view, header = table.view, table.view.horizontalHeader()
    least = lambda n: max(view.sizeHintForColumn(n), header.sectionSizeHint(n))  # by the style
    spare = sum(view.columnWidth(n) - least(n) for n in (RESULT, PRECISION, MODEL))
    assert spare > less
    page.resize(page.width() - (spare - less) // 2, 300)
    qtbot.waitUntil(lambda: view.horizontalScrollBar().maximum() == 0, timeout=3000)
    assert view.columnWidth(PRECISION) >= view.sizeHintForColumn(PRECISION)
    assert view.columnWidth(WHEN) == scaled(WIDTHS[WHEN])
