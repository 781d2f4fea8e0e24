"""Attached files: the list above the composer, the names below a message, a file's text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QScrollArea, QSizePolicy, QToolButton, QWidget

from widgets.chat.records import AttachmentRecord
from widgets.controls.buttons import IconButton
from widgets.controls.layouts import dressed, hbox, label, vbox
from widgets.controls.lines import ElidedLine
from widgets.controls.popover import Popover
from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_1, SPACE_3, figure_font, mono_font

MOST_ROWS = 4
PREVIEW_SIZE = (520, 320)
LONGEST_NAME = 40


class AttachmentList(QScrollArea):
    """One row per file of the next message; hidden without any. `removed(index)`."""

    removed = Signal(int)

    def __init__(self) -> None:
        super().__init__(widgetResizable=True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setAccessibleName("Attached files")
        self.records: list[AttachmentRecord] = []
        self.hide()

    def show_files(self, records: Sequence[AttachmentRecord]) -> None:
        self.records = list(records)
        inside = dressed(QWidget(), bare=True)
        rows = (self._row(index, record) for index, record in enumerate(records))
        vbox(*rows, of=inside, spacing=0, margins=(SPACE_1, 0, SPACE_1, 0))
        self.setWidget(inside)
        height = inside.sizeHint().height()
        if len(records) > MOST_ROWS:
            height = height * MOST_ROWS // len(records)
        self.setFixedHeight(height)
        self.setVisible(bool(records))

    def _row(self, index: int, record: AttachmentRecord) -> QWidget:
        row = QWidget()
        name, detail = ElidedLine(), label(record.detail, "small")
        name.set_text(record.name)
        detail.setFont(figure_font("small"))
        remove = IconButton("close", f"Remove {record.name}", partial(self.removed.emit, index))
        hbox((name, 1), detail, remove, of=row, spacing=SPACE_3)
        return row


class SentFiles(QWidget):
    """The files of a sent message; a click calls `show_file(record, its button)`."""

    def __init__(
        self,
        records: Sequence[AttachmentRecord],
        show_file: Callable[[AttachmentRecord, QWidget], object],
    ) -> None:
        super().__init__()
        column = vbox(of=self, spacing=0)
        for record in records:
            button = QToolButton()
            button.setText(f"{_short(record.name)}   {record.detail}")
            button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
            button.setToolTip(f"Show {record.name}")
            button.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
            button.setCursor(Qt.CursorShape.PointingHandCursor)
            set_icon(button, "attach")
            button.clicked.connect(lambda _, r=record, b=button: show_file(r, b))
            column.addWidget(button, 0, Qt.AlignmentFlag.AlignRight)


def _short(name: str) -> str:
    """A name shortened to `LONGEST_NAME` characters: its beginning, and its end with the suffix."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 14]}…{name[-13:]}"


class FilePopover(Popover):
    """The text of one file."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, "Attached file")
        no_wrap = QPlainTextEdit.LineWrapMode.NoWrap
        text = QPlainTextEdit(readOnly=True, lineWrapMode=no_wrap)
        self.text = dressed(text, "File contents")
        self.text.setFont(mono_font())
        self.text.setFixedSize(*PREVIEW_SIZE)
        self.column.addWidget(self.text)

    def show_file(self, record: AttachmentRecord) -> None:
        self.title.setText(record.name)
        self.text.setPlainText(record.text)

    def first_field(self) -> QWidget:
        return self.text
