"""One model: facts, memory estimate, precisions that fit, and buttons."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QScrollArea,
    QWidget,
)

from app.features.models.fit import Fit
from app.features.models.fit_rows import FitRows
from app.features.models.model_card import ModelCard
from app.features.models.welcome import plain_text
from widgets.controls.frames import scroll_by_keys
from widgets.controls.layouts import STRETCH, vbox
from widgets.theme.theme import SPACE_2, SPACE_3, SPACE_4, restyle

NOTHING_CHOSEN = (
    "Select a model to see its size, its memory use and the precisions that fit on this machine."
)
Action = tuple[str, Callable[[], object]]


class Detail(QFrame):
    """The model card above a row of buttons that stays visible."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("panel", True)
        self.card = ModelCard()
        self.card.setProperty("panel", False)
        self.fits = FitRows()
        self._fits_title = QLabel("Memory by precision")
        self._fits_title.setProperty("role", "title")
        self._message = plain_text("", "")
        self._message.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._nothing = plain_text(NOTHING_CHOSEN, "muted")
        self._nothing.setContentsMargins(SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        self.primary = QPushButton()
        self.primary.setProperty("kind", "primary")
        self.primary.clicked.connect(self._act)
        self._do: Callable[[], object] | None = None
        self._buttons = QHBoxLayout()
        self._others: list[QPushButton] = []
        self._build()
        self.show_nothing()

    def _build(self) -> None:
        content = QWidget()
        content.setProperty("bare", True)
        below = vbox(self._fits_title, self.fits, margins=(SPACE_4, 0, SPACE_4, SPACE_3))
        vbox(self._nothing, self.card, below, STRETCH, of=content, spacing=0)
        scroll = QScrollArea()
        scroll.setAccessibleName("Selected model")
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setWidget(content)
        scroll_by_keys(scroll)
        self._buttons.setSpacing(SPACE_2)
        self._buttons.addStretch(1)
        self._buttons.addWidget(self.primary)
        bottom = vbox(self._message, self._buttons, margins=(SPACE_4, SPACE_2, SPACE_4, SPACE_3))
        vbox((scroll, 1), bottom, of=self, spacing=0, margins=(1, 1, 1, 1))

    def show_nothing(self) -> None:
        """No model is selected."""
        self._show_card(False)
        self.show_fits(())
        self.say("")
        self.offer(None, ())

    def show_card(self) -> None:
        """A model is selected."""
        self._show_card(True)
        self.show_fits(())
        self.say("")

    def _show_card(self, shown: bool) -> None:
        self.card.setVisible(shown)
        self._nothing.setVisible(not shown)

    def show_fits(self, fits: Sequence[Fit]) -> None:
        self.fits.show_fits(fits)
        self._fits_title.setVisible(bool(fits))

    def say(self, text: str, role: str = "muted") -> None:
        """Show a line above the buttons: the download, or an error."""
        self._message.setText(text)
        self._message.setVisible(bool(text))
        restyle(self._message, role=role)

    @property
    def message(self) -> str:
        return self._message.text()

    def offer(self, primary: Action | None, others: Sequence[Action], enabled: bool = True) -> None:
        """The buttons: the main one at the right, `others` at the left."""
        self._do = primary[1] if primary is not None else None
        self.primary.setVisible(primary is not None)
        self.primary.setEnabled(enabled)
        if primary is not None:
            self.primary.setText(primary[0])
        if [b.text() for b in self._others] != [text for text, _ in others]:
            self._make_others(others)
        for button, (_, do) in zip(self._others, others, strict=True):
            button.clicked.disconnect()
            button.clicked.connect(lambda _=False, do=do: do())

    def button(self, text: str) -> QPushButton:
        """A button by its text. Raises StopIteration where there is none."""
        shown = [self.primary, *self._others]
        return next(b for b in shown if b.text() == text and not b.isHidden())

    def _make_others(self, others: Sequence[Action]) -> None:
        for button in self._others:
            button.hide()
            button.deleteLater()
        self._others = []
        for place, (text, _) in enumerate(others):
            button = QPushButton(text)
            button.clicked.connect(lambda: None)
            self._buttons.insertWidget(place, button)
            button.show()
            self._others.append(button)

    def _act(self) -> None:
        if self._do is not None:
            self._do()
