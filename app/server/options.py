"""Options and limits of the server."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import secrets
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from engine.errors import ConfigError

KEY_VARIABLE = "INFERDECK_API_KEY"
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for clients. Times in seconds.

    max_queued: requests beyond those that run concurrently. max_output_tokens: per reply; None:
    limited by the context length. header_s, body_s: time limits for a request's head and body.
    stall_s: how long a reader may stall before it is disconnected.
    """

    max_body_bytes: int = 4 * MIB
    max_connections: int = 512
    max_queued: int = 1024
    max_output_tokens: int | None = None
    max_prompts: int = 256
    header_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 30.0
    stall_s: float = 60.0

    def __post_init__(self) -> None:
        for name in (
            "max_body_bytes", "max_connections", "max_prompts", "max_queued", "max_output_tokens",
        ):  # fmt: skip
            value, least = getattr(self, name), 0 if name == "max_queued" else 1
            if value is not None and value < least:
                raise ConfigError(f"{name} is too small: {value}.", f"Use at least {least}.")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Raises ConfigError if other machines could use the server without an API key.

    port: 0 for any free port. cors_origins: allowed origins of web pages ("*": all). model_name:
    name in the API; "": the folder name. grace_s: how long running replies may continue after a
    stop. models: folders that attached windows may load beside the served model. allows_control:
    whether attached windows may load models and change settings. trusts_paths: commands name
    folders of this machine; only for the engine process of a window.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = field(default=None, repr=False)
    allow_unauthenticated: bool = False
    cors_origins: tuple[str, ...] = ()
    model_name: str = ""
    limits: Limits = field(default_factory=Limits)
    grace_s: float = 10.0
    models: tuple[str, ...] = ()
    allows_control: bool = True
    trusts_paths: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"Port {self.port} is out of range.", "Use 0 to 65535.")
        if self.api_key is not None and not _is_key(self.api_key):
            raise ConfigError(
                "The API key is empty, is not ASCII, or has leading or trailing spaces.",
                "Use printable ASCII characters: the key is sent in an HTTP header.",
            )
        for origin in self.cors_origins:
            if not _is_origin(origin):
                raise ConfigError(
                    f"{origin!r} is not a valid origin.", "Example: http://localhost:3000."
                )
        if not self.is_loopback and self.api_key is None and not self.allow_unauthenticated:
            raise ConfigError(
                f"No API key is set, but other machines can reach {self.host or 'this server'}.",
                "Set one with --api-key or INFERDECK_API_KEY, listen on 127.0.0.1, or use "
                "--allow-unauthenticated.",
            )

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def is_open(self) -> bool:
        """Whether other machines can use it without a key."""
        return not self.is_loopback and self.api_key is None


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_key(key: str) -> bool:
    return key.isascii() and key.isprintable() and key.strip() == key != ""


def _is_origin(origin: str) -> bool:
    return origin == "*" or origin.startswith(("http://", "https://"))


LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"
KEY_BYTES = 24
GRACE_S = 5.0


class Problem(NamedTuple):
    """An invalid field of the form, and why."""

    field: str
    text: str


@dataclass(frozen=True, slots=True)
class ServingChoice:
    """Settings of the Server page. is_public: accept calls from other machines, with the key.
    max_output_tokens: 0: limited by the context length. max_body_mib: per request. allows_control:
    attached windows may change settings."""

    is_public: bool = False
    port: int = 8000
    model_name: str = ""
    origins: tuple[str, ...] = ()
    max_queued: int = 1024
    max_connections: int = 512
    max_output_tokens: int = 0
    max_body_mib: int = 4
    allows_control: bool = True

    @property
    def host(self) -> str:
        return EVERYWHERE if self.is_public else LOOPBACK

    def problems(self, key: str) -> list[Problem]:
        """Problems that prevent a start. `key`: the API key, "" for none."""
        found: list[Problem] = []
        if self.is_public and not key:
            found.append(Problem("key", "Serving on the network needs an API key."))
        elif key and not _is_key(key):
            found.append(
                Problem("key", "Use printable ASCII characters without leading or trailing spaces.")
            )  # fmt: skip
        wrong = next((one for one in self.origins if not _is_origin(one)), None)
        if wrong is not None:
            text = f"“{wrong[:60]}” is not a valid origin. Example: http://localhost:3000."
            found.append(Problem("origins", text))
        if any(not letter.isprintable() for letter in self.model_name):
            found.append(Problem("model_name", "The name contains non-printable characters."))
        return found

    def options(self, key: str) -> ServerOptions:
        """Raises ConfigError if `problems` is not empty, or a limit is invalid."""
        problems = self.problems(key)
        if problems:
            raise ConfigError(problems[0].text)
        return ServerOptions(
            host=self.host,
            port=self.port,
            api_key=key or None,
            cors_origins=self.origins,
            model_name=self.model_name,
            limits=Limits(
                max_body_bytes=self.max_body_mib * MIB,
                max_connections=self.max_connections,
                max_queued=self.max_queued,
                max_output_tokens=self.max_output_tokens or None,
            ),
            grace_s=GRACE_S,
            allows_control=self.allows_control,
        )

    def to_text(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> ServingChoice:
        """From stored text; unreadable values become defaults."""
        try:
            stored = json.loads(text)
        except ValueError:
            return cls()
        if not isinstance(stored, dict):
            return cls()
        known: dict[str, Any] = {}
        for one in dataclasses.fields(cls):
            value = stored.get(one.name)
            if isinstance(value, list):
                value = tuple(entry for entry in value if isinstance(entry, str))
            bounds: Any = RANGES.get(one.name, (value, value))
            if type(value) is type(one.default) and bounds[0] <= value <= bounds[1]:
                known[one.name] = value
        return cls(**known)


RANGES = {
    "port": (1, 65_535),
    "max_queued": (0, 100_000),
    "max_connections": (1, 10_000),
    "max_output_tokens": (0, 10_000_000),
    "max_body_mib": (1, 1024),
}


def new_key() -> str:
    return f"sk-{secrets.token_urlsafe(KEY_BYTES)}"
