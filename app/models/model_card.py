"""What is known of a model before it is loaded: facts, memory, and whether it can be opened."""

from __future__ import annotations

import re
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QLabel,
    QProgressBar,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.models.estimate import Estimate, Need
from app.models.memory_bar import MemoryBar
from app.models.sources import ModelSource, is_starter
from app.units import format_bytes
from engine.config import SETTINGS
from widgets.elided_combo import ElidedCombo
from widgets.theme import SPACE_1, SPACE_2, SPACE_4, figure_font, restyle

FACTS = ("Architecture", "Parameters", "On disk", "Layers", "KV cache per token")
STARTER_NOTE = "Small demonstration model: speed and memory teach nothing on it. Open a real one."
DUMMY_NOTE = "Random weights: replies are noise, speed and memory are real."
CONTEXTS = tuple(2**power for power in range(9, 18))


class ModelCard(QFrame):
    """Shows one source. `options_changed` when precision or context were chosen by the user."""

    options_changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("panel", True)
        self._title = _wrapped()
        self._title.setProperty("role", "title")
        self._path = QLabel()
        self._path.setProperty("role", "small")
        self._path.setWordWrap(True)
        self._path.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        self._path.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._values = {name: QLabel() for name in FACTS}
        self._dtype = ElidedCombo()
        self._dtype.addItems(SETTINGS["dtype"].choices)
        self._dtype.setAccessibleName("Precision")
        self._dtype.activated.connect(lambda: self.options_changed.emit())
        self._context = ElidedCombo()
        self._context.setAccessibleName("Context length")
        self._context.activated.connect(lambda: self.options_changed.emit())
        self._bar = MemoryBar()
        self._busy = QProgressBar()
        self._busy.setTextVisible(False)
        self._busy.setAccessibleName("Reading the model's description")
        self._verdict = _wrapped()
        self._note = _wrapped()
        self._note.setProperty("role", "muted")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        layout.setSpacing(SPACE_2)
        layout.addWidget(self._title)
        layout.addWidget(self._path)
        layout.addLayout(self._make_facts())
        layout.addSpacing(SPACE_2)
        layout.addWidget(self._bar)
        layout.addWidget(self._busy)
        layout.addWidget(self._verdict)
        layout.addStretch(1)
        layout.addWidget(self._note)
        self.show_nothing()

    def _make_facts(self) -> QGridLayout:
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_4)
        grid.setVerticalSpacing(SPACE_1)
        grid.setColumnStretch(1, 1)
        rows: list[tuple[str, QWidget]] = list(self._values.items())
        rows += [("Precision", self._dtype), ("Context length", self._context)]
        for row, (name, widget) in enumerate(rows):
            label = QLabel(name)
            label.setProperty("role", "muted")
            grid.addWidget(label, row, 0)
            grid.addWidget(widget, row, 1)
        for value in self._values.values():
            value.setFont(figure_font())
        return grid

    # Showing -----------------------------------------------------------------------------------

    def show_nothing(self) -> None:
        self._title.setText("No model chosen")
        self._path.setText("Choose one at the left, or drop a folder here.")
        self._show_facts({})
        self._note.setText("")
        self._show_busy(False)
        self._say("", "muted")
        self._dtype.setEnabled(False)
        self._context.setEnabled(False)
        self._show_need(None)

    def show_source(self, source: ModelSource, chosen: dict[str, Any]) -> None:
        """A source was chosen; nothing is known of it yet but what the user chose before."""
        self._title.setText(_breakable(source.title))
        self._path.setText(_breakable(source.path))
        note = STARTER_NOTE if is_starter(source.path) else ""
        self._note.setText(DUMMY_NOTE if source.load_format == "dummy" else note)
        self._note.setVisible(bool(self.note))
        self._dtype.setCurrentText(str(chosen.get("dtype", "auto")))
        self._fill_contexts(None, chosen.get("max_model_len"))
        self._show_facts({})
        self._bar.show_need(None)
        self.show_busy()

    def show_place(self, place: str) -> None:
        """Where the model is, below its name."""
        self._path.setText(_breakable(place))

    def show_busy(self) -> None:
        self._show_busy(True)
        self._say("Reading the model's description", "muted")

    def show_estimate(self, estimate: Estimate) -> None:
        report, need = estimate.report, estimate.need
        self._show_busy(False)
        self._dtype.setEnabled(report.supported)
        self._context.setEnabled(report.supported)
        self._fill_contexts(report.context_length, self.chosen()["max_model_len"])
        self._show_facts(
            {
                "Architecture": report.architecture,
                "Parameters": _count_text(report.num_parameters),
                "On disk": format_bytes(report.disk_bytes) if report.disk_bytes else "none",
                "Layers": f"{report.num_layers} of width {report.hidden_size:,}, "
                f"{report.num_heads} heads, {report.num_kv_heads} for keys and values",
                "KV cache per token": format_bytes(
                    need.kv_bytes_per_token if need else report.kv_bytes_per_token
                ),
            }
            if report.supported
            else {"Architecture": report.architecture}
        )
        self._show_need(need)
        if need is None:
            self._say(f"Cannot be opened. {estimate.problem}", "error")
        elif need.fits:
            needed, free = format_bytes(need.needed), format_bytes(need.free)
            self._say(f"Supported, in {need.dtype}. Needs {needed} of {free} free.", "muted")
        else:
            self._say(_too_large(estimate), "error")

    def show_error(self, text: str) -> None:
        self._show_busy(False)
        self._show_need(None)
        self._say(text, "error")

    def choose_context(self, length: int) -> None:
        self._context.setCurrentIndex(max(0, self._context.findData(length)))

    def chosen(self) -> dict[str, Any]:
        """Precision and context as the user set them: values of the engine's settings."""
        return {"dtype": self._dtype.currentText(), "max_model_len": self._context.currentData()}

    @property
    def verdict(self) -> str:
        return self._verdict.text()

    @property
    def note(self) -> str:
        return self._note.text()

    def fact(self, name: str) -> str:
        return self._values[name].text()

    def _fill_contexts(self, longest: int | None, chosen: int | None) -> None:
        self._context.clear()
        own = f"{longest:,} tokens (the model's own)" if longest else "the model's own"
        self._context.addItem(own, None)
        lengths = {n for n in CONTEXTS if longest is None or n < longest}
        if chosen is not None:
            lengths.add(chosen)
        for length in sorted(lengths, reverse=True):
            self._context.addItem(f"{length:,} tokens", length)
        self._context.setCurrentIndex(max(0, self._context.findData(chosen)))

    def _show_facts(self, facts: dict[str, str]) -> None:
        for name, label in self._values.items():
            label.setText(facts.get(name, "–"))

    def _show_busy(self, busy: bool) -> None:
        # An indeterminate bar animates, which costs time even when it is hidden.
        self._busy.setRange(0, 0 if busy else 1)
        self._busy.setVisible(busy)
        if busy:
            self._bar.hide()

    def _show_need(self, need: Need | None) -> None:
        self._bar.show_need(need)
        self._bar.setVisible(need is not None)

    def _say(self, text: str, role: str) -> None:
        self._verdict.setText(text)
        restyle(self._verdict, role=role)


def _too_large(estimate: Estimate) -> str:
    need = estimate.need
    assert need is not None
    text = f"Does not fit: {format_bytes(need.needed)} needed, {format_bytes(need.limit)} usable."
    if estimate.fitting_len:
        return f"{text} A context of {estimate.fitting_len:,} tokens fits."
    return f"{text} Choose a 16-bit precision or a smaller model, or close other programs."


def _count_text(count: int) -> str:
    for name, factor in (("B", 10**9), ("M", 10**6)):
        if count >= factor:
            return f"{count / factor:.3g} {name}"
    return f"{count:,}"


def _breakable(path: str) -> str:
    """A path or an id that may be wrapped after its separators."""
    return re.sub(r"([/_-])", "\\1\u200b", path)


def _wrapped() -> QLabel:
    label = QLabel()
    label.setWordWrap(True)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
    return label
