"""Hypothesis strategies for the engine's records, from the types of their fields."""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from enum import Enum
from typing import Any

import numpy as np
from hypothesis import strategies as st

from engine import messages as m
from engine.config import EngineConfig
from engine.sampling_params import SamplingParams
from engine.snapshot import BlockSnapshot, PackedTokens

WORDS = st.text(max_size=12)
NUMBERS = st.integers(-(2**40), 2**40)
TIMES = st.floats(-1e6, 1e6)
CONFIGS = st.builds(
    EngineConfig,
    model=WORDS,
    block_size=st.integers(1, 64),
    speculative_model=st.none() | WORDS,
    gpu_memory_utilization=st.floats(0.1, 1.0),
    enable_prefix_caching=st.booleans(),
    kv_cache_dtype=st.sampled_from(["auto", "fp8", "k=int8,v=fp8"]),
)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0, 2),
    top_k=st.integers(-1, 50),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    logit_bias=st.dictionaries(st.integers(0, 99), st.floats(-5, 5), max_size=3),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=3).map(tuple),
    logprobs=st.none() | st.integers(0, 20),
)
MESSAGES = st.lists(st.fixed_dictionaries({"role": WORDS, "content": WORDS}), max_size=3).map(tuple)
PROMPTS = WORDS | st.lists(st.integers(0, 2**20), max_size=9).map(tuple) | MESSAGES
NAMES = st.text("abc-123", min_size=1, max_size=20)


@st.composite
def block_snapshots(draw: st.DrawFn) -> BlockSnapshot:
    count = draw(st.integers(0, 12))
    owners = tuple(draw(st.lists(NAMES, max_size=3, unique=True)))
    row = lambda low, high: draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    return BlockSnapshot(
        draw(st.sampled_from([16, 32])),
        owners,
        np.array(row(-2, len(owners) - 1), np.int32),
        np.array(row(0, 3), np.int32),
        np.array(row(0, 16), np.int32),
        np.array(row(0, 1), np.bool_),
        tuple(tuple(draw(st.lists(st.integers(0, 99), max_size=4))) for _ in owners),
    )


_GIVEN: dict[Any, st.SearchStrategy[Any]] = {
    int: NUMBERS, float: TIMES, str: WORDS, bool: st.booleans(), type(None): st.none(),
    bytes: st.binary(max_size=8), EngineConfig: CONFIGS, SamplingParams: PARAMS,
    BlockSnapshot: block_snapshots(), Any: CONFIGS,  # the one of EngineSnapshot
}  # fmt: skip


def of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type: plain ones, tuples, mappings, enums, NamedTuples, dataclasses."""
    if kind in _GIVEN:
        return _GIVEN[kind]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(of, args))
    if origin is collections.abc.Sequence:  # events of a request
        plain = st.lists(of(args[0]), max_size=3).map(tuple)
        return plain | plain.map(PackedTokens)
    if origin is tuple and args[-1] is ...:
        return st.lists(of(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of, args))
    if origin is frozenset:
        return st.frozensets(of(args[0]))
    if origin in (dict, collections.abc.Mapping):
        return st.dictionaries(of(args[0]), of(args[1]), max_size=3)
    if issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    hints = typing.get_type_hints(kind)
    names = kind._fields if issubclass(kind, tuple) else [f.name for f in dataclasses.fields(kind)]
    return st.deferred(lambda: st.builds(kind, **{name: of(hints[name]) for name in names}))


EVENTS = st.one_of(*(of(kind) for kind in typing.get_args(m.Event)))
COMMANDS = st.one_of(
    st.builds(m.Load, CONFIGS),
    st.just(m.Unload()),
    st.builds(
        m.AddRequest, NAMES, PROMPTS, PARAMS, of(tuple[int, ...]), model=st.none() | WORDS
    ),
    st.builds(m.Abort, NAMES),
    st.builds(m.Reconfigure, st.fixed_dictionaries({}, optional={
        "block_size": st.integers(1, 64), "enable_prefix_caching": st.booleans(),
        "kv_cache_memory_bytes": st.none() | st.integers(1, 2**40),
    })),
    st.builds(m.InspectBlock, NUMBERS),
    st.just(m.MeasurePeaks()),
    st.builds(m.ProfileSteps, NUMBERS),
    st.builds(m.CountTokens, WORDS, WORDS),
)  # fmt: skip
