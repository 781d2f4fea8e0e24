"""What a chart is read by: cross line, legend, table, files and menu."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QContextMenuEvent, QGuiApplication, QImage, QMouseEvent
from PySide6.QtWidgets import QApplication, QMenu, QTableView

from tests.widgets.plot.test_time_chart import NOW, chart, fill
from widgets.plot.time_chart import TimeChart

__all__ = ["chart"]


def test_hovering_reads_exact_values(chart: TimeChart) -> None:
    fill(chart, every=0.05)  # more points than are drawn
    at = float(chart.data.history["p50"].times[1234])
    exact = float(chart.data.history["p50"].values[1234])
    x = chart.view.to_x(at - NOW)
    position = QPointF(x, chart.view.plot_rect.center().y())
    move = QMouseEvent(
        QEvent.Type.MouseMove, position, chart.view.mapToGlobal(position), Qt.MouseButton.NoButton,
        Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier,
    )  # fmt: skip
    QApplication.sendEvent(chart.view.viewport(), move)
    readings = {reading.label: reading for reading in chart.view.readings}
    assert readings["p50"].y == exact
    assert readings["p50"].value == f"{exact:,.2f} ms"
    assert set(readings) == {"p50", "p99", "samples", "running"}
    QApplication.sendEvent(chart.view, QEvent(QEvent.Type.Leave))
    assert chart.view.cursor is None


def test_reading_a_state_gives_the_one_in_force(chart: TimeChart) -> None:
    chart.extend("running", [NOW - 60, NOW - 20], [3.0, 5.0])
    assert [r.y for r in chart.readings_at(NOW - 21)] == [3.0]
    assert [r.y for r in chart.readings_at(NOW)] == [5.0]
    chart.append("p50", NOW - 60, 7.0)
    assert [r.label for r in chart.readings_at(NOW - 40)] == ["running"]  # p50 is too far away


def test_the_keyboard_moves_the_cross_line(qtbot, chart: TimeChart) -> None:
    fill(chart)
    qtbot.keyClick(chart, Qt.Key.Key_Left)
    qtbot.keyClick(chart, Qt.Key.Key_Left)
    assert chart.view.cursor == -2.0
    qtbot.keyClick(chart, Qt.Key.Key_Right)
    assert chart.view.cursor == -1.0
    qtbot.keyClick(chart, Qt.Key.Key_Escape)
    assert chart.view.cursor is None


def test_the_legend_hides_and_shows(qtbot, chart: TimeChart) -> None:
    fill(chart)
    qtbot.mouseClick(chart.legend.keys["p99"], Qt.MouseButton.LeftButton)
    chart.redraw()
    assert not chart.is_shown("p99")
    assert chart.num_drawn_points()["p99"] == 0
    assert "p99" not in {label.label for label in chart.view.end_labels}
    assert "p99" not in {reading.label for reading in chart.readings_at(NOW - 10)}
    chart.legend.keys["p99"].setChecked(True)
    chart.redraw()
    assert chart.num_drawn_points()["p99"] > 0


def test_the_values_as_csv(chart: TimeChart, tmp_path: Path) -> None:
    chart.extend("p50", [NOW - 2, NOW - 1], [30.123456, 31.5])
    chart.extend("p99", [NOW - 1], [45.0])
    chart.extend("dots", [NOW - 1, NOW - 1], [1.0, 2.0])  # two samples of one step
    chart.save_csv(tmp_path / "itl.csv")
    rows = list(csv.reader(io.StringIO((tmp_path / "itl.csv").read_text(encoding="utf-8"))))
    assert rows == [
        ["time (s)", "p50 (ms)", "p99 (ms)", "samples (ms)", "running (ms)"],
        ["-2.000", "30.123456", "", "", ""],
        ["-1.000", "31.5", "45", "1", ""],
        ["-1.000", "", "", "2", ""],
    ]
    chart.copy_values()
    assert QGuiApplication.clipboard().text().splitlines()[1] == "-2.000\t30.123456\t\t\t"


def test_the_values_as_a_picture_and_a_table(qtbot, chart: TimeChart, tmp_path: Path) -> None:
    fill(chart)
    chart.save_png(tmp_path / "itl.png")
    assert QImage(str(tmp_path / "itl.png")).size() == chart.grab().toImage().size()
    with pytest.raises(OSError, match=r"itl\.png"):
        chart.save_png(tmp_path / "missing" / "itl.png")
    chart.show_table()
    view = chart.findChild(QTableView)
    model = view.model()
    assert model.rowCount() == len(chart.values_table().rows)
    assert model.index(0, 0).data() == "0.0"  # newest first
    assert model.index(0, 1).data() == f"{30 + math.sin(NOW):.3f}"
    view.window().close()


def test_the_menu_offers_everything(chart: TimeChart) -> None:
    menu = chart.make_menu()
    texts = [action.text() for action in menu.actions() if action.text()]
    assert texts == [
        "Copy values", "Copy image", "Save values as CSV…", "Save image as PNG…",
        "Table of values…", "Zoom out", "Fit axis to data", "Logarithmic axis", "Pause",
        "Time range",
    ]  # fmt: skip
    next(a for a in menu.actions() if a.text() == "Fit axis to data").trigger()
    assert chart.fits_data
    lengths = next(a for a in menu.actions() if a.text() == "Time range").menu()
    next(a for a in lengths.actions() if a.text() == "5 min").trigger()
    assert chart.window_s == 300.0
    menu.deleteLater()


def test_a_right_click_opens_the_menu(chart: TimeChart, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[QPoint] = []
    monkeypatch.setattr(QMenu, "popup", lambda menu, place: opened.append(place))
    event = QContextMenuEvent(
        QContextMenuEvent.Reason.Mouse, QPoint(50, 50), chart.mapToGlobal(QPoint(50, 50))
    )
    QApplication.sendEvent(chart, event)
    assert opened == [chart.mapToGlobal(QPoint(50, 50))]
    menu = chart.findChild(QMenu)
    assert menu.actions()
    menu.close()
