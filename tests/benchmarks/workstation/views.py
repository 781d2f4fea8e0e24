"""Part "views": a frame of each view, and of the whole window, where everything is large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.main.application import Application
from engine.snapshot import EngineSnapshot
from tests.benchmarks.gui_cases import SCRIPT
from tests.benchmarks.report import at_most
from tests.benchmarks.workstation.child import run_child
from tests.benchmarks.workstation.meter import Frames, drain, frame_ms, pause
from tests.benchmarks.workstation.place import Pace, folders, show_all_docks, workstation
from tests.benchmarks.workstation.scaled import (
    NUM_BLOCKS,
    NUM_REQUESTS,
    NUM_STEPS,
    STEPS_PER_SNAPSHOT,
    Scaled,
    real_snapshot,
)

MAX_FRAME_MS = 100.0  # ten frames a second
SMOOTH_MS = 33.0
SNAPSHOT_S = 0.25  # as the engine sends them
FRAME_S = 1.0  # what is shown once a second is shown anew in every frame that is measured

Update = Callable[[EngineSnapshot], object]


def measure(options: dict[str, Any]) -> dict[str, Any]:
    count = 12 if options["quick"] else 40
    settings = {"max_num_seqs": NUM_REQUESTS, "max_num_batched_tokens": 4096}
    with folders(), workstation(Pace(0.002), SCRIPT, **settings) as application:
        scaled = Scaled(real_snapshot(application))
        show_all_docks(application)
        filling = _fill(application, scaled)
        frames = {name: _frames(application, scaled, update, count, dock)
                  for name, (update, dock) in _views(application).items()}  # fmt: skip
        for page, name in ((0, "Chat"), (1, "Tune")):
            application.window.show_page(page)
            show_all_docks(application)
            emit = application.bridge.snapshot.emit
            frames[f"whole window, {name} page, all docks"] = _frames(
                application, scaled, emit, count
            )
    tenth = max(1, len(filling) // 10)
    return {
        "title": f"{NUM_BLOCKS:,} blocks, {NUM_REQUESTS} requests, {NUM_STEPS:,} steps of history: "
        "ms of a frame",
        "origin": "requests, settings and memory of a real engine run (starter model, scripted "
        "steps); blocks and steps scaled up",
        "header": ("", "median", "p99", "longest", "frames"),
        "rows": [(name, *found.cells) for name, found in frames.items()],
        "notes": [
            f"taking a snapshot of {STEPS_PER_SNAPSHOT} steps and drawing it, all docks open: "
            f"{Frames.of(filling[:tenth]).median:.1f} ms while the history is empty, "
            f"{Frames.of(filling[-tenth:]).median:.1f} ms when it is full"
        ],
        "figures": {name: found._asdict() for name, found in frames.items()}
        | {"filling_ms": filling},
        "goals": [
            at_most(
                f"{name}: ten frames a second", found.max, MAX_FRAME_MS, " ms at most"
            ).as_dict()
            for name, found in frames.items()
        ],
    }


def _views(application: Application) -> dict[str, tuple[Update, Any]]:
    views = application.views
    return {
        "status strip": (application.strip.update_snapshot, None),
        "KV blocks": (views.kv_blocks.update_snapshot, views.blocks_dock),
        "step timeline": (views.timeline.update_snapshot, views.timeline_dock),
        "requests": (lambda s: views.requests.update_requests(s.requests), views.requests_dock),
        "speculation": (views.speculation.update_snapshot, views.speculation_dock),
        "bottleneck": (views.bottleneck.update_snapshot, views.bottleneck_dock),
        "memory": (views.memory.update_snapshot, views.memory_dock),
        "live charts": (application.charts.update_snapshot, application.charts_dock),
        "engine settings": (application.engine_settings.update_snapshot, application.settings_dock),
        "flight recorder, nothing to see": (application.recorder._on_snapshot, None),
    }


def _fill(application: Application, scaled: Scaled) -> list[float]:
    """All the steps of the history through the whole window: ms of each snapshot."""
    found = []
    for _ in range(NUM_STEPS // STEPS_PER_SNAPSHOT):
        snapshot = scaled.next(SNAPSHOT_S)
        found.append(_frame(application, snapshot, application.bridge.snapshot.emit))
    return found


def _frames(
    application: Application, scaled: Scaled, update: Update, count: int, dock: Any = None
) -> Frames:
    """Frames of one view, as large as the window gives it, the others closed; or of all."""
    if dock is not None:
        for other, _ in application.window.dock_shortcuts:
            other.setVisible(other is dock)
        pause(100)
    found = []
    for frame in range(-3, count):  # the first ones warm up
        taken = _frame(application, scaled.next(FRAME_S), update)
        if frame >= 0:
            found.append(taken)
    return Frames.of(found)


def _frame(application: Application, snapshot: EngineSnapshot, update: Update) -> float:
    clock = application.charts.clock

    def do() -> None:
        update(snapshot)
        clock._tick()  # now, instead of at its next beat
        while clock._rest.isActive():
            drain()

    taken = frame_ms(do)
    clock._timer.stop()
    return taken


if __name__ == "__main__":
    run_child(measure)
