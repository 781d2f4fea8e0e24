"""Examples of a report: tokens with the highest divergence, and answers of both models."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QFrame,
    QHeaderView,
    QLabel,
    QSizePolicy,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.features.quantize.figures import empty_layout
from app.storage.report_export import one_line
from engine.evaluate.report import Alternative, AnswerPair, Answers, WorstToken
from widgets.controls.layouts import button, vbox, wrapped
from widgets.theme.theme import SPACE_1, SPACE_2, figure_font, mono_font, theme, theme_notifier

SHOWN = 6


class WorstView(QWidget):
    """Worst tokens in context: the first few, then all."""

    def __init__(self) -> None:
        super().__init__()
        self._worst: tuple[WorstToken, ...] = ()
        self._shows_all = False
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(SPACE_1)
        title = QLabel("Highest divergence")
        title.setProperty("role", "title")
        self._column.addWidget(title)
        self._rows = QVBoxLayout()
        self._rows.setSpacing(SPACE_1)
        self._column.addLayout(self._rows)
        self.more = button("Show more", self._show_all, kind="link")
        self._column.addWidget(self.more, 0, Qt.AlignmentFlag.AlignLeft)
        self.labels: list[QLabel] = []
        theme_notifier().changed.connect(self._refill)

    def show_worst(self, worst: Sequence[WorstToken]) -> None:
        self._worst, self._shows_all = tuple(worst), False
        self._refill()

    def _show_all(self) -> None:
        self._shows_all = True
        self._refill()

    def _refill(self) -> None:
        empty_layout(self._rows)
        shown = self._worst if self._shows_all else self._worst[:SHOWN]
        self.labels = []
        for token in shown:
            self._rows.addWidget(self._row(token))
        left = len(self._worst) - len(shown)
        self.more.setText(f"Show {left} more")
        self.more.setVisible(left > 0)
        self.setVisible(bool(self._worst))

    def _row(self, token: WorstToken) -> QFrame:
        frame = QFrame()
        frame.setProperty("notice", "info")
        text = QLabel(marked(token))
        text.setTextFormat(Qt.TextFormat.RichText)
        text.setFont(mono_font())
        text.setWordWrap(True)
        text.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        text.setAccessibleName(
            f"{one_line(token.before)} [{one_line(token.token)}] {one_line(token.after)}"
        )
        selectable = Qt.TextInteractionFlag.TextSelectableByMouse
        text.setTextInteractionFlags(selectable)
        figures = wrapped("small", token_figures(token))
        figures.setFont(figure_font("small"))
        figures.setTextInteractionFlags(selectable)
        vbox(text, figures, of=frame, spacing=2, margins=(SPACE_2, SPACE_1, SPACE_2, SPACE_1))
        self.labels.append(text)
        return frame


def marked(token: WorstToken) -> str:
    """The highlighted token within its text."""
    table = theme()
    style = f"background-color: {table.accent}; color: {table.accent_text};"
    muted = f"color: {table.text_muted};"
    before, after = html.escape(one_line(token.before)), html.escape(one_line(token.after))
    return (
        f'<span style="{muted}">…{before}</span><span style="{style}">'
        f'{html.escape(one_line(token.token))}</span><span style="{muted}">{after}…</span>'
    )


def token_figures(token: WorstToken) -> str:
    """Both probabilities, the divergence, and the most likely tokens of each model."""
    p = f"p {percent(token.reference_logprob)} → {percent(token.candidate_logprob)}"
    return (
        f"{p}  ·  KL {token.kl:.3g}  ·  reference {_tops(token.reference_top)}  ·  "
        f"model {_tops(token.candidate_top)}"
    )


def _tops(tops: Sequence[Alternative]) -> str:
    return ", ".join(f"“{one_line(top.token)}” {percent(top.logprob)}" for top in tops)


def percent(logprob: float) -> str:
    share = math.exp(logprob)
    if share >= 0.0995:
        return f"{share:.0%}".replace("%", " %")
    return f"{share:.1%}".replace("%", " %") if share >= 0.001 else f"{100 * share:.1g} %"


HEADERS = ("Line", "Prompt", "Reference", "Model", "First difference")
_ROW_HEIGHT, _MOST_ROWS = 26, 10


class AnswersView(QWidget):
    """Answers of both models as a table, differing ones first."""

    def __init__(self) -> None:
        super().__init__()
        self.title = QLabel()
        self.title.setProperty("role", "title")
        self.list = QTreeWidget()
        self.list.setAccessibleName("Answers")
        self.list.setRootIsDecorated(False)
        self.list.setHeaderLabels(list(HEADERS))
        header = self.list.header()
        header.setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        for column in (0, 4):
            header.setSectionResizeMode(column, QHeaderView.ResizeMode.ResizeToContents)
        vbox(self.title, self.list, of=self, spacing=SPACE_1)

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
    shown = one_line(text) or "(end)"
    return shown if len(shown) <= 16 else shown[:15] + "…"
