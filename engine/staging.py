"""A batch's tensors on the model's device: one copy from pinned memory to buffers that stay.

    pinned host   | input_ids | positions | slot_mapping | logits_indices |   fresh in every step
                        |  one copy, which nobody waits for
    device        | input_ids | positions | slot_mapping | logits_indices |   the same memory always

Batches of one shape therefore have their tensors at the same addresses, which is what the replay of
a captured step needs. The copy stands in the stream behind the kernels that read the batch before,
so that a step may be staged while the one before it still runs.
"""

from __future__ import annotations

import dataclasses

import torch

from engine.batch import Batch
from engine.transfer import host_buffer, reads_freely

_ALIGNMENT = 16
"""Numbers (128 bytes): kernels read aligned memory faster, and are compiled for it."""


class Staging:
    """`capacity`: numbers that the buffer holds at first; it grows, and moves then. On the CPU a
    batch is already where it is wanted."""

    def __init__(self, device: torch.device, capacity: int = 0) -> None:
        self._device = device
        self._buffer = torch.zeros(capacity, dtype=torch.int64, device=device)

    def stage(self, batch: Batch) -> Batch:
        """`batch`, whose tensors are on the host, on the device."""
        if reads_freely(self._device):
            return batch
        return self.copy(batch)

    def copy(self, batch: Batch) -> Batch:
        """`stage`, into the buffer on the CPU too."""
        parts = [batch.input_ids, batch.positions, batch.slot_mapping, batch.logits_indices]
        starts = [0]
        for part in parts:
            starts.append(starts[-1] + aligned(len(part)))
        host = host_buffer([starts[-1]], torch.int64, self._device)
        for part, start in zip(parts, starts, strict=False):
            host[start : start + len(part)] = part
        if starts[-1] > len(self._buffer):
            self._buffer = torch.zeros(2 * starts[-1], dtype=torch.int64, device=self._device)
        self._buffer[: starts[-1]].copy_(host, non_blocking=True)
        views = [
            self._buffer[start : start + len(part)]
            for part, start in zip(parts, starts, strict=False)
        ]
        return dataclasses.replace(
            batch,
            input_ids=views[0],
            positions=views[1],
            slot_mapping=views[2],
            logits_indices=views[3],
        )


def aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def capacity_for(num_rows: int) -> int:
    """Of a buffer that holds a step of `num_rows` requests that decode."""
    return 4 * aligned(num_rows)
