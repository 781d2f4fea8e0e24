"""The step timeline fed by a real engine: preemption and resumption in a tiny cache, and the slots
that a static batch leaves idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QTableView
from pytestqt.qtbot import QtBot

from engine import EngineConfig, LLMEngine, SamplingParams
from tests.engine import tiny_models
from widgets.plot.clock import RedrawClock
from widgets.theme.theme import apply_theme
from widgets.timeline.history import FINISHED, RESUMED, Kind
from widgets.timeline.panel import TimelinePanel
from widgets.timeline.table import HEADERS

Feed = Callable[..., TimelinePanel]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(tiny_models.make_model("llama"), tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def feed(qapp: QApplication, qtbot: QtBot, folder: Path) -> Iterator[Feed]:
    """A panel that has seen a run of an engine with these settings to its end."""
    apply_theme(qapp, "dark")
    clock = RedrawClock(rate_hz=20)
    engines: list[LLMEngine] = []

    def run(prompts: list[list[int]], lengths: list[int], **settings: object) -> TimelinePanel:
        config = EngineConfig(model=str(folder), dtype="float32", num_threads=1, block_size=8)
        engine = LLMEngine(config.replace(**settings))
        engines.append(engine)
        panel = TimelinePanel(clock)
        panel.set_names(lambda name: name)
        qtbot.addWidget(panel)
        panel.resize(900, 300)
        panel.show()
        for prompt, length in zip(prompts, lengths, strict=True):
            engine.add_request(
                prompt, SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
            )
        while engine.has_unfinished:
            engine.step()
            panel.update_snapshot(engine.snapshot())
        panel.view.redraw()
        return panel

    yield run
    while engines:
        engines.pop().shutdown()  # the test keeps `run`: their tokenizers must not remain in it
    clock._timer.stop()
    clock._beat.stop()


def kinds(panel: TimelinePanel) -> list[int]:
    history = panel.view.history
    return history.cells(history.first, history.end)[2].tolist()


def cell(view: QTableView, row: int, header: str) -> str:
    return str(view.model().index(row, HEADERS.index(header)).data())


def test_a_preempted_request_is_marked_where_it_resumes(qtbot: QtBot, feed: Feed) -> None:
    prompts = tiny_models.make_prompts((20, 20, 20))
    panel = feed(prompts, [40, 40, 40], kv_cache_memory_bytes=2**16, enable_prefix_caching=False,
                 watermark=0.0)  # fmt: skip
    history = panel.view.history
    steps = [history.record(ordinal) for ordinal in range(history.first, history.end)]
    preempted = [name for step in steps for name in step.preempted]
    resumed = [(s.index, e.request_id) for s in steps for e in s.entries if e.is_resumed]
    assert preempted and sorted(preempted) == sorted(name for _, name in resumed)
    assert sum(kind & RESUMED != 0 for kind in kinds(panel)) == len(resumed)
    panel.show_step(resumed[0][0])
    assert "1 resumed" in panel.line.text() and "(resumed)" in panel.batch.text()
    assert "resumed" in panel.legend.accessibleName()
    panel.view.zoom(-9)
    panel.activateWindow()
    panel.view.setFocus()
    qtbot.waitUntil(panel.view.hasFocus)
    qtbot.keyClick(panel.view, Qt.Key.Key_T)
    table = panel.view.findChild(QTableView)
    rows = range(table.model().rowCount())
    assert len(rows) == panel.view.end - history.first
    assert sum(int(cell(table, row, "resumed")) for row in rows) == len(resumed)
    table.window().close()


def test_a_static_batch_shows_the_slots_that_continuous_batching_fills(feed: Feed) -> None:
    prompts, lengths = tiny_models.make_prompts((6, 6, 6, 6)), [4, 12, 6, 6]
    small = {"max_num_seqs": 2, "kv_cache_memory_bytes": 2**20}
    panel = feed(prompts, lengths, batching="static", **small)
    history = panel.view.history
    idle = [o for o in range(history.first, history.end) if history.record(o).held_back]
    assert len(idle) == 8  # steps in which the short one is done and the long one is not
    assert kinds(panel).count(Kind.HELD) == len(idle)
    panel.view.point_at(idle[0])
    assert "1 idle slot " in panel.line.text() and "static batch" in panel.batch.text()
    table = panel.view.values_table()
    assert sum(int(row[HEADERS.index("idle slots")] or 0) for row in table.rows) == len(idle)  # type: ignore[arg-type]
    other = feed(prompts, lengths, batching="continuous", **small)
    assert Kind.HELD not in {kind & ~FINISHED for kind in kinds(other)}
