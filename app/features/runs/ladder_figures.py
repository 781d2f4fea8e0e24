"""`LadderFigures`: a waterfall of users, a row for each rung, and why it paid or not."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QSplitter, QWidget

from app.bench.ladder_record import LadderResult, cells, heads
from app.bench.ladder_words import RULE, is_noise, why
from app.bench.rungs import Rung, State
from app.storage.run_records import State as RunState
from widgets.controls.figure_table import FigureRow, FigureTable
from widgets.controls.layouts import vbox, wrapped
from widgets.plot.waterfall import Fall, Waterfall


class LadderFigures(QWidget):
    """`picked`: another rung was selected, in the chart or in the table."""

    picked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._rungs: tuple[Rung, ...] = ()
        self.plot = Waterfall("Users within the goals, per rung")
        self.table: FigureTable[Rung] = FigureTable("Rungs of the ladder", ends_in_words=True)
        self.table.limit_height(True)
        self.table.picked.connect(self._on_picked)
        self.plot.chosen.connect(self.table.selectRow)
        self.why = wrapped("muted")
        split = QSplitter(Qt.Orientation.Vertical, childrenCollapsible=False)
        split.addWidget(self.plot)
        split.addWidget(self.table)
        split.setStretchFactor(0, 2)
        split.setStretchFactor(1, 3)
        self.rule = wrapped("muted", RULE)
        vbox((split, 1), self.rule, self.why, of=self)

    @property
    def chosen(self) -> Rung | None:
        """The selected rung."""
        return self.table.chosen

    def show_result(self, result: LadderResult | None) -> None:
        rungs = self._rungs = result.rungs if result is not None else ()
        self.rule.setVisible(result is not None)
        self.plot.show_steps([_fall(rung, rungs) for rung in rungs], "Users")
        if result is None:
            self.table.show_rows((), ())
        else:
            told = [why(rung, rungs) for rung in rungs]
            rows = [FigureRow(rung, [*cells(rung, result), words], _tone(rung, result), words)
                    for rung, words in zip(rungs, told, strict=True)]  # fmt: skip
            self.table.show_rows([*heads(result), "Why"], rows)
        self._on_picked()

    def _on_picked(self) -> None:
        rung = self.chosen
        text = why(rung, self._rungs) if rung is not None else ""
        self.why.setText(f"{rung.title}: {text}" if rung is not None and text else "")
        self.why.setVisible(bool(self.why.text()))
        self.picked.emit()


def _fall(rung: Rung, rungs: tuple[Rung, ...]) -> Fall:
    if rung.state is not State.MEASURED:
        note = "" if rung.state is State.WAITING else rung.state.value
        return Fall(rung.title, None, None, rung.state is State.WAITING, note)
    below = next((float(one.users) for one in rungs if one.key == rung.below), None)
    is_clear = not is_noise(rung, rungs)
    return Fall(rung.title, float(rung.users), below, rung.is_kept, is_clear=is_clear)


def _tone(rung: Rung, result: LadderResult) -> str:
    if rung.state is State.FAILED:
        return "failed"
    tuned = [one for one in result.rungs if one.is_kept and one.users]
    if tuned and rung is tuned[-1] and result.state is not RunState.RUNNING:
        return "best"
    return "" if rung.is_kept else "muted"
