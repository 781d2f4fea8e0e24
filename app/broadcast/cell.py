"""`ReplyCell`: one reply of a broadcast as it is written, with its figures."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPlainTextEdit, QPushButton, QVBoxLayout

from app.broadcast.replies import Reply, Stage
from widgets.elided_line import ElidedLine
from widgets.theme import SPACE_1, SPACE_2, SPACE_3

HEIGHT, LEAST_WIDTH = 168, 260
_WAITING = "Its tokens appear here as soon as the engine has a place for it."


class ReplyCell(QFrame):
    """`keep_wanted(reply)`: the user wants it as a chat."""

    keep_wanted = Signal(object)

    def __init__(self, reply: Reply, name: str) -> None:
        super().__init__()
        self.reply = reply
        self.setProperty("panel", True)
        self.setFixedHeight(HEIGHT)
        self.setMinimumWidth(LEAST_WIDTH)
        self.setAccessibleName(f"Reply {reply.number}")
        self.title, self.figures = ElidedLine(), ElidedLine("text_muted")
        self.title.set_text(name)
        self.keep = QPushButton("Keep as chat")
        self.keep.setProperty("kind", "link")
        self.keep.setToolTip("Make an ordinary chat of this prompt and reply, and open it")
        self.keep.setAccessibleName(f"Keep reply {reply.number} as a chat")
        self.keep.clicked.connect(lambda: self.keep_wanted.emit(self.reply))
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setProperty("bare", True)
        self.text.setFrameShape(QFrame.Shape.NoFrame)
        self.text.setTabChangesFocus(True)
        self.text.setPlaceholderText(_WAITING)
        self.text.document().setDocumentMargin(0)
        self.text.setAccessibleName(f"Text of reply {reply.number}")
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        head.addWidget(self.title, 1)
        head.addWidget(self.keep)
        column = QVBoxLayout(self)
        column.setContentsMargins(SPACE_3, SPACE_2, SPACE_2, SPACE_2)
        column.setSpacing(SPACE_1)
        column.addLayout(head)
        column.addWidget(self.figures)
        column.addWidget(self.text, 1)
        self.show_figures()

    def append(self, text: str) -> None:
        """More of its text; the end stays in view where it was."""
        bar = self.text.verticalScrollBar()
        follows = bar.value() == bar.maximum()
        cursor = QTextCursor(self.text.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(text)
        if follows:
            bar.setValue(bar.maximum())

    def show_figures(self) -> None:
        reply = self.reply
        words = reply.words
        if reply.stage is Stage.FAILED and reply.error is not None:
            words = f"{reply.error.cause} {reply.error.remedy}".strip()
        self.figures.set_text(words)
        self.keep.setEnabled(not reply.stage.is_open and bool(reply.text))
