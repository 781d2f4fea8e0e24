"""The state of all KV blocks as what changed: a step touches few of a hundred thousand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.wire.protocol import ArrayForm, ProtocolError, config_values, told_config
from engine.snapshot import (
    BlockSnapshot,
    Counters,
    EngineSnapshot,
    FinishReason,
    GpuFigures,
    MemoryPlan,
    MemorySnapshot,
    ModelInfo,
    PackedTokens,
    Part,
    RequestSnapshot,
    RequestState,
    RequestTimes,
    Sample,
    SpeculationSnapshot,
    StepRecord,
    ThreadFigures,
    TokenEvent,
    Told,
)

MAX_BLOCKS = 1 << 22
_ARRAYS = ("owner", "ref_count", "fill", "hashed")
_DTYPES: dict[str, np.dtype] = {
    "owner": np.dtype("<i4"), "ref_count": np.dtype("<i4"), "fill": np.dtype("<i4"),
    "hashed": np.dtype("u1"),
}  # fmt: skip
_PLACE = np.dtype("<i4")


class Changes(msgspec.Struct, array_like=True):
    """Of one array: `values` at `places`; a whole array where `places` is None."""

    places: bytes | None
    values: bytes


class Table(msgspec.Struct, array_like=True):
    """Of one owner: the first `kept` blocks of its table before, then `more`."""

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
        """None where they are those of the call before."""
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
            arrays=tuple(_changes(name, before, blocks) for name in _ARRAYS),  # type: ignore[arg-type]
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
            raise ProtocolError(f"A snapshot has {wire.num_blocks} blocks.")
        if len(wire.tables) > len(wire.owners):
            raise ProtocolError("A snapshot has more block tables than requests.")
        arrays = {
            name: self._array(name, wire.num_blocks, changes)
            for name, changes in zip(_ARRAYS, wire.arrays, strict=True)
        }
        owner = arrays["owner"]
        if len(owner) and (owner.max() >= len(wire.owners) or owner.min() < -2):
            raise ProtocolError("A block belongs to a request that is not there.")
        tables = {
            o: self._table(o, table) for o, table in zip(wire.owners, wire.tables, strict=False)
        }
        self._tables = tables
        self._before = BlockSnapshot(
            block_size=wire.block_size,
            owners=wire.owners,
            tables=tuple(tables.values()),
            **arrays,
        )
        return self._before

    def _table(self, owner: str, table: Table) -> tuple[int, ...]:
        before = self._tables.get(owner, ())
        if not 0 <= table.kept <= len(before):
            raise ProtocolError("A block table goes on from one that was not sent.")
        return before[: table.kept] + table.more

    def _array(self, name: str, length: int, changes: Changes) -> NDArray:
        dtype = _DTYPES[name]
        try:
            values = np.frombuffer(changes.values, dtype)
            if changes.places is None:
                array = values.astype(dtype.newbyteorder("="))
            else:
                array = self._changed(name, np.frombuffer(changes.places, _PLACE), values)
        except (ValueError, IndexError) as error:
            raise ProtocolError(f"The blocks of a snapshot cannot be read: {error}.") from None
        if len(array) != length:
            raise ProtocolError(f"{len(array)} of {length} blocks have come.")
        return array.view(np.bool_) if name == "hashed" else array

    def _changed(self, name: str, places: NDArray, values: NDArray) -> NDArray:
        if self._before is None or len(places) != len(values):
            raise ValueError("changes of nothing")
        before = getattr(self._before, name)
        if len(places) and places.min() < 0:
            raise ValueError("a place before the first")
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
    dtype, new = _DTYPES[name], getattr(now, name)
    old = None if before is None else getattr(before, name)
    if old is None or len(old) != len(new):
        return Changes(None, new.astype(dtype, copy=False).tobytes())
    places = np.flatnonzero(old != new)
    if len(places) * (_PLACE.itemsize + dtype.itemsize) >= len(new) * dtype.itemsize:
        return Changes(None, new.astype(dtype, copy=False).tobytes())
    return Changes(places.astype(_PLACE).tobytes(), new[places].astype(dtype, copy=False).tobytes())


Here = Callable[[float], float]
"""A time of the server's clock in ours."""

