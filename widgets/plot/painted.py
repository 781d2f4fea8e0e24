"""`Plot` and `PaintedPlot`: base classes of all plots.

Plot         title, table of values (T), menu (copy, CSV, PNG), theme, redraw clock
  TimeChart      pyqtgraph curves over time
  PaintedPlot    custom painting: hover, keyboard cursor, focus frame, empty text
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QContextMenuEvent,
    QFont,
    QFontMetricsF,
    QGuiApplication,
    QKeyEvent,
    QKeySequence,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QShortcut,
    QShowEvent,
)
from PySide6.QtWidgets import QFileDialog, QFrame, QMenu, QMessageBox, QSizePolicy, QWidget

from widgets.plot.axis import Range
from widgets.plot.clock import RedrawClock, work_time
from widgets.plot.table import ValuesDialog, ValuesTable, save_table
from widgets.plot.text import TextPen
from widgets.theme.theme import SPACE_4, figure_font, theme, theme_notifier, ui_font

_FILE_KINDS = {".csv": "Comma-separated values (*.csv)", ".png": "PNG image (*.png)"}
NONE = -1
"""Index of no item."""


class Plot(QFrame):
    """`name` is the accessible name; `title` heads the table and names saved files. With a
    `clock`, `redraw` runs on its ticks."""

    focus: ClassVar[Qt.FocusPolicy] = Qt.FocusPolicy.StrongFocus

    def __init__(
        self,
        name: str,
        *,
        title: str = "",
        clock: RedrawClock | None = None,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.title = title or name
        self.clock = clock
        self._dirty = True
        self.setAccessibleName(name)
        self.setFocusPolicy(self.focus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        key = QShortcut(QKeySequence(Qt.Key.Key_T), self)
        # not as a keyword of the constructor, which drops it: T would be ambiguous in the window
        key.setContext(Qt.ShortcutContext.WidgetShortcut)
        key.activated.connect(self.show_table)
        theme_notifier().changed.connect(self.apply_theme)
        if clock is not None:
            clock.add(self)

    def values_table(self) -> ValuesTable:
        raise NotImplementedError

    # Drawing -----------------------------------------------------------------------------------

    def apply_theme(self) -> None:
        """Use fonts and colours of the current theme."""
        self.request_redraw()

    def request_redraw(self) -> None:
        """The data changed. Cheap: the clock decides when it is drawn."""
        self._dirty = True
        if self.clock is None:
            self.update()
        elif self.isVisible():
            self.clock.wake()

    def wants_redraw(self) -> bool:
        return self._dirty

    def redraw(self) -> None:
        """Prepare the drawing; painting follows."""
        self._dirty = False
        self.update()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.request_redraw()

    # Menu, table, files ------------------------------------------------------------------------

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        menu = self.make_menu()
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(event.globalPos())

    def make_menu(self) -> QMenu:
        menu = QMenu(self)
        for text, call in (
            ("Copy values", self.copy_values),
            ("Copy image", self.copy_picture),
            ("Save values as CSV…", lambda: self.ask("values", ".csv", self.save_csv)),
            ("Save image as PNG…", lambda: self.ask("image", ".png", self.save_png)),
            ("Table of values…", self.show_table),
        ):
            menu.addAction(text).triggered.connect(call)
        return menu

    def copy_values(self) -> None:
        """Copy all values, separated by tabs, for spreadsheets."""
        QGuiApplication.clipboard().setText(self.values_table().as_csv("\t"))

    def copy_picture(self) -> None:
        QGuiApplication.clipboard().setPixmap(self.grab())

    def save_csv(self, path: Path) -> None:
        """Raises OSError."""
        save_table(self.values_table(), path)

    def save_png(self, path: Path) -> None:
        """Raises OSError."""
        if not self.grab().save(str(path), "PNG"):
            raise OSError(f"cannot write {path}")

    def ask(self, what: str, suffix: str, save: Callable[[Path], None], name: str = "") -> None:
        """Ask for a file and save `what` there; `name`: proposed, by default the title."""
        title, name = f"Save {what}", (name or self.title).lower().replace(" ", "-") + suffix
        chosen, _ = QFileDialog.getSaveFileName(self, title, name, _FILE_KINDS[suffix])
        if not chosen:
            return
        path = Path(chosen)
        if not path.suffix:
            path = path.with_suffix(suffix)
        try:
            save(path)
        except OSError as error:
            QMessageBox.warning(self, title, f"Cannot save {path.name}: {error}")

    def show_table(self) -> None:
        """Show the values in their own window."""
        ValuesDialog(self.title, self.values_table(), self).show()


class PaintedPlot(Plot):
    """A plot that paints itself. Items (bars, cells, steps) are pointed at with the mouse or the
    arrow keys; `pointed` is the index, NONE for none."""

    pointed = Signal(int)
    empty_text = ""
    preferred: ClassVar[QSize] = QSize(420, 180)
    least: ClassVar[QSize] = QSize(180, 120)

    def __init__(
        self,
        name: str,
        *,
        title: str = "",
        clock: RedrawClock | None = None,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(name, title=title, clock=clock, parent=parent)
        self.pointed_index = NONE
        self.pen = TextPen(self.text_font())
        self.setMouseTracking(True)

    def text_font(self) -> QFont:
        """The font of `pen`."""
        return figure_font("small")

    def apply_theme(self) -> None:
        self.pen = TextPen(self.text_font())
        self.updateGeometry()
        self.redraw()

    @property
    def line_height(self) -> float:
        return self.pen.metrics.height()

    def sizeHint(self) -> QSize:
        return self.preferred

    def minimumSizeHint(self) -> QSize:
        return self.least

    # For subclasses ----------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return False

    def paint(self, painter: QPainter) -> None:
        """Draw the values; the painter has the font of `pen`."""
        raise NotImplementedError

    @property
    def num_items(self) -> int:
        return 0

    def item_at(self, position: QPointF) -> int:
        """The item under the mouse, or NONE."""
        return NONE

    def key_target(self, key: Qt.Key) -> int | None:
        """The item that a key points at; None: not a key of this plot."""
        here, last = self.pointed_index, self.num_items - 1
        if key == Qt.Key.Key_Escape and here != NONE:
            return NONE
        targets = {
            Qt.Key.Key_Left: max(0, here - 1),
            Qt.Key.Key_Right: min(last, here + 1),
            Qt.Key.Key_Home: 0,
            Qt.Key.Key_End: last,
        }
        return targets.get(key) if last >= 0 else None

    # Painting ----------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        began = work_time()
        painter = QPainter(self)
        if self.is_empty:
            paint_centered(painter, QRectF(self.rect()), self.empty_text)
        else:
            self.pen.use(painter)
            self.paint(painter)
        if self.hasFocus():
            painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
            painter.setPen(QPen(theme().color("accent"), 1))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5))
        painter.end()
        if self.clock is not None:
            self.clock.charge(work_time() - began)
            if self._dirty:
                self.clock.saw(self)

    # Mouse and keyboard ------------------------------------------------------------------------

    def point_at(self, index: int) -> None:
        if index != self.pointed_index:
            self.pointed_index = index
            self.update()
            self.pointed.emit(index)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self.point_at(self.item_at(event.position()))

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        if not self.hasFocus():
            self.point_at(NONE)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        target = self.key_target(Qt.Key(event.key()))
        if target is None:
            super().keyPressEvent(event)
        else:
            self.point_at(target)


def paint_centered(painter: QPainter, area: QRectF, text: str) -> None:
    """Paint the text of an empty plot."""
    painter.setFont(ui_font("small"))
    painter.setPen(theme().color("text_muted"))
    flags = Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap
    painter.drawText(area.adjusted(SPACE_4, 0, -SPACE_4, 0), int(flags), text)


def paint_value_axis(
    painter: QPainter, plot: QRectF, shown: Range, marks: Sequence[tuple[float, str]], font: QFont
) -> None:
    """Grid lines across `plot` at `marks` (`labelled_ticks`), with the numbers to the left."""
    table, height = theme(), QFontMetricsF(font).height()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    painter.setFont(font)
    right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
    for value, text in marks:
        y = round(plot.bottom() - shown.share(value) * plot.height())
        painter.setPen(table.color("axis" if value == 0 else "grid"))
        painter.drawLine(QPointF(plot.left(), y), QPointF(plot.right(), y))
        painter.setPen(table.color("text_muted"))
        place = QRectF(0, y - height / 2, plot.left() - 6, height)
        painter.drawText(place, right, text)
