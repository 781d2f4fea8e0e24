"""`MemoryPanel`: predicted and measured memory by category."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QLabel, QScrollArea, QStackedLayout, QWidget

from app.features.inspect.memory_breakdown import Compared, InRam, MemoryAccount, MemoryFigures
from app.units import format_bytes
from engine.snapshot import EngineSnapshot, GpuFigures, undivided
from engine.snapshot import Part as SnapshotPart
from widgets.controls.frames import scroll_by_keys
from widgets.controls.lines import ElidedLine
from widgets.controls.text import not_reported_text
from widgets.plot.parts_bar import Part, PartsBar
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_6

EMPTY_TEXT = "Open a model to see its predicted and measured memory."
_INTERVAL_S = 0.5
_SIDE_BY_SIDE = 680  # pixels
_NOT_YET = "pending"
_PROGRAM = "Program and libraries"
_TIPS = {
    "Weights": "measured: tensors of the loaded model",
    "KV cache": "measured: tensors of the cache, used or not",
    "Activations": "predicted: one step with max batched tokens; measured: largest growth of the "
    "process during steps, without the cache",
    _PROGRAM: "this process without the model: Python, libraries, text",
}


_RAM_TIPS = {
    "Weights": "measured: tensors of the offloaded layers and the embeddings",
    "KV cache": "measured: cache tensors of the offloaded layers",
    "Activations": "predicted: RAM of one step; not measured separately",
}


class MemoryPanel(QFrame):
    """Takes every snapshot, and the GPUs' figures."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Memory")
        self.model = MemoryAccount()
        self._gpus: tuple[GpuFigures, ...] = ()
        self._shown_at = float("-inf")
        self._empty = QLabel(EMPTY_TEXT)
        self._empty.setProperty("role", "small")
        self._empty.setWordWrap(True)
        self._empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.plan = PartsBar("Model memory", ("predicted", "measured", "error"))
        self.machine = PartsBar("Machine memory", ("now",))
        self.cache_line, self.error_line = ElidedLine("text_muted"), ElidedLine()
        self.machine_line = ElidedLine("text_muted")
        self.gpu_title, self.gpu_line = _title("GPU", SPACE_2), ElidedLine("text_muted")
        self.gpus = PartsBar("GPU memory", ("used", "this process", ""))
        content = QWidget()
        content.setProperty("bare", True)
        self._sides = QBoxLayout(QBoxLayout.Direction.LeftToRight, content)
        self._sides.setContentsMargins(SPACE_3, 0, SPACE_3, SPACE_2)
        self._sides.setSpacing(SPACE_6)
        self._plan_title, self._ram_title = _title("Model"), _title("In RAM", SPACE_2)
        self.ram = PartsBar("Model memory in RAM", ("predicted", "measured", "error"))
        self.ram_line, self.ram_cache_line = ElidedLine("text_muted"), ElidedLine("text_muted")
        self._add(
            self._plan_title, self.plan, self.error_line, self.cache_line, self._ram_title,
            self.ram, self.ram_cache_line, self.ram_line,
        )  # fmt: skip
        self._machine_title = _title("Machine")
        self._add(
            self._machine_title, self.machine, self.machine_line, self.gpu_title, self.gpus,
            self.gpu_line,
        )  # fmt: skip
        self._area = QScrollArea()
        self._area.setProperty("bare", True)
        self._area.setAccessibleName("Memory")
        self._area.setWidgetResizable(True)
        self._area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._area.setWidget(content)
        scroll_by_keys(self._area)
        self._stack = QStackedLayout(self)
        self._stack.addWidget(self._empty)
        self._stack.addWidget(self._area)
        self._show_gpus()

    def _add(self, *widgets: QWidget) -> None:
        side = QWidget()
        column = QBoxLayout(QBoxLayout.Direction.TopToBottom, side)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_1)
        for widget in widgets:
            column.addWidget(widget)
        column.addStretch(1)
        self._sides.addWidget(side, 1)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        directions = QBoxLayout.Direction
        wide = self.width() >= _SIDE_BY_SIDE
        self._sides.setDirection(directions.LeftToRight if wide else directions.TopToBottom)

    # Feeding -----------------------------------------------------------------------------------

    def update_snapshot(self, snapshot: EngineSnapshot) -> None:
        """Take a snapshot; text changes twice a second while visible."""
        words = not_reported_text(snapshot, "Memory", SnapshotPart.MEMORY)
        self._empty.setText(words or EMPTY_TEXT)
        if words:
            self.clear()
            return
        self.model.update(snapshot)
        due = snapshot.time - self._shown_at >= _INTERVAL_S or not snapshot.num_running
        if due and self.isVisible():
            self._shown_at = snapshot.time
            self._show_figures()

    def update_gpus(self, gpus: tuple[GpuFigures, ...]) -> None:
        """Memory in use on each GPU."""
        gpus = undivided(gpus)
        if gpus != self._gpus:
            self._gpus = gpus
            if self.isVisible():
                self._show_gpus()

    def clear(self) -> None:
        """Reset for another model."""
        self.model.clear()
        self._shown_at = float("-inf")
        self._show_figures()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._show_figures()
        self._show_gpus()

    # Showing -----------------------------------------------------------------------------------

    def _show_figures(self) -> None:
        figures = self.model.figures()
        if figures is None:
            self._stack.setCurrentWidget(self._empty)
            return
        self._stack.setCurrentWidget(self._area)
        self.plan.show_parts(_plan_parts(figures))
        self.error_line.set_text(_error_words(figures))
        self.cache_line.set_text(_cache_words(figures))
        self._show_ram(figures)
        self._machine_title.setText(figures.place)
        self.machine.show_parts(_machine_parts(figures))
        self.machine_line.set_text(
            f"Engine limit {format_bytes(figures.limit)} of {format_bytes(figures.total)}; "
            f"{format_bytes(figures.free_at_load)} free at load"
        )

    def _show_ram(self, figures: MemoryFigures) -> None:
        """The CPU-offloaded part of the model."""
        ram = figures.in_ram
        for widget in (self._ram_title, self.ram, self.ram_line, self.ram_cache_line):
            widget.setVisible(ram is not None)
        title = "Model"
        if figures.num_gpus > 1:
            title = f"Model on {figures.device}, one of {figures.num_gpus} GPUs"
        if ram is not None:
            own = ram.num_layers - ram.layers
            title = f"Model on {figures.device}, {own} of {ram.num_layers} layers"
            layers = "1 layer" if ram.layers == 1 else f"{ram.layers} layers"
            self._ram_title.setText(f"CPU offload, {layers}")
            self.ram.show_parts(_ram_parts(ram))
            self.ram_cache_line.set_text(
                f"KV cache in RAM: {format_bytes(ram.kv_used)} used · "
                f"{format_bytes(ram.kv_cached)} cached"
            )
            self.ram_line.set_text(
                f"Engine limit {format_bytes(ram.limit)} of RAM; "
                f"{format_bytes(ram.free_at_load)} free at load"
            )
        self._plan_title.setText(title)

    def _show_gpus(self) -> None:
        for widget in (self.gpu_title, self.gpus, self.gpu_line):
            widget.setVisible(bool(self._gpus))
        if self._gpus:
            self.gpus.show_parts(_gpu_parts(self._gpus))
            self.gpu_line.set_text(_process_words(self._gpus))


