"""Part "sidebar": ten thousand conversations in the list."""

from __future__ import annotations

import time
from typing import Any

from PySide6.QtWidgets import QApplication

from app.main.application import Application
from app.main.start import make_application
from engine.sampling_params import SamplingParams
from tests.benchmarks.gui_cases import SCRIPT
from tests.benchmarks.report import at_most
from tests.benchmarks.workstation.chats import fill, many
from tests.benchmarks.workstation.child import run_child
from tests.benchmarks.workstation.meter import (
    STALL_MS,
    Frames,
    LoopMeter,
    drain,
    frame_ms,
    wait_for,
)
from tests.benchmarks.workstation.place import Pace, folders, workstation

NUM_CHATS = 10_000
REPLY_TOKENS = 1500
SMOOTH_MS = 33.0


def measure(options: dict[str, Any]) -> dict[str, Any]:
    notches = 200 if options["quick"] else 2000
    with folders() as folder:
        _open_and_close()  # imports are done
        empty = _open_and_close()
        fill(folder / "chats.sqlite3", many(NUM_CHATS))
        full = _open_and_close()
        with workstation(Pace(0.002), SCRIPT) as application:
            found = _use(application, notches)
            loop = _send(application)
    return {
        "title": f"{NUM_CHATS:,} conversations in the list: ms of a frame",
        "origin": "written into the store, two messages each; the reply is of a scripted engine",
        "header": ("", "median", "p99", "longest", "frames"),
        "rows": [(name, *frames.cells) for name, frames in found.items()],
        "notes": [
            f"the window is made in {full:.2f} s, with an empty list in {empty:.2f} s",
            f"sending, and a reply of {REPLY_TOKENS:,} tokens: GUI thread "
            f"{loop['gui_ms_per_s']:.0f} ms a second, "
            f"longest wait {loop['longest_wait_ms']:.0f} ms",
        ],
        "figures": {
            "make_window_s": full, "make_window_empty_s": empty, "sending": loop,
            **{name: frames._asdict() for name, frames in found.items()},
        },
        "goals": [
            at_most(f"{NUM_CHATS:,} conversations: {name} without a stall", frames.max, STALL_MS,
                    " ms at most").as_dict()
            for name, frames in found.items()
        ] + [
            at_most(f"{NUM_CHATS:,} conversations: a reply is written without a stall",
                    loop["longest_wait_ms"], STALL_MS, " ms at most").as_dict()
        ],
    }  # fmt: skip


def _open_and_close() -> float:
    """Seconds from nothing to the painted window."""
    began = time.perf_counter()
    application = Application(make_application())
    application.show()
    drain()
    taken = time.perf_counter() - began
    application.shutdown()
    QApplication.processEvents()
    return taken


def _use(application: Application, notches: int) -> dict[str, Frames]:
    page, chat = application.pages.chat_page, application.pages.chat
    bar = page.list.view.verticalScrollBar()
    scrolled = []
    while bar.value() < bar.maximum() and len(scrolled) < notches:
        scrolled.append(frame_ms(lambda: bar.setValue(bar.value() + 120)))
    ids = [record.id for record in page.list.records]
    opened = [frame_ms(lambda one=one: chat.open(one)) for one in ids[5000:5020]]
    pinned = [frame_ms(lambda one=one: chat.set_pinned(one, True)) for one in ids[7000:7005]]
    found = []
    for words in ("b", "block", "Chat 77", "nothing like it"):
        page.list.search.setText(words)
        found.append(frame_ms(lambda words=words: page.list.search_changed.emit(words)))
    page.list.search.setText("")
    back = [frame_ms(lambda: page.list.search_changed.emit(""))]
    return {
        "scrolled, a notch of the wheel": Frames.of(scrolled),
        "opened a chat": Frames.of(opened),
        "pinned a chat": Frames.of(pinned),
        "found words": Frames.of(found),
        "showed all again": Frames.of(back),
    }


def _send(application: Application) -> dict[str, Any]:
    """What the GUI thread does while a new chat is made, and answered."""
    chat = application.pages.chat
    ended: list[float] = []

    def outputs(events: list[Any]) -> None:
        ended.extend(time.perf_counter() for event in events if event.finish_reason is not None)

    application.bridge.outputs.connect(outputs)
    meter = LoopMeter()
    began = time.perf_counter()
    chat.new_conversation()
    chat.current.sampling = SamplingParams(
        temperature=0.0, max_tokens=REPLY_TOKENS, ignore_eos=True
    )
    chat.send("What is a block?")
    wait_for(lambda: bool(ended), 120.0, 200)
    meter.stop()
    return meter.figures(time.perf_counter() - began)


if __name__ == "__main__":
    run_child(measure)
