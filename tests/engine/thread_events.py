"""Collects the events of an engine's thread, and waits for one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from engine.messages import Event, OutputEvent

E = TypeVar("E")


class Recorder:
    """`pause_s` holds the engine up after every output: what is to happen in mid-reply does."""

    def __init__(self) -> None:
        self.pause_s = 0.0
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()
        if isinstance(event, OutputEvent):
            time.sleep(self.pause_s)

    def of(self, kind: type[E]) -> list[E]:
        with self._changed:
            return [event for event in self.events if isinstance(event, kind)]

    def wait(
        self,
        kind: type[E],
        when: Callable[[E], bool] = lambda event: True,
        timeout_s: float = 120.0,
    ) -> E:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                for event in self.events:
                    if isinstance(event, kind) and when(event):
                        return event
                left = deadline - time.monotonic()
                assert left > 0, f"no {kind.__name__} among {self.events[-5:]}"
                self._changed.wait(left)


def finished(request_id: str) -> Callable[[OutputEvent], bool]:
    return lambda e: e.request_id == request_id and e.finish_reason is not None


def tokens(events: Recorder, request_id: str) -> list[int]:
    return [t for e in events.of(OutputEvent) if e.request_id == request_id for t in e.token_ids]