def _title(text: str, above: int = 0) -> QLabel:
    """`above`: pixels between it and what stands above it."""
    label = QLabel(text)
    label.setContentsMargins(0, above, 0, 0)
    label.setProperty("role", "title")
    return label


def _plan_parts(figures: MemoryFigures) -> list[Part]:
    rows = (
        ("Weights", "weights", figures.weights),
        ("KV cache", "kv_used", figures.kv_cache),
        ("Activations", "other", figures.activations),
        ("Sum", "", figures.sum),
    )
    sizes = [size for _, _, row in rows for size in (row.predicted, row.measured or 0)]
    unit = _Unit(max(sizes))
    whole = max(1, sum(_measured_or_predicted(row) for _, color, row in rows if color))
    return [
        Part(
            label, color, _measured_or_predicted(row) / whole,
            (unit.text(row.predicted), unit.text(row.measured), _error_text(row)),
            _TIPS.get(label, ""),
        )
        for label, color, row in rows
    ]  # fmt: skip


def _ram_parts(ram: InRam) -> list[Part]:
    rows = (
        ("Weights", "weights", ram.weights),
        ("KV cache", "kv_used", ram.kv_cache),
        ("Activations", "other", Compared(ram.activations, None)),
    )
    unit = _Unit(max(row.predicted for _, _, row in rows))
    whole = max(1, sum(_measured_or_predicted(row) for _, _, row in rows))
    return [
        Part(
            label, color, _measured_or_predicted(row) / whole,
            (
                unit.text(row.predicted),
                "–" if row.measured is None else unit.text(row.measured), _error_text(row),
            ),
            _RAM_TIPS[label],
        )
        for label, color, row in rows
    ]  # fmt: skip


