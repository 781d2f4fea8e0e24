"""Welcome page: this machine, which models fit, and how to start."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QGridLayout,
    QLabel,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.features.models.estimate import Held
from app.features.models.fit import CONTEXT, Fit, MachineFacts, machine_facts, shape_fits
from app.features.models.fit_rows import PARTS, FitRows
from app.features.models.inspector import Estimator
from app.link.tasks import run_task
from engine.errors import ErrorInfo
from widgets.controls.buttons import CopyButton
from widgets.controls.layouts import STRETCH, hbox, vbox
from widgets.controls.swatches import Swatch, Swatches, of
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4, SPACE_6, figure_font, mono_font


class AdviceBox(QFrame):
    """Advice with a command to copy. Hidden without any."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("notice", "warning")
        self._text = plain_text("", "")
        self._command = plain_text("", "")
        self._command.setFont(mono_font("small"))
        self._command.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        row = hbox(
            (self._command, 1),
            (CopyButton("Copy command", lambda: self.command), 0, Qt.AlignmentFlag.AlignTop),
        )
        vbox(
            self._text, row, of=self, spacing=SPACE_1, margins=(SPACE_3, SPACE_2, SPACE_2, SPACE_2)
        )
        self.hide()

    @property
    def command(self) -> str:
        return self._command.text()

    def show_advice(self, text: str, command: str) -> None:
        self._text.setText(text)
        self._command.setText(command)
        self.setAccessibleName(f"{text} {command}")
        self.show()


class StartOption(QFrame):
    """One way to start: title, text and button."""

    def __init__(
        self, title: str, text: str, button: str, do: Callable[[], object], kind: str
    ) -> None:
        super().__init__()
        self.setProperty("notice", "info")
        go = QPushButton(button)
        go.setProperty("kind", kind)
        go.setAccessibleDescription(f"{title}. {text}")
        go.setMinimumWidth(124)  # one column of buttons
        go.clicked.connect(lambda: do())
        words = vbox(heading(title), plain_text(text, "muted"), spacing=SPACE_1)
        hbox(
            (words, 1),
            (go, 0, Qt.AlignmentFlag.AlignVCenter),
            of=self,
            spacing=SPACE_3,
            margins=(SPACE_3, SPACE_3, SPACE_3, SPACE_3),
        )


def heading(text: str) -> QLabel:
    return plain_text(text, "title")


def plain_text(text: str, role: str, *, wraps: bool = True) -> QLabel:
    label = QLabel(text)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setProperty("role", role)
    if wraps:
        label.setWordWrap(True)
        # with a least height of its own it would ask for that of a narrow one
        label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
    return label


NARROW = 640
MAX_WIDTH = 1080


