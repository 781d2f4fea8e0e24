"""Where memory goes: the panel and what it compares."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytestqt.qtbot import QtBot

from app.features.inspect.memory_breakdown import MemoryTracker
from app.features.inspect.memory_view import EMPTY_TEXT, MemoryPanel
from engine.snapshot import EngineSnapshot, GpuFigures, GpuProcess
from tests.app.features.inspect.steps import CONFIG, seen, step
from tests.figures import numbers
from tests.widgets import synthetic


def with_process(snapshot: EngineSnapshot, process: int) -> EngineSnapshot:
    """With the cache as it is."""
    memory = snapshot.memory
    other = process - memory.weights - memory.kv_resident
    return dataclasses.replace(
        snapshot, memory=dataclasses.replace(memory, process=process, other=other)
    )


def test_activations_are_the_growth_beside_the_cache() -> None:
    tracker = MemoryTracker()
    assert tracker.figures() is None
    start = synthetic.PLAN.weights + 500_000_000
    idle = dataclasses.replace(synthetic.snapshot(0.0), config=CONFIG)
    tracker.update(with_process(idle, start))
    figures = tracker.figures()
    assert figures is not None and figures.activations.measured is None
    assert figures.program == 500_000_000 and figures.sum.error is None
    touched = 40 * synthetic.PLAN.bytes_per_block
    tracker.update(with_process(seen(1.0, step(1)), start + touched + 30_000_000))
    tracker.update(with_process(seen(2.0, step(2)), start + touched + 10_000_000))
    figures = tracker.figures()
    assert figures is not None and figures.activations.measured == 30_000_000
    assert figures.unused == synthetic.PLAN.kv_cache - touched
    assert figures.weights.error == 0.0
    assert figures.activations.error == pytest.approx(30_000_000 / synthetic.PLAN.activations - 1)
    whole = figures.engine + figures.program + figures.others + figures.memory.free
    assert whole == pytest.approx(figures.memory.total, rel=0.02)


def test_what_grows_between_steps_is_the_program() -> None:
    tracker, start = MemoryTracker(), synthetic.PLAN.weights + 500_000_000
    touched = 40 * synthetic.PLAN.bytes_per_block
    idle = dataclasses.replace(synthetic.snapshot(0.0), config=CONFIG)
    tracker.update(with_process(idle, start))
    tracker.update(with_process(seen(1.0, step(1)), start + touched + 30_000_000))
    start += 200_000_000  # a large text was counted, or refused as a prompt
    tracker.update(with_process(seen(2.0), start + touched + 30_000_000))
    figures = tracker.figures()
    assert figures is not None and figures.activations.measured == 30_000_000
    assert figures.program == 700_000_000
    tracker.update(with_process(seen(3.0, step(2)), start + touched + 35_000_000))
    tracker.update(with_process(seen(4.0), start + touched + 5_000_000))  # given back...
    tracker.update(with_process(seen(5.0, step(3)), start + touched + 36_000_000))  # ...and taken
    figures = tracker.figures()
    assert figures is not None and figures.activations.measured == 36_000_000


def test_memory_of_blocks_that_were_freed_stays_the_caches() -> None:
    """Where the system does not tell what is resident, the blocks in use are taken for it."""
    tracker, full = MemoryTracker(), seen(1.0, step(1))
    tracker.update(full)
    size = full.memory.kv_resident
    freed = dataclasses.replace(full.memory, kv_used=0, other=full.memory.other + size)
    tracker.update(dataclasses.replace(seen(2.0, step(2)), memory=freed))
    figures = tracker.figures()
    assert size > 0 and freed.kv_resident == 0
    assert figures is not None and figures.resident == size and not figures.activations.measured


def test_another_plan_starts_the_account_again() -> None:
    tracker = MemoryTracker()
    tracker.update(with_process(seen(0.0), 3 * 2**30))
    tracker.update(with_process(seen(1.0, step(1)), 4 * 2**30))
    rebuilt = dataclasses.replace(synthetic.PLAN, limit=synthetic.PLAN.limit // 2)
    last = with_process(seen(2.0), 4 * 2**30)
    tracker.update(dataclasses.replace(last, memory=dataclasses.replace(last.memory, plan=rebuilt)))
    figures = tracker.figures()
    assert figures is not None and figures.activations.measured is None


@given(
    st.lists(st.integers(0, 2 * synthetic.PLAN.activations), min_size=1, max_size=5),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_steps_that_reuse_memory_measure_no_activations_below_the_plan(
    growths: list[int], is_first: bool, is_attached: bool
) -> None:
    """After a rebuild, a second load, or when the window attached late."""
    tracker, at, start = MemoryTracker(), 0.0, 4 * 2**30
    if not is_first and not is_attached:
        tracker.update(with_process(seen(at), start))
        tracker.update(with_process(seen(at := at + 1, step(1)), start + 2**20))
        tracker.clear()
    first = dataclasses.replace(seen(at := at + 1), step_index=0 if is_first else 9 * is_attached)
    tracker.update(with_process(first, start))
    for growth in growths:
        now = with_process(seen(at := at + 1, step(2)), start := start + growth)
        tracker.update(now)
        figures = tracker.figures()
        assert figures is not None and figures.reuses == (not is_first)
        measured = figures.activations.measured
        assert measured is None or is_first or measured >= synthetic.PLAN.activations
        assert (measured is None) == (figures.sum.measured is None)


def test_the_part_in_ram_is_told_beside_that_of_the_gpu(qtbot: QtBot) -> None:
    panel = MemoryPanel()
    qtbot.addWidget(panel)
    panel.resize(1000, 300)
    panel.show()
    synthetic.feed(panel, seen(0.0))
    assert panel.ram.isHidden() and "cuda" not in panel._plan_title.text()
    synthetic.feed(panel, synthetic.divided_snapshot(1.0))
    assert "cuda:0" in panel._plan_title.text()
    assert numbers(panel._plan_title.text()) == [0, 20, 28]
    assert numbers(panel._ram_title.text()) == [8]
    assert [numbers(" ".join(part.figures)) for part in panel.ram.parts] == [
        [348.16, 348.16, 0], [439.45, 439.45, 0], [102.4]
    ]  # fmt: skip
    assert numbers(" ".join(panel.plan.parts[0].figures))[:2] == [0.85, 0.85]
    assert numbers(panel.ram_cache_line.text()) == [114, 38.1]
    assert numbers(panel.ram_line.text()) == [11, 12]
    synthetic.feed(panel, seen(2.0))
    assert panel.ram.isHidden() and panel._ram_title.isHidden()


def test_the_panel_compares_and_shows_what_others_hold(qtbot: QtBot) -> None:
    panel = MemoryPanel()
    qtbot.addWidget(panel)
    panel.resize(1000, 300)
    panel.show()
    assert panel._stack.currentWidget().text() == EMPTY_TEXT  # type: ignore[union-attr]
    synthetic.feed(panel, seen(0.0))
    assert not numbers(panel.error_line.text())
    synthetic.feed(panel, seen(1.0, step(1)))
    assert numbers(panel.error_line.text())
    assert numbers(" ".join(panel.plan.parts[0].figures)) == [1.19, 1.19, 0]
    assert panel.gpus.isHidden()
    panel.update_gpus((GpuFigures("A card", 8 * 2**30, 3 * 2**30, 2**30),))
    assert not panel.gpus.isHidden()
    assert "2.00 GiB" in panel.gpus.text()
    assert not numbers(panel.gpu_line.text())
    others = (GpuProcess("Xorg", 17, 2**29), GpuProcess("blender", 18, 2**28))
    panel.update_gpus((GpuFigures("A card", 8 * 2**30, 3 * 2**30, 2**30, others),))
    _check_processes(panel.gpu_line.text())
    panel.update_gpus((GpuFigures("A card", 8 * 2**30, 3 * 2**30, None),))
    assert not numbers(panel.gpu_line.text())
    whole = GpuFigures("A card", 80 * 2**30, 3 * 2**30, 2**30, uuid="GPU-0")
    part = GpuFigures("A part", 10 * 2**30, 2**30, 2**30, others, "MIG-0", part_of="GPU-0")
    panel.update_gpus((whole, part))
    assert "10.0 GiB" in panel.gpus.text() and "80.0 GiB" not in panel.gpus.text()
    _check_processes(panel.gpu_line.text())
    assert "INT8" not in panel.cache_line.text()  # of an older recording
    last = seen(2.0)
    plan = dataclasses.replace(last.memory.plan, key_dtype="int8", value_dtype="int8")
    memory = dataclasses.replace(last.memory, plan=plan)
    synthetic.feed(panel, dataclasses.replace(last, memory=memory))
    assert "(INT8)" in panel.cache_line.text()
    panel.clear()
    assert panel._stack.currentWidget() is panel._empty


def _check_processes(line: str) -> None:
    """Each process with its memory, in this order."""
    assert numbers(line) == [512, 256] and line.count("MiB") == 2
    assert line.index("Xorg") < line.index("512") < line.index("blender") < line.index("256")
