"""What the user chose for the server: kept in the settings, without the key. No Qt."""

from __future__ import annotations

import dataclasses
import json
import secrets
from dataclasses import dataclass
from typing import Any, NamedTuple

from app.server.options import MIB, Limits, ServerOptions
from engine.errors import ConfigError

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"
KEY_BYTES = 24
GRACE_S = 5.0


class Problem(NamedTuple):
    """What is wrong with a field, in words."""

    field: str
    text: str


@dataclass(frozen=True, slots=True)
class ServingChoice:
    """is_public: other machines may call, with the key. max_output_tokens: 0 leaves it to the
    context. max_body_mib: of one request. allows_control: windows elsewhere may change settings."""

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
        """What keeps the server from starting. `key`: the API key, "" for none."""
        found: list[Problem] = []
        if self.is_public and not key:
            found.append(
                Problem("key", "Other machines could use the model: the network needs an API key.")
            )
        elif key and not (key.isascii() and key.isprintable() and key.strip() == key):
            found.append(
                Problem("key", "The key travels in an HTTP header: printable ASCII, no blanks at "
                        "its ends.")
            )  # fmt: skip
        for origin in self.origins:
            if origin != "*" and not origin.startswith(("http://", "https://")):
                text = f"“{origin[:60]}” is not an origin. Give one such as http://localhost:3000."
                found.append(Problem("origins", text))
                break
        if any(not letter.isprintable() for letter in self.model_name):
            found.append(Problem("model_name", "The name has characters that cannot be printed."))
        return found

    def options(self, key: str) -> ServerOptions:
        """Raises ConfigError where `problems` has something, or a limit is impossible."""
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
        """What was kept; a value that cannot be read is its default."""
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
            if type(value) is type(one.default) and _is_in_range(one.name, value):
                known[one.name] = value
        return cls(**known)


RANGES = {
    "port": (1, 65_535),
    "max_queued": (0, 100_000),
    "max_connections": (1, 10_000),
    "max_output_tokens": (0, 10_000_000),
    "max_body_mib": (1, 1024),
}


def _is_in_range(name: str, value: Any) -> bool:
    lowest, highest = RANGES.get(name, (None, None))
    return lowest is None or highest is None or lowest <= value <= highest


def new_key() -> str:
    """An API key that nobody guesses."""
    return f"sk-{secrets.token_urlsafe(KEY_BYTES)}"
