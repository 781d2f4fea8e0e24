"""The settings, the keyboard, the layouts and the notifications, photographed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from app.screenshot.camera import SMALL, Camera

SECTIONS = (
    ("Look", "look"),
    ("Process", "process"),
    ("KV cache", "engine"),
    ("Keyboard", "keyboard"),
)


def take_settings(camera: Camera) -> Iterator[Path]:
    """Yields each file when it is saved."""
    window = camera.window
    window.preferences.show()
    dialog = window.preferences.dialog
    assert dialog is not None
    for title, name in SECTIONS:
        dialog.show_section(title)
        yield from camera.in_both_modes(f"settings-{name}", dialog)
    dialog.search.setText("size")
    yield from camera.in_both_modes("settings-search", dialog)
    dialog.close()
    yield from _layouts(camera)


def _layouts(camera: Camera) -> Iterator[Path]:
    """Each that comes with the program, and the notifications of all this."""
    window = camera.window
    for name in ("tuning", "presentation"):
        window.commands.run(f"layout.{name}")
        window.show_page(0)
        yield from camera.in_both_modes(f"layout-{name}", window)
    size = window.size()
    window.resize(SMALL)
    yield from camera.in_both_modes("layout-presentation-small", window)
    window.resize(size)
    window.commands.run("layout.chat")
    window.history_dock.show()
    window.history_dock.raise_()
    yield from camera.in_both_modes("notifications", window)
    window.history_dock.hide()
    window.charts_dock.raise_()
