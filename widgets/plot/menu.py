"""What a right click on a chart offers, and T on any drawing of values: its table."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from PySide6.QtCore import QPoint, QRectF, Qt
from PySide6.QtGui import (
    QAction,
    QActionGroup,
    QGuiApplication,
    QKeySequence,
    QPainter,
    QPen,
    QPixmap,
    QShortcut,
)
from PySide6.QtWidgets import QFileDialog, QMenu, QMessageBox, QWidget

from widgets.plot.series import duration_text
from widgets.plot.table import ValuesDialog, ValuesTable
from widgets.theme.theme import theme

if TYPE_CHECKING:
    from widgets.plot.time_chart import TimeChart

WINDOWS_S = (30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)


class Drawing(Protocol):
    """A widget that draws values and has them as a table."""

    @property
    def title(self) -> str: ...

    def values_table(self) -> ValuesTable: ...

    def grab(self) -> QPixmap: ...


def offer_values(drawing: Any) -> None:
    """Give a `Drawing` its menu, its table on T, and a place in the order of Tab."""
    if not drawing.focusPolicy() & Qt.FocusPolicy.TabFocus:
        drawing.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    drawing.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
    drawing.customContextMenuRequested.connect(partial(_open_menu, drawing))
    table_on_key(drawing)


def table_on_key(drawing: Any) -> None:
    """T opens the table while the drawing has the focus."""
    key = QShortcut(QKeySequence(Qt.Key.Key_T), drawing)
    # not as a keyword of the constructor, which drops it: then T is every drawing's, and nobody's
    key.setContext(Qt.ShortcutContext.WidgetShortcut)
    key.activated.connect(partial(show_table, drawing))


def paint_focus(painter: QPainter, widget: QWidget) -> None:
    """A frame around what has the keyboard."""
    if widget.hasFocus():
        painter.setPen(QPen(theme().color("accent"), 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(QRectF(widget.rect()).adjusted(0.5, 0.5, -0.5, -0.5))


def _open_menu(drawing: Any, at: QPoint) -> None:
    menu = values_menu(drawing)
    menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    menu.popup(drawing.mapToGlobal(at))


def values_menu(drawing: Any) -> QMenu:
    """What every drawing of values offers."""
    menu = QMenu(drawing)
    _add(menu, "Copy values", partial(copy_values, drawing))
    _add(menu, "Copy picture", partial(copy_picture, drawing))
    _add(menu, "Save values as CSV…", partial(ask_csv, drawing))
    _add(menu, "Save picture as PNG…", partial(ask_png, drawing))
    _add(menu, "Table of values…", partial(show_table, drawing))
    return menu


def chart_menu(chart: TimeChart) -> QMenu:
    """The context menu of `chart`."""
    menu = values_menu(chart)
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


def copy_values(drawing: Drawing) -> None:
    """All values to the clipboard, separated by tabs, as spreadsheets take them."""
    QGuiApplication.clipboard().setText(drawing.values_table().as_csv("\t"))


def copy_picture(drawing: Drawing) -> None:
    QGuiApplication.clipboard().setPixmap(drawing.grab())


def save_csv(drawing: Drawing, path: Path) -> None:
    """Raises OSError."""
    path.write_text(drawing.values_table().as_csv(), encoding="utf-8")


def save_png(drawing: Drawing, path: Path) -> None:
    """Raises OSError."""
    if not drawing.grab().save(str(path), "PNG"):
        raise OSError(f"{path} cannot be written")


def ask_csv(drawing: Any) -> None:
    _ask(drawing, "Save values", ".csv", "Comma-separated values (*.csv)", save_csv)


def ask_png(drawing: Any) -> None:
    _ask(drawing, "Save picture", ".png", "PNG picture (*.png)", save_png)


def _ask(drawing: Any, title: str, suffix: str, kind: str, save: object) -> None:
    name = drawing.title.lower().replace(" ", "-") + suffix
    chosen, _ = QFileDialog.getSaveFileName(drawing, title, name, kind)
    if not chosen:
        return
    path = Path(chosen)
    if not path.suffix:
        path = path.with_suffix(suffix)
    try:
        save(drawing, path)  # type: ignore[operator]
    except OSError as error:
        QMessageBox.warning(drawing, title, f"{path.name} was not saved: {error}")


def show_table(drawing: Any) -> None:
    """The values in a window of their own."""
    dialog = ValuesDialog(drawing.title, drawing.values_table(), drawing)
    dialog.show()
