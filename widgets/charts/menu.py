"""What a right click on a chart offers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtGui import QAction, QActionGroup, QGuiApplication
from PySide6.QtWidgets import QFileDialog, QMenu, QMessageBox

from widgets.charts.scale import duration_text
from widgets.charts.table import ValuesDialog

if TYPE_CHECKING:
    from widgets.charts.time_chart import TimeChart

WINDOWS_S = (30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)


def chart_menu(chart: TimeChart) -> QMenu:
    """The context menu of `chart`."""
    menu = QMenu(chart)
    _add(menu, "Copy values", partial(copy_values, chart))
    _add(menu, "Copy picture", partial(copy_picture, chart))
    _add(menu, "Save values as CSV…", partial(ask_csv, chart))
    _add(menu, "Save picture as PNG…", partial(ask_png, chart))
    _add(menu, "Table of values…", partial(show_table, chart))
    menu.addSeparator()
    fit = menu.addAction("Fit axis to data")
    fit.setCheckable(True)
    fit.setChecked(chart.fits_data)
    fit.toggled.connect(chart.set_fit_to_data)
    pause = menu.addAction("Pause")
    pause.setCheckable(True)
    pause.setChecked(chart.is_paused)
    pause.toggled.connect(chart.set_paused)
    lengths = menu.addMenu("Length of time")
    group = QActionGroup(lengths)
    for seconds in WINDOWS_S:
        action = lengths.addAction(duration_text(seconds))
        action.setCheckable(True)
        action.setChecked(seconds == chart.window_s)
        action.triggered.connect(partial(_choose_window, chart, seconds))
        group.addAction(action)
    return menu


def _add(menu: QMenu, text: str, call: partial[None]) -> QAction:
    action = menu.addAction(text)
    action.triggered.connect(lambda *_: call())
    return action


def _choose_window(chart: TimeChart, seconds: float, *_: object) -> None:
    chart.set_window(seconds)
    chart.window_changed.emit(seconds)


def copy_values(chart: TimeChart) -> None:
    """All values to the clipboard, separated by tabs, as spreadsheets take them."""
    QGuiApplication.clipboard().setText(chart.values_table().as_csv("\t"))


def copy_picture(chart: TimeChart) -> None:
    QGuiApplication.clipboard().setPixmap(chart.grab())


def save_csv(chart: TimeChart, path: Path) -> None:
    """Raises OSError."""
    path.write_text(chart.values_table().as_csv(), encoding="utf-8")


def save_png(chart: TimeChart, path: Path) -> None:
    """Raises OSError."""
    if not chart.grab().save(str(path), "PNG"):
        raise OSError(f"{path} cannot be written")


def ask_csv(chart: TimeChart) -> None:
    _ask(chart, "Save values", ".csv", "Comma-separated values (*.csv)", save_csv)


def ask_png(chart: TimeChart) -> None:
    _ask(chart, "Save picture", ".png", "PNG picture (*.png)", save_png)


def _ask(chart: TimeChart, title: str, suffix: str, kind: str, save: object) -> None:
    name = chart.title.lower().replace(" ", "-") + suffix
    chosen, _ = QFileDialog.getSaveFileName(chart, title, name, kind)
    if not chosen:
        return
    path = Path(chosen)
    if not path.suffix:
        path = path.with_suffix(suffix)
    try:
        save(chart, path)  # type: ignore[operator]
    except OSError as error:
        QMessageBox.warning(chart, title, f"{path.name} was not saved: {error}")


def show_table(chart: TimeChart) -> None:
    """The values in a window of their own."""
    dialog = ValuesDialog(chart.title, chart.values_table(), chart)
    dialog.show()
