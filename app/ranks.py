"""On how many devices the parts of a model are, or could be. Imports no Qt."""

from __future__ import annotations

from engine.devices import gpus, is_cuda, rank_devices
from engine.snapshot import ModelInfo
from engine.threads.numa import nodes


def most_ranks(device: str) -> int:
    """As many as have a place of their own: the GPUs from `device` on, which imports torch, or the
    NUMA nodes."""
    if not is_cuda(device):
        return len(nodes())
    return most_stages(device)


def most_stages(device: str) -> int:
    """The GPUs from `device` on, which imports torch; 1 on the CPU."""
    if not is_cuda(device):
        return 1
    first = rank_devices(device, 1)[0].partition(":")[2]
    return max(1, len(gpus()) - int(first))


def each_of(num_gpus: int) -> str:
    """ "on each of 2 GPUs"; "" for one."""
    return f"on each of {num_gpus} GPUs" if num_gpus > 1 else ""


def of_gpus(model: ModelInfo) -> str:
    """Whose the plan of a loaded model is: "on each of 2 GPUs" where ranks have parts alike; "on
    the first of 2 GPUs" where stages have layers; "" for one."""
    if model.num_stages > 1:
        return f"on the first of {model.num_gpus} GPUs"
    return each_of(model.num_gpus)