def _measured_or_predicted(row: Compared) -> int:
    return row.predicted if row.measured is None else row.measured


def _machine_parts(figures: MemoryFigures) -> list[Part]:
    rows = (
        ("Weights, KV cache and activations", "weights", figures.engine),
        (_PROGRAM, "other", figures.program),
        ("Other programs", "preempted", figures.others),
        ("Free", "free", figures.free),
    )
    unit = _Unit(figures.total)
    return [
        Part(label, color, size / max(1, figures.total), (unit.text(size),), _TIPS.get(label, ""))
        for label, color, size in rows
    ]


def _gpu_parts(gpus: Sequence[GpuFigures]) -> list[Part]:
    """One bar for all GPUs, a row for each."""
    total = max(1, sum(gpu.total for gpu in gpus))
    rows = []
    for gpu in gpus:
        own = "not reported" if gpu.own is None else format_bytes(gpu.own)
        others = "" if gpu.own is None else f"other programs {format_bytes(gpu.others)}"
        used = f"{format_bytes(gpu.used)} of {format_bytes(gpu.total)}"
        rows.append(Part(gpu.name, "preempted", gpu.used / total, (used, own, others)))
    return rows


def _process_words(gpus: Sequence[GpuFigures]) -> str:
    """GPU memory of other programs."""
    held = [process for gpu in gpus for process in gpu.processes]
    if any(gpu.own is None for gpu in gpus):
        return "GPU memory by program: not reported by the driver."
    return "Other programs: " + (
        " · ".join(f"{p.name} {format_bytes(p.used)}" for p in held) or "none"
    )


def _error_words(figures: MemoryFigures) -> str:
    whole = figures.sum
    if whole.error is None:
        return "Activations are measured during the first reply."
    side = "more" if whole.error > 0 else "less"
    difference = format_bytes(abs((whole.measured or 0) - whole.predicted))
    return f"{difference} {side} than predicted, {abs(whole.error):.1%}".replace("%", " %")


def _cache_words(figures: MemoryFigures) -> str:
    size = figures.kv_cache.measured or 0
    free = max(0, size - figures.kv_used - figures.kv_cached)
    name = f" ({figures.kv_words})" if figures.kv_words else ""
    words = [
        f"KV cache{name} now: {format_bytes(figures.kv_used)} used",
        f"{format_bytes(figures.kv_cached)} cached", f"{format_bytes(free)} free",
        f"{format_bytes(figures.wasted)} unused in partly filled blocks",
        f"{format_bytes(figures.untouched)} not yet touched",
    ]  # fmt: skip
    return " · ".join(words)


def _error_text(row: Compared) -> str:
    return "–" if row.error is None else f"{100 * row.error:+.1f} %".replace("+0.0", "0.0")


class _Unit:
    """One unit per column."""

    def __init__(self, largest: int) -> None:
        self._factor, self._name = (2**30, "GiB") if largest >= 2**30 else (2**20, "MiB")

    def text(self, size: int | None) -> str:
        return _NOT_YET if size is None else f"{size / self._factor:,.2f} {self._name}"
