"""Welcome page: this machine, which models fit, and how to start."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QGridLayout,
    QLabel,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from app.features.models.estimate import Estimator, Held
from app.features.models.fit import CONTEXT, Fit, MachineFacts, machine_facts, shape_fits
from app.features.models.fit_rows import PARTS, FitRows
from app.link.tasks import run_task
from engine.errors import ErrorInfo
from widgets.controls.buttons import CopyButton
from widgets.controls.frames import scroll_area
from widgets.controls.layouts import STRETCH, button, empty_layout, hbox, vbox, wrapped
from widgets.controls.swatches import Swatch, Swatches, of
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4, SPACE_6, figure_font, mono_font


class AdviceBox(QFrame):
    """Advice with a command to copy. Hidden without any."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("notice", "warning")
        self._text, self._command = wrapped(), wrapped()
        self._command.setFont(mono_font("small"))
        self._command.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        copy = CopyButton("Copy command", lambda: self.command)
        row = hbox((self._command, 1), (copy, 0, Qt.AlignmentFlag.AlignTop))
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


class StartButton(QPushButton):
    """As wide as the widest of its column."""

    def __init__(self, text: str, column: list[StartButton]) -> None:
        super().__init__(text)
        self._column = column
        column.append(self)

    def sizeHint(self) -> QSize:
        widest = max(QPushButton.sizeHint(one).width() for one in self._column)
        return QSize(widest, super().sizeHint().height())


def start_option(
    title: str, text: str, go: StartButton, do: Callable[[], object], kind: str
) -> QFrame:
    """One way to start: title, text and button."""
    option = QFrame()
    option.setProperty("notice", "info")
    go.setProperty("kind", kind)
    go.clicked.connect(lambda: do())
    go.setAccessibleDescription(f"{title}. {text}")
    words = vbox(wrapped("title", title), wrapped("muted", text), spacing=SPACE_1)
    hbox(
        (words, 1), (go, 0, Qt.AlignmentFlag.AlignVCenter),
        of=option, spacing=SPACE_3, margins=(SPACE_3, SPACE_3, SPACE_3, SPACE_3),
    )  # fmt: skip
    return option


ABOUT = (
    "Chat with a model, change engine settings, and watch memory, time to first token and "
    "inter-token latency."
)
NARROW = 640
MAX_WIDTH = 1080


class WelcomePage(QFrame):
    """`chat`, `lessons`, `hub`, `folder`, `shapes`: the chosen start; `left`: to the list of
    models."""

    chat = Signal()
    lessons = Signal()
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
        self._fits_note = wrapped("small", "Estimating")
        self._columns = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._build()

    def _build(self) -> None:
        content = QWidget()
        content.setProperty("bare", True)
        head = hbox(
            (wrapped("figure", "Welcome to Inferdeck"), 1), button("Show models", self.left.emit),
            spacing=-1,
        )  # fmt: skip
        self._columns.setSpacing(SPACE_6)
        self._columns.addLayout(self._make_machine(), 1)
        self._columns.addLayout(self._make_ways(), 1)
        inner = QWidget()
        inner.setMaximumWidth(MAX_WIDTH)
        column = vbox(wrapped("muted", ABOUT), SPACE_2, self._columns, STRETCH, of=inner)
        column.insertLayout(0, head)  # last: Tab leads through the ways to start first
        hbox(
            STRETCH, (inner, 1000), STRETCH,
            of=content, spacing=-1, margins=(SPACE_4, SPACE_4, SPACE_4, SPACE_4),
        )  # fmt: skip
        scroll = scroll_area(content, "Welcome")
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # its buttons have it
        vbox(scroll, of=self, spacing=-1, margins=(1, 1, 1, 1))

    def _make_machine(self) -> QVBoxLayout:
        self._facts.setHorizontalSpacing(SPACE_4)
        self._facts.setVerticalSpacing(SPACE_1)
        self._facts.setColumnStretch(1, 1)
        self._show_rows((("", "Detecting hardware"),))
        legend = Swatches([Swatch(label, of(color)) for label, color, _ in PARTS])
        fitting = wrapped("title", f"Models that fit ({CONTEXT:,} tokens of context)")
        return vbox(
            wrapped("title", "This machine"), self._facts, self.advice, SPACE_3,
            fitting, self._fits_note, self.fits, legend, STRETCH,
        )  # fmt: skip

    def _make_ways(self) -> QVBoxLayout:
        ways = (
            (
                "Demo model",
                "Included and loaded at startup; fast enough to try every view. Its speed and "
                "memory use are not representative.",
                "Chat", self.chat.emit, "primary",
            ),
            (
                "Three short lessons",
                "Move one setting under load and read what changed, in 1 to 2 minutes each.",
                "Start lesson", self.lessons.emit, "",
            ),
            (
                "Hugging Face Hub",
                "Search for models, see which fit, and download them to the shared Hugging Face "
                "cache.",
                "Find model", self.hub.emit, "",
            ),
            (
                "Your models",
                "A model folder (config.json and safetensors), or a folder with several of them.",
                "Add folder…", self.folder.emit, "",
            ),
            (
                "Random weights",
                "Common model sizes, no download needed. Replies are meaningless; speed and memory "
                "use are representative.",
                "Choose size", self.shapes.emit, "",
            ),
        )  # fmt: skip
        column: list[StartButton] = []
        options = [
            start_option(title, text, StartButton(name, column), do, kind)
            for title, text, name, do, kind in ways
        ]
        return vbox(wrapped("title", "Start"), *options, STRETCH, spacing=SPACE_3)

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
        # one below the other: the ways to start come first
        self._columns.setDirection(directions.BottomToTop if is_narrow else directions.LeftToRight)

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

    def _on_fits(self, found: list[Fit]) -> None:
        self._fits_note.hide()
        self.fits.show_fits(found)

    def _on_no_fits(self, error: ErrorInfo) -> None:
        self._fits_note.setText(str(error))

    def _show_rows(self, rows: tuple[tuple[str, str], ...]) -> None:
        empty_layout(self._facts)
        for row, (name, value) in enumerate(rows):
            label, shown = QLabel(name), wrapped("", value)
            label.setProperty("role", "muted")
            shown.setFont(figure_font())
            shown.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            self._facts.addWidget(label, row, 0, Qt.AlignmentFlag.AlignTop)
            self._facts.addWidget(shown, row, 1)
