"""A remote engine: address, server type and connection state.

No Qt: shared by the window, the command line and the clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from app.server.options import is_loopback
from engine import messages
from engine.errors import InferdeckError
from engine.snapshot import EngineSnapshot, RequestTimes


class ServerType(StrEnum):
    """Type of server at an address."""

    INFERDECK = "Inferdeck"
    VLLM = "vLLM"
    SGLANG = "SGLang"
    TENSORRT_LLM = "TensorRT-LLM"
    TGI = "TGI"
    LLAMA_CPP = "llama.cpp"
    ROUTER = "vLLM router"
    OPENAI = "OpenAI-compatible"


class Continues(StrEnum):
    """How an engine continues a reply that has ended."""

    TOKENS = "tokens"  # from its token ids
    TEXT = "text"  # from a last message of the assistant
    NOT = ""


@dataclass(frozen=True, slots=True)
class Target:
    """base_url: of the server, without a path of ours ("http://host:8000"; a "/v1" at its end is
    allowed and means the same). traces_port: of this machine's loopback, where the server sends the
    traces of its requests; 0 for none. forwards: ports of this machine's loopback, by endpoints of
    KV events as the server reports them."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    name: str = ""
    traces_port: int = 0
    forwards: tuple[tuple[str, int], ...] = ()


class TargetError(InferdeckError):
    """A server that is unreachable or does not respond as a model server.

    is_final: retrying cannot help (a wrong key, not a model server).
    """

    def __init__(self, cause: str, remedy: str = "", *, is_final: bool = False) -> None:
        super().__init__(cause, remedy)
        self.is_final = is_final


_OURS = ("/chat/completions", "/completions", "/models", "/v1")
"""Path endings of copied addresses, which are removed."""


@dataclass(frozen=True, slots=True)
class Address:
    """root: the server's URL without /v1 and without a trailing slash. host: with the port, for
    display."""

    root: str
    host: str

    def api(self, path: str) -> str:
        """A path of the OpenAI API."""
        return f"{self.root}/v1/{path}"

    def beside(self, path: str) -> str:
        """A path beside the API: /metrics, /version."""
        return f"{self.root}/{path}"

    @property
    def is_here(self) -> bool:
        """Whether it is a loopback address."""
        name = urlsplit(self.root).hostname or ""
        return is_loopback(name) or name.endswith(".localhost")


def parse_address(text: str) -> Address:
    """Raises TargetError if the text is no server address."""
    given = text.strip()
    if not given:
        raise TargetError("The address is empty.", "Use the form http://host:port.", is_final=True)
    try:
        url = urlsplit(given if "://" in given else f"http://{given}")
        host, port = url.hostname or "", url.port
    except ValueError as error:
        raise _bad(text, str(error)) from None
    if url.scheme not in ("http", "https"):
        raise _bad(text, f"unsupported scheme {url.scheme}://")
    if not host or any(c.isspace() for c in host):
        raise _bad(text, "no host name")
    if port == 0:
        raise _bad(text, "port 0 is invalid")
    if "@" in url.netloc:
        raise TargetError(
            "The address contains a user name or password.",
            "Use the API key field instead. Addresses are stored in plain text.", is_final=True,
        )  # fmt: skip
    if url.query or url.fragment:
        raise _bad(text, "it contains a query string or fragment")
    path = url.path.rstrip("/")
    for end in _OURS:  # in this order: /v1 precedes the others
        path = path.removesuffix(end).rstrip("/")
    place = url.netloc.lower().rstrip(":")
    return Address(f"{url.scheme}://{place}{path}", place)


def _bad(text: str, why: str) -> TargetError:
    return TargetError(
        f"{text.strip()[:200]!r} is not a server address: {why}.",
        "Use the form http://host:port.", is_final=True,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found at a target. `version`: "" if not reported. `has_metrics`: its /metrics can be
    read. `round_trip_s`: seconds of one small request."""

    server_type: ServerType
    version: str
    models: tuple[str, ...]
    max_model_len: int | None
    has_metrics: bool
    round_trip_s: float

    def may_serve(self, model: str) -> bool:
        """Whether to request `model`. Servers that load on demand, and gateways, list loaded models
        or none: there any name is tried."""
        return model in self.models or (self.server_type is ServerType.OPENAI and bool(model))


class LinkState(StrEnum):
    CONNECTING = "connecting"
    LIVE = "connected"
    STALE = "not responding"  # connected, but silent for longer than it should be
    RECONNECTING = "reconnecting"
    CLOSED = "not connected"  # for good: a wrong key, another version, or we left


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """State of the connection to a remote engine; one of its events. `time`: of this process's
    `time.perf_counter`. words: cause and remedy; "" while connected. attempt: number of the
    reconnection attempt, 0 if not counted."""

    state: LinkState
    time: float
    words: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Remark:
    """A note on a server or a request that runs all the same, such as a parameter that it does not
    support. One of the engine's events, once per text."""

    words: str


@dataclass(frozen=True, slots=True)
class Traced:
    """The times of a request that has ended, with those which the server reported afterwards."""

    request_id: str
    times: RequestTimes


@dataclass(frozen=True, slots=True)
class Past:
    """Snapshots of a remote engine from before the window attached, oldest first: figures only,
    without requests, blocks and steps. Comes after Loaded and before the first snapshot."""

    snapshots: tuple[EngineSnapshot, ...]


Event = messages.Event | LinkChanged | Past | Remark | Traced
OnEvent = Callable[[Event], None]
