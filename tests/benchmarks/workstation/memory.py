"""Part "memory": what the process holds while replies are written for many minutes."""

from __future__ import annotations

import gc
import time
from typing import Any, NamedTuple

import numpy as np
import psutil
import shiboken6
from PySide6.QtCore import QObject, QTimer

from app.main.application import Application
from engine.sampling_params import SamplingParams
from tests.benchmarks.gui_cases import PROMPT, SCRIPT
from tests.benchmarks.report import at_most
from tests.benchmarks.workstation.child import run_child
from tests.benchmarks.workstation.meter import pause
from tests.benchmarks.workstation.place import Pace, folders, show_all_docks, workstation

MINUTES, QUICK_MINUTES = 30.0, 1.0
WARM_UP = 0.3  # of the time: caches and rings fill
SAMPLE_MS = 2000
NUM_CHATS, REPLY_TOKENS = 4, 1500
MIB = 2**20
FLAT_MIB = 32.0
"""Growth over the time after the warm-up that still counts as flat: steps of the allocator."""


class Counts(NamedTuple):
    objects: int  # that Python's collector knows
    qobjects: int  # with a Python wrapper
    timers: int  # that run


def measure(options: dict[str, Any]) -> dict[str, Any]:
    minutes = options["minutes"] or (QUICK_MINUTES if options["quick"] else MINUTES)
    with folders(), workstation(Pace(0.002), SCRIPT) as application:
        show_all_docks(application)
        writer = Writer(application)
        samples, before, warm = [], counts(), None
        began = time.perf_counter()
        while (elapsed := time.perf_counter() - began) < minutes * 60:
            if warm is None and elapsed > WARM_UP * minutes * 60:
                warm = (counts(), writer.num_tokens)
            samples.append((elapsed, psutil.Process().memory_info().rss / MIB))
            pause(SAMPLE_MS)
        after = counts()
        recorder = application.recorder
        recorded = sum(len(s.packed) for s in recorder._segments) / MIB
    assert warm is not None
    late = np.array([s for s in samples if s[0] > WARM_UP * minutes * 60])
    slope = float(np.polyfit(late[:, 0] / 60, late[:, 1], 1)[0])
    grown = slope * float(late[-1, 0] - late[0, 0]) / 60
    rows = [
        ("at the beginning", f"{samples[0][1]:,.0f}", *(f"{n:,}" for n in before)),
        ("after the warm-up", f"{late[0, 1]:,.0f}", *(f"{n:,}" for n in warm[0])),
        ("at the end", f"{late[-1, 1]:,.0f}", *(f"{n:,}" for n in after)),
    ]
    return {
        "title": f"{minutes:g} min of generation, all docks open, {writer.num_tokens:,} tokens",
        "origin": f"the real engine with scripted steps of 2 ms, {NUM_CHATS} chats at a time of "
        f"{REPLY_TOKENS:,} tokens each, deleted when they have ended",
        "header": ("", "MiB resident", "Python objects", "Qt objects", "timers"),
        "rows": rows,
        "notes": [
            f"after the warm-up {slope:+.2f} MiB a minute, {grown:+.1f} MiB in all, over "
            f"{writer.num_tokens - warm[1]:,} tokens",
            f"the flight recorder holds {recorded:.1f} MiB of at most 64",
        ],
        "figures": {
            "samples": samples, "slope_mib_per_minute": slope, "grown_mib": grown,
            "num_tokens": writer.num_tokens, "recorder_mib": recorded,
            "counts": [before._asdict(), warm[0]._asdict(), after._asdict()],
        },
        "goals": [
            at_most(f"memory is flat over {minutes:g} min of generation", grown, FLAT_MIB,
                    " MiB more").as_dict()
        ],
    }  # fmt: skip


class Writer(QObject):
    """Keeps NUM_CHATS replies going; a chat that has been answered is deleted for good."""

    def __init__(self, application: Application) -> None:
        super().__init__()
        self._chat = application.pages.chat
        self.num_tokens = 0
        application.bridge.outputs.connect(self._on_outputs)
        for _ in range(NUM_CHATS):
            self._ask()

    def _ask(self) -> None:
        self._chat.new_conversation()
        self._chat.current.sampling = SamplingParams(
            temperature=0.0, max_tokens=REPLY_TOKENS, ignore_eos=True
        )
        self._chat.send(PROMPT)

    def _on_outputs(self, events: list[Any]) -> None:
        self.num_tokens += sum(len(event.token_ids) for event in events)
        for event in events:
            ended = self._chat.generation.conversation_of(event.request_id)
            if event.finish_reason is not None and ended is not None:
                QTimer.singleShot(0, self, lambda one=ended.id: self._renew(one))

    def _renew(self, conversation_id: str) -> None:
        self._chat.delete(conversation_id)
        self._chat.purge(conversation_id)
        self._ask()


def counts() -> Counts:
    gc.collect()
    wrapped = shiboken6.getAllValidWrappers()
    timers = sum(isinstance(one, QTimer) and one.isActive() for one in wrapped)
    return Counts(len(gc.get_objects()), len(wrapped), timers)


if __name__ == "__main__":
    run_child(measure)
