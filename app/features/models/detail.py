"""One model: facts, memory estimate, precisions that fit, and buttons."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QLabel, QPushButton, QWidget

from app.features.models.fit import Fit
from app.features.models.fit_rows import FitRows
from app.features.models.model_card import ModelCard
from widgets.controls.frames import scroll_area, scroll_by_keys
from widgets.controls.layouts import STRETCH, button, hbox, vbox, wrapped
from widgets.theme.theme import SPACE_2, SPACE_3, SPACE_4, restyle

NOTHING_CHOSEN = (
    "Select a model to see size, memory use and the precisions that fit on this machine."
)
Action = tuple[str, Callable[[], object]]


class Detail(QFrame):
    """The model card above a row of buttons that stays visible."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("panel", True)
        self.card = ModelCard()
        self.fits = FitRows()
        self._fits_title = QLabel("Memory by precision")
        self._fits_title.setProperty("role", "title")
        self._message = wrapped()
        self._message.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._nothing = wrapped("muted", NOTHING_CHOSEN)
        self._nothing.setContentsMargins(SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        self._do: Callable[[], object] = lambda: None
        self.primary = button("", lambda: self._do(), kind="primary")
        self._buttons = hbox(STRETCH, self.primary)
        self._others: list[QPushButton] = []
        content = QWidget()
        content.setProperty("bare", True)
        below = vbox(self._fits_title, self.fits, margins=(SPACE_4, 0, SPACE_4, SPACE_3))
        vbox(self._nothing, self.card, below, STRETCH, of=content, spacing=0)
        scroll = scroll_area(content, "Selected model")
        scroll_by_keys(scroll)
        bottom = vbox(self._message, self._buttons, margins=(SPACE_4, SPACE_2, SPACE_4, SPACE_3))
        vbox((scroll, 1), bottom, of=self, spacing=0, margins=(1, 1, 1, 1))
        self._show_card(False)

    def show_nothing(self) -> None:
        """Show the text for no selection."""
        self._show_card(False)
        self.offer(None, ())

    def show_card(self) -> None:
        """Show the card of the selected model."""
        self._show_card(True)

    def _show_card(self, shown: bool) -> None:
        self.card.setVisible(shown)
        self._nothing.setVisible(not shown)
        self.show_fits(())
        self.say("")

    def show_fits(self, fits: Sequence[Fit]) -> None:
        self.fits.show_fits(fits)
        self._fits_title.setVisible(bool(fits))

    def say(self, text: str, role: str = "muted") -> None:
        """Show a line above the buttons, e.g. an error."""
        self._message.setText(text)
        self._message.setVisible(bool(text))
        restyle(self._message, role=role)

    @property
    def message(self) -> str:
        return self._message.text()

    def offer(self, primary: Action | None, others: Sequence[Action], enabled: bool = True) -> None:
        """Show these buttons: the main one at the right, `others` at the left."""
        self._do = primary[1] if primary is not None else lambda: None
        self.primary.setVisible(primary is not None)
        self.primary.setEnabled(enabled)
        if primary is not None:
            self.primary.setText(primary[0])
        if [b.text() for b in self._others] != [text for text, _ in others]:
            self._make_others([text for text, _ in others])
        for other, (_, do) in zip(self._others, others, strict=True):
            other.clicked.disconnect()
            other.clicked.connect(lambda _=False, do=do: do())

    def button(self, text: str) -> QPushButton:
        """The button with this text. Raises StopIteration."""
        shown = [self.primary, *self._others]
        return next(b for b in shown if b.text() == text and not b.isHidden())

    def _make_others(self, texts: Sequence[str]) -> None:
        for other in self._others:
            other.hide()
            other.deleteLater()
        self._others = [button(text, lambda: None) for text in texts]
        for place, other in enumerate(self._others):
            self._buttons.insertWidget(place, other)
            other.show()
