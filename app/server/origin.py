"""How the server's requests are called, so that every view can tell them from chats."""

from __future__ import annotations

import re
import secrets

_PREFIXES = {"chatcmpl": "API chat", "cmpl": "API text"}
_ID = re.compile(r"(chatcmpl|cmpl)-([0-9a-f]{24})(?:-(\d+))?")


def new_call_id(prefix: str) -> str:
    """An id for a call to /v1/chat/completions ("chatcmpl") or /v1/completions ("cmpl")."""
    return f"{prefix}-{secrets.token_hex(12)}"


def request_id_of(call_id: str, index: int, count: int) -> str:
    """The engine's id of the `index`-th of `count` requests of a call."""
    return call_id if count == 1 else f"{call_id}-{index}"


def origin_of(request_id: str) -> str | None:
    """The words for a request of the server ("API chat 3f2a"); None for any other."""
    match = _ID.fullmatch(request_id)
    if match is None:
        return None
    prefix, digits, index = match.groups()
    name = f"{_PREFIXES[prefix]} {digits[:4]}"
    return name if index is None else f"{name}-{index}"
