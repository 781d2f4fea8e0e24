"""Part "look": another theme, and another size of all text, while a reply is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from PySide6.QtWidgets import QApplication

from app.main.application import Application
from engine.sampling_params import SamplingParams
from engine.snapshot import EngineSnapshot
from tests.benchmarks.gui_cases import PROMPT, SCRIPT
from tests.benchmarks.report import at_most
from tests.benchmarks.workstation.chats import conversation, fill
from tests.benchmarks.workstation.child import run_child
from tests.benchmarks.workstation.meter import STALL_MS, LoopMeter, pause, wait_for
from tests.benchmarks.workstation.place import Pace, folders, show_all_docks, workstation
from widgets.theme.restyling import restyling
from widgets.theme.theme import apply_text_size, apply_theme

STEP_S = 0.02
NUM_MESSAGES = 1000
MOST_GROWTH = 2.0  # of an engine step's p99 beside a change, against its own usual one
SETTLED_MS = 300


def measure(options: dict[str, Any]) -> dict[str, Any]:
    rounds = 1 if options["quick"] else 3
    long = conversation("A long one", NUM_MESSAGES)
    with folders() as folder:
        fill(folder / "chats.sqlite3", iter([long]))
        with workstation(Pace(STEP_S), SCRIPT) as application:
            for page in (*range(application.window.stack.count()), 0):
                application.window.show_page(page)
                pause(100)
            rows, figures, steps = _all(application, rounds, long[0].id)
    usual, beside = steps
    growth = beside / usual
    return {
        "title": "Another look, all docks open, every page made, a reply being written: ms",
        "origin": f"a conversation of {NUM_MESSAGES:,} messages; the real engine with scripted "
        f"steps of {STEP_S * 1e3:.0f} ms",
        "header": ("", "own time", "until painted", "longest wait", "changes"),
        "rows": rows,
        "notes": [f"engine steps: p99 {beside:.1f} ms beside a change, {usual:.1f} ms otherwise"],
        "figures": figures | {"step_p99_ms": {"usual": usual, "beside": beside}},
        "goals": [
            at_most(f"{name}: no wait for the GUI thread over 100 ms", found["longest_wait"],
                    STALL_MS, " ms at most").as_dict()
            for name, found in figures.items()
        ] + [
            at_most("engine steps beside a change, against the usual", growth, MOST_GROWTH,
                    "x (p99)").as_dict()
        ],
    }  # fmt: skip


def _all(
    application: Application, rounds: int, shown: str
) -> tuple[list[tuple[str, ...]], dict[str, Any], tuple[float, float]]:
    app = QApplication.instance()
    assert isinstance(app, QApplication)
    seen: list[tuple[float, float]] = []  # start and duration of steps, seconds

    def take(snapshot: EngineSnapshot) -> None:
        seen.extend((step.start, step.duration) for step in snapshot.steps)

    application.bridge.snapshot.connect(take)
    chat = application.pages.chat
    chat.new_conversation()
    written = chat.current.id
    chat.current.sampling = SamplingParams(temperature=0.0, max_tokens=100_000, ignore_eos=True)
    chat.send(PROMPT)
    wait_for(lambda: bool(seen), 60.0)
    chat.open(shown)
    spans: list[tuple[float, float]] = []
    rows, figures = [], {}
    for page, name in ((0, "Chat"), (1, "Tune")):
        application.window.show_page(page)
        show_all_docks(application)
        pause(1000)
        for kind, changes in {
            "theme": [partial(apply_theme, app, mode) for mode in ("dark", "light")],
            "text size": [partial(apply_text_size, app, size) for size in (125, 150, 100)],
        }.items():
            found = [_change(change, spans) for _ in range(rounds) for change in changes]
            title = f"{kind}, {name} page"
            own, until, wait = (max(column) for column in zip(*found, strict=True))
            figures[title] = {"own": own, "until_painted": until, "longest_wait": wait}
            rows.append((title, f"{own:.0f}", f"{until:.0f}", f"{wait:.0f}", str(len(found))))
    pause(1000)
    chat.open(written)
    chat.stop()
    pause(500)
    inside = lambda start: any(first - STEP_S <= start <= last for first, last in spans)
    beside = [duration for start, duration in seen if inside(start)]
    usual = [duration for start, duration in seen if not inside(start)]
    return rows, figures, (_p99_ms(usual), _p99_ms(beside))


def _p99_ms(seconds: Sequence[float]) -> float:
    return float(np.percentile(seconds, 99)) * 1e3


def _change(
    change: Callable[[], object], spans: list[tuple[float, float]]
) -> tuple[float, float, float]:
    """Milliseconds: of the thread's own time until all is done, until the new look is painted, and
    the longest wait."""
    work = restyling()
    work.is_gradual = True
    painted: list[float] = []
    note = lambda: painted.append(time.perf_counter())
    work.arranged.connect(note)
    meter = LoopMeter()
    pause(100)
    meter.restart()
    began, own = time.perf_counter(), time.thread_time()
    change()
    wait_for(lambda: not work.is_busy, 60.0, 20)
    spent = time.thread_time() - own
    spans.append((began, time.perf_counter()))
    pause(SETTLED_MS)
    meter.stop()
    work.arranged.disconnect(note)
    return spent * 1e3, (painted[-1] - began) * 1e3, max(meter.waits) * 1e3


if __name__ == "__main__":
    run_child(measure)
