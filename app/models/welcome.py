"""The first-run page: what this machine has, what fits it, and where to begin.

+------------------------+--------------------------+
| This machine           | Begin                    |
| CPU, cores, memory...  | starter model     [Chat] |
| (what could be better) | a model of the hub       |
| What fits              | models that you have     |
| bars                   | a real size, no download |
+------------------------+--------------------------+
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.models.estimate import Held
from app.models.fit import Fit
from app.models.fit_rows import FitRows
from app.models.inspector import Estimator
from app.models.memory_bar import PARTS
from app.models.this_machine import CONTEXT, MachineFacts, machine_facts, shape_fits
from app.models.welcome_parts import AdviceBox, Way, heading, plain_text
from app.tasks import run_task
from engine.errors import ErrorInfo
from widgets.fonts import scaled
from widgets.swatches import Swatch, Swatches, of
from widgets.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4, SPACE_6, figure_font

NARROW = 640
MAX_WIDTH = 1080


class WelcomePage(QFrame):
    """`chat`, `hub`, `folder`, `shapes`: where the user wants to begin; `left`: straight to the
    list of models."""

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
        self._fits_note = plain_text("Reading the sizes of known models", "small")
        self._columns = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._build()

    def _build(self) -> None:
        content = QWidget()
        content.setProperty("bare", True)
        title = plain_text("Welcome to Inferdeck", "figure")
        later = QPushButton("Show the models")
        later.clicked.connect(self.left)
        head = QHBoxLayout()
        head.addWidget(title, 1)
        head.addWidget(later)
        self._columns.setSpacing(SPACE_6)
        self._columns.addLayout(self._make_machine(), 1)
        self._columns.addLayout(self._make_ways(), 1)
        inner = QWidget()
        inner.setMaximumWidth(MAX_WIDTH)
        column = QVBoxLayout(inner)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_2)
        column.addLayout(head)
        column.addWidget(
            plain_text(
                "Chat with a model, turn a knob of its engine, and watch memory, time to first "
                "token and inter-token latency move.",
                "muted",
            )
        )
        column.addSpacing(SPACE_2)
        column.addLayout(self._columns)
        column.addStretch(1)
        outer = QHBoxLayout(content)
        outer.setContentsMargins(SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        outer.addStretch(1)
        outer.addWidget(inner, 1000)
        outer.addStretch(1)
        scroll = QScrollArea()
        scroll.setAccessibleName("Welcome")
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # its buttons have it
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setWidget(content)
        whole = QVBoxLayout(self)
        whole.setContentsMargins(1, 1, 1, 1)
        whole.addWidget(scroll)

    def _make_machine(self) -> QVBoxLayout:
        self._facts.setHorizontalSpacing(SPACE_4)
        self._facts.setVerticalSpacing(SPACE_1)
        self._facts.setColumnStretch(1, 1)
        self._show_rows((("", "Looking at this machine"),))
        legend = Swatches([Swatch(label, of(color)) for label, color, _ in PARTS])
        column = QVBoxLayout()
        column.setSpacing(SPACE_2)
        column.addWidget(heading("This machine"))
        column.addLayout(self._facts)
        column.addWidget(self.advice)
        column.addSpacing(SPACE_3)
        column.addWidget(heading(f"What fits, at {CONTEXT:,} tokens of context"))
        column.addWidget(self._fits_note)
        column.addWidget(self.fits)
        column.addWidget(legend)
        column.addStretch(1)
        return column

    def _make_ways(self) -> QVBoxLayout:
        column = QVBoxLayout()
        column.setSpacing(SPACE_3)
        column.addWidget(heading("Where to begin"))
        ways = (
            (
                "The starter model",
                "It comes with the program and opens by itself: small, quick, and good for trying "
                "every view. Speed and memory teach nothing on it.",
                "Chat with it", self.chat, "primary",
            ),
            (
                "A model of the Hugging Face hub",
                "Search, see what fits before anything is downloaded, and download it. Other "
                "programs that use the same cache find it too.",
                "Find a model", self.hub, "",
            ),
            (
                "Models that you have",
                "A folder with config.json and safetensors files, or one in which such folders "
                "lie.",
                "Add a folder…", self.folder, "",
            ),
            (
                "A real size without a download",
                "Known shapes filled with random weights: replies are noise, speed and memory are "
                "real.",
                "Choose a shape", self.shapes, "",
            ),
        )  # fmt: skip
        for title, text, button, signal, kind in ways:
            column.addWidget(Way(title, text, button, signal.emit, kind))
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
        """The rows as they are shown."""
        found = {}
        for row in range(self._facts.rowCount()):
            cells = [self._facts.itemAtPosition(row, column) for column in (0, 1)]
            labels = [cell.widget() for cell in cells if cell is not None]
            if len(labels) == 2:
                found[labels[0].text()] = labels[1].text()  # type: ignore[union-attr]
        return found
