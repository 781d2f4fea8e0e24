"""Time of one frame of the window's views, at the sizes that hurt.

    python -m tests.benchmarks.views [--quick]

The block map with 100,000 blocks of 256 requests, and the step timeline with 10,000 steps of 256
requests: taking a snapshot, making the picture, and painting it, each frame with other data.
Milliseconds of this thread's own time (medians and the longest). The goal: 10 frames a second.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtWidgets import QApplication, QWidget

from engine.snapshot import BLOCK_CACHED, BLOCK_FREE, BlockSnapshot, StepEntry, StepRecord
from tests.benchmarks.report import arguments as common_arguments
from tests.benchmarks.report import (
    at_most,
    context,
    print_goals,
    print_table,
    watch_others,
    write_json,
)
from widgets.blocks.block_map import BlockMap
from widgets.plot.clock import RedrawClock
from widgets.theme.theme import apply_theme
from widgets.timeline.view import TimelineView

NUM_BLOCKS, NUM_REQUESTS, NUM_STEPS = 100_000, 256, 10_000
SIZES = ((600, 300), (1600, 900))
MAX_FRAME_MS = 100.0
STEPS_PER_FRAME = 25


def blocks(generator: np.random.Generator) -> BlockSnapshot:
    """Two thirds of the blocks held, in runs of twenty; the rest cached or free."""
    per_request = NUM_BLOCKS * 2 // 3 // NUM_REQUESTS
    runs = generator.permutation(NUM_BLOCKS // 20)
    order = (runs[:, None] * 20 + np.arange(20)).ravel()
    owner = np.full(NUM_BLOCKS, BLOCK_FREE, np.int32)
    tables = []
    for request in range(NUM_REQUESTS):
        mine = order[request * per_request : (request + 1) * per_request]
        owner[mine] = request
        tables.append(tuple(mine.tolist()))
    rest = order[NUM_REQUESTS * per_request :]
    owner[rest[: len(rest) // 2]] = BLOCK_CACHED
    fill = np.where(owner >= 0, generator.integers(1, 17, NUM_BLOCKS), 16).astype(np.int32)
    refs = np.where(owner >= 0, generator.integers(1, 3, NUM_BLOCKS), 0).astype(np.int32)
    names = tuple(f"request-{number}" for number in range(NUM_REQUESTS))
    return BlockSnapshot(16, names, owner, refs, fill, owner == BLOCK_CACHED, tuple(tables))


def steps(start: int, count: int) -> list[StepRecord]:
    kinds = ["prefill" if number % 16 == 0 else "decode" for number in range(NUM_REQUESTS)]
    return [
        StepRecord(
            index, index * 0.02, 0.01 + 0.005 * (index % 7),
            tuple(
                StepEntry(f"request-{number}", kinds[(number + index) % NUM_REQUESTS], 1)
                for number in range(NUM_REQUESTS)
            ),
            NUM_REQUESTS, 0,
        )
        for index in range(start, start + count)
    ]  # fmt: skip


def measure(
    widget: QWidget, frames: int, feed: Callable[[int], Callable[[], None]]
) -> dict[str, Any]:
    """`feed(frame)` makes the data of a frame, off the clock; what it returns takes them."""
    found = []
    for frame in range(-2, frames):  # the first two warm up
        take = feed(frame)
        began = time.thread_time()
        take()
        widget.redraw()  # type: ignore[attr-defined]
        widget.repaint()
        if frame >= 0:
            found.append((time.thread_time() - began) * 1e3)
    return {"median_ms": statistics.median(found), "max_ms": max(found), "frames": len(found)}


def main() -> int:
    args = common_arguments(__doc__.splitlines()[0]).parse_args()
    frames = 10 if args.quick else 60
    app = QApplication.instance() or QApplication(sys.argv[:1])
    assert isinstance(app, QApplication)
    apply_theme(app, "dark")
    clock = RedrawClock()
    generator = np.random.default_rng(0)
    results: dict[str, Any] = {}
    with watch_others() as others:
        for width, height in SIZES:
            size = f"{width} x {height}"
            block_map = BlockMap(clock)
            block_map.resize(width, height)
            block_map.show()

            def feed_blocks(frame: int, block_map: BlockMap = block_map) -> Callable[[], None]:
                data = blocks(generator)
                return lambda: block_map.update_blocks(data)

            results[f"block map, {size}"] = measure(block_map, frames, feed_blocks)
            timeline = TimelineView(clock)
            timeline.resize(width, height)
            timeline.show()
            timeline.history.add(steps(0, NUM_STEPS))

            def feed_steps(frame: int, timeline: TimelineView = timeline) -> Callable[[], None]:
                data = steps(timeline.history.end, STEPS_PER_FRAME)
                return lambda: timeline.history.add(data)

            results[f"timeline, {size}"] = measure(timeline, frames, feed_steps)
            block_map.close()
            timeline.close()
    clock._timer.stop()
    rows = [(name, f"{r['median_ms']:.1f}", f"{r['max_ms']:.1f}") for name, r in results.items()]
    print(f"{NUM_BLOCKS:,} blocks, {NUM_REQUESTS} requests, {NUM_STEPS:,} steps: ms a frame")
    print_table(("", "median", "longest"), rows)
    goals = [
        at_most(f"{name}: a frame takes at most {MAX_FRAME_MS:g} ms", r["max_ms"], MAX_FRAME_MS,
                " ms at most")
        for name, r in results.items()
    ]  # fmt: skip
    print_goals(goals)
    report = {"benchmark": "views", **context(), "quick": args.quick, "results": results,
              "goals": [goal.as_dict() for goal in goals],
              "cpu_taken_by_others": others.share}  # fmt: skip
    write_json(args.output_json, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
