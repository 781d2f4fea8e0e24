"""`WorkloadBox`: the workload of the Bench page: presets, a prompt file, the user's own prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFileDialog

from app.bench.workload import Workload, of_prompts, preset, preset_names
from app.features.bench.prompts import Source
from app.link.tasks import LatestTask
from engine.errors import ConfigError, ErrorInfo
from engine.evaluate.task import PROMPT_LINES
from widgets.controls.combo import ElidedCombo
from widgets.controls.layouts import dressed

FROM_FILE = "Prompt file…"
FILES = "Prompt files (*.jsonl *.ndjson *.csv *.txt);;All files (*)"
FIRST = "query-rewrite"


class WorkloadBox(ElidedCombo):
    """Presets, prompts that were read, and sources to read more from. `chosen(Workload)`:
    prompts were read. `failed(ErrorInfo)`: they could not be."""

    chosen = Signal(object)
    failed = Signal(object)

    def __init__(self, sources: Sequence[Source]) -> None:
        super().__init__()
        dressed(self, "Workload", PROMPT_LINES)
        self._sources = {source.title: source.read for source in sources}
        self._works: list[tuple[Workload, str]] = [
            (work, variant)
            for work in map(preset, preset_names()) for variant in work.variants
        ]  # fmt: skip
        self._rows: dict[str, int] = {}  # of prompts that were read, by source or file
        self._reading = LatestTask(self)
        for work, variant in self._works:
            more = f", {variant} prompts" if len(work.variants) > 1 else ""
            self.addItem(f"{work.title}{more}")
        for title in (*self._sources, FROM_FILE):
            self.addItem(title)
        self.setMinimumContentsLength(16)
        names = [work.name for work, _ in self._works]
        self._row = names.index(FIRST)  # the choice until other prompts are read
        self.setCurrentIndex(self._row)
        self.activated.connect(self._on_activated)

    @property
    def choice(self) -> tuple[Workload, str]:
        """With its variant. Raises ConfigError while prompts are read."""
        if self.currentIndex() >= len(self._works):
            raise ConfigError("The prompts are not read yet.", "Run again in a moment.")
        return self._works[self.currentIndex()]

    @property
    def preset(self) -> tuple[str, str]:
        """Name and variant; empty for prompts that were read."""
        work, variant = self._works[min(self._row, len(self._works) - 1)]
        return (work.name, variant) if work.name in preset_names() else ("", "")

    def choose(self, name: str, variant: str) -> None:
        """A preset, if there is one of this name."""
        for row, (work, own) in enumerate(self._works):
            if (work.name, own) == (name, variant):
                self._row = row
                self.setCurrentIndex(row)

    def open_file(self, file: Path) -> None:
        """Read, offer and choose the prompts of a file."""
        self._read(str(file), partial(of_prompts, file))

    def _read(self, key: str, read: Callable[[], Workload]) -> None:
        self._reading.run(read, partial(self._offer, key), self._refuse)

    def _offer(self, key: str, work: Workload) -> None:
        place, text = self._rows.get(key), f"{work.title} ({work.prompts_text})"
        choice = work, next(iter(work.variants))
        if place is None:
            place = self._rows[key] = len(self._works)
            self._works.append(choice)
            self.insertItem(place, text)
        else:
            self._works[place] = choice
            self.setItemText(place, text)
        self._row = place
        self.setCurrentIndex(place)
        self.chosen.emit(work)

    def _refuse(self, problem: ErrorInfo) -> None:
        self.setCurrentIndex(self._row)
        self.failed.emit(problem)

    def _on_activated(self, row: int) -> None:
        self._reading.cancel()
        if row < len(self._works):
            self._row = row
            return
        title = self.itemText(row)
        if title in self._sources:
            self._read(title, self._sources[title])
            return
        file, _ = QFileDialog.getOpenFileName(self, "Prompt file", "", FILES)
        if file:
            self.open_file(Path(file))
        else:
            self.setCurrentIndex(self._row)
