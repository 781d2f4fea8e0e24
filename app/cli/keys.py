"""API keys of the servers that a command measures: each belongs to one address."""

from __future__ import annotations

import os
from collections.abc import Sequence

from app.server.options import KEY_VARIABLE
from engine.errors import ConfigError


def keys_of(given: Sequence[str], urls: Sequence[str]) -> dict[str, str]:
    """Keys by URL. given: "URL=K", or "K" where there is one URL, which the environment's key is
    for as well. Raises ConfigError."""
    from app.clients.target import parse_address

    roots = {parse_address(url).root: url for url in urls}
    found: dict[str, str] = {}
    for text in given:
        url, key = _divided(text, roots) or (_only(urls), text)
        if url in found:
            raise ConfigError(f"--api-key is given twice for {url}.", "Omit one.")
        found[url] = key
    variable = os.environ.get(KEY_VARIABLE)
    if variable and not found and len(urls) == 1:
        found[urls[0]] = variable
    return found


def _divided(text: str, roots: dict[str, str]) -> tuple[str, str] | None:
    """The URL and the key of "URL=K"; a key may contain "=" itself."""
    from app.clients.target import TargetError, parse_address

    address, _, key = text.partition("=")
    try:
        url = roots.get(parse_address(address).root)
    except TargetError:
        return None
    return (url, key) if url and key else None


def _only(urls: Sequence[str]) -> str:
    if len(urls) != 1:
        raise ConfigError(
            f"--api-key must name one of {len(urls)} servers.", "Write --api-key URL=K for each."
        )
    return urls[0]
