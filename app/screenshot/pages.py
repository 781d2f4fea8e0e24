"""Screenshots of the other pages: remote engines, broadcast, quantize, server, settings."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSize

from app.clients.connection import new_connection
from app.features.quantize.evaluation import EvaluationPlan, ModelChoice
from app.features.quantize.texts import STARTER, TextChoice, builtin_text
from app.features.serve.addresses import next_free_port
from app.features.serve.page import OTHERS, SERVE
from app.link.child_process import child_environment
from app.link.dispatcher import SnapshotThrottle
from app.link.engine_handle import SNAPSHOT_INTERVAL_MS
from app.paths import starter_model
from app.screenshot.camera import SMALL, START_S, TIMEOUT_S, Camera, ScreenshotError, pause
from app.server.options import LOOPBACK
from app.storage.run_records import Kind
from engine.config import SETTINGS
from widgets.plot.painted import NONE

LAPTOP, DESK = QSize(1280, 800), QSize(2560, 1440)
TUNE = 1


def take_elsewhere(camera: Camera, model: str) -> Iterator[Path]:
    for name, flags in (("attached", ()), ("look-only", ("--no-control",))):
        with _server(model, *flags) as url:
            yield from _visit(camera, name, url)
    camera.window.show_page(0)
    camera.window.resize(camera.size)


def _visit(camera: Camera, name: str, url: str) -> Iterator[Path]:
    window, bridge = camera.window, camera.application.bridge
    switch = camera.application.pages.server.switch
    switch.use(new_connection("gpu-box", url))
    camera.wait(lambda: bridge.is_remote and bridge.is_ready, "no connection to the server")
    story = camera.ask("Tell me a story about a robot.", 200)
    camera.wait(lambda: len(story().split()) > 20, "generation did not start")
    pause(SnapshotThrottle.LONGEST_MS)
    window.show_page(0)
    window.resize(LAPTOP)
    yield from camera.take(name)
    window.show_page(TUNE)
    window.resize(DESK)
    yield from camera.take(f"{name}-large")
    camera.wait_for_replies()
    switch.back()
    here = lambda: not bridge.is_remote and bridge.is_ready
    camera.wait(here, "the window did not switch back to the local engine")


@contextmanager
def _server(model: str, *flags: str) -> Iterator[str]:
    """A headless server in its own process; its address."""
    command = [sys.executable, "-m", "app", "serve", "--model", model, "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, *flags], stdout=subprocess.PIPE, text=True, env=child_environment({})
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise ScreenshotError("The server did not start.", "See the output above.")
        told: dict[str, Any] = json.loads(line)
        yield told["url"]
    finally:
        process.terminate()
        process.communicate()


COUNT, SLOTS = 9, 4
PROMPT = "Tell me a story about a robot."


def take_broadcast(camera: Camera) -> Iterator[Path]:
    """Nine replies in four batch slots: a static batch waits for its longest reply."""
    bridge, views = camera.application.bridge, camera.application.views
    before = bridge.config
    assert before is not None
    bridge.reconfigure(batching="static", max_num_seqs=SLOTS)
    camera.wait(lambda: _is_static(camera), "the batching policy did not change")
    page = camera.application.pages.runs
    page.show_form(Kind.BROADCAST)
    window = page.broadcast
    yield from camera.take("broadcast-empty")
    window.prompt.setPlainText(PROMPT)
    window.count.setValue(COUNT)
    window.max_tokens.setValue(96)
    window.start.click()
    some = lambda: sum(bool(cell.reply.text) for cell in window.cells) > SLOTS
    camera.wait(some, "generation did not start")
    yield from camera.take("broadcast")
    running = lambda: window.broadcast.is_running
    camera.wait(lambda: not running(), "generation did not finish")
    pause(2 * SNAPSHOT_INTERVAL_MS)
    camera.show_view("step-timeline")
    history = views.timeline.view.history
    idle = [o for o in range(history.first, history.end) if history.record(o).held_back]
    if idle:
        views.timeline.show_step(history.record(idle[-1]).index)
    yield from camera.take("timeline-static")
    views.timeline.view.follow()
    views.timeline.view.point_at(NONE)
    page.show_table()
    camera.window.show_page(0)
    bridge.reconfigure(batching=before.batching, max_num_seqs=before.max_num_seqs)
    camera.wait(lambda: not _is_static(camera), "the batching policy was not restored")


def _is_static(camera: Camera) -> bool:
    config = camera.application.bridge.config
    return config is not None and config.batching == "static"


TEXT_BYTES = 4000


def take_runs(camera: Camera) -> Iterator[Path]:
    page, window = camera.application.pages.runs, camera.window
    page.show_table()
    yield from camera.take("runs")
    page.show_form(Kind.QUANTIZE)
    yield from camera.take("quantize-empty")
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "notes.txt"
        text.write_text(builtin_text(STARTER).read()[:TEXT_BYTES], encoding="utf-8")
        recipe = page.quantizing.form
        recipe.fields.source.choose(str(starter_model()))
        recipe.fields.num_sequences.setValue(8)
        recipe.fields.length.setValue(128)
        recipe.measure_text.choose(TextChoice("", str(text)))
        camera.wait(lambda: recipe.can_start, "quantization could not start")
        yield from camera.take("quantize-recipe")
        page.quantizing.start()
        camera.wait(lambda: page.run is None or len(page.run.layers) >= 3, "no layer was quantized")
        yield from camera.take("quantize-run")
        _wait_for_job(camera)
        yield from camera.take("quantize-report")
        yield from _evaluate(camera, text)
    page.show_form(Kind.QUANTIZE)
    window.resize(SMALL)
    yield from camera.take("quantize-small")
    page.show_table()
    page.table.choose(next(run.id for run in page.table.runs if run.is_report))
    _wait_for_job(camera)
    yield from camera.take("quantize-report-small")
    window.resize(camera.size)
    window.show_page(0)


def _wait_for_job(camera: Camera) -> None:
    """Until it has ended and the selected run is shown."""
    page = camera.application.pages.runs
    is_over = lambda: page.run is None and not page.book.is_busy
    camera.wait(is_over, "the job did not finish", 2 * TIMEOUT_S)


def _evaluate(camera: Camera, text: Path) -> Iterator[Path]:
    """Evaluate the same model at another precision, and show both reports side by side."""
    page = camera.application.pages.runs
    page.show_form(Kind.EVALUATE)
    precision = (
        {"kv_cache_dtype": "int8"} if "kv_cache_dtype" in SETTINGS else {"quantization": "int8"}
    )
    path = str(starter_model())
    plan = EvaluationPlan(ModelChoice(path, precision), text=TextChoice("", str(text)))
    page.evaluating.form.show_plan(plan)
    yield from camera.take("quantize-evaluate")
    page.evaluating.start()
    _wait_for_job(camera)
    page.table.choose(*(run.id for run in page.table.runs if run.is_report))
    _wait_for_job(camera)
    yield from camera.take("runs-difference")


QUESTION = {
    "messages": [{"role": "user", "content": "What is TTFT?"}], "max_tokens": 32, "temperature": 0,
}  # fmt: skip
CALLS: tuple[tuple[str, Any], ...] = (
    ("/v1/models", None),
    ("/v1/chat/completions", QUESTION),
    ("/v1/chat/completions", {**QUESTION, "max_tokens": -1}),
    ("/metrics", None),
    ("/v1/completions", {"prompt": "The KV cache", "max_tokens": 24}),
    ("/v2/models", None),
    ("/v1/chat/completions", {**QUESTION, "n": 4}),
)


def take_server(camera: Camera) -> Iterator[Path]:
    page, window = camera.application.pages.server, camera.window
    page.show_tab(SERVE)
    window.resize(LAPTOP)
    yield from camera.take("server-stopped")
    page.panel.form.port.setValue(next_free_port(LOOPBACK, 8000) or 8000)
    page.panel.toggle()
    camera.wait(lambda: page.serving.is_on, "the server did not start", START_S)
    _call(camera, page.serving.url)
    pause(1200)
    yield from camera.take("server")
    window.resize(DESK)
    yield from camera.take("server-large")
    page.show_tab(OTHERS)
    window.resize(LAPTOP)
    yield from camera.take("engines-empty")
    for name, url in (("local server", page.serving.url), ("lab", "http://127.0.0.1:9")):
        page.store.keep(new_connection(name, url), "")
    page.connections.choose(page.store.connections[0].id)
    page.connections.test()
    story = camera.ask("Tell me a story about a robot.", 200)
    camera.wait(lambda: len(story().split()) > 20, "generation did not start")
    pause(5000)  # two looks at each
    window.show_widget(page)
    yield from camera.take("engines")
    window.resize(DESK)
    yield from camera.take("engines-large")
    window.resize(SMALL)
    yield from camera.take("engines-small")
    camera.wait_for_replies()
    page.show_tab(SERVE)
    page.panel.toggle()
    camera.wait(lambda: page.serving.can_start, "the server did not stop", START_S)
    window.resize(camera.size)
    window.show_page(0)


def _call(camera: Camera, url: str) -> None:
    """Calls of clients, some of them invalid."""

    def work() -> None:
        for path, body in CALLS:
            data = json.dumps(body).encode() if body is not None else None
            request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
            with suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()

    thread = threading.Thread(target=work, name="client", daemon=True)
    thread.start()
    camera.wait(lambda: not thread.is_alive(), "the HTTP requests did not finish")


SECTIONS = (
    ("Appearance", "look"),
    ("Engine process", "process"),
    ("KV cache", "engine"),
    ("Keyboard", "keyboard"),
)


def take_settings(camera: Camera) -> Iterator[Path]:
    application = camera.application
    application.preferences.show()
    dialog = application.preferences.dialog
    assert dialog is not None
    for title, name in SECTIONS:
        dialog.show_section(title)
        yield from camera.take(f"settings-{name}", dialog)
    dialog.search.setText("size")
    yield from camera.take("settings-search", dialog)
    dialog.close()
    yield from _layouts(camera)


def _layouts(camera: Camera) -> Iterator[Path]:
    """The built-in layouts, and the notifications so far."""
    application, window = camera.application, camera.window
    for name in ("tuning", "presentation"):
        window.commands.run(f"layout.{name}")
        window.show_page(0)
        yield from camera.take(f"layout-{name}")
    size = window.size()
    window.resize(SMALL)
    yield from camera.take("layout-presentation-small")
    window.resize(size)
    window.commands.run("layout.chat")
    application.window.show_notifications()
    yield from camera.take("notifications")
    application.window.show_notifications()
