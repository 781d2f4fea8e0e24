"""A remote engine: address, server type and connection state.

No Qt: the window, the command line and the engines behind a line share these words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from engine import messages
from engine.snapshot import EngineSnapshot


class Dialect(StrEnum):
    """Type of server at an address."""

    INFERDECK = "Inferdeck"
    VLLM = "vLLM"
    SGLANG = "SGLang"
    TENSORRT_LLM = "TensorRT-LLM"
    TGI = "TGI"
    LLAMA_CPP = "llama.cpp"
    OPENAI = "OpenAI-compatible"


@dataclass(frozen=True, slots=True)
class Target:
    """base_url: of the server, without a path of ours ("http://host:8000"; a "/v1" at its end is
    allowed and means the same)."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    name: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found at a target. `version` is "" where it does not say. `has_metrics`: its
    /metrics can be read. `round_trip_s`: seconds of one small request."""

    dialect: Dialect
    version: str
    models: tuple[str, ...]
    max_model_len: int | None
    has_metrics: bool
    round_trip_s: float

    def may_serve(self, model: str) -> bool:
        """Whether to ask for `model`. Servers that load on demand, and gateways, list what is
        loaded or nothing at all: there a name is tried."""
        return model in self.models or (self.dialect is Dialect.OPENAI and bool(model))


class LinkState(StrEnum):
    CONNECTING = "connecting"
    LIVE = "connected"
    STALE = "not responding"  # connected, but silent for longer than it should be
    RECONNECTING = "reconnecting"
    CLOSED = "not connected"  # for good: a wrong key, another version, or we left


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """How the line to an engine elsewhere stands. Comes among the engine's events; `time` is of
    `time.perf_counter` here. words: the reason and the remedy, "" where all is well."""

    state: LinkState
    time: float
    words: str = ""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that the user should know of a request that goes on all the same: what the engine
    elsewhere does not take, say. Comes among the engine's events, once for each text."""

    words: str


@dataclass(frozen=True, slots=True)
class Past:
    """What an engine elsewhere showed before the window came, oldest first: figures of its state
    alone, without requests, blocks and steps. Comes after Loaded and before the first snapshot."""

    snapshots: tuple[EngineSnapshot, ...]


Event = messages.Event | LinkChanged | Past | Remark
OnEvent = Callable[[Event], None]
