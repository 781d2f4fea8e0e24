"""`has_room_beside`: whether memory suffices for a second engine of the same size."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil

from engine.hardware.nvml import told_now
from engine.snapshot import GpuFigures

RESERVE = 2**30
"""Of the machine's memory, for all else."""


def has_room_beside(pid: int) -> bool:
    """Beside the engine of this supervisor: in the machine's memory, and on each GPU that it uses.
    False where its size is not known. Blocks for a moment."""
    with suppress(psutil.Error):
        processes = psutil.Process(pid).children(recursive=True)
        size = sum(one.memory_info().rss for one in processes)
        is_known = size > 0 and psutil.virtual_memory().available >= size + RESERVE
        return is_known and fits_gpus({one.pid for one in processes}, told_now())
    return False


def fits_gpus(pids: Iterable[int], gpus: Iterable[GpuFigures]) -> bool:
    """Whether each GPU has as much free as these processes use of it. False where there are GPUs
    and the driver reports none of these processes."""
    own = set(pids)
    held = [(gpu, sum(one.used for one in gpu.processes if one.pid in own)) for gpu in gpus]
    used = [(gpu, size) for gpu, size in held if size]
    return all(gpu.total - gpu.used >= size for gpu, size in used) and bool(used or not held)
