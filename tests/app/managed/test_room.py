"""Whether memory suffices for a second engine beside the first."""

from __future__ import annotations

import os
from types import SimpleNamespace

import psutil
import pytest

from app.managed import room
from app.managed.launch import Launch
from app.managed.room import RESERVE, fits_gpus, has_room_beside
from engine.snapshot import GpuFigures, GpuProcess
from tests.app.managed.conftest import Start, wait_until

GIB = 2**30


def gpu(used: int, *held: tuple[int, int], total: int = 80) -> GpuFigures:
    processes = tuple(GpuProcess("x", pid, size * GIB) for pid, size in held)
    return GpuFigures("GPU", total * GIB, used * GIB, processes=processes)


@pytest.mark.parametrize(
    ("gpus", "fits"),
    [
        ((), True),
        ((gpu(30, (7, 30)),), True),
        ((gpu(72, (7, 72)),), False),
        ((gpu(40, (7, 20), (8, 20)),), True),  # two of its workers
        ((gpu(41, (7, 20), (8, 21)),), False),
        ((gpu(30, (7, 30)), gpu(79, (5, 79))), True),  # another's GPU
        ((gpu(30, (7, 30)), gpu(70, (8, 30), (5, 40))), False),
        ((gpu(30, (5, 30)),), False),  # its own are not reported
    ],
)
def test_each_gpu_that_it_uses_needs_as_much_again(
    gpus: tuple[GpuFigures, ...], fits: bool
) -> None:
    assert fits_gpus({7, 8}, gpus) is fits


def test_the_machines_memory_counts(
    start: Start, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "told_now", lambda: ())
    process = start(launch)
    size = lambda: sum(
        one.memory_info().rss for one in psutil.Process(process.pid).children(recursive=True)
    )
    wait_until(lambda: bool(process.lines) and size() > 0)
    for available, fits in ((100 * GIB, True), (RESERVE // 2, False)):
        free = SimpleNamespace(available=available)
        monkeypatch.setattr(room.psutil, "virtual_memory", lambda free=free: free)
        assert has_room_beside(process.pid) is fits


def test_an_engine_that_is_gone_has_no_size() -> None:
    gone = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(gone, 0)
    assert not has_room_beside(gone)
