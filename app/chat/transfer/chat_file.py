"""Chats as JSON, and back, exactly. No Qt.

{"format": "inferdeck-chats", "version": 2, "chats": [
    {"id", "title", ...,
     "messages": [{"id", "parent_id", "role", "text", ..., "tokens"?, "times"?}, ...]}]}

A message stands after the one that it answers; those with the same parent are versions of one
another. Version 1 had no "times". Fields have the names of `app.storage.records`; what has its
default value is left out.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.chat.conversation import Conversation, Message
from app.chat.times import as_columns, from_columns
from app.chat.tokens import ReplyTokens
from app.chat.transfer.bundle import Bundle
from app.storage import StoredConversation, StoredMessage
from engine.errors import InferdeckError
from engine.snapshot import RequestTimes

FORMAT, VERSION, READ = "inferdeck-chats", 2, (1, 2)
_NOT_WRITTEN = {"conversation_id", "deleted_at"}
_REMEDY = "Nothing was imported. Choose a file that Inferdeck's export has written as JSON."


class ChatFileError(InferdeckError):
    """A file is not one of chats, or it is damaged."""


def dump(bundles: Sequence[Bundle]) -> str:
    """The text of a file with these chats."""
    chats = [
        {
            **_fields(bundle.conversation),
            "messages": [_message(message, bundle) for message in bundle.messages],
        }
        for bundle in bundles
    ]
    whole = {"format": FORMAT, "version": VERSION, "chats": chats}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def parse(text: str) -> list[Bundle]:
    """The chats in a file's text. Raises ChatFileError with what is wrong and where."""
    try:
        whole = json.loads(text)
    except ValueError as error:
        raise ChatFileError(
            f"This is not a file of chats: it is no JSON ({error}).", _REMEDY
        ) from None
    except RecursionError:
        raise ChatFileError(
            "This is not a file of chats: it is nested too deep.", _REMEDY
        ) from None
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise ChatFileError(
            f'This is not a file of Inferdeck\'s chats: it has no "format": "{FORMAT}".', _REMEDY
        )
    if whole.get("version") not in READ:
        raise ChatFileError(
            f"This file has version {whole.get('version')!r} of the format; this Inferdeck reads "
            f"versions up to {VERSION}.",
            "Nothing was imported. Import it with the version that wrote it, or a newer one.",
        )
    chats = whole.get("chats")
    if not isinstance(chats, list):
        raise ChatFileError('This file has no list of "chats".', _REMEDY)
    return [_bundle(chat, f"Chat {number}") for number, chat in enumerate(chats, start=1)]


def _fields(record: StoredConversation | StoredMessage) -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.name not in _NOT_WRITTEN and value != _default(field):
            found[field.name] = value
    return found


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _message(message: StoredMessage, bundle: Bundle) -> dict[str, Any]:
    written = _fields(message)
    written.setdefault("parent_id", message.parent_id)
    if message.id in bundle.tokens:
        written["tokens"] = bundle.tokens[message.id].as_columns()
    if message.id in bundle.times:
        written["times"] = as_columns(bundle.times[message.id])
    return written


def _bundle(chat: Any, where: str) -> Bundle:
    try:
        values = dict(chat)
        entries = list(values.pop("messages"))
        conversation = StoredConversation(**values)
        _check_types(conversation)
        Conversation.from_record(conversation)
    except Exception as error:  # whatever a stranger's file leads to
        raise _refusal(where, error) from error
    messages: list[StoredMessage] = []
    tokens: dict[str, ReplyTokens] = {}
    times: dict[str, RequestTimes] = {}
    known: set[str | None] = {None}
    for number, entry in enumerate(entries, start=1):
        try:
            values = dict(entry)
            columns, moments = values.pop("tokens", None), values.pop("times", None)
            for name in ("attachments", "passages"):
                values[name] = tuple(values.get(name, ()))
            message = StoredMessage(conversation_id=conversation.id, **values)
            _check_types(message)
            Message.from_record(message)
            if message.id in known or message.parent_id not in known:
                raise ValueError("its id is taken, or the message that it answers is not before it")
            if columns is not None:
                tokens[message.id] = ReplyTokens.from_columns(columns)
            if moments is not None:
                times[message.id] = from_columns(moments)
        except Exception as error:
            raise _refusal(f"{where}, message {number}", error) from error
        known.add(message.id)
        messages.append(message)
    if not messages:
        raise ChatFileError(f"{where} of this file has no messages.", _REMEDY)
    return Bundle(conversation, tuple(messages), tokens, times)


def _refusal(where: str, error: Exception) -> ChatFileError:
    what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    return ChatFileError(f"{where} of this file cannot be read: {what}.", _REMEDY)


_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str, "bool": bool, "int": int, "float": (int, float), "str | None": (str, type(None)),
    "Mapping[str, Any]": Mapping, "Mapping[str, Any] | None": (Mapping, type(None)),
    "Mapping[str, str] | None": (Mapping, type(None)), "float | None": (int, float, type(None)),
    "tuple[Mapping[str, str], ...]": tuple, "tuple[Mapping[str, Any], ...]": tuple,
}  # fmt: skip


def _check_types(record: StoredConversation | StoredMessage) -> None:
    """Raises ValueError that names a field of another type than the store writes."""
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if not isinstance(value, _TYPES[str(field.type)]):
            raise ValueError(f'"{field.name}" is {json.dumps(value)[:40]}')
    for attachment in getattr(record, "attachments", ()):
        if not (
            isinstance(attachment, Mapping)
            and set(attachment) == {"name", "text"}
            and all(isinstance(value, str) for value in attachment.values())
        ):
            raise ValueError('an attachment has other fields than a "name" and a "text"')
