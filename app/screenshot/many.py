"""Many conversations at once: a broadcast, and what a static batch makes of it in the timeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from app.engine_seat import SNAPSHOT_INTERVAL_MS
from app.screenshot.camera import LOAD_TIMEOUT_S, REPLY_TIMEOUT_S, Camera, pause

COUNT, PLACES = 9, 4
PROMPT = "Tell me a story about a fox and a lamp."


def take_broadcast(camera: Camera) -> Iterator[Path]:
    """Nine replies in four places: the batch waits for its longest reply."""
    bridge, views = camera.application.bridge, camera.window.views
    before = bridge.config
    assert before is not None
    bridge.reconfigure(batching="static", max_num_seqs=PLACES)
    camera.wait(lambda: _is_static(camera), LOAD_TIMEOUT_S, "the policy was not changed")
    desk = camera.window.broadcast
    desk.show()
    window = desk.window
    assert window is not None
    yield from camera.in_both_modes("broadcast-empty", window)
    window.prompt.setPlainText(PROMPT)
    window.count.setValue(COUNT)
    window.max_tokens.setValue(96)
    window.start.click()
    some = lambda: sum(bool(cell.reply.text) for cell in window.cells) > PLACES
    camera.wait(some, REPLY_TIMEOUT_S, "no reply began")
    yield from camera.in_both_modes("broadcast", window)
    running = lambda: window.broadcast.is_running
    camera.wait(lambda: not running(), REPLY_TIMEOUT_S, "the replies did not end")
    pause(2 * SNAPSHOT_INTERVAL_MS)
    views.timeline_dock.raise_()
    history = views.timeline.view.history
    idle = [o for o in range(history.first, history.end) if history.record(o).held_back]
    if idle:
        views.timeline.show_step(history.record(idle[-1]).index)
    yield from camera.in_both_modes("timeline-static", camera.window)
    views.timeline.view.follow()
    camera.window.charts_dock.raise_()
    window.close()
    bridge.reconfigure(batching=before.batching, max_num_seqs=before.max_num_seqs)
    camera.wait(lambda: not _is_static(camera), LOAD_TIMEOUT_S, "the policy was not changed back")


def _is_static(camera: Camera) -> bool:
    config = camera.application.bridge.config
    return config is not None and config.batching == "static"
