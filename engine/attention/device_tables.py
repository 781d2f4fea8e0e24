"""A step's lengths and block tables in one device buffer with a fixed address, for captured graphs.

One buffer of int32, filled on the host and copied in one piece:

    | stride | query_start_loc       | seq_lens       | block tables, a row for each request |
      4        capacity + 1, padded    the same         num_requests * stride

The address is fixed and the row stride of the tables is stored in the buffer, so longer tables need
no other launch. The host alternates between two such buffers: it can prepare a step while the copy
for the previous one is in flight. Each buffer keeps the rows that have not changed since it was
last filled; most requests get a new block only once in many steps.
"""

from __future__ import annotations

import torch

from engine.batch.batch import Batch

_HEADER = 4
_WIDTH_STEP = 32  # blocks by which the rows of the tables grow, so that they rarely move


class _Host:
    """One of the two buffers on the host."""

    def __init__(self, size: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.tensor = torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu)
        self.numbers = self.tensor.numpy()
        self.rows: list[list[int]] = []
        self.width = 0
        self.copied = torch.cuda.Event() if on_gpu else None


class DeviceTables:
    """Tables for steps of up to `capacity` requests with up to `most_blocks` blocks each."""

    def __init__(self, capacity: int, most_blocks: int, device: torch.device) -> None:
        self.capacity, self.most_blocks = capacity, most_blocks
        self.width = 0  # of the tables of the step: what `stride` holds
        lens_at = _HEADER + -(-(capacity + 1) // 4) * 4
        self._lens_at, self._tables_at = lens_at, lens_at + -(-capacity // 4) * 4
        size = self._tables_at + capacity * most_blocks
        self._hosts = [_Host(size, device) for _ in range(2)]
        self._buffer = torch.zeros(size, dtype=torch.int32, device=device)
        self.stride = self._buffer[:1]
        self.query_start_loc = self._buffer[_HEADER:lens_at]
        self.seq_lens = self._buffer[lens_at : self._tables_at]
        self.block_tables = self._buffer[self._tables_at :]

    @property
    def nbytes(self) -> int:
        """On the device."""
        return self._buffer.nbytes

    def has_room_for(self, batch: Batch) -> bool:
        return batch.num_requests <= self.capacity and _longest(batch) <= self.most_blocks

    def fill(self, batch: Batch) -> None:
        """Copy the step's numbers to the device, in stream order and without waiting for it."""
        host = self._hosts[0]
        self._hosts.reverse()
        if host.copied is not None:
            host.copied.synchronize()  # of the step before the last: long over
        self._fill_host(host, batch)
        self.width = host.width
        used = self._tables_at + batch.num_requests * host.width
        self._buffer[:used].copy_(host.tensor[:used], non_blocking=True)
        if host.copied is not None:
            host.copied.record()

    def _fill_host(self, host: _Host, batch: Batch) -> None:
        count, numbers = batch.num_requests, host.numbers
        width = min(-(-_longest(batch) // _WIDTH_STEP) * _WIDTH_STEP, self.most_blocks)
        if width != host.width:
            host.width, host.rows = width, []
        numbers[0] = width
        numbers[_HEADER : _HEADER + count + 1] = batch.query_start_loc
        numbers[self._lens_at : self._lens_at + count] = batch.seq_lens
        known = len(host.rows)
        for row, table in enumerate(batch.block_tables):
            if row < known and host.rows[row] == table:
                continue
            start = self._tables_at + row * width
            numbers[start : start + len(table)] = table
        host.rows[:count] = batch.block_tables


def _longest(batch: Batch) -> int:
    """Blocks of the longest table, at least one."""
    return max(1, max(map(len, batch.block_tables), default=0))
