"""The Server page, photographed: stopped, serving, and engines beside each other."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSize

from app.connections.connection import new_connection
from app.screenshot.camera import REPLY_TIMEOUT_S, SMALL, Camera, pause
from app.serving.addresses import next_free_port
from app.serving.choice import LOOPBACK
from app.serving.page import OTHERS, SERVE

LAPTOP, DESK = QSize(1280, 800), QSize(2560, 1440)
START_S = 30.0
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
    """Yields each file when it is saved."""
    page, window = camera.application.pages.server, camera.window
    page.show_tab(SERVE)
    window.resize(LAPTOP)
    yield from camera.in_both_modes("server-stopped", window)
    page.panel.form.port.setValue(next_free_port(LOOPBACK, 8000) or 8000)
    page.panel.toggle()
    camera.wait(lambda: page.serving.is_on, START_S, "the server did not start")
    _call(camera, page.serving.url)
    pause(1200)
    yield from camera.in_both_modes("server", window)
    window.resize(DESK)
    yield from camera.in_both_modes("server-large", window)
    page.show_tab(OTHERS)
    window.resize(LAPTOP)
    yield from camera.in_both_modes("engines-empty", window)
    for name, url in (("the same, as a client", page.serving.url), ("lab", "http://127.0.0.1:9")):
        page.book.keep(new_connection(name, url), "")
    page.connections.choose(page.book.connections[0].id)
    page.connections.test()
    story = camera.ask("Tell me a story about a fox and a lamp.", 200)
    camera.wait(lambda: len(story().split()) > 20, REPLY_TIMEOUT_S, "no reply began")
    pause(5000)  # two looks at each
    window.show_widget(page)
    yield from camera.in_both_modes("engines", window)
    window.resize(DESK)
    yield from camera.in_both_modes("engines-large", window)
    window.resize(SMALL)
    yield from camera.in_both_modes("engines-small", window)
    camera.wait_for_replies()
    page.show_tab(SERVE)
    page.panel.toggle()
    camera.wait(lambda: page.serving.can_start, START_S, "the server did not stop")
    window.resize(camera.size)
    window.show_page(0)


def _call(camera: Camera, url: str) -> None:
    """What clients do, some of it wrong."""

    def work() -> None:
        for path, body in CALLS:
            data = json.dumps(body).encode() if body is not None else None
            request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
            with suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()

    thread = threading.Thread(target=work, name="client", daemon=True)
    thread.start()
    camera.wait(lambda: not thread.is_alive(), REPLY_TIMEOUT_S, "the calls were not answered")
