"""`inferdeck screenshot`: pictures of the real window, driven with a real model.

The window runs as for a user, but with its own chats and settings in a temporary folder. Several
conversations run at once, greedily, and every page is saved in light and dark.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PySide6.QtCore import QSize

from app.main.application import Application
from app.main.start import make_application
from app.paths import starter_model
from app.screenshot.camera import Camera
from app.screenshot.scenes import take_all


def run(args: argparse.Namespace) -> int:
    """Save the pictures to `args.output`, and print their paths."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    output = Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    model = getattr(args, "model", None) or str(starter_model())
    with _own_folders():
        application = Application(make_application())
        try:
            for file in take_all(Camera(application, output, QSize(*args.size)), model):
                print(file, flush=True)
        finally:
            application.shutdown()
    return 0


@contextmanager
def _own_folders() -> Iterator[None]:
    """Separate folders: the user's chats, settings and models are neither shown nor changed."""
    names = ("INFERDECK_DATA_DIR", "INFERDECK_CONFIG_DIR", "HF_HUB_CACHE")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="inferdeck-screenshot-") as folder:
        for name in names:
            os.environ[name] = folder
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
