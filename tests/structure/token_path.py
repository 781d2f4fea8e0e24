"""A token's path: in which files of the product a function runs from Send to the first paint.

`trace` starts this file as a program of its own, in which nothing but the version to be measured
can be imported. That program starts the real window as a user would (its folders are thrown away
after), waits for the starter model, writes a prompt into the composer, and presses Return. Nothing
of the product is imported by name but `app.__main__`: the composer and the reply are found by their
accessible names, and the model has loaded when the progress of loading is gone.

A profile hook, set before any thread of the product starts, notes the file of every Python function
that is called or resumed, in every thread; what runs because a module is imported is left out. What
also runs when nothing happens (panels that refresh, timers) is noted in the idle time before Send.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGES = ("app", "engine", "widgets")
TIMEOUT_S = 120.0
GIVE_UP_S = 60.0
"""So long each step may take."""
IDLE_S = 3.0
"""More than a second: some panels refresh as seldom as that."""
SEVERAL = 2
"""Paints of more and more text, after which tokens that are not the first have gone all the way."""
PROMPT = "Tell me a story about a fox and a lamp."
COMPOSER, REPLY = "Message", "Reply"
"""Accessible names."""


def trace(root: Path) -> dict[str, Any]:
    """Run the program of the checkout `root` once; see the text above."""
    with tempfile.TemporaryDirectory() as name:
        folder, result = Path(name), Path(name) / "result.json"
        environment = os.environ | {
            "PYTHONPATH": str(root), "QT_QPA_PLATFORM": "offscreen", "CUDA_VISIBLE_DEVICES": "",
            "INFERDECK_DATA_DIR": str(folder / "data"), "HF_HOME": str(folder / "hub"),
            "INFERDECK_CONFIG_DIR": str(folder / "config"), "HF_HUB_OFFLINE": "1",
            "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
            "PYTHONDONTWRITEBYTECODE": "1",  # the checkout stays as it is
        }  # fmt: skip
        done = subprocess.run(  # -P: the folder of this file is no place to import from
            [sys.executable, "-P", __file__, str(root), str(result)],
            cwd=folder, env=environment, timeout=TIMEOUT_S, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode or not result.is_file():
            raise RuntimeError(f"The program ended with {done.returncode}.\n{done.stderr}")
        return _told(root, json.loads(result.read_text("utf-8")))


def _told(root: Path, found: dict[str, Any]) -> dict[str, Any]:
    first, several, idle = (set(found[name]) for name in ("first", "several", "idle"))
    paths = {
        "to the first paint": first, "to the first paint, without what ran when idle": first - idle,
        f"to paint {SEVERAL}": several, f"to paint {SEVERAL}, without what ran when idle":
        several - idle,
    }  # fmt: skip
    return {
        "ms to first paint": found["ms"],
        "idle files": len(idle),
        "paths": {
            name: {
                "files": len(files),
                "lines": sum((root / path).read_text("utf-8").count("\n") for path in files),
            }
            for name, files in paths.items()
        },
        "first": sorted(first),
        "more": sorted(several - first),
        "idle": sorted(idle),
    }


class Recorder:
    """The profile hook: while `into` is a set, files of the product go there."""

    def __init__(self, root: Path) -> None:
        self.into: set[str] | None = None
        self._prefix = f"{root}{os.sep}"
        self._known: dict[CodeType, str] = {}  # a path below the root, or "" for what is not ours

    def start(self) -> None:
        threading.setprofile(self)
        sys.setprofile(self)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        into = self.into
        if into is None or event != "call":
            return
        code = frame.f_code
        path = self._known.get(code)
        if path is None:
            path = self._known[code] = self._path_of(code)
        if path:
            into.add(path)

    def _path_of(self, code: CodeType) -> str:
        below = code.co_filename.removeprefix(self._prefix).replace(os.sep, "/")
        is_ours = below != code.co_filename and below.split("/")[0] in PACKAGES
        # the body of a module or a class, which an import runs, has no fast locals
        return below if is_ours and code.co_flags & inspect.CO_OPTIMIZED else ""


def run(root: Path, result: Path) -> int:
    """The program of its own: drives the window, and writes what was found to `result`."""
    recorder = Recorder(root)
    recorder.start()
    from PySide6.QtCore import QEvent, QObject, Qt, QTimer
    from PySide6.QtTest import QTest
    from PySide6.QtWidgets import QApplication, QPlainTextEdit, QProgressBar, QTextEdit, QWidget

    app = QApplication(sys.argv[:1])  # the product takes the one that is there

    def shown(kind: type[QWidget], name: str = "") -> list[Any]:
        return [
            widget for widget in app.allWidgets()
            if isinstance(widget, kind) and widget.isVisible()
            and name in ("", widget.accessibleName())
        ]  # fmt: skip

    class Paints(QObject):
        """Sees every event of the window; counts paints of a reply that has more text."""

        texts: list[str]
        files: list[set[str]]  # at the end of each paint
        times: list[float]

        def __init__(self) -> None:
            super().__init__()
            self.texts, self.files, self.times = [], [], []

        def eventFilter(self, watched: QObject, event: QEvent) -> bool:
            if event.type() == QEvent.Type.Paint:
                view = watched.parent()
                if isinstance(view, QTextEdit) and view.accessibleName() == REPLY:
                    text = view.toPlainText().strip()
                    if text and text not in self.texts:
                        self.texts.append(text)
                        QTimer.singleShot(0, self, self._painted)  # this comes before the paint
            return False

        def _painted(self) -> None:
            self.files.append(set(recorder.into or ()))
            self.times.append(time.perf_counter())

    paints = Paints()

    def after(seconds: float) -> Callable[[], bool]:
        end = time.perf_counter() + seconds
        return lambda: time.perf_counter() > end

    def scenario() -> Generator[Callable[[], Any], None, None]:
        """Yields what to wait for."""
        yield lambda: shown(QPlainTextEdit, COMPOSER)
        yield lambda: shown(QProgressBar)
        yield lambda: not shown(QProgressBar)
        composer = shown(QPlainTextEdit, COMPOSER)[0]
        composer.setFocus()
        QTest.keyClicks(composer, PROMPT)
        yield after(2.0)  # what follows from loading and writing is over
        idle: set[str] = set()
        recorder.into = idle
        yield after(IDLE_S)
        recorder.into, begun = set(), time.perf_counter()
        app.installEventFilter(paints)
        QTest.keyClick(composer, Qt.Key.Key_Return)
        yield lambda: len(paints.files) >= SEVERAL
        recorder.into = None
        app.removeEventFilter(paints)
        QTest.keyClick(composer, Qt.Key.Key_Escape)  # stops the reply
        found = {
            "first": sorted(paints.files[0]), "several": sorted(paints.files[SEVERAL - 1]),
            "idle": sorted(idle), "ms": round((paints.times[0] - begun) * 1e3),
        }  # fmt: skip
        result.write_text(json.dumps(found), "utf-8")
        yield after(0.5)

    steps = scenario()
    waiting: Callable[[], Any] = lambda: True
    since = time.perf_counter()

    def look() -> None:
        nonlocal waiting, since
        try:
            if waiting():
                waiting, since = next(steps), time.perf_counter()
            elif time.perf_counter() > since + GIVE_UP_S:
                raise TimeoutError(f"waited in vain in line {steps.gi_frame.f_lineno}")
        except BaseException as why:
            timer.stop()
            if not isinstance(why, StopIteration):
                print(f"{type(why).__name__}: {why}", file=sys.stderr)
            for window in app.topLevelWidgets():
                window.close()

    timer = QTimer(interval=10)
    timer.timeout.connect(look)
    timer.start()
    from app.__main__ import main

    return main(["--model", str(root / "resources" / "starter" / "chat")])


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), Path(sys.argv[2])))
