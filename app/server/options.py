"""What the server is started with. What would be unsafe is refused, with the way to have it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from engine.errors import ConfigError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients can take of the server. Times in seconds.

    max_queued: requests beyond those that the engine runs at once. max_output_tokens: most tokens
    of one reply; None leaves it to the context. header_s: a request's head must be there by then;
    body_s: its body; stall_s: how long a reader may take nothing before it is cut off.
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
        for name in ("max_body_bytes", "max_connections", "max_prompts"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}.", "Give at least 1.")
        if self.max_queued < 0:
            raise ConfigError(f"max_queued is {self.max_queued}.", "Give 0 or more.")
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise ConfigError(f"max_output_tokens is {self.max_output_tokens}.", "Give at least 1.")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Raises ConfigError where the server would be open to others without an API key.

    port 0 takes any free one. cors_origins: pages of these origins may call ("*": all may).
    model_name: what clients call the model; "" is the name of its folder. grace_s: how long running
    replies may go on when the server is stopped. models: folders that a window elsewhere may open
    beside the one that serves. allows_control: whether it may open models and change settings at
    all. trusts_paths: it names folders itself; for an engine that a window started as a part of
    itself, and no flag of the command line.
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
            raise ConfigError(f"The port is {self.port}.", "Give one from 0 to 65535.")
        key = self.api_key
        if key is not None and not (
            key.isascii() and key.isprintable() and key.strip() == key and key
        ):
            raise ConfigError(
                "The API key is empty, or has blanks at its ends or characters beyond ASCII.",
                "Choose printable ASCII characters: it travels in an HTTP header.",
            )
        for origin in self.cors_origins:
            if origin != "*" and not origin.startswith(("http://", "https://")):
                raise ConfigError(
                    f"{origin!r} is not an origin.", "Give one such as http://localhost:3000."
                )
        if not self.is_loopback and key is None and not self.allow_unauthenticated:
            raise ConfigError(
                f"On {self.host or 'every address'} other machines could use the model, and no "
                "API key is set.",
                "Set one with --api-key or INFERDECK_API_KEY, listen on 127.0.0.1, or say "
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
