"""Memory behind every tensor of the process, to see what loading holds on to."""

from __future__ import annotations

import gc

import torch


def live_bytes() -> int:
    """Bytes of all tensors that exist, each storage once; meta tensors have none, and what a weight
    in oneDNN's layout holds is its own."""
    storages: dict[int, int] = {}
    opaque = 0
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.Tensor) or thing.is_meta:
            continue
        if thing.is_mkldnn:
            opaque += thing.numel() * thing.element_size()
        else:
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values()) + opaque
