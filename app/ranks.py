"""Which devices the ranks of a model are on. Imports no Qt."""

from __future__ import annotations

from engine.devices import is_cuda


def devices_of(device: str, num_ranks: int) -> tuple[str, ...]:
    """ "cuda:1", "cuda:2" of two ranks from cuda:1 on; on the CPU they are together."""
    if not is_cuda(device):
        return (device,)
    number = device.partition(":")[2]
    first = int(number) if number.isdigit() else 0
    return tuple(f"cuda:{first + rank}" for rank in range(num_ranks))


def each_of(num_gpus: int) -> str:
    """ "on each of 2 GPUs"; "" for one."""
    return f"on each of {num_gpus} GPUs" if num_gpus > 1 else ""
