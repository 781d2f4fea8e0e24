"""`LessonOffer`: the card that offers the lessons; shown until it is answered once."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtWidgets import QFrame

from widgets.controls.layouts import button, dressed, hbox, label, vbox, wrapped
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3


class LessonOffer(QFrame):
    def __init__(self, start: Callable[[], object], dismiss: Callable[[], object]) -> None:
        super().__init__()
        dressed(self, "Lessons", panel=True)
        words = vbox(
            label("Three short lessons", "title"),
            wrapped(
                "small",
                "Move one setting under load and read what changed, in about one minute each. "
                "Later: Help > Lessons.",
            ),
            spacing=SPACE_1,
        )
        self.start = button("Start", start, kind="primary")
        self.dismiss = button("Not now", dismiss, "Hide this card for good", "flat")
        margins = SPACE_3, SPACE_2, SPACE_2, SPACE_2
        hbox((words, 1), self.dismiss, self.start, of=self, margins=margins)
