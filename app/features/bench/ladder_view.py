"""`LadderView`: the answer, a waterfall of users, a row for each rung, and why it paid or not."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QFrame, QSplitter

from app.bench.ladder_record import LadderResult, cells, heads
from app.bench.ladder_words import why
from app.bench.rungs import Rung, State
from app.features.bench.apply_bar import ApplyBar
from app.features.bench.figure_table import FigureRow, FigureTable
from app.storage.run_records import State as RunState
from widgets.controls.layouts import vbox, wrapped
from widgets.plot.waterfall import Fall, Waterfall
from widgets.theme.theme import SPACE_3, ui_font

EMPTY = (
    "A ladder runs the workload naively, then adds one serving technique after the other. It shows "
    "the users under your goals on each rung, and why it paid. Set a TTFT or ITL goal, then press "
    "Run."
)
RUNNING = "The ladder is running. Rungs appear once they are measured."


class LadderView(QFrame):
    def __init__(self) -> None:
        super().__init__()
        self.setProperty("panel", True)
        self.result: LadderResult | None = None
        self.answer = wrapped("", EMPTY)
        self.answer.setFont(ui_font("body", QFont.Weight.DemiBold))
        self.plot = Waterfall("Users under the goals on each rung")
        self.table: FigureTable[Rung] = FigureTable("Rungs of the ladder", ends_in_words=True)
        self.table.picked.connect(self._on_picked)
        self.plot.chosen.connect(self.table.selectRow)
        self.why = wrapped("muted")
        split = QSplitter(Qt.Orientation.Vertical, childrenCollapsible=False)
        split.addWidget(self.plot)
        split.addWidget(self.table)
        split.setStretchFactor(0, 1)
        split.setStretchFactor(1, 1)
        self.bar = ApplyBar(lambda: self.settings)
        margins = (SPACE_3, SPACE_3, SPACE_3, SPACE_3)
        vbox(self.answer, (split, 1), self.why, self.bar, of=self, margins=margins)
        self.show_result(None)

    def show_result(self, result: LadderResult | None) -> None:
        self.result = result
        is_running = result is not None and result.state is RunState.RUNNING
        rungs = result.rungs if result is not None else ()
        words = EMPTY if result is None else RUNNING if is_running else result.answer
        self.answer.setText(words)
        self.plot.show_steps([_fall(rung, rungs) for rung in rungs], "Users")
        if result is None:
            self.table.show_rows((), ())
        else:
            told = [why(rung, rungs) for rung in rungs]
            rows = [FigureRow(rung, [*cells(rung, result), words], _tone(rung, result), words)
                    for rung, words in zip(rungs, told, strict=True)]  # fmt: skip
            self.table.show_rows([*heads(result), "Why"], rows)
        self._on_picked()

    @property
    def rung(self) -> Rung | None:
        """The selected one, else the last kept one that meets the goals."""
        rungs = self.result.rungs if self.result is not None else ()
        kept = [rung for rung in rungs if rung.is_kept and rung.users]
        return self.table.chosen or (kept[-1] if kept else None)

    @property
    def settings(self) -> dict[str, object]:
        rung = self.rung
        if rung is None or not rung.users:
            return {}
        return {**rung.settings, "max_num_seqs": rung.users}

    def _on_picked(self) -> None:
        rung, rungs = self.table.chosen, self.result.rungs if self.result else ()
        text = why(rung, rungs) if rung is not None else ""
        self.why.setText(f"{rung.title}: {text}" if rung is not None and text else "")
        is_done = self.result is not None and self.result.state is not RunState.RUNNING
        self.bar.refresh(has_result=is_done)


def _fall(rung: Rung, rungs: tuple[Rung, ...]) -> Fall:
    if rung.state is not State.MEASURED:
        note = "" if rung.state is State.WAITING else rung.state.value
        return Fall(rung.title, None, None, rung.state is State.WAITING, note)
    below = next((float(one.users) for one in rungs if one.key == rung.below), None)
    return Fall(rung.title, float(rung.users), below, rung.is_kept)


def _tone(rung: Rung, result: LadderResult) -> str:
    if rung.state is State.FAILED:
        return "failed"
    tuned = [one for one in result.rungs if one.is_kept and one.users]
    if tuned and rung is tuned[-1] and result.state is not RunState.RUNNING:
        return "best"
    return "" if rung.is_kept else "muted"
