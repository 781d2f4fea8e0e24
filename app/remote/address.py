"""Where the stream of a target is."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from app.connections.target import Target
from app.remote.protocol import STREAM_PATH
from app.server.options import is_loopback
from engine.errors import ConfigError

REMEDY = "Give an address such as http://host:8000."


class Address(NamedTuple):
    """`place`: host and port, as people say it."""

    url: str
    place: str
    is_local: bool


def address_of(target: Target) -> Address:
    """Raises ConfigError where the base URL is none."""
    text = target.base_url.strip()
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{target.base_url[:100]!r} is no address: {error}.", REMEDY) from None
    schemes = {"http": "ws", "https": "wss"}
    if parts.scheme not in schemes or not host:
        raise ConfigError(f"{target.base_url[:100]!r} is no address of a server.", REMEDY)
    base = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    shown = f"[{host}]" if ":" in host else host
    place = f"{shown}:{port}" if port is not None else shown
    return Address(
        f"{schemes[parts.scheme]}://{place}{base}{STREAM_PATH}", place, is_loopback(host)
    )
