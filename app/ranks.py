"""Which devices the ranks of a model are on. Imports no Qt."""

from __future__ import annotations

from engine.devices import gpus, is_cuda
from engine.threads.numa import nodes


def devices_of(device: str, num_ranks: int) -> tuple[str, ...]:
    """ "cuda:1", "cuda:2" of two ranks from cuda:1 on; on the CPU they are together."""
    if not is_cuda(device):
        return (device,)
    number = device.partition(":")[2]
    first = int(number) if number.isdigit() else 0
    return tuple(f"cuda:{first + rank}" for rank in range(num_ranks))


def most_ranks(device: str) -> int:
    """As many as have a place of their own: the GPUs from `device` on, which imports torch, or the
    NUMA nodes."""
    if not is_cuda(device):
        return len(nodes())
    first = devices_of(device, 1)[0].partition(":")[2]
    return max(1, len(gpus()) - int(first))


def each_of(num_gpus: int) -> str:
    """ "on each of 2 GPUs"; "" for one."""
    return f"on each of {num_gpus} GPUs" if num_gpus > 1 else ""
