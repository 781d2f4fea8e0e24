"""Screenshots under a background load: a chat, the live charts, the Inspect page and Tune."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from app.features.chat.labels import long_prompts, suggestions_for
from app.features.tune.server_dialog import ServerDialog
from app.link.engine_handle import SNAPSHOT_INTERVAL_MS
from app.screenshot.camera import MAX_TOKENS, SMALL, START_S, Camera, pause
from widgets.plot.painted import NONE

LOAD, CONCURRENCY, LIMIT = "mixed-lengths", 12, 4
WARM_S, COMPARED_S = 5.0, 25.0
"""Seconds of load before the first screenshot; before a change, and after it."""
TALK = (
    "How do I make my model faster?",
    "Write a Python function that computes the KV cache size.",
    "Tell me a story about a robot.",
)
LONG_WORDS = 35


def take_under_load(camera: Camera, model: str) -> Iterator[Path]:
    _measure_peaks(camera, model)
    page = camera.application.pages.tune
    page.load_bar.choose(LOAD)
    page.load_bar.concurrency.setValue(CONCURRENCY)
    page.load_bar.toggle()
    _wait_for_load(camera, WARM_S)
    yield from _chat(camera, model)
    yield from _docks(camera)
    yield from _inspect(camera)
    yield from _tune(camera)
    camera.wait_for_replies()


def _measure_peaks(camera: Camera, model: str) -> None:
    """The bottleneck view measures the idle machine when it is first shown after a step."""
    camera.ask(suggestions_for(model)[0][1], MAX_TOKENS)
    camera.wait_for_replies()
    camera.show_view("bottleneck")
    bottleneck = camera.application.views.bottleneck
    camera.wait(lambda: bottleneck.model.peaks is not None, "no peaks were measured", START_S)
    camera.window.show_page(0)


def _wait_for_load(camera: Camera, seconds: float) -> None:
    load = camera.application.pages.tune.load
    until = load.seconds + seconds
    camera.wait(lambda: load.seconds >= until, "the load did not run")


def _chat(camera: Camera, model: str) -> Iterator[Path]:
    """A conversation among others, with its last reply in the inspector."""
    camera.talk(TALK[:-1])
    chosen = camera.chat.current
    camera.prepare()
    camera.start_chats(model)
    camera.chat.open(chosen.id)
    camera.chat.send(TALK[-1])
    inspector = camera.application.pages.chat_page.inspector.view
    is_long = lambda: len(chosen.path()[-1].text.split()) > LONG_WORDS
    is_shown = lambda: not inspector.latency.isHidden()
    camera.wait(lambda: is_long() and is_shown(), "generation did not start")
    yield from camera.take("generating")


def _docks(camera: Camera) -> Iterator[Path]:
    """The live charts and the log below a page."""
    for dock in (camera.application.charts_dock, camera.application.log_dock):
        dock.bring_to_front()
        yield from camera.take(dock.objectName())
        dock.hide()


def _inspect(camera: Camera) -> Iterator[Path]:
    """Every tab of the Inspect page, with the last step that prefilled selected."""
    window, view = camera.window, camera.application.views.timeline.view
    page = camera.application.pages.inspect
    camera.prepare()
    for _, prompt in long_prompts()[1:]:
        camera.ask(prompt, MAX_TOKENS)
    camera.wait_for_replies()
    pause(2 * SNAPSHOT_INTERVAL_MS)  # their last steps
    window.show_widget(page)
    view.pause()
    steps = range(view.history.first, view.history.end)
    prefills = [step for step in steps if view.history.record(step).num_prefill_tokens]
    view.choose(prefills[-1])
    for tab in range(page.tabs.count()):
        page.tabs.setCurrentIndex(tab)
        yield from camera.take(f"inspect-{page.current}")
    page.tabs.setCurrentIndex(0)
    view.choose(NONE)
    view.follow()
    window.show_page(0)


def _tune(camera: Camera) -> Iterator[Path]:
    """A setting changed under the load, and the effect; then back."""
    page, panel = camera.application.pages.tune, camera.application.engine_settings
    camera.window.show_page([p.name for p in camera.window.pages].index("Tune"))
    _wait_for_load(camera, COMPARED_S)
    row = panel.rows["max_num_seqs"]
    row.control.set_value(LIMIT)
    row.value_changed.emit("max_num_seqs", LIMIT)
    _wait_for_load(camera, COMPARED_S)
    yield from camera.take("tune-load")
    camera.window.resize(SMALL)
    yield from camera.take("tune-small")
    camera.window.resize(camera.size)
    page.load.stop()
    panel.commands.undo()
    panel.show_command()
    dialog = camera.window.findChild(ServerDialog)
    assert dialog is not None
    dialog.choose("TensorRT-LLM")
    yield from camera.take("server-command", dialog)
    dialog.reject()
    camera.window.show_page(0)