class WelcomePage(QFrame):
    """`chat`, `hub`, `folder`, `shapes`: the chosen start; `left`: to the list of models."""

    chat = Signal()
    hub = Signal()
    folder = Signal()
    shapes = Signal()
    left = Signal()

    def __init__(
        self,
        in_use: Callable[[], Held],
        estimator: Estimator,
        gather: Callable[[], MachineFacts] = machine_facts,
    ) -> None:
        super().__init__()
        self._in_use, self._estimator, self._gather = in_use, estimator, gather
        self._asked = False
        self.setProperty("panel", True)
        self._facts = QGridLayout()
        self.advice = AdviceBox()
        self.fits = FitRows()
        self._fits_note = plain_text("Estimating", "small")
        self._columns = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._build()

    def _build(self) -> None:
        content = QWidget()
        content.setProperty("bare", True)
        title = plain_text("Welcome to Inferdeck", "figure")
        later = QPushButton("Show models")
        later.clicked.connect(self.left)
        head = hbox((title, 1), later, spacing=-1)
        self._columns.setSpacing(SPACE_6)
        self._columns.addLayout(self._make_machine(), 1)
        self._columns.addLayout(self._make_ways(), 1)
        inner = QWidget()
        inner.setMaximumWidth(MAX_WIDTH)
        vbox(
            head,
            plain_text(
                "Chat with a model, change engine settings, and watch memory, time to first token "
                "and inter-token latency.",
                "muted",
            ),
            SPACE_2,
            self._columns,
            STRETCH,
            of=inner,
        )
        hbox(
            STRETCH,
            (inner, 1000),
            STRETCH,
            of=content,
            spacing=-1,
            margins=(SPACE_4, SPACE_4, SPACE_4, SPACE_4),
        )
        scroll = QScrollArea()
        scroll.setAccessibleName("Welcome")
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # its buttons have it
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setWidget(content)
        vbox(scroll, of=self, spacing=-1, margins=(1, 1, 1, 1))

    def _make_machine(self) -> QVBoxLayout:
        self._facts.setHorizontalSpacing(SPACE_4)
        self._facts.setVerticalSpacing(SPACE_1)
        self._facts.setColumnStretch(1, 1)
        self._show_rows((("", "Reading hardware"),))
        legend = Swatches([Swatch(label, of(color)) for label, color, _ in PARTS])
        column = vbox(
            heading("This machine"),
            self._facts,
            self.advice,
            SPACE_3,
            heading(f"Models that fit ({CONTEXT:,} tokens of context)"),
            self._fits_note,
            self.fits,
            legend,
            STRETCH,
        )
        return column

    def _make_ways(self) -> QVBoxLayout:
        column = vbox(heading("Start"), spacing=SPACE_3)
        ways = (
            (
                "Demo model",
                "Included and open at start: small and fast, for trying every view. Its speed and "
                "memory use are not representative.",
                "Chat", self.chat, "primary",
            ),
            (
                "Hugging Face Hub",
                "Search models, see which fit, and download. Downloads go to the shared Hugging "
                "Face cache.",
                "Find model", self.hub, "",
            ),
            (
                "Your models",
                "A folder with config.json and safetensors files, or a folder of such folders.",
                "Add folder…", self.folder, "",
            ),
            (
                "Random weights",
                "Common model sizes without a download. Replies are noise; speed and memory use "
                "are real.",
                "Choose size", self.shapes, "",
            ),
        )  # fmt: skip
        for title, text, button, signal, kind in ways:
            column.addWidget(StartOption(title, text, button, signal.emit, kind))
        column.addStretch(1)
        return column

    # Filling -----------------------------------------------------------------------------------

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._asked:
            self._asked = True
            run_task(self, self._gather, self._on_facts, self._on_no_facts)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        directions = QBoxLayout.Direction
        is_narrow = self.width() < scaled(NARROW)
        self._columns.setDirection(directions.TopToBottom if is_narrow else directions.LeftToRight)

    def _on_facts(self, facts: MachineFacts) -> None:
        self._show_rows(facts.rows)
        if facts.advice is not None:
            self.advice.show_advice(
                f"{facts.advice.cause} {facts.advice.remedy}", facts.advice.command
            )
        in_use, estimator = self._in_use(), self._estimator
        run_task(self, lambda: shape_fits(in_use, estimator), self._on_fits, self._on_no_fits)

    def _on_no_facts(self, error: ErrorInfo) -> None:
        self._show_rows((("", str(error)),))
        self._fits_note.hide()

    def _on_fits(self, found: list[tuple[str, Fit]]) -> None:
        self._fits_note.hide()
        self.fits.show_named(found)

    def _on_no_fits(self, error: ErrorInfo) -> None:
        self._fits_note.setText(str(error))

    def _show_rows(self, rows: tuple[tuple[str, str], ...]) -> None:
        while (item := self._facts.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()
                widget.deleteLater()
        for row, (name, value) in enumerate(rows):
            shown = plain_text(value, "")
            shown.setFont(figure_font())
            shown.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            self._facts.addWidget(
                plain_text(name, "muted", wraps=False), row, 0, Qt.AlignmentFlag.AlignTop
            )
            self._facts.addWidget(shown, row, 1)

    def facts(self) -> dict[str, str]:
        """The shown rows."""
        found = {}
        for row in range(self._facts.rowCount()):
            cells = [self._facts.itemAtPosition(row, column) for column in (0, 1)]
            labels = [cell.widget() for cell in cells if cell is not None]
            if len(labels) == 2:
                found[labels[0].text()] = labels[1].text()  # type: ignore[union-attr]
        return found
