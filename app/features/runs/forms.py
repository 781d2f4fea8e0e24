"""Frames of the page: the forms of new runs, and a stack as small as its current page."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QFrame, QStackedWidget, QWidget

from app.features.compare.reply_view import PromptView
from app.storage.run_records import Kind
from widgets.controls.keys import LocalKeys
from widgets.controls.layouts import STRETCH, button, hbox, label, vbox, wrapped
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_3, SPACE_4, theme_notifier

TITLES = {
    Kind.QUANTIZE: "Quantize a model", Kind.EVALUATE: "Evaluate quality",
    Kind.COMPARE: "Compare side by side", Kind.BROADCAST: "Broadcast a prompt",
}  # fmt: skip
"""Of the forms, in the order of the menu."""
FORMS = tuple(TITLES)
ABOUT = {
    Kind.QUANTIZE: "Choose a model and a method. The run shows the error per layer, then the "
    "quality relative to the original model.",
    Kind.EVALUATE: "Choose a model and a reference: another folder, or the same model at another "
    "precision or KV cache dtype.",
}
FORM_WIDTH = 640
"""Pixels at the default text size: lines stay short in a wide window."""


class FormFrame(QFrame):
    """A form below its title, with the way `back` to the table."""

    def __init__(
        self, kind: Kind, form: QWidget, back: Callable[[], object], stack: QStackedWidget
    ) -> None:
        super().__init__(stack)  # at once: Qt styles all of a form whenever its parents change
        stack.addWidget(self)
        self.setProperty("panel", True)
        way = button("‹ Runs", back, "Back to the table of runs (Esc)", "flat")
        head = hbox(way, label(TITLES[kind], "title"), STRETCH)
        margins = (SPACE_3, SPACE_3, SPACE_3, SPACE_3)
        if isinstance(form, PromptView):
            form.left.connect(back)
            vbox(head, (form, 1), of=self, margins=margins)
            return
        self._form = form
        hint = wrapped("muted", ABOUT[kind])
        hint.setAlignment(Qt.AlignmentFlag.AlignCenter)
        both = hbox((form, 3), (hint, 2), spacing=SPACE_4)
        vbox(head, (both, 1), of=self, margins=margins)
        LocalKeys(self, {"Esc": back})
        theme_notifier().changed.connect(self._fit)
        self._fit()

    def _fit(self) -> None:
        self._form.setMaximumWidth(scaled(FORM_WIDTH))


class PageStack(QStackedWidget):
    """As small as its current page."""

    def __init__(self) -> None:
        super().__init__()
        self.currentChanged.connect(self.updateGeometry)

    def minimumSizeHint(self) -> QSize:
        shown = self.currentWidget()
        return super().minimumSizeHint() if shown is None else shown.minimumSizeHint()
