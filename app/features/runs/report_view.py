"""One report: its verdict, all figures, layer errors, highest divergence, answers."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal, SignalInstance
from PySide6.QtGui import QFont, QGuiApplication, QResizeEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QHeaderView,
    QLabel,
    QPushButton,
    QSizePolicy,
    QTreeWidget,
    QTreeWidgetItem,
    QWidget,
)

from app.features.quantize.layers import LayersPanel
from app.features.quantize.reports import Made, subtitle
from app.features.runs.difference import difference
from app.features.runs.difference_view import DifferenceGrid
from app.features.runs.records import of_report
from app.features.runs.verdicts import verdict
from app.storage.report_export import one_line
from app.storage.report_store import StoredReport
from engine.evaluate.report import Alternative, AnswerPair, Answers, WorstToken
from widgets.controls.buttons import ButtonRows
from widgets.controls.frames import scroll_area, scroll_by_keys
from widgets.controls.layouts import STRETCH, button, dressed, empty_layout, vbox, wrapped
from widgets.controls.lines import ElidedLine, title_line
from widgets.theme.theme import (
    SPACE_1,
    SPACE_2,
    SPACE_3,
    SPACE_4,
    SPACE_6,
    figure_font,
    mono_font,
    theme,
    theme_notifier,
    ui_font,
)

SHOWN = 6


class WorstView(QWidget):
    """Worst tokens in context: the first few, then all."""

    def __init__(self) -> None:
        super().__init__()
        self._worst: tuple[WorstToken, ...] = ()
        self._shows_all = False
        self._rows = vbox(spacing=SPACE_1)
        self.more = button("Show more", self._show_all, kind="link")
        vbox(
            wrapped("title", "Highest divergence"), self._rows,
            (self.more, 0, Qt.AlignmentFlag.AlignLeft), of=self, spacing=SPACE_1,
        )  # fmt: skip
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
        self.list = dressed(QTreeWidget(), "Replies", padded=True)
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
        self.title.setText(f"Replies: {same} of {all_} identical")
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


WIDE = 860
"""Pixels from which figures and layers are side by side."""


class ReportView(QFrame):
    """Signals (StoredReport) when a button is pressed."""

    open_wanted = Signal(object)
    compare_wanted = Signal(object)
    export_wanted = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("panel", True)
        self.setAccessibleName("Report")
        self.stored: StoredReport | None = None
        self.made = Made()
        self.title = title_line(hugs=False)
        self.title.elide_mode = Qt.TextElideMode.ElideMiddle  # names end with their precision
        self.about = ElidedLine("text_muted")
        self.verdict = wrapped()
        self.verdict.setFont(ui_font("body", QFont.Weight.DemiBold))
        self.figures = DifferenceGrid("All metrics")
        self.layers = LayersPanel()
        self.worst = WorstView()
        self.answers = AnswersView()
        self.notices = wrapped("warning")
        self._make_buttons()
        self._arrange()

    def _make_buttons(self) -> None:
        def act(text: str, signal: SignalInstance, tip: str, kind: str = "") -> QPushButton:
            return button(text, lambda: signal.emit(self.stored), tip, kind)

        self.open = act("Open model", self.open_wanted, "Load the model for chat", "primary")
        self.compare = act(
            "Compare side by side",
            self.compare_wanted,
            "Send prompts to both the reference and this model",
        )
        self.copy = button(
            "Copy command line", self.copy_command, "Copy the commands that reproduce this report"
        )
        self.export = act("Export…", self.export_wanted, "JSON, CSV or Markdown")
        self.compare.hide()

    def _arrange(self) -> None:
        self.buttons = ButtonRows((self.open, self.compare, self.copy, self.export))
        head = vbox(
            self.title, self.about, SPACE_1, self.buttons,
            spacing=SPACE_1, margins=(SPACE_4, SPACE_3, SPACE_4, SPACE_2),
        )  # fmt: skip
        self._both = QBoxLayout(QBoxLayout.Direction.TopToBottom)
        self._both.setSpacing(SPACE_6)
        self._both.addLayout(vbox(self.figures, STRETCH, spacing=-1), 1)
        self._both.addWidget(self.layers, 1)
        content = QWidget()
        content.setProperty("bare", True)
        content.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        vbox(
            self.verdict, self.notices, self._both, self.worst, self.answers, STRETCH,
            of=content, spacing=SPACE_4, margins=(SPACE_4, SPACE_1, SPACE_4, SPACE_4),
        )  # fmt: skip
        self.area = scroll_area(content, "Report")
        scroll_by_keys(self.area)
        vbox(head, (self.area, 1), of=self, spacing=0, margins=(0, 0, 0, SPACE_1))

    def show_report(self, stored: StoredReport, made: Made) -> None:
        """Show a report, scrolled to its top."""
        self.stored, self.made = stored, made
        report = stored.report
        self.title.set_text(stored.name)
        self.about.set_text(subtitle(report))
        run = of_report(stored)
        self.verdict.setText(verdict(run))
        self.verdict.setVisible(bool(self.verdict.text()))
        self.figures.show_difference(difference([run]))
        self.layers.setVisible(bool(made.layers))
        self.layers.show_rows(made.layers)
        self.worst.show_worst(report.worst)
        self.answers.show_answers(report.answers)
        self.notices.setText("\n".join(report.notices))
        self.notices.setVisible(bool(report.notices))
        self.copy.setVisible(bool(made.commands))
        self.compare.setVisible(report.reference is not None)
        self.buttons.arrange()
        self.area.verticalScrollBar().setValue(0)

    def copy_command(self) -> None:
        QGuiApplication.clipboard().setText("\n".join(self.made.commands))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        sides = QBoxLayout.Direction
        is_wide = self.width() >= WIDE
        self._both.setDirection(sides.LeftToRight if is_wide else sides.TopToBottom)
