"""Screenshots in order: chats under load, every page, panel and dialog."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from app.features.chat.labels import long_prompts, suggestions_for
from app.features.quantize.texts import STARTER, builtin_text
from app.link.bridge import EngineBridge
from app.link.dispatcher import SnapshotThrottle
from app.link.engine_handle import SNAPSHOT_INTERVAL_MS
from app.paths import resources_dir, starter_draft, starter_model
from app.screenshot.camera import MAX_TOKENS, SMALL, START_S, Camera, pause
from app.screenshot.loaded import take_under_load
from app.screenshot.pages import (
    take_broadcast,
    take_elsewhere,
    take_runs,
    take_server,
    take_settings,
)
from app.storage.model_sources import is_starter, shape_sources
from app.storage.run_records import Kind

LONG_BYTES = 2400


def take_all(camera: Camera, model: str) -> Iterator[Path]:
    camera.application.show()
    camera.window.resize(camera.size)
    camera.application.startup.open_first_model({"model": model})
    yield from camera.take("loading")
    camera.wait_for_model()
    yield from camera.take("empty")
    yield from take_under_load(camera, model)
    yield from _pages(camera)
    yield from _models(camera)
    yield from _latency(camera)
    yield from _tokens(camera)
    yield from _recording(camera)
    yield from _kv_precision(camera, model)
    yield from _speculation(camera, model)
    yield from _precision(camera)
    yield from take_broadcast(camera)
    yield from take_runs(camera)
    yield from take_server(camera)
    yield from take_elsewhere(camera, model)
    yield from _palette(camera)
    yield from take_settings(camera)
    yield from camera.take("engine-settings", camera.application.settings_dock)
    yield from _open_model(camera)
    camera.start_chats(model)
    camera.wait_for_replies()
    camera.window.resize(SMALL)
    yield from camera.take("small")
    for name in ("bottleneck", "memory"):
        camera.show_view(name)
        yield from camera.take(f"small-{name}")


def _pages(camera: Camera) -> Iterator[Path]:
    for index, page in enumerate(camera.window.pages):
        camera.window.show_page(index)
        yield from camera.take(page.name.lower())


def _models(camera: Camera) -> Iterator[Path]:
    """The welcome page, and how a model of real size fits this machine."""
    place = camera.application.pages.models_place
    place.show_welcome()
    camera.wait(place.welcome.fits.isVisible, "the estimates did not appear")
    yield from camera.take("welcome")
    place.page.open_model(shape_sources()[0].path)
    fits = place.page.detail.fits
    camera.wait(lambda: not fits.isHidden(), "the estimate did not appear")
    yield from camera.take("models-fit")
    camera.window.show_page(0)


def _latency(camera: Camera) -> Iterator[Path]:
    """The latency of a reply that a long prompt interrupted."""
    page = camera.application.pages.chat_page
    prompts = [prompt for _, prompt in suggestions_for(str(starter_model()))[:2]]
    camera.talk(prompts)
    chosen = camera.chat.current.id
    story = camera.go_on("Tell me a story about a robot.")
    camera.wait(lambda: bool(story()), "generation did not start")
    camera.ask("Summarize this in one word: " + builtin_text(STARTER).read()[:LONG_BYTES], 8)
    camera.wait_for_replies()
    camera.chat.open(chosen)
    pause(2 * SNAPSHOT_INTERVAL_MS)  # its last steps
    page.open_inspector()
    yield from camera.take("latency")


def _tokens(camera: Camera) -> Iterator[Path]:
    """The tokens of a reply, and of a branch from it."""
    page = camera.application.pages.chat_page
    story = camera.talk([prompt for _, prompt in suggestions_for(str(starter_model()))[1::-1]])
    page.tokens.show_last()
    yield from camera.take("tokens")
    page.tokens.popover.branch.click()
    camera.wait(lambda: bool(story()), "generation in the branch did not start")
    camera.wait_for_replies()
    page.tokens.show_last()
    page.tokens.popover.paint_by.setCurrentIndex(2)
    yield from camera.take("tokens-branch")
    page.tokens.popover.hide()
    camera.chat.edit(camera.chat.current.path()[-2].id, "Explain speculative decoding.")
    camera.wait_for_replies()
    page.open_branches()
    yield from camera.take("branches")
    page.branches.hide()
    page.draft.add_files([str(resources_dir() / "texts" / "english.txt")])
    page.composer.set_text(long_prompts()[0][1])
    camera.wait(lambda: not page.context_notice.isHidden(), "no warning appeared")
    yield from camera.take("attachment")
    page.draft.clear()


def _recording(camera: Camera) -> Iterator[Path]:
    """The flight recording so far, opened."""
    flight = camera.application.recordings
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "2026-11-21-1304.inferdeck-flight"
        flight.save(path)
        notices = camera.application.notices
        camera.wait(lambda: "recording" in notices.keys, "no recording was saved", START_S)
        flight.open(path)
        camera.wait(lambda: bool(flight.windows), "the recording did not open", START_S)
    camera.application.notices.dismiss("recording")
    window = flight.windows[0]
    window.player.seek(window.player.duration / 2)
    camera.wait(lambda: not window.player.is_jumping, "seeking did not finish", START_S)
    for dock in (window.views.timeline_dock, window.views.bottleneck_dock):
        dock.raise_()
        yield from camera.take(f"recording-{dock.objectName()}", window)
    window.close()


def _kv_precision(camera: Camera, model: str) -> Iterator[Path]:
    """An 8-bit KV cache: its precision, and its bytes per token."""
    bridge = camera.application.bridge
    wanted = "k=int8,v=fp8"
    bridge.reconfigure(kv_cache_dtype=wanted)
    camera.wait(lambda: _kv_dtype(bridge) == wanted, "the KV cache was not rebuilt")
    camera.start_chats(model)
    began = lambda: bool(camera.chat.current.path()[-1].text)
    camera.wait(began, "generation did not start")
    pause(SnapshotThrottle.LONGEST_MS)
    for name in ("kv-blocks", "memory"):
        camera.show_view(name)
        yield from camera.take(f"kv-precision-{name}")
    camera.window.show_page(0)
    camera.wait_for_replies()
    bridge.reconfigure(kv_cache_dtype="auto")
    camera.wait(lambda: _kv_dtype(bridge) == "auto", "the KV cache was not rebuilt")


def _speculation(camera: Camera, model: str) -> Iterator[Path]:
    """The starter pair: drafted and accepted tokens, and the speed-up."""
    if not is_starter(model):
        return
    bridge, page = camera.application.bridge, camera.application.pages.chat_page
    bridge.reconfigure(
        speculative_method="draft_model",
        speculative_model=str(starter_draft()),
        speculative_adaptive=False,
    )
    camera.wait(lambda: _drafts(bridge), "the draft model did not load")
    camera.start_chats(model)
    camera.wait_for_replies()
    pause(2 * SNAPSHOT_INTERVAL_MS)
    camera.show_view("speculation")
    yield from camera.take("speculation")
    camera.window.show_page(0)
    camera.ask("Tell me a story about a robot.", MAX_TOKENS)
    camera.wait_for_replies()
    page.tokens.show_last()
    page.tokens.popover.paint_by.setCurrentText("Drafts")
    yield from camera.take("tokens-drafts")
    page.tokens.popover.hide()


def _precision(camera: Camera) -> Iterator[Path]:
    """A reply that continues in int8, and both precisions side by side; then back."""
    bridge, panel = camera.application.bridge, camera.application.engine_settings
    camera.wait(lambda: panel.precision.checkpoint is not None, "the checkpoint info did not load")
    row = panel.rows["quantization"]
    row.set_value("int8")
    row.value_changed.emit("quantization", "int8")
    yield from camera.take("precision-chosen")
    text = camera.ask(long_prompts()[0][1], MAX_TOKENS)
    camera.wait(lambda: len(text().split()) > 12, "generation did not start")
    panel.commands.apply()
    camera.wait(lambda: _weights(bridge) == "int8", "the int8 weights did not load")
    camera.wait_for_replies()
    yield from camera.take("precision")
    yield from _comparison(camera)
    panel.commands.undo()
    camera.wait(lambda: _weights(bridge) == "auto", "the precision was not restored")


def _comparison(camera: Camera) -> Iterator[Path]:
    page = camera.application.pages.runs
    page.show_form(Kind.COMPARE)
    window = page.compare
    window.max_tokens.setValue(32)
    for _, prompt in suggestions_for(str(starter_model()))[:2]:
        window.prompt.setPlainText(prompt)
        window.add_prompt()
    window.sides[1].precision.choose({"quantization": "int4"})
    window.start.click()
    done = lambda: not window.is_running
    camera.wait(done, "the comparison did not finish")
    yield from camera.take("compare")
    page.show_table()
    camera.window.show_page(0)


def _palette(camera: Camera) -> Iterator[Path]:
    """The command palette."""
    palette = camera.application.dialogs.palette
    camera.application.dialogs.show_palette()
    palette.field.setText("ch")
    yield from camera.take("commands")
    palette.close_and_return()


def _open_model(camera: Camera) -> Iterator[Path]:
    models = camera.application.pages.models
    models.open_model(shape_sources()[0].path)
    camera.wait(lambda: models.inspector.can_open, "the estimate did not appear")
    yield from camera.take("open-model")
    camera.window.show_page(0)


def _kv_dtype(bridge: EngineBridge) -> str:
    return bridge.config.kv_cache_dtype if bridge.config is not None else ""


def _weights(bridge: EngineBridge) -> str:
    return bridge.config.quantization if bridge.config is not None else ""


def _drafts(bridge: EngineBridge) -> bool:
    return bridge.config is not None and bridge.config.speculative_method != "off"
