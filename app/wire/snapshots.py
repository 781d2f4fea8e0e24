"""Snapshots as changes since the last one, and several snapshots merged into one."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from app.wire.blocks import BlockReader, BlockWriter, WireBlocks
from app.wire.protocol import ProtocolError
from engine.config import EngineConfig
from engine.snapshot import (
    Arrival,
    Counters,
    EngineSnapshot,
    FinishReason,
    GpuFigures,
    MemoryPlan,
    MemorySnapshot,
    ModelInfo,
    PackedTokens,
    Part,
    ReportedLoad,
    RequestSnapshot,
    RequestState,
    RequestTimes,
    Sample,
    SpeculationSnapshot,
    StepRecord,
    ThreadFigures,
    TokenEvent,
)

T = TypeVar("T")
Here = Callable[[float], float]
"""Converts a time of the server's clock to ours."""


class ArrayForm(Generic[T]):
    """A dataclass as the array of its fields. New fields go last, with a default: older arrays
    stay readable."""

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        fields = dataclasses.fields(kind)  # type: ignore[arg-type]
        hints = typing.get_type_hints(kind)
        self._get = attrgetter(*(f.name for f in fields))
        self.wire = msgspec.defstruct(
            f"{kind.__name__}Array", [_declared(f, hints[f.name]) for f in fields], array_like=True
        )

    def values(self, record: T) -> tuple[Any, ...]:
        """To be encoded."""
        return self._get(record)

    def record(self, wire: Any) -> T:
        """From what was decoded as `wire`."""
        return self.kind(*msgspec.structs.astuple(wire))


