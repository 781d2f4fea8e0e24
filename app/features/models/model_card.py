"""Model card: facts, options, memory bar, and whether the model fits."""

from __future__ import annotations

import re
from typing import Any

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QSizePolicy

from app.features.models.estimate import Estimate, Need
from app.features.models.fit_rows import MemoryBar
from app.storage.model_sources import ModelSource, is_starter
from app.window.setting_specs import Machine, help_of, row_spec
from engine.config import SETTINGS
from engine.hardware.device_map import AUTO
from engine.units import bytes_text, precision_name, scaled_count
from widgets.controls.combo import ElidedCombo
from widgets.controls.layouts import STRETCH, vbox, wrapped
from widgets.controls.number_control import NumberControl
from widgets.controls.progress_bar import ProgressBar
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_4, figure_font, restyle

FACTS = ("Architecture", "Parameters", "On disk", "Layers", "KV cache per token")
STARTER_NOTE = "Demo model. Its speed and memory use are not representative."
DUMMY_NOTE = "Random weights: replies are meaningless; speed and memory use are representative."
LAYERS = "gpu_layers"
SETTLED_MS = 250
CONTEXTS = tuple(2**power for power in range(9, 18))


class ModelCard(QFrame):
    """Shows one source. `options_changed` when the user changed an option."""

    options_changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._title = wrapped("title")
        self._path = wrapped("small")
        self._path.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._values = {name: wrapped() for name in FACTS}
        self._dtype, self._context = ElidedCombo(), ElidedCombo()
        for dtype in SETTINGS["dtype"].choices:
            self._dtype.addItem(precision_name(dtype), dtype)
        self._make_layers()
        for choice in (self._dtype, self._context):
            choice.activated.connect(lambda: self.options_changed.emit())
        self._bar = MemoryBar()
        self._busy = ProgressBar("Reading model")
        self._busy.show_fraction(None)
        self._verdict, self._note = wrapped(), wrapped("muted")
        vbox(
            self._title, self._path, self._make_facts(), SPACE_2, self._bar, self._busy,
            self._verdict, STRETCH, self._note,
            of=self, margins=(SPACE_4, SPACE_4, SPACE_4, SPACE_4),
        )  # fmt: skip

    def _make_layers(self) -> None:
        """The GPU layers field: shown where a GPU is used."""
        self.layers = NumberControl(row_spec(SETTINGS[LAYERS], Machine()))
        self._layers_label = QLabel(SETTINGS[LAYERS].label)
        self._gpu_layers: str = AUTO
        self._settled = QTimer(self)  # estimate when the slider rests
        self._settled.setSingleShot(True)
        self._settled.setInterval(SETTLED_MS)
        self._settled.timeout.connect(self.options_changed)
        self.layers.changed.connect(self._on_layers)
        for widget in (self.layers, self._layers_label):
            widget.setToolTip(help_of(SETTINGS[LAYERS]))
            widget.hide()

    def _make_facts(self) -> QGridLayout:
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_4)
        grid.setVerticalSpacing(SPACE_1)
        grid.setColumnStretch(1, 1)
        options = (
            (QLabel("Precision"), self._dtype), (QLabel("Context length"), self._context),
            (self._layers_label, self.layers),
        )  # fmt: skip
        facts = [(QLabel(name), value) for name, value in self._values.items()]
        sides = Qt.AlignmentFlag
        for row, (label, widget) in enumerate((*facts, *options)):
            label.setProperty("role", "muted")
            is_fact = label.text() in FACTS
            grid.addWidget(label, row, 0, sides.AlignTop if is_fact else sides.AlignVCenter)
            grid.addWidget(widget, row, 1)
        for _, value in facts:
            value.setFont(figure_font())
        for label, choice in options[:2]:
            choice.setAccessibleName(label.text())
            choice.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        return grid

    # Showing -----------------------------------------------------------------------------------

    def show_source(self, source: ModelSource, chosen: dict[str, Any]) -> None:
        """Show a source with its stored options, before its estimate."""
        self._title.setText(_breakable(source.title))
        self._path.setText(_breakable(source.path))
        note = STARTER_NOTE if is_starter(source.path) else ""
        self._note.setText(DUMMY_NOTE if source.load_format == "dummy" else note)
        self._note.setVisible(bool(self.note))
        self._dtype.setCurrentIndex(self._dtype.findData(str(chosen.get("dtype", "auto"))))
        self._settled.stop()
        self._gpu_layers = str(chosen.get(LAYERS, AUTO))
        self.layers.set_value(self._gpu_layers)
        self._fill_contexts(None, chosen.get("max_model_len"))
        self._show_facts({})
        self._bar.show_need(None)
        self.show_busy()

    def show_place(self, place: str) -> None:
        """Show the location below the name."""
        self._path.setText(_breakable(place))

    def show_busy(self) -> None:
        self._show_busy(True)
        self._say("Reading model", "muted")

    def show_estimate(self, estimate: Estimate) -> None:
        report, need = estimate.report, estimate.need
        self._show_busy(False)
        if need is not None:
            self._offer_layers(need)
        self._dtype.setEnabled(report.supported)
        self._context.setEnabled(report.supported)
        self._fill_contexts(report.context_length, self.chosen()["max_model_len"])
        self._show_facts(
            {
                "Architecture": report.architecture,
                "Parameters": scaled_count(report.num_parameters),
                "On disk": bytes_text(report.disk_bytes) if report.disk_bytes else "none",
                "Layers": f"{report.num_layers} layers, hidden {report.hidden_size:,}, "
                f"{report.num_heads} heads ({report.num_kv_heads} KV)",
                "KV cache per token": bytes_text(
                    need.kv_bytes_per_token if need else report.kv_bytes_per_token
                ),
            }
            if report.supported
            else {"Architecture": report.architecture}
        )
        self._show_need(need)
        if need is None:
            self._say(f"Not supported. {estimate.problem}", "error")
        elif need.fits and need.in_ram is not None:
            self._say(_offload_text(estimate), "warning")
        elif need.fits:
            sizes = f"{bytes_text(need.needed)} of {bytes_text(need.limit)} usable"
            self._say(f"Fits at {precision_name(need.dtype)}: needs {sizes}.", "muted")
        else:
            self._say(_too_large(estimate), "error")

    def show_error(self, text: str) -> None:
        self._show_busy(False)
        self._show_need(None)
        self._say(text, "error")

    def choose_context(self, length: int) -> None:
        self._context.setCurrentIndex(max(0, self._context.findData(length)))

    def chosen(self) -> dict[str, Any]:
        """The chosen options, as engine settings."""
        options: dict[str, Any] = {
            "dtype": self._dtype.currentData(), "max_model_len": self._context.currentData()
        }  # fmt: skip
        return options if self.layers.isHidden() else options | {LAYERS: self._gpu_layers}

    def _offer_layers(self, need: Need) -> None:
        has_gpu = need.device.startswith("cuda")
        for widget in (self.layers, self._layers_label):
            widget.setVisible(has_gpu)
        if has_gpu and need.num_layers:
            self.layers.set_highest(need.num_layers)
            self.layers.set_value(self._gpu_layers)

    def _on_layers(self, value: str) -> None:
        self._gpu_layers = value
        self._settled.start()

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
        own = f"{longest:,} tokens (model maximum)" if longest else "model maximum"
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
        self._busy.setVisible(busy)
        if busy:
            self._bar.hide()

    def _show_need(self, need: Need | None) -> None:
        self._bar.show_need(need)
        self._bar.setVisible(need is not None)

    def _say(self, text: str, role: str) -> None:
        self._verdict.setText(text)
        restyle(self._verdict, role=role)


