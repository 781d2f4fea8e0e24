"""The Notifications panel: notices of this session, their actions, copy."""

from __future__ import annotations

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QGuiApplication, QShowEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QPushButton,
    QStackedLayout,
    QTableView,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.window.notification_history import NoticeHistory, NoticeTable, Record
from widgets.controls.tables import dress_table
from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, theme_notifier

EMPTY = "Errors and finished jobs of this session appear here."
LEAST_HEIGHT = 104


class NoticePanel(QWidget):
    """Marks notices as read while it is visible."""

    def __init__(self, history: NoticeHistory, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._history = history
        self.setMinimumHeight(LEAST_HEIGHT)
        self.model = NoticeTable(history, self)
        self.view = _make_view(self.model)
        self._chosen: Record | None = None
        self.acts: list[QPushButton] = []
        self.text = QLabel()
        self.text.setTextFormat(Qt.TextFormat.PlainText)
        self.text.setWordWrap(True)
        self.text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.copy = _button("Copy", "Copy the selected notification with its details")
        self.copy.clicked.connect(self._copy)
        self.clear = _button("Clear", "Clear the list; the log is kept")
        self.clear.clicked.connect(history.clear)
        self._empty = QLabel(EMPTY)
        self._empty.setProperty("role", "small")
        self._empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._empty.setWordWrap(True)
        self._arrange()
        self.view.selectionModel().currentRowChanged.connect(lambda *_: self._choose())
        self.model.modelReset.connect(self._on_reset)
        history.changed.connect(self._on_changed)
        theme_notifier().changed.connect(self._fit_rows)
        self._fit_rows()
        self._on_reset()

    def _arrange(self) -> None:
        stage = QWidget()
        self._stack = QStackedLayout(stage)
        self._stack.addWidget(self._empty)
        self._stack.addWidget(self.view)
        self._buttons = QHBoxLayout()
        self._buttons.setSpacing(SPACE_2)
        self._buttons.addWidget(self.text, 1)
        self._buttons.addWidget(self.copy)
        self._buttons.addWidget(self.clear)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_3, 0, SPACE_3, SPACE_2)
        column.setSpacing(SPACE_1)
        column.addWidget(stage, 1)
        column.addLayout(self._buttons)

    @property
    def chosen(self) -> Record | None:
        return self._chosen

    def choose(self, row: int) -> None:
        self.view.selectRow(row)

    def look(self, is_seen: bool) -> None:
        """Its dock came to the front or was covered."""
        if is_seen:
            self._read()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._read()

    def _read(self) -> None:
        """Select the newest if there is anything new."""
        if self._history.num_unread:
            self.choose(0)
        self._history.mark_read()

    def _on_changed(self) -> None:
        if self.isVisible() and not self.visibleRegion().isEmpty():
            self._history.mark_read()

    def _on_reset(self) -> None:
        """Keep the selection; else select the newest."""
        row = self.model.row_of(self._chosen) if self._chosen is not None else 0
        self._stack.setCurrentIndex(int(self.model.rowCount() > 0))
        self.view.selectRow(max(row, 0))
        self._choose()

    def _choose(self) -> None:
        record = self._chosen = self.model.row_at(self.view.currentIndex().row())
        for button in self.acts:
            button.hide()
            button.deleteLater()
        self.acts = []
        for text, do in record.actions if record is not None else ():
            button = _button(text, text)
            button.clicked.connect(lambda _=False, do=do: do())
            self._buttons.insertWidget(1 + len(self.acts), button)
            self.acts.append(button)
        notice = record.notice if record is not None else None
        self.text.setText(f"{notice.cause} {notice.remedy}".strip() if notice is not None else "")
        self.copy.setEnabled(record is not None)
        self.clear.setEnabled(record is not None)

    def _copy(self) -> None:
        if self._chosen is not None:
            QGuiApplication.clipboard().setText(self._chosen.text)

    def _fit_rows(self) -> None:
        self.view.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + SPACE_2)


def _make_view(model: NoticeTable) -> QTableView:
    view = QTableView()
    view.setModel(model)
    dress_table(view, "Notifications of this session")
    header = view.horizontalHeader()
    header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
    header.setStretchLastSection(True)
    return view


def _button(text: str, tip: str) -> QPushButton:
    button = QPushButton(text)
    button.setToolTip(tip)
    return button


NAME = "Notices"
MOST = 99


class Bell(QObject):
    """Shows the unread count on a button; red if an error is among them."""

    def __init__(self, button: QToolButton, history: NoticeHistory) -> None:
        super().__init__(button)
        self._button, self._history = button, history
        history.changed.connect(self._show)
        self._show()

    def _show(self) -> None:
        count = self._history.num_unread
        shown = f"{count}" if count <= MOST else f"{MOST}+"
        self._button.setText(f"{shown} new" if count else NAME)
        self._button.setAccessibleName(f"{NAME}, {shown} new" if count else NAME)
        color = "danger" if self._history.has_unread_error else "accent" if count else "text_muted"
        set_icon(self._button, "bell", color)
