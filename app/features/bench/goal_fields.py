"""`GoalFields`: the latency goals of the Bench page and their percentile, in one row."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QDoubleSpinBox, QWidget

from app.bench.goals import PERCENTILES, Goals
from widgets.controls.combo import ElidedCombo
from widgets.controls.layouts import STRETCH, dressed, hbox, label

LIMITS = (("ttft", "TTFT"), ("itl", "ITL"), ("e2el", "E2E"))
NO_GOAL = "none"


class GoalFields(QWidget):
    """`changed(Goals)`. Without a limit a latency is no goal."""

    changed = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self.limits: dict[str, QDoubleSpinBox] = {}
        parts: list[QWidget] = [label("Goals", "muted")]
        for name, title in LIMITS:
            box = QDoubleSpinBox(minimum=0, maximum=1e6, decimals=1, suffix=" ms")
            box.setSpecialValueText(NO_GOAL)
            dressed(box, f"{title} goal", f"Upper limit of {title}; also by dragging its line")
            box.valueChanged.connect(self._tell)
            self.limits[name] = box
            parts += [label(f"{title} ≤"), box]
        self.percentile = dressed(ElidedCombo(), "Percentile of the goals")
        for percent in PERCENTILES:
            self.percentile.addItem(f"p{percent}", percent)
        self.percentile.setCurrentIndex(len(PERCENTILES) - 1)
        self.percentile.currentIndexChanged.connect(self._tell)
        hbox(*parts, label("at", "muted"), self.percentile, STRETCH, of=self)

    @property
    def goals(self) -> Goals:
        limits = {name: box.value() or None for name, box in self.limits.items()}
        return Goals(**limits, percentile=self.percentile.currentData())

    def set_goals(self, goals: Goals) -> None:
        """As the user would."""
        for name, box in self.limits.items():
            box.setValue(getattr(goals, name) or 0.0)
        self.percentile.setCurrentIndex(PERCENTILES.index(goals.percentile))

    def _tell(self) -> None:
        self.changed.emit(self.goals)
