"""How many ranks, or stages, a model is to be loaded with, chosen on its card."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtWidgets import QLabel

from app.models.estimate import Estimate
from engine.config import SETTINGS
from widgets.elided_combo import ElidedCombo

USUAL = (1, 2, 4, 8)


class PartsChoice(ElidedCombo):
    """How many parts `name`, a setting, makes. Hidden, with its `label`, where there is nothing to
    choose: one GPU, one NUMA node. A number that was chosen before stays to be seen, and can be
    taken back."""

    def __init__(self, name: str) -> None:
        super().__init__()
        setting = SETTINGS[name]
        self.label = QLabel(setting.label)
        self.setAccessibleName(setting.label)
        for widget in (self, self.label):
            widget.setToolTip(setting.help)
        self.show_chosen(1)

    @property
    def value(self) -> int:
        return int(self.currentData())

    def show_chosen(self, count: int) -> None:
        """Of a model of which nothing else is known yet."""
        self._fill([], count)

    def offer(self, counts: Iterable[int]) -> None:
        """These, beside 1."""
        self._fill(counts, self.value)

    def hide_all(self) -> None:
        for widget in (self, self.label):
            widget.hide()

    def _fill(self, counts: Iterable[int], chosen: int) -> None:
        self.clear()
        for count in sorted({1, *counts, chosen}):
            self.addItem(f"{count}", count)
        self.setCurrentIndex(self.findData(chosen))
        for widget in (self, self.label):
            widget.setVisible(self.count() > 1)


def rank_counts(found: Estimate) -> list[int]:
    """As many as the devices and the model's heads allow."""
    heads = (found.report.num_heads, found.report.num_kv_heads)
    return [n for n in USUAL if n <= found.most_ranks and not any(h % n for h in heads)]


def stage_counts(found: Estimate) -> list[int]:
    """As many as there are GPUs, with a layer each."""
    return [n for n in USUAL if n <= min(found.most_stages, found.report.num_layers)]
