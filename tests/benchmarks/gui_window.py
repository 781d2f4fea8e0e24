"""The real window with the engine in its thread: reads one JSON command per line, answers each
with one. Started by gui_overhead.

Commands: {"do": "segment", "visible": bool, "num_tokens": int | null} generates in several
conversations at once; {"do": "first token", "count": int} sends messages while others generate;
{"do": "profile"} is a segment under the profiler.
With the single argument "start" the process prints when the window was on the screen, and ends.
"""

from __future__ import annotations

import cProfile
import io
import json
import pstats
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from PySide6.QtCore import QEvent, QEventLoop, QObject, Qt, QTimer, Signal
from PySide6.QtWidgets import QWidget

from app.link.engine_handle import SNAPSHOT_INTERVAL_MS
from app.main.application import Application
from app.main.garbage import GarbageCollector
from app.main.start import make_application

HEARTBEAT_MS = 50
STALL_S = 0.1
SETTLE_MS = 300
RARELY_MS, OFTEN_MS = 400, 2  # looking whether something happened costs the engine time too
PROFILE_LINES = 25


class Heartbeat(QObject):
    """Notes the longest time for which the GUI thread did not come round."""

    def __init__(self) -> None:
        super().__init__()
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._beat)
        self._last = 0.0
        self.gaps: list[float] = []

    def start(self) -> None:
        self.gaps = []
        self._last = time.perf_counter()
        self._timer.start(HEARTBEAT_MS)

    def stop(self) -> None:
        self._timer.stop()

    def _beat(self) -> None:
        now = time.perf_counter()
        self.gaps.append(now - self._last)
        self._last = now

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "longest_gap_ms": max(self.gaps, default=0.0) * 1000,
            "num_stalls": sum(gap > STALL_S for gap in self.gaps),
        }


class PaintWatch(QObject):
    """When something below `root` was painted last."""

    def __init__(self, root: QWidget) -> None:
        super().__init__()
        self._root = root
        self.painted = 0.0

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if (
            event.type() == QEvent.Type.Paint
            and isinstance(watched, QWidget)
            and self._root.isAncestorOf(watched)
        ):
            self.painted = time.perf_counter()
        return False


class FirstTextWatch:
    """When the first text of a reply was on the screen: `paint_now` of the transcript returns when
    it is, before the list and the figures, which are handled after it."""

    def __init__(self, transcript: Any) -> None:
        self._paint_now = transcript.paint_now
        self.painted = 0.0
        transcript.paint_now = self._watched

    def _watched(self, view: QWidget) -> None:
        self._paint_now(view)
        self.painted = time.perf_counter()