def _offload_text(estimate: Estimate) -> str:
    need = estimate.need
    assert need is not None and need.in_ram is not None
    ram = need.in_ram
    text = (
        f"Fits with {need.layers}. The other {ram.layers} run on the CPU "
        f"({bytes_text(ram.needed)} of RAM), which is slower."
    )
    if estimate.whole_len is None:
        return text
    return f"{text} With {estimate.whole_len:,} tokens of context, all layers fit on {need.device}."


def _too_large(estimate: Estimate) -> str:
    need = estimate.need
    assert need is not None
    if (ram := need.in_ram) is not None:
        where, more = f"on {need.device}", "fewer"
        sizes = need.needed, need.limit
        if need.needed <= need.limit:
            where, more, sizes = "in RAM", "more", (ram.needed, ram.limit)
        needed, usable = map(bytes_text, sizes)
        text = f"Does not fit with {need.layers}: {needed} needed {where}, {usable} usable."
        return f"{text} Use {more} GPU layers, or auto."
    needed, usable = bytes_text(need.needed), bytes_text(need.limit)
    text = f"Does not fit: {needed} needed, {usable} usable."
    if estimate.fitting_len:
        return f"{text} A context of up to {estimate.fitting_len:,} tokens fits."
    return f"{text} Choose a 16-bit precision or a smaller model, or free some memory."


def _breakable(path: str) -> str:
    """Allow line breaks after the separators of a path or id."""
    return re.sub(r"([/_-])", "\\1\u200b", path)
