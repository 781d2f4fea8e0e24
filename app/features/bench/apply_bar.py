"""`ApplyBar`: apply the selected settings, undo, copy them as command lines, export the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from app.bench.sweep import in_words
from widgets.controls.layouts import Item, button, hbox
from widgets.controls.lines import ElidedLine

Settings = Mapping[str, Any]


class ApplyBar(QWidget):
    """`apply_wanted(settings)`, `copy_wanted(settings)`: those of the selected row;
    `undo_wanted`; `export_wanted`."""

    apply_wanted = Signal(object)
    copy_wanted = Signal(object)
    undo_wanted = Signal()
    export_wanted = Signal()

    def __init__(self, selected: Callable[[], Settings], *before: Item) -> None:
        """before: shown to the left."""
        super().__init__()
        self._selected = selected
        self.applied = ElidedLine("text_muted")
        self.undo = button("Undo", self.undo_wanted.emit, "Restore the previous settings")
        self.apply = button("", lambda: self.apply_wanted.emit(selected()))
        self.copy = button("Copy as…", lambda: self.copy_wanted.emit(selected()),
                           "Command lines for vLLM, SGLang and TensorRT-LLM")  # fmt: skip
        self.export = button("Export…", self.export_wanted.emit, "HTML page, JSON, CSV or PNG")
        hbox(*before, (self.applied, 1), self.undo, self.apply, self.copy, self.export, of=self)
        self.show_applied("", can_undo=False)

    def refresh(self, *, has_result: bool, is_nearest: bool = False) -> None:
        """is_nearest: the settings are those nearest to the goals, which nothing meets."""
        self.export.setEnabled(has_result)
        self.copy.setEnabled(has_result)
        settings = self._selected()
        self.apply.setEnabled(has_result and bool(settings))
        self.apply.setText("Apply nearest" if is_nearest else "Apply")
        why = "No settings meet the goals. Apply the closest: " if is_nearest else "Apply "
        self.apply.setToolTip(f"{why}{in_words(settings)}" if settings else "")

    def show_applied(self, text: str, *, can_undo: bool) -> None:
        self.applied.set_text(text)
        self.undo.setVisible(can_undo)
