"""A result as a picture, without a window: answer, table and chart as on the Bench page."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from app.bench.ladder_record import LadderResult
from app.bench.ranking import Objective
from app.bench.record import BenchResult
from engine.evaluate.report import ReportError

WIDTH, HEIGHT = 1280, 800
"""At least, in pixels."""
BESIDE = 40


def save_picture(result: BenchResult | LadderResult, file: Path) -> None:
    """For a program without a window. Raises ReportError."""
    from PySide6.QtCore import QCoreApplication, QEvent

    if sys.platform.startswith("linux") and QCoreApplication.instance() is None:
        os.environ["QT_QPA_PLATFORM"] = "offscreen"  # whatever displays there are
    from PySide6.QtWidgets import QApplication

    from app.features.bench.ladder_view import LadderView
    from app.features.bench.results import LATENCY, MEMORY, ResultsView
    from widgets.theme.theme import apply_theme

    app = QApplication.instance() or QApplication(sys.argv[:1])
    assert isinstance(app, QApplication)
    apply_theme(app, "light")
    view: ResultsView | LadderView
    if isinstance(result, LadderResult):
        view = LadderView()
        view.show_result(result)
        header = view.figures.table.horizontalHeader()
    else:
        view = ResultsView()
        header = view.table.horizontalHeader()
        if len(result.axes) > 1:
            is_memory = result.objective is Objective.MEMORY
            view.show_kind(MEMORY if is_memory else LATENCY)
        view.show_result(result)
    view.bar.hide()
    view.resize(WIDTH, HEIGHT)
    view.ensurePolished()
    view.resize(max(WIDTH, header.length() + BESIDE), HEIGHT)  # nobody can scroll it
    is_written = view.grab().save(str(file))
    view.deleteLater()
    QCoreApplication.sendPostedEvents(view, QEvent.Type.DeferredDelete)
    if not is_written:
        raise ReportError(f"Could not write {file}.", "Choose another folder.")
