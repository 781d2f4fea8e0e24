"""A stored run in little room: it scrolls, and nothing is squeezed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.features.runs.stored_view import BODY, StoredView
from app.storage.run_records import Kind, Measured, RunRecord, RunSide
from widgets.theme.fonts import scaled
from widgets.theme.theme import apply_text_size


@pytest.fixture
def large_text(qapp: QApplication) -> Iterator[None]:
    apply_text_size(qapp, 160)
    yield
    apply_text_size(qapp, 100)


@pytest.mark.usefixtures("large_text")
def test_a_run_scrolls_where_it_does_not_fit(qtbot: QtBot) -> None:
    figures = {"ttft": Measured(0.25), "itl": Measured(0.02), "throughput": Measured(40.0)}
    run = RunRecord("1", Kind.BROADCAST, "m", "INT8", "2026-01-02T03:04:05+00:00",
                    (RunSide("INT8", figures),), details={"replies": []})  # fmt: skip
    view = StoredView(lambda reply, side, model: None)
    qtbot.addWidget(view)
    view.resize(520, 260)
    view.show_run(run)
    view.show()
    bar = view.area.verticalScrollBar()
    qtbot.waitUntil(lambda: bar.maximum() > 0)
    assert view.grid.height() >= scaled(BODY)
    assert view.table.height() >= view.table.minimumSizeHint().height()
    view.resize(520, 2000)
    qtbot.waitUntil(lambda: bar.maximum() == 0)
    assert view.grid.height() > scaled(BODY)  # and takes what is left


def test_a_sweep_ends_with_its_figures(qtbot: QtBot) -> None:
    """Without the room that replies or a ladder of another run would take."""
    figures = {"ttft": Measured(0.25), "itl": Measured(0.02)}
    run = RunRecord("1", Kind.BENCH, "m", "INT8", "2026-01-02T03:04:05+00:00",
                    (RunSide("8", figures),), details={"answer": "8 is the fastest."})  # fmt: skip
    view = StoredView(lambda reply, side, model: None)
    qtbot.addWidget(view)
    view.resize(700, view.table.minimumSizeHint().height() + 260)
    view.show_run(run)
    view.show()
    qtbot.waitUntil(lambda: view.area.widget().height() <= view.area.viewport().height())
    assert view.area.verticalScrollBar().maximum() == 0
    assert view.table.geometry().bottom() < view.area.viewport().height()
    with qtbot.waitSignal(view.bench_wanted) as wanted:
        view.bench.click()
    assert wanted.args == [run]
