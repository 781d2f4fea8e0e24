"""`MemoryPanel`: predicted and measured memory by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QLabel, QStackedLayout, QWidget

from app.features.inspect.memory_breakdown import Compared, MemoryFigures, MemoryTracker, is_on_gpu
from engine.snapshot import EngineSnapshot, GpuFigures, undivided
from engine.snapshot import Part as SnapshotPart
from engine.units import NOTHING, bytes_text, change_text, kv_precision_text
from widgets.controls.frames import scroll_area, scroll_by_keys
from widgets.controls.layouts import STRETCH, centered, dressed, hbox, vbox, wrapped
from widgets.controls.text import not_reported_text
from widgets.plot.clock import RedrawClock
from widgets.plot.parts_bar import Part, PartsBar
from widgets.theme.fonts import scaled
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_6

EMPTY_TEXT = "Open a model to see predicted and measured memory use."
_SIDE_BY_SIDE = 680  # pixels
_PROGRAM = "Program and libraries"
_TIPS = {
    "Weights": "measured: size of the loaded weight tensors",
    "KV cache": "measured: KV cache tensors, including free blocks",
    "Activations": "predicted: one step at max batched tokens; measured: peak process memory "
    "growth during steps, excluding the KV cache",
    _PROGRAM: "this process excluding the model: Python, libraries, app data",
}


_RAM_TIPS = {
    "Weights": "measured: weights of offloaded layers and embeddings",
    "KV cache": "measured: KV cache of offloaded layers",
    "Activations": "predicted: RAM used by one step; not measured separately",
}


class MemoryPanel(QFrame):
    """Memory bars of RAM and GPUs. Takes every snapshot, and the readings of the GPUs."""

    def __init__(self, clock: RedrawClock | None = None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._clock = clock or RedrawClock(parent=self)
        self._clock.beat.connect(self._on_beat)
        self.setAccessibleName("Memory")
        self.model = MemoryTracker()
        self._gpus: tuple[GpuFigures, ...] = ()
        self._empty = centered(EMPTY_TEXT)
        self.plan = PartsBar("Model memory", ("predicted", "measured", "error"))
        self.machine = PartsBar("System memory", ("now",))
        self.cache_line, self.error_line = wrapped("small"), wrapped("small")
        self.machine_line = wrapped("small")
        self.gpu_title, self.gpu_line = _title("GPU", SPACE_2), wrapped("small")
        self.gpus = PartsBar("GPU memory", ("used", "this process", ""))
        self._plan_title, self._ram_title = _title("Model"), _title("In RAM", SPACE_2)
        self.ram = PartsBar("Model memory in RAM", ("predicted", "measured", "error"))
        self.ram_line, self.ram_cache_line = wrapped("small"), wrapped("small")
        self._machine_title = _title("Machine")
        model = vbox(
            self._plan_title, self.plan, self.error_line, self.cache_line, self._ram_title,
            self.ram, self.ram_cache_line, self.ram_line, STRETCH, spacing=SPACE_1,
        )  # fmt: skip
        machine = vbox(
            self._machine_title, self.machine, self.machine_line, self.gpu_title, self.gpus,
            self.gpu_line, STRETCH, spacing=SPACE_1,
        )  # fmt: skip
        content, margins = dressed(QWidget(), bare=True), (SPACE_3, 0, SPACE_3, SPACE_2)
        self._sides = hbox((model, 1), (machine, 1), of=content, spacing=SPACE_6, margins=margins)
        self._area = scroll_area(content, "Memory")
        scroll_by_keys(self._area)
        self._stack = QStackedLayout(self)
        self._stack.addWidget(self._empty)
        self._stack.addWidget(self._area)
        self._show_gpus()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        directions = QBoxLayout.Direction
        wide = self.width() >= scaled(_SIDE_BY_SIDE)
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
        self._clock.take_snapshot()

    def _on_beat(self) -> None:
        if self.isVisible():
            self._show_figures()

    def update_gpus(self, gpus: tuple[GpuFigures, ...]) -> None:
        gpus = undivided(gpus)
        if gpus != self._gpus:
            self._gpus = gpus
            if self.isVisible():
                self._show_gpus()

    def clear(self) -> None:
        self.model.clear()
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
        self.error_line.setText(_mismatch_text(figures))
        self.cache_line.setText(_cache_text(figures))
        self._show_ram(figures)
        memory, device = figures.memory, figures.model.device
        place = f"GPU ({device})" if is_on_gpu(figures.model) else "Machine"
        self._machine_title.setText(place)
        self.machine.show_parts(_machine_parts(figures))
        self.machine_line.setText(
            f"At load: {bytes_text(memory.plan.limit)} usable of {bytes_text(memory.plan.free)} "
            f"free; {bytes_text(memory.total)} in total"
        )

    def _show_ram(self, figures: MemoryFigures) -> None:
        """Show the CPU-offloaded part of the model."""
        memory, plan, model = figures.memory, figures.memory.plan, figures.model
        for widget in (self._ram_title, self.ram, self.ram_line, self.ram_cache_line):
            widget.setVisible(plan.host_layers > 0)
        title = "Model"
        if plan.host_layers:
            own = model.num_layers - plan.host_layers
            title = f"Model on {model.device} ({own} of {model.num_layers} layers)"
            layers = "1 layer" if plan.host_layers == 1 else f"{plan.host_layers} layers"
            self._ram_title.setText(f"CPU offload, {layers}")
            self.ram.show_parts(_ram_parts(figures))
            used, cached = (  # each block has a part in both
                bytes_text(size // max(1, plan.bytes_per_block) * plan.host_bytes_per_block)
                for size in (memory.kv_used, memory.kv_cached)
            )
            self.ram_cache_line.setText(f"KV cache in RAM: {used} used · {cached} cached")
            self.ram_line.setText(
                f"Engine RAM limit: {bytes_text(plan.host_limit)}; "
                f"{bytes_text(plan.host_free)} free at load time"
            )
        self._plan_title.setText(title)

    def _show_gpus(self) -> None:
        for widget in (self.gpu_title, self.gpus, self.gpu_line):
            widget.setVisible(bool(self._gpus))
        if self._gpus:
            self.gpus.show_parts(_gpu_parts(self._gpus))
            self.gpu_line.setText(_process_text(self._gpus))


def _title(text: str, above: int = 0) -> QLabel:
    """`above`: pixels of space above it."""
    label = QLabel(text)
    label.setContentsMargins(0, above, 0, 0)
    label.setProperty("role", "title")
    return label


def _plan_parts(figures: MemoryFigures) -> list[Part]:
    return _compared_parts(
        ("Weights", "weights", figures.weights),
        ("KV cache", "kv_used", figures.kv_cache),
        ("Activations", "other", figures.activations),
        ("Sum", "", figures.sum),
        tips=_TIPS, unmeasured=NOTHING if figures.reuses else "pending",
    )  # fmt: skip


def _ram_parts(figures: MemoryFigures) -> list[Part]:
    memory, plan = figures.memory, figures.memory.plan
    return _compared_parts(
        ("Weights", "weights", Compared(plan.host_weights, memory.host_weights)),
        ("KV cache", "kv_used", Compared(plan.host_kv_cache, memory.host_kv_cache)),
        ("Activations", "other", Compared(plan.host_activations, None)),
        tips=_RAM_TIPS, unmeasured=NOTHING,
    )  # fmt: skip


def _compared_parts(
    *rows: tuple[str, str, Compared], tips: Mapping[str, str], unmeasured: str
) -> list[Part]:
    unit = _Unit(max(size for _, _, row in rows for size in (row.predicted, row.measured or 0)))
    whole = max(1, sum(_measured_or_predicted(row) for _, color, row in rows if color))
    return [
        Part(
            label, color, _measured_or_predicted(row) / whole,
            (
                unit.text(row.predicted),
                unmeasured if row.measured is None else unit.text(row.measured), _error_text(row),
            ),
            tips.get(label, ""),
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
        ("Free", "free", figures.memory.free),
    )
    total = figures.memory.total
    unit = _Unit(total)
    return [
        Part(label, color, size / max(1, total), (unit.text(size),), _TIPS.get(label, ""))
        for label, color, size in rows
    ]


def _gpu_parts(gpus: Sequence[GpuFigures]) -> list[Part]:
    """One bar for all GPUs, a row for each."""
    total = max(1, sum(gpu.total for gpu in gpus))
    rows = []
    for gpu in gpus:
        own = "not reported" if gpu.own is None else bytes_text(gpu.own)
        others = "" if gpu.own is None else f"other programs: {bytes_text(gpu.others)}"
        used = f"{bytes_text(gpu.used)} of {bytes_text(gpu.total)}"
        rows.append(Part(gpu.name, "preempted", gpu.used / total, (used, own, others)))
    return rows


def _process_text(gpus: Sequence[GpuFigures]) -> str:
    """GPU memory of other programs."""
    held = [process for gpu in gpus for process in gpu.processes]
    if any(gpu.own is None for gpu in gpus):
        return "Memory per process: not reported by the GPU driver."
    return "Other programs: " + (
        " · ".join(f"{p.name} {bytes_text(p.used)}" for p in held) or "none"
    )


def _mismatch_text(figures: MemoryFigures) -> str:
    whole = figures.sum
    if whole.error is None and figures.reuses:
        return "Activations not measured: steps reuse memory from before the last load or rebuild."
    if whole.error is None:
        return "Activations are measured during the first reply."
    side = "more" if whole.error > 0 else "less"
    difference = bytes_text(abs((whole.measured or 0) - whole.predicted))
    return f"{difference} {side} than predicted ({abs(whole.error):.1%})".replace("%", " %")


def _cache_text(figures: MemoryFigures) -> str:
    memory, plan = figures.memory, figures.memory.plan
    free = max(0, memory.kv_cache - memory.kv_used - memory.kv_cached)
    stored = kv_precision_text(plan.key_dtype, plan.value_dtype).removeprefix("KV ")
    name = f" ({stored})" if stored else ""
    words = [
        f"KV cache{name}: {bytes_text(memory.kv_used)} used",
        f"{bytes_text(memory.kv_cached)} cached", f"{bytes_text(free)} free",
        f"{bytes_text(memory.wasted)} unused in partially filled blocks",
        f"{bytes_text(figures.unused)} not yet in memory",
    ]  # fmt: skip
    return " · ".join(words)


def _error_text(row: Compared) -> str:
    return change_text(row.error, digits=3)


class _Unit:
    """The unit of each column."""

    def __init__(self, largest: int) -> None:
        self._factor, self._name = (2**30, "GiB") if largest >= 2**30 else (2**20, "MiB")

    def text(self, size: int) -> str:
        return f"{size / self._factor:,.2f} {self._name}"