class Commands(QObject):
    """Lines of stdin, read by a thread and handed to the GUI thread."""

    received = Signal(object)
    ended = Signal()

    def start(self) -> None:
        threading.Thread(target=self._read, name="commands", daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self.received.emit(json.loads(line))
        self.ended.emit()


class WindowBenchmark(QObject):
    """Drives the window of `application` through one command after the other."""

    def __init__(self, application: Application, case: Any) -> None:
        super().__init__()
        self._application = application
        self._window = application.window
        self._chat = application.pages.chat
        self._case = case
        self._heartbeat = Heartbeat()
        self._finished: list[Any] = []
        self._first: list[tuple[float, float]] = []  # (committed, seen by us)
        self._first_text = FirstTextWatch(application.pages.chat_page.transcript)
        # Connected after the page: it has handled, and painted, what we see.
        application.bridge.outputs.connect(self._on_outputs)

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "segment":
            return self._segment(command["visible"], command["num_tokens"])
        if command["do"] == "profile":
            return self._profile()
        return self._first_tokens(command["count"])

    def _profile(self) -> dict[str, Any]:
        """Where the GUI thread's time goes while the window draws: seconds of its own in each
        function, of Python and of Qt's calls into it."""
        profile = cProfile.Profile()
        began = time.perf_counter()
        profile.enable()
        self._segment(True, None)
        profile.disable()
        elapsed = time.perf_counter() - began
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(PROFILE_LINES)
        return {"profile": text.getvalue(), "seconds": elapsed}

    def _segment(self, visible: bool, num_tokens: int | None) -> dict[str, Any]:
        self._window.setVisible(visible)
        pause(SETTLE_MS)
        self._finished = []
        gui, began = time.thread_time(), time.perf_counter()
        self._heartbeat.start()
        for _ in range(self._case.num_chats):
            self._ask(num_tokens)
        self._wait(lambda: len(self._finished) == self._case.num_chats, RARELY_MS)
        self._heartbeat.stop()
        elapsed = time.perf_counter() - began
        gui_ms_per_s = (time.thread_time() - gui) * 1000 / elapsed
        figures = {
            "gui_ms_per_s": gui_ms_per_s,
            "redraw_ms_per_s": self._application.charts.clock.redraw_ms_per_s,
            "redraws_per_s": 1000 / self._application.charts.clock.interval_ms,
            **self._heartbeat.figures,
        }
        self._clear()
        from tests.benchmarks.gui_cases import decode_rate

        return {"tokens_per_s": decode_rate(self._finished), **figures}

    def _first_tokens(self, count: int) -> dict[str, Any]:
        """From the commit of a reply's first token to its paint, while another reply runs."""
        self._window.show()
        pause(SETTLE_MS)
        transcript = self._application.pages.chat_page.transcript
        watch, first_text = PaintWatch(transcript), self._first_text
        app = make_application()
        app.installEventFilter(watch)
        latencies = []
        self._first = []
        self._ask(None)
        # Its own first token comes first: nobody would see it in the conversation after it.
        self._wait(lambda: bool(self._first), OFTEN_MS)
        for _ in range(count):
            pause(50)
            self._finished, self._first = [], []
            self._ask(2)
            self._wait(lambda: bool(self._first), OFTEN_MS)
            committed, seen = self._first[0]
            self._wait(partial(_is_later, watch, committed), OFTEN_MS)
            if first_text.painted > committed:
                painted = first_text.painted
            else:  # a token without text yet: what came of it was painted by the event loop
                painted = max(seen, watch.painted)
            latencies.append(painted - committed)
        app.removeEventFilter(watch)
        self._clear()
        return {"first_token_ms": [value * 1000 for value in latencies]}

    def _ask(self, num_tokens: int | None) -> None:
        from tests.benchmarks.gui_cases import PROMPT

        self._chat.new_conversation()
        self._chat.current.sampling = self._case.params(num_tokens)
        if not self._chat.send(PROMPT):
            raise RuntimeError("the message was not sent")

    def _on_outputs(self, batch: list[Any]) -> None:
        now = time.perf_counter()
        for event in batch:
            if event.is_first:
                self._first.append((event.time, now))
            if event.finish_reason is not None and event.times is not None:
                self._finished.append(event.times)

    def _clear(self) -> None:
        """Segments shall not find more and more conversations in the list."""
        for conversation in self._chat.conversations:
            self._chat.delete(conversation.id)
            self._chat.purge(conversation.id)
        pause(SETTLE_MS)

    def _wait(self, condition: Callable[[], bool], interval_ms: int) -> None:
        while not condition():
            pause(interval_ms)


def _is_later(watch: PaintWatch, committed: float) -> bool:
    return watch.painted > committed


def pause(milliseconds: int) -> None:
    """Let the window live."""
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    loop.exec()


def start() -> None:
    """Print the time of day at which the window was first painted."""
    application = Application(make_application())
    application.show()
    watch = PaintWatch(application.window)
    make_application().installEventFilter(watch)
    while not watch.painted:
        pause(1)
    print(json.dumps({"on_screen": time.time()}), flush=True)
    make_application().removeEventFilter(watch)
    application.shutdown()


def main() -> None:
    if sys.argv[1] == "start":
        start()
        return
    from tests.benchmarks.gui_cases import cases, engine_factory

    given = json.loads(sys.argv[1])
    case = cases(quick=given["quick"])[given["case"]]

    def make_thread(on_event: Callable[[Any], None]) -> Any:
        from engine.engine_thread import EngineThread

        return EngineThread(
            on_event,
            snapshot_interval_s=SNAPSHOT_INTERVAL_MS / 1000,
            factory=engine_factory(case),
        )

    app = make_application()
    collector = GarbageCollector(app)
    collector.start()
    application = Application(app, make_thread)
    application.show()
    if given["all_docks"]:
        from tests.benchmarks.workstation.place import show_all_docks

        show_all_docks(application)
    benchmark = WindowBenchmark(application, case)
    commands = Commands()

    def serve(command: dict[str, Any]) -> None:
        print(json.dumps(benchmark.run(command)), flush=True)

    def ready(_: object) -> None:
        print(json.dumps({"ready": True}), flush=True)
        commands.start()

    def failed(event: Any) -> None:
        print(event.error, file=sys.stderr)
        app.exit(1)

    commands.received.connect(serve)
    commands.ended.connect(app.quit)
    application.bridge.loaded.connect(ready)
    application.bridge.load_failed.connect(failed)
    application.session.load(case.config(given["num_threads"]))
    code = app.exec()
    collector.stop()
    application.shutdown()
    sys.exit(code)


if __name__ == "__main__":
    main()