def _declared(field: dataclasses.Field[Any], hint: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.name, hint, field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.name, hint, msgspec.field(default_factory=field.default_factory)
    return field.name, hint


STEP = ArrayForm(StepRecord)
_IN_RAM = ("host_weights", "host_kv_cache")  # CPU offload: newer than the others
MEMORY = tuple(
    f.name for f in dataclasses.fields(MemorySnapshot) if f.name not in ("plan", *_IN_RAM)
)


class WireRequest(msgspec.Struct, array_like=True):
    """`known`: token events sent earlier; `tokens`: the new ones."""

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
    """None means "unchanged" in config, model, plan, blocks, gpus and settings_since."""

    time: float
    step_index: int
    config: EngineConfig | None
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
    told: ReportedLoad | None
    gpus: tuple[GpuFigures, ...] | None = None
    threads: ThreadFigures | None = None
    in_ram: tuple[int, int] = (0, 0)
    settings_since: float | None = None
    arrivals: tuple[Arrival, ...] = ()


class SnapshotWriter:
    """Writes for one reader. Holds the interpreter for a millisecond at most."""

    def __init__(self) -> None:
        self._before: dict[str, Any] = {}
        self._times: dict[str, RequestTimes] = {}
        self._blocks = BlockWriter()

    def write(self, s: EngineSnapshot) -> WireSnapshot:
        known = {r.request_id: self._known(r) for r in s.requests}
        self._times = {r.request_id: r.times for r in s.requests}
        return WireSnapshot(
            time=s.time,
            step_index=s.step_index,
            config=self._changed("config", s.config),
            model=self._changed("model", s.model),
            plan=self._changed("plan", s.memory.plan),
            memory=tuple(getattr(s.memory, name) for name in MEMORY),
            counters=s.counters,
            requests=tuple(_request(r, known[r.request_id]) for r in s.requests),
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
            settings_since=self._changed("settings_since", s.settings_since),
            arrivals=s.arrivals,
        )

    def _known(self, r: RequestSnapshot) -> int:
        """Token events that the reader has. The same request has the same arrival; its events
        only become more."""
        before = self._times.get(r.request_id)
        if before is None or before.arrival != r.times.arrival:
            return 0
        return len(before.tokens) if len(before.tokens) <= len(r.times.tokens) else 0

    def _changed(self, name: str, value: Any) -> Any:
        before = self._before.get(name)
        if name in self._before and (before is value or before == value):
            return None
        self._before[name] = value
        return value


class SnapshotReader:
    """`here` converts the server's times to our clock, each of them once."""

    def __init__(self, here: Here = lambda time: time) -> None:
        self._here = here
        self._before: dict[str, Any] = {"gpus": (), "settings_since": 0.0}  # older versions: none
        self._tokens: dict[str, tuple[TokenEvent, ...]] = {}
        self._blocks = BlockReader()

    def read(self, wire: WireSnapshot) -> EngineSnapshot:
        """Raises ProtocolError."""
        here = self._here
        if len(wire.memory) != len(MEMORY):
            raise ProtocolError(f"Unexpected number of memory values: {len(wire.memory)}.")
        plan = self._kept("plan", wire.plan)
        since = wire.settings_since and here(wire.settings_since)
        known = self._tokens
        requests = tuple(self._request(r, known.get(r.request_id, ())) for r in wire.requests)
        self._remember({r.request_id: tuple(r.times.tokens) for r in requests})
        return EngineSnapshot(
            time=here(wire.time),
            step_index=wire.step_index,
            config=self._kept("config", wire.config),
            model=self._kept("model", wire.model),
            requests=requests,
            blocks=self._blocks.read(wire.blocks),
            memory=MemorySnapshot(
                plan,
                **dict(zip(MEMORY, wire.memory, strict=True)),
                **dict(zip(_IN_RAM, wire.in_ram, strict=True)),
            ),
            counters=wire.counters,
            steps=read_steps(wire.steps, here),
            ttft=read_samples(wire.ttft, here),
            itl=read_samples(wire.itl, here),
            speculation=wire.speculation,
            missing=frozenset(wire.missing),
            told=wire.told,
            gpus=self._kept("gpus", wire.gpus),
            threads=wire.threads,
            settings_since=self._kept("settings_since", since),
            arrivals=tuple(one._replace(time=here(one.time)) for one in wire.arrivals),
        )

    def _remember(self, tokens: dict[str, tuple[TokenEvent, ...]]) -> None:
        self._tokens = tokens

    def _kept(self, name: str, value: Any) -> Any:
        if value is not None:
            self._before[name] = value
        elif name not in self._before:
            raise ProtocolError(f"The first snapshot has no {name}.")
        return self._before[name]

    def _request(self, r: WireRequest, before: tuple[TokenEvent, ...]) -> RequestSnapshot:
        here = self._here
        if not 0 <= r.known <= len(before):
            raise ProtocolError("A request references token timestamps that were never sent.")
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
    records = map(STEP.record, steps)
    return tuple(dataclasses.replace(step, start=here(step.start)) for step in records)


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


def _request(r: RequestSnapshot, known: int) -> WireRequest:
    times = r.times
    return WireRequest(
        r.request_id, r.state, r.num_prompt_tokens, r.num_cached_tokens, r.num_computed_tokens,
        r.num_output_tokens, r.num_blocks, r.num_preemptions, r.finish_reason, times.arrival,
        times.first_scheduled, times.finished, known, tuple(times.tokens[known:]),
    )  # fmt: skip


def merge_snapshots(snapshots: Sequence[EngineSnapshot], most: int | None = None) -> EngineSnapshot:
    """The last snapshot with the steps, samples and arrivals of all, at most the newest `most` of
    each."""
    first = 0 if most is None else -most
    return dataclasses.replace(
        snapshots[-1],
        steps=tuple(step for s in snapshots for step in s.steps)[first:],
        ttft=tuple(sample for s in snapshots for sample in s.ttft)[first:],
        itl=tuple(sample for s in snapshots for sample in s.itl)[first:],
        arrivals=tuple(arrival for s in snapshots for arrival in s.arrivals)[first:],
    )