STEP = ArrayForm(StepRecord)
_IN_RAM = ("host_weights", "host_kv_cache")  # of a model that is divided: later than the others
_MEMORY = tuple(
    f.name for f in dataclasses.fields(MemorySnapshot) if f.name not in ("plan", *_IN_RAM)
)
_KEPT = ("config", "model", "plan")


class WireRequest(msgspec.Struct, array_like=True):
    """`known`: token events that were sent before; `tokens`: those after them."""

    request_id: str
    state: RequestState
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    num_blocks: int
    num_preemptions: int
    finish_reason: FinishReason | None
    arrival: float
    first_scheduled: float | None
    finished: float | None
    known: int
    tokens: tuple[TokenEvent, ...]


class WireSnapshot(msgspec.Struct, array_like=True):
    """None stands for "as before" in config, model, plan, blocks and gpus."""

    time: float
    step_index: int
    config: dict[str, Any] | None
    model: ModelInfo | None
    plan: MemoryPlan | None
    memory: tuple[int, ...]
    counters: Counters
    requests: tuple[WireRequest, ...]
    blocks: WireBlocks | None
    steps: tuple[STEP.wire, ...]  # type: ignore[name-defined]
    ttft: tuple[Sample, ...]
    itl: tuple[Sample, ...]
    speculation: SpeculationSnapshot | None
    missing: tuple[Part, ...]
    told: Told | None
    gpus: tuple[GpuFigures, ...] | None = None
    threads: ThreadFigures | None = None
    in_ram: tuple[int, int] = (0, 0)


class SnapshotWriter:
    """For one reader. Holds the interpreter for a millisecond at most: see the parts."""

    def __init__(self) -> None:
        self._before: dict[str, Any] = {}
        self._times: dict[str, RequestTimes] = {}
        self._blocks = BlockWriter()

    def write(self, s: EngineSnapshot) -> WireSnapshot:
        known = self._times
        self._times = {r.request_id: r.times for r in s.requests}
        config = self._changed("config", s.config)
        return WireSnapshot(
            time=s.time,
            step_index=s.step_index,
            config=None if config is None else config_values(config),
            model=self._changed("model", s.model),
            plan=self._changed("plan", s.memory.plan),
            memory=tuple(getattr(s.memory, name) for name in _MEMORY),
            counters=s.counters,
            requests=tuple(_request(r, known.get(r.request_id)) for r in s.requests),
            blocks=self._blocks.write(s.blocks),
            steps=tuple(map(STEP.values, s.steps)),
            ttft=s.ttft,
            itl=s.itl,
            speculation=s.speculation,
            missing=tuple(s.missing),
            told=s.told,
            gpus=self._changed("gpus", s.gpus),
            threads=s.threads,
            in_ram=(s.memory.host_weights, s.memory.host_kv_cache),
        )

    def _changed(self, name: str, value: Any) -> Any:
        before = self._before.get(name)
        if name in self._before and (before is value or before == value):
            return None
        self._before[name] = value
        return value


