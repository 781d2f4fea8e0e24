"""Objects of Qt in reference cycles end in the window's thread, whichever thread allocates."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from app.main.garbage import GarbageCollector
from engine.hardware import garbage


@pytest.fixture
def collector(qapp: Any) -> Iterator[GarbageCollector]:
    collector = GarbageCollector(qapp)
    collector.start()
    yield collector
    collector.stop()
    collector.deleteLater()


def cycle(ended: list[int]) -> None:
    """Garbage that Python alone cannot free at once; `ended`: the thread in which it is freed."""

    class Watched(QObject):
        def __del__(self) -> None:
            ended.append(threading.get_ident())

    watched = Watched()
    watched.itself = watched  # type: ignore[attr-defined]


def in_a_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work, name="task")
    thread.start()
    return thread


def test_allocating_elsewhere_collects_here(qtbot: QtBot, collector: GarbageCollector) -> None:
    ended: list[int] = []
    cycle(ended)
    kept: list[list[int]] = []
    in_a_thread(lambda: kept.extend([] for _ in range(100_000))).join()
    assert ended == []
    qtbot.waitUntil(lambda: ended == [threading.get_ident()])


def test_another_thread_asks_and_waits(qtbot: QtBot, collector: GarbageCollector) -> None:
    ended: list[int] = []
    cycle(ended)
    gc.collect(0)
    cycle(ended)
    seen: list[int] = []

    def ask() -> None:
        garbage.collect()
        seen.append(len(ended))

    thread = in_a_thread(ask)
    qtbot.waitUntil(lambda: bool(seen))
    thread.join()
    assert seen == [2] and set(ended) == {threading.get_ident()}


def test_a_window_that_waits_for_the_thread_is_not_waited_for(collector: GarbageCollector) -> None:
    in_a_thread(garbage.collect).join()  # would not end otherwise


def test_afterwards_nothing_is_collected(qtbot: QtBot, collector: GarbageCollector) -> None:
    collector.stop()
    ended: list[int] = []
    cycle(ended)
    in_a_thread(garbage.collect).join()
    assert ended == []
