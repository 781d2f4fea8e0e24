"""Where the lessons speak: the offer, the callout on the Tune page, a row above any other page."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from PySide6.QtCore import QEvent, QObject
from PySide6.QtWidgets import QFrame, QWidget

from app.features.learn.callout import Callout
from app.window.progress import Work, WorkArea
from widgets.controls.layouts import button, dressed, hbox, label, vbox, wrapped
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3

KEY = "lesson"


class Words(NamedTuple):
    """What a lesson says now. next_text: of the main button, "" hides it."""

    head: str
    title: str
    text: str
    why: str = ""
    next_text: str = ""


class LessonOffer(QFrame):
    """The card that offers the lessons, until the user answers it."""

    def __init__(self, start: Callable[[], object], dismiss: Callable[[], object]) -> None:
        super().__init__()
        dressed(self, "Lessons", panel=True)
        words = vbox(
            label("Three short lessons", "title"),
            wrapped(
                "small",
                "Change one setting under load and see its effect: 1 to 2 minutes each. "
                "Also in Help\u00a0>\u00a0Lessons.",
            ),
            spacing=SPACE_1,
        )
        self.start = button("Start", start, kind="primary")
        self.dismiss = button("Hide", dismiss, "Hide this card for good", "flat")
        margins = SPACE_3, SPACE_2, SPACE_2, SPACE_2
        hbox((words, 1), self.dismiss, self.start, of=self, margins=margins)


class LessonPlace(QObject):
    """Shows `words` in the callout while the Tune page shows. Above another page a row leads back
    to the lesson: a callout there would cover what it is not about."""

    def __init__(
        self,
        callout: Callout,
        tune: QWidget,
        area: WorkArea,
        go_back: Callable[[], object],
        leave: Callable[[], object],
    ) -> None:
        """`go_back`: shows the Tune page and the lesson's control."""
        super().__init__(callout)
        self.callout = callout
        self._tune, self._area = tune, area
        self._actions = ("Back to lesson", go_back), ("Leave", leave)
        self._words: Words | None = None
        tune.installEventFilter(self)

    @property
    def is_here(self) -> bool:
        return not self._tune.isHidden()

    def say(self, words: Words) -> None:
        self._words = words
        self._show()

    def clear(self) -> None:
        self._words = None
        self._show()

    def _show(self) -> None:
        words = self._words
        if words is None or not self.is_here:
            self.callout.hide()
        else:
            self.callout.say(*words)
        if words is None or self.is_here:
            self._area.end(KEY)
        else:
            title = f"{words.head}: {words.title}"
            self._area.show_work(
                Work(KEY, title, words.text, moving=False, actions=self._actions, page="Tune")
            )

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() in (QEvent.Type.ShowToParent, QEvent.Type.HideToParent):
            self._show()
        return False
