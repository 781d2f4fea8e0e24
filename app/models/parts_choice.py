"""How many ranks a model is to be loaded with, chosen on its card."""

from __future__ import annotations

from PySide6.QtWidgets import QLabel

from app.models.estimate import Estimate
from app.panels.rank_words import RANKS
from engine.config import SETTINGS
from widgets.elided_combo import ElidedCombo

USUAL = (1, 2, 4, 8)


class RankChoice(ElidedCombo):
    """Hidden, with its `label`, where there is nothing to choose: one GPU, one NUMA node. A number
    that was chosen before stays to be seen, and can be taken back."""

    def __init__(self) -> None:
        super().__init__()
        setting = SETTINGS[RANKS]
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

    def offer(self, found: Estimate) -> None:
        """As many as the devices and the model's heads allow."""
        heads = (found.report.num_heads, found.report.num_kv_heads)
        self._fill(
            [n for n in USUAL if n <= found.most_ranks and not any(h % n for h in heads)],
            self.value,
        )

    def hide_all(self) -> None:
        for widget in (self, self.label):
            widget.hide()

    def _fill(self, counts: list[int], chosen: int) -> None:
        self.clear()
        for count in sorted({1, *counts, chosen}):
            self.addItem(f"{count}", count)
        self.setCurrentIndex(self.findData(chosen))
        for widget in (self, self.label):
            widget.setVisible(self.count() > 1)
