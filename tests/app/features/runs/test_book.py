"""Runs are shown at once, written in order in a thread, and read for their details."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.features.runs.book import Content, RunBook
from app.storage import run_store
from app.storage.report_store import ReportStore
from app.storage.run_records import Kind, Measured, RunRecord, RunSide, State
from app.storage.run_store import RunStore
from app.storage.trash import Trash
from widgets.controls.notice import Toast

RUN = RunRecord(
    "", Kind.BROADCAST, "m", "INT8", "2026-01-02T03:04:05+00:00",
    (RunSide("INT8", {"ttft": Measured(0.25)}),), details={"num_done": 1, "replies": []},
)  # fmt: skip


@pytest.fixture
def book(qtbot: QtBot, tmp_path: Path) -> Iterator[RunBook]:
    page = QWidget()
    qtbot.addWidget(page)
    stores = ReportStore(tmp_path / "evaluations"), RunStore(tmp_path / "runs")
    made = RunBook(*stores, Trash(tmp_path / "trash.json"), Toast(page), page)
    yield made
    made.close(5.0)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until it is set, no run is written."""
    opened, save = threading.Event(), RunStore.save

    def wait(store: RunStore, run: RunRecord) -> RunRecord:
        opened.wait(10)
        return save(store, run)

    monkeypatch.setattr(run_store.RunStore, "save", wait)
    yield opened
    opened.set()


def test_a_run_is_shown_before_it_is_written(
    qtbot: QtBot, book: RunBook, gate: threading.Event, tmp_path: Path
) -> None:
    book.reload()  # what it finds is older than the run
    kept = book.keep(RUN)
    book.rename(book.runs[0], "  Mine ")
    (shown,) = book.runs
    assert (shown.id, shown.title, dict(shown.details)) == (kept, "Mine", {"num_done": 1})
    assert not (tmp_path / "runs").exists()
    gate.set()
    qtbot.waitUntil(lambda: not book.is_busy)
    assert book.runs == [shown]
    found: list[Content] = []
    book.load([shown], found.extend)
    qtbot.waitUntil(lambda: bool(found))
    assert found[0].run.title == "Mine" and found[0].run.details == RUN.details


def test_a_run_that_cannot_be_written_is_not_shown(
    qtbot: QtBot, book: RunBook, tmp_path: Path
) -> None:
    (tmp_path / "runs").write_text("no folder")
    book.keep(RUN)
    qtbot.waitUntil(lambda: not book.is_busy)
    assert book.runs == []


def test_a_deleted_run_comes_back_after_the_list_was_read_anew(
    qtbot: QtBot, book: RunBook
) -> None:
    book.keep(RUN)
    qtbot.waitUntil(lambda: not book.is_busy)
    before = book.runs
    book.delete(before)
    assert book.runs == []
    book.reload()
    qtbot.waitUntil(lambda: not book.is_busy)
    assert book.runs == []
    book._toast.act()
    assert book.runs == before


def test_what_is_not_written_yet_is_written_at_the_end(
    book: RunBook, gate: threading.Event, tmp_path: Path
) -> None:
    kept = [book.keep(RUN), book.keep(RUN)]
    gate.set()
    book.close(10.0)
    kept.append(book.keep(RUN))  # of a comparison that the end has stopped
    runs, problems = RunStore(tmp_path / "runs").read_all()
    assert sorted(run.id for run in runs) == sorted(kept) and not problems
    assert all(run.state is State.DONE for run in runs)
