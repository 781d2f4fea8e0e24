"""Scrolling form with predictions, errors and the start button below."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QSize, Qt, Signal
from PySide6.QtGui import QGuiApplication, QShowEvent
from PySide6.QtWidgets import QPushButton, QWidget

from app.features.quantize.fields import breakable
from widgets.controls.frames import scroll_area
from widgets.controls.layouts import button, hbox, vbox, wrapped
from widgets.theme.theme import SPACE_1, SPACE_2, figure_font


class StartPanel(QWidget):
    """A form with its start button. `start_wanted` when it is pressed; `shown`: the panel was."""

    start_wanted = Signal()
    shown = Signal()

    def __init__(self, form: QWidget, text: str, tip: str) -> None:
        super().__init__()
        holder = QWidget()
        holder.setProperty("bare", True)
        vbox(form, of=holder, spacing=-1, margins=(0, 0, SPACE_2, 0))
        self._size, self._time = wrapped(), wrapped("small")
        self._size.setFont(figure_font())
        self._why = wrapped("small")
        self.error = wrapped("error")
        self.error.hide()
        self.start = button(text, self.start_wanted.emit, tip, kind="primary")
        self.copy = QPushButton("Copy command line")
        self.copy.setToolTip("Copy the equivalent command")
        self._command = ""
        self.copy.clicked.connect(lambda: QGuiApplication.clipboard().setText(self._command))
        self._holder, self._area = holder, scroll_area(holder, "Form")
        holder.installEventFilter(self)
        self._area.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # its fields have it
        vbox(
            (self._area, 1), SPACE_1, self._size, self._time, self._why, self.error,
            hbox((self.start, 1), self.copy), of=self, spacing=SPACE_1,
        )  # fmt: skip
        self.say()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.shown.emit()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """A scroll area does not propagate a new minimum width of its content."""
        if watched is self._holder and event.type() is QEvent.Type.LayoutRequest:
            self.updateGeometry()
        return super().eventFilter(watched, event)

    def minimumSizeHint(self) -> QSize:
        """As wide as the form: it scrolls vertically only."""
        hint, bar = super().minimumSizeHint(), self._area.verticalScrollBar().sizeHint().width()
        return hint.expandedTo(QSize(self._holder.minimumSizeHint().width() + bar, 0))

    def say(self, size: str = "", time: str = "", why: str = "") -> None:
        """`why`: why it cannot start yet."""
        for label, text in ((self._size, size), (self._time, time), (self._why, why)):
            label.setText(text)
            label.setVisible(bool(text))

    @property
    def words(self) -> str:
        return "\n".join(x.text() for x in (self._size, self._time, self._why) if x.text())

    def offer(self, can_start: bool, command: str) -> None:
        """`command`: the equivalent command line; empty if incomplete."""
        self._command = command
        self.start.setEnabled(can_start)
        self.copy.setEnabled(bool(command))

    def show_error(self, text: str) -> None:
        self.error.setText(breakable(text))
        self.error.setVisible(bool(text))
