"""KV blocks of a snapshot as changes: a step changes few of a hundred thousand."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.wire.protocol import ProtocolError
from engine.snapshot import BlockSnapshot

MAX_BLOCKS = 1 << 22
ARRAYS = ("owner", "ref_count", "fill", "hashed")
DTYPES: dict[str, np.dtype] = {
    "owner": np.dtype("<i4"), "ref_count": np.dtype("<i4"), "fill": np.dtype("<i4"),
    "hashed": np.dtype("u1"),
}  # fmt: skip
INDEX = np.dtype("<i4")


class Changes(msgspec.Struct, array_like=True):
    """Changes of one array: `values` at `places`; the whole array if `places` is None."""

    places: bytes | None
    values: bytes


class Table(msgspec.Struct, array_like=True):
    """Block table of one owner: the first `kept` blocks of the last table, then `more`."""

    kept: int
    more: tuple[int, ...]


class WireBlocks(msgspec.Struct, array_like=True):
    block_size: int
    num_blocks: int
    owners: tuple[str, ...]
    tables: tuple[Table, ...]
    arrays: tuple[Changes, Changes, Changes, Changes]


class BlockWriter:
    def __init__(self) -> None:
        self._before: BlockSnapshot | None = None
        self._tables: dict[str, tuple[int, ...]] = {}

    def write(self, blocks: BlockSnapshot) -> WireBlocks | None:
        """None if nothing changed since the last call."""
        before, self._before = self._before, blocks
        if before is blocks:
            return None
        old = self._tables
        self._tables = dict(zip(blocks.owners, blocks.tables, strict=False))
        return WireBlocks(
            block_size=blocks.block_size,
            num_blocks=blocks.num_blocks,
            owners=blocks.owners,
            tables=tuple(_table(old.get(o, ()), t) for o, t in self._tables.items()),
            arrays=tuple(_changes(name, before, blocks) for name in ARRAYS),  # type: ignore[arg-type]
        )


class BlockReader:
    def __init__(self) -> None:
        self._before: BlockSnapshot | None = None
        self._tables: dict[str, tuple[int, ...]] = {}

    def read(self, wire: WireBlocks | None) -> BlockSnapshot:
        """Raises ProtocolError."""
        if wire is None:
            if self._before is None:
                raise ProtocolError("The first snapshot has no blocks.")
            return self._before
        if not 0 <= wire.num_blocks <= MAX_BLOCKS:
            raise ProtocolError(f"Invalid block count in a snapshot: {wire.num_blocks:,}.")
        if len(wire.tables) > len(wire.owners):
            raise ProtocolError("A snapshot has more block tables than requests.")
        arrays = {
            name: self._array(name, wire.num_blocks, changes)
            for name, changes in zip(ARRAYS, wire.arrays, strict=True)
        }
        owner = arrays["owner"]
        if len(owner) and (owner.max() >= len(wire.owners) or owner.min() < -2):
            raise ProtocolError("A block belongs to an unknown request.")
        tables = {
            o: self._table(o, table) for o, table in zip(wire.owners, wire.tables, strict=False)
        }
        self._tables = tables
        self._before = BlockSnapshot(
            block_size=wire.block_size, owners=wire.owners, tables=tuple(tables.values()), **arrays
        )
        return self._before

    def _table(self, owner: str, table: Table) -> tuple[int, ...]:
        before = self._tables.get(owner, ())
        if not 0 <= table.kept <= len(before):
            raise ProtocolError("A block table update does not match the previous table.")
        return before[: table.kept] + table.more

    def _array(self, name: str, length: int, changes: Changes) -> NDArray:
        dtype = DTYPES[name]
        try:
            values = np.frombuffer(changes.values, dtype)
            if changes.places is None:
                array = values.astype(dtype.newbyteorder("="))
            else:
                array = self._changed(name, np.frombuffer(changes.places, INDEX), values)
        except (ValueError, IndexError) as error:
            raise ProtocolError(f"Cannot decode snapshot blocks: {error}.") from None
        if len(array) != length:
            raise ProtocolError(f"Received {len(array):,} of {length:,} blocks.")
        return array.view(np.bool_) if name == "hashed" else array

    def _changed(self, name: str, places: NDArray, values: NDArray) -> NDArray:
        if self._before is None or len(places) != len(values):
            raise ValueError("changes without a base")
        before = getattr(self._before, name)
        if len(places) and places.min() < 0:
            raise ValueError("a negative index")
        array = before.view(np.uint8).copy() if name == "hashed" else before.copy()
        array[places] = values
        return array


def _table(before: tuple[int, ...], now: tuple[int, ...]) -> Table:
    if before is now:
        return Table(len(now), ())
    kept = len(before)
    if kept <= len(now) and now[:kept] == before:
        return Table(kept, now[kept:])
    return Table(0, now)


def _changes(name: str, before: BlockSnapshot | None, now: BlockSnapshot) -> Changes:
    dtype, new = DTYPES[name], getattr(now, name)
    old = None if before is None else getattr(before, name)
    if old is None or len(old) != len(new):
        return Changes(None, new.astype(dtype, copy=False).tobytes())
    places = np.flatnonzero(old != new)
    if len(places) * (INDEX.itemsize + dtype.itemsize) >= len(new) * dtype.itemsize:
        return Changes(None, new.astype(dtype, copy=False).tobytes())
    return Changes(places.astype(INDEX).tobytes(), new[places].astype(dtype, copy=False).tobytes())
