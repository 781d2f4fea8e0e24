"""`LadderView`: the answer of a ladder, its figures, and buttons to apply a rung."""

from __future__ import annotations

from PySide6.QtGui import QFont
from PySide6.QtWidgets import QFrame

from app.bench.ladder_record import LadderResult
from app.bench.rungs import Rung
from app.features.bench.apply_bar import ApplyBar
from app.features.runs.ladder_figures import LadderFigures
from app.storage.run_records import State as RunState
from widgets.controls.layouts import vbox, wrapped
from widgets.theme.theme import SPACE_3, ui_font

EMPTY = (
    "Starts from a naive server and adds one technique per rung. Shows how many concurrent users "
    "meet your goals, and why. Set a TTFT or ITL goal, then press Run."
)
RUNNING = "The ladder is running. Rungs appear once they are measured."


class LadderView(QFrame):
    def __init__(self) -> None:
        super().__init__()
        self.setProperty("panel", True)
        self.result: LadderResult | None = None
        self.answer = wrapped("", EMPTY)
        self.answer.setFont(ui_font("body", QFont.Weight.DemiBold))
        self.figures = LadderFigures()
        self.figures.picked.connect(self._on_picked)
        self.bar = ApplyBar(lambda: self.settings)
        margins = (SPACE_3, SPACE_3, SPACE_3, SPACE_3)
        vbox(self.answer, (self.figures, 1), self.bar, of=self, margins=margins)
        self.show_result(None)

    def show_result(self, result: LadderResult | None) -> None:
        self.result = result
        words = EMPTY if result is None else RUNNING if self._is_running else result.answer
        self.answer.setText(words)
        self.figures.show_result(result)

    @property
    def _is_running(self) -> bool:
        return self.result is not None and self.result.state is RunState.RUNNING

    @property
    def rung(self) -> Rung | None:
        """The selected one, else the last kept one that meets the goals."""
        rungs = self.result.rungs if self.result is not None else ()
        kept = [rung for rung in rungs if rung.is_kept and rung.users]
        return self.figures.chosen or (kept[-1] if kept else None)

    @property
    def settings(self) -> dict[str, object]:
        rung = self.rung
        if rung is None or not rung.users:
            return {}
        return {**rung.settings, "max_num_seqs": rung.users}

    def _on_picked(self) -> None:
        self.bar.refresh(has_result=self.result is not None and not self._is_running)
