"""Answers of both models side by side, those that differ first."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QHeaderView,
    QLabel,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.quantize.worst_view import one_line
from engine.evaluation.report import AnswerPair, Answers
from widgets.theme import SPACE_1

HEADERS = ("Line", "Prompt", "Reference", "Model", "First difference")
_ROW_HEIGHT, _MOST_ROWS = 26, 10


class AnswersView(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self.title = QLabel()
        self.title.setProperty("role", "title")
        self.list = QTreeWidget()
        self.list.setAccessibleName("Answers of both models")
        self.list.setRootIsDecorated(False)
        self.list.setHeaderLabels(list(HEADERS))
        header = self.list.header()
        header.setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        for column in (0, 4):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.ResizeToContents)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_1)
        layout.addWidget(self.title)
        layout.addWidget(self.list)

    def show_answers(self, answers: Answers | None) -> None:
        self.setVisible(answers is not None)
        self.list.clear()
        if answers is None:
            return
        same, all_ = answers.num_identical, len(answers.pairs)
        self.title.setText(f"Answers: {same} of {all_} identical")
        for pair in sorted(answers.pairs, key=lambda pair: (pair.is_identical, pair.line)):
            self.list.addTopLevelItem(_row(pair))
        shown = min(all_, _MOST_ROWS)
        self.list.setFixedHeight(_ROW_HEIGHT * (shown + 1) + 8)


def _row(pair: AnswerPair) -> QTreeWidgetItem:
    where = "identical"
    if pair.difference is not None:
        d = pair.difference
        where = f"token {d.token_index}: “{_short(d.reference)}” / “{_short(d.candidate)}”"
    texts = (str(pair.line), pair.prompt, pair.reference, pair.candidate, where)
    row = QTreeWidgetItem([one_line(text) for text in texts])
    for column, text in enumerate(texts):
        row.setToolTip(column, text)
    row.setTextAlignment(0, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
    return row


def _short(text: str) -> str:
    shown = one_line(text) or "(ends)"
    return shown if len(shown) <= 16 else shown[:15] + "…"