class SnapshotReader:
    """`here` puts the server's times into our clock, each of them once."""

    def __init__(self, here: Here = lambda time: time) -> None:
        self._here = here
        self._before: dict[str, Any] = {}
        self._tokens: dict[str, tuple[TokenEvent, ...]] = {}
        self._blocks = BlockReader()

    def read(self, wire: WireSnapshot) -> EngineSnapshot:
        """Raises ProtocolError."""
        here = self._here
        if len(wire.memory) != len(_MEMORY):
            raise ProtocolError("A snapshot tells of memory in another way.")
        config = None if wire.config is None else told_config(wire.config)
        plan = self._kept("plan", wire.plan)
        known = self._tokens
        requests = tuple(self._request(r, known.get(r.request_id, ())) for r in wire.requests)
        self._tokens = {r.request_id: tuple(r.times.tokens) for r in requests}
        return EngineSnapshot(
            time=here(wire.time),
            step_index=wire.step_index,
            config=self._kept("config", config),
            model=self._kept("model", wire.model),
            requests=requests,
            blocks=self._blocks.read(wire.blocks),
            memory=MemorySnapshot(
                plan,
                **dict(zip(_MEMORY, wire.memory, strict=True)),
                **dict(zip(_IN_RAM, wire.in_ram, strict=True)),
            ),
            counters=wire.counters,
            steps=read_steps(wire.steps, here),
            ttft=read_samples(wire.ttft, here),
            itl=read_samples(wire.itl, here),
            speculation=wire.speculation,
            missing=frozenset(wire.missing),
            told=wire.told,
            gpus=self._gpus(wire.gpus),
            threads=wire.threads,
        )

    def _kept(self, name: str, value: Any) -> Any:
        if value is not None:
            self._before[name] = value
        elif name not in self._before:
            raise ProtocolError(f"The first snapshot has no {name}.")
        return self._before[name]

    def _gpus(self, gpus: tuple[GpuFigures, ...] | None) -> tuple[GpuFigures, ...]:
        """Nothing, from a server of before."""
        if gpus is not None:
            self._before["gpus"] = gpus
        known: tuple[GpuFigures, ...] = self._before.get("gpus", ())
        return known

    def _request(self, r: WireRequest, before: tuple[TokenEvent, ...]) -> RequestSnapshot:
        here = self._here
        if not 0 <= r.known <= len(before):
            raise ProtocolError("The times of a request go on from some that were not sent.")
        tokens = before[: r.known] + tuple(TokenEvent(here(t), n) for t, n in r.tokens)
        return RequestSnapshot(
            r.request_id, r.state, r.num_prompt_tokens, r.num_cached_tokens,
            r.num_computed_tokens, r.num_output_tokens, r.num_blocks, r.num_preemptions,
            RequestTimes(
                here(r.arrival), maybe(here, r.first_scheduled),
                tokens if r.finished is None else PackedTokens(tokens), maybe(here, r.finished),
            ),
            r.finish_reason,
        )  # fmt: skip


def read_steps(steps: Iterable[Any], here: Here) -> tuple[StepRecord, ...]:
    return tuple(shifted_step(STEP.record(step), here) for step in steps)


def shifted_step(step: StepRecord, here: Here) -> StepRecord:
    return dataclasses.replace(step, start=here(step.start))


def read_samples(samples: Iterable[Sample], here: Here) -> tuple[Sample, ...]:
    return tuple(Sample(here(time), value) for time, value in samples)


def shifted_times(times: RequestTimes, here: Here) -> RequestTimes:
    tokens = (TokenEvent(here(time), n) for time, n in times.tokens)
    return RequestTimes(
        here(times.arrival),
        maybe(here, times.first_scheduled),
        tuple(tokens) if times.finished is None else PackedTokens(tokens),
        maybe(here, times.finished),
    )


def maybe(here: Here, time: float | None) -> float | None:
    return None if time is None else here(time)


def _request(r: RequestSnapshot, before: RequestTimes | None) -> WireRequest:
    times = r.times
    known = 0
    # The same request under the same name has the same arrival; its events only become more.
    if before is not None and before.arrival == times.arrival:
        known = len(before.tokens) if len(before.tokens) <= len(times.tokens) else 0
    return WireRequest(
        r.request_id, r.state, r.num_prompt_tokens, r.num_cached_tokens, r.num_computed_tokens,
        r.num_output_tokens, r.num_blocks, r.num_preemptions, r.finish_reason, times.arrival,
        times.first_scheduled, times.finished, known, tuple(times.tokens[known:]),
    )  # fmt: skip
