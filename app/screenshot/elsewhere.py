"""The window on engines elsewhere: attached with all its knobs, and where it may only look."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSize

from app.connections.connection import new_connection
from app.pace import StatePace
from app.screenshot.camera import (
    LOAD_TIMEOUT_S,
    REPLY_TIMEOUT_S,
    Camera,
    ScreenshotError,
    pause,
)

LAPTOP, DESK = QSize(1280, 800), QSize(2560, 1440)
TUNE = 1


def take_elsewhere(camera: Camera, model: str) -> Iterator[Path]:
    """Yields each file when it is saved."""
    for name, flags in (("attached", ()), ("look-only", ("--no-control",))):
        with _server(model, *flags) as url:
            yield from _visit(camera, name, url)
    camera.window.show_page(0)
    camera.window.resize(camera.size)


def _visit(camera: Camera, name: str, url: str) -> Iterator[Path]:
    window, bridge = camera.window, camera.application.bridge
    switch = camera.application.pages.server.switch
    switch.use(new_connection("gpu-box", url))
    arrived = lambda: bridge.is_remote and bridge.is_ready
    camera.wait(arrived, LOAD_TIMEOUT_S, "the window did not attach")
    story = camera.ask("Tell me a story about a fox and a lamp.", 200)
    camera.wait(lambda: len(story().split()) > 20, REPLY_TIMEOUT_S, "no reply began")
    pause(StatePace.LONGEST_MS)
    window.show_page(0)
    window.resize(LAPTOP)
    yield from camera.in_both_modes(name, window)
    window.show_page(TUNE)
    window.resize(DESK)
    yield from camera.in_both_modes(f"{name}-large", window)
    camera.wait_for_replies()
    switch.back()
    here = lambda: not bridge.is_remote and bridge.is_ready
    camera.wait(here, LOAD_TIMEOUT_S, "the window did not come back")


@contextmanager
def _server(model: str, *flags: str) -> Iterator[str]:
    """A headless engine in a process of its own; its address."""
    command = [sys.executable, "-m", "app", "serve", "--model", model, "--port", "0", "--json"]
    process = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise ScreenshotError("The server did not start.", "What it said stands above.")
        told: dict[str, Any] = json.loads(line)
        yield told["url"]
    finally:
        process.terminate()
        process.communicate()
