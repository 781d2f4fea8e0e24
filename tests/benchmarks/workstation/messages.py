"""Part "messages": a conversation of a thousand messages is opened and scrolled through."""

from __future__ import annotations

from typing import Any

from app.main.application import Application
from tests.benchmarks.gui_cases import SCRIPT
from tests.benchmarks.report import at_most
from tests.benchmarks.workstation.chats import conversation, fill
from tests.benchmarks.workstation.child import run_child
from tests.benchmarks.workstation.meter import STALL_MS, Frames, frame_ms, pause
from tests.benchmarks.workstation.place import Pace, folders, workstation

NUM_MESSAGES = 1000
NOTCH = 120  # pixels that a notch of the wheel scrolls
SMOOTH_MS = 33.0
VIEWS_MS = 500


def measure(options: dict[str, Any]) -> dict[str, Any]:
    notches = 300 if options["quick"] else 3000
    long, short = conversation("A long one", NUM_MESSAGES), conversation("A short one", 2, 60.0)
    with folders() as folder:
        fill(folder / "chats.sqlite3", iter([long, short]))
        with workstation(Pace(0.002), SCRIPT) as application:
            chat = application.pages.chat
            found = {"opened first": Frames.of([frame_ms(lambda: chat.open(long[0].id))])}
            again = []
            for _ in range(5):
                chat.open(short[0].id)
                again.append(frame_ms(lambda: chat.open(long[0].id)))
            found["opened again"] = Frames.of(again)
            up, down = _scroll(application, notches)
            found["scrolled up, a notch of the wheel"] = Frames.of(up)
            found["scrolled down again"] = Frames.of(down)
            num_views = len(application.pages.chat_page.transcript.views)
            resized = [frame_ms(lambda w=w: application.window.resize(w, 1000))
                       for w in (1500, 1600)]  # fmt: skip
            found["resized with all that was scrolled to"] = Frames.of(resized)
    return {
        "title": f"A conversation of {NUM_MESSAGES:,} messages: ms of a frame",
        "origin": "written into the store; replies of 900 characters with a list, code, a table",
        "header": ("", "median", "p99", "longest", "frames"),
        "rows": [(name, *frames.cells) for name, frames in found.items()],
        "notes": [f"{num_views:,} messages have views at the end"],
        "figures": {name: frames._asdict() for name, frames in found.items()},
        "goals": [
            at_most(f"{NUM_MESSAGES:,} messages are {name} without a stall", found[name].max,
                    STALL_MS, " ms at most").as_dict()
            for name in ("opened first", "opened again")
        ] + [
            at_most(f"scrolling: {SMOOTH_MS:.0f} ms a frame", found[name].p99, SMOOTH_MS,
                    " ms (p99)").as_dict()
            for name in ("scrolled up, a notch of the wheel", "scrolled down again")
        ],
    }  # fmt: skip


def _scroll(application: Application, notches: int) -> tuple[list[float], list[float]]:
    bar = application.pages.chat_page.transcript.verticalScrollBar()
    up: list[float] = []
    down: list[float] = []
    for frames, step in ((up, -NOTCH), (down, NOTCH)):
        while len(frames) < notches:
            before = bar.value()
            frames.append(frame_ms(lambda step=step: bar.setValue(bar.value() + step)))
            if bar.value() == before:
                pause(VIEWS_MS)  # it is faster than a wheel: messages beyond have no views yet
                if bar.value() == before:
                    break
    return up, down


if __name__ == "__main__":
    run_child(measure)
