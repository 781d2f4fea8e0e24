"""Chat messages of a request body as the chat template takes them: roles and plain texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.server.errors import ApiError, bad_request

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXT_PARTS = ("text", "input_text", "output_text")


def chat_messages(given: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], ...]:
    """Messages with "role" and "content" alone. Raises ApiError 400 naming the message."""
    if not given:
        raise bad_request("messages is empty; give at least one.", "messages")
    return tuple(_message(message, f"messages[{i}]") for i, message in enumerate(given))


def _message(message: Mapping[str, Any], where: str) -> dict[str, str]:
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise bad_request(
            f"The role of {where} is {str(role)[:40]!r}; it must be one of {', '.join(ROLES)}.",
            f"{where}.role",
        )
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise bad_request(f"{where} has {name}, which is not supported.", f"{where}.{name}")
    return {"role": ROLES[role], "content": _content(message.get("content"), f"{where}.content")}


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _not_text(where)
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in TEXT_PARTS:
            kind = str(part.get("type"))[:40] if isinstance(part, dict) else "no object"
            raise bad_request(f"A part of {where} is {kind!r}; the model reads text alone.", where)
        if not isinstance(part.get("text"), str):
            raise _not_text(where)
        texts.append(part["text"])
    return "\n".join(texts)


def _not_text(where: str) -> ApiError:
    return bad_request(f"{where} is not a text, nor a list of parts with texts.", where)
