"""Chats as JSON files: collected from the store, written, read, and stored again. No Qt."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from app.features.chat.conversation import Conversation, Message, connected, new_id
from app.features.chat.reply_data import (
    ReplyTokens,
    as_columns,
    from_columns,
    pack_times,
    unpack_times,
)
from app.storage import TIMES, TOKENS, ChatStore, StoredConversation, StoredMessage
from app.storage.records import INTERRUPTED, STREAMING, WAITING
from engine.errors import InferdeckError
from engine.snapshot import RequestTimes


@dataclass(frozen=True, slots=True)
class Bundle:
    """A conversation: every version of its `messages`, oldest first; `tokens` and `times` by reply
    id, for the replies that have them."""

    conversation: StoredConversation
    messages: tuple[StoredMessage, ...]
    tokens: Mapping[str, ReplyTokens] = field(default_factory=dict)
    times: Mapping[str, RequestTimes] = field(default_factory=dict)


def collect(
    store: ChatStore, conversation: StoredConversation, newer: Iterable[StoredMessage] = ()
) -> Bundle:
    """Everything that is stored of a conversation; `newer`: messages, of any conversation, that
    could not be stored as they are now. Raises StorageError."""
    found = {message.id: message for message in store.messages(conversation.id)}
    found |= {one.id: one for one in newer if one.conversation_id == conversation.id}
    messages = tuple(connected(found.values()))
    tokens = {}
    for message_id in store.messages_with(TOKENS, conversation.id):
        packed = store.packed(TOKENS, message_id)
        if packed is not None:
            tokens[message_id] = ReplyTokens.unpack(packed)
    times = {}
    for message_id in store.messages_with(TIMES, conversation.id):
        packed = store.packed(TIMES, message_id)
        if packed is not None:
            with suppress(ValueError):  # the chat is worth more than its times
                times[message_id] = unpack_times(packed)
    return Bundle(conversation, messages, tokens, times)


def keep(store: ChatStore, bundle: Bundle) -> Bundle:
    """Store a bundle beside what is there, and return it as it was stored: under new ids where
    one of its ids is taken, and with nothing that waits for an engine. Raises StorageError; of
    the messages then all or none are stored."""
    ids = [message.id for message in bundle.messages]
    if store.has_any(bundle.conversation.id, ids):
        bundle = with_new_ids(bundle)
    messages = tuple(
        replace(message, state=INTERRUPTED) if message.state in (WAITING, STREAMING) else message
        for message in bundle.messages
    )
    store.add_messages(bundle.conversation, *messages).result()
    for message_id, tokens in bundle.tokens.items():
        store.save_packed(TOKENS, message_id, tokens.pack).result()
    for message_id, times in bundle.times.items():
        store.save_packed(TIMES, message_id, partial(pack_times, times)).result()
    return replace(bundle, messages=messages)


def with_new_ids(bundle: Bundle) -> Bundle:
    """The same conversation as another one."""
    names = {message.id: new_id() for message in bundle.messages}
    conversation = replace(bundle.conversation, id=new_id())
    messages = tuple(
        replace(
            message,
            id=names[message.id],
            conversation_id=conversation.id,
            parent_id=None if message.parent_id is None else names[message.parent_id],
        )
        for message in bundle.messages
    )
    return Bundle(
        conversation,
        messages,
        {names[i]: tokens for i, tokens in bundle.tokens.items()},
        {names[i]: times for i, times in bundle.times.items()},
    )


LARGEST_NUMBER = 10**15
"""More than any time or count; SQLite stores integers of 64 bits."""
MOST_DIGITS = 20
"""Of integers of 64 bits."""
FORMAT, VERSION, READ = "inferdeck-chats", 2, (1, 2)
_NOT_WRITTEN = {"conversation_id", "deleted_at"}
_REMEDY = "Nothing was imported. Choose a JSON file exported by Inferdeck."


class ChatFileError(InferdeckError):
    """A file has no chats, or is damaged."""


def dump(bundles: Sequence[Bundle]) -> str:
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
        whole = json.loads(text, parse_constant=_refuse_constant, parse_int=_integer)
    except ValueError as error:
        raise ChatFileError(f"Not a chat export: invalid JSON ({error}).", _REMEDY) from None
    except RecursionError:
        raise ChatFileError("Not a chat export: JSON nested too deeply.", _REMEDY) from None
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise ChatFileError(f'Not a chat export: "format" is not "{FORMAT}".', _REMEDY)
    if whole.get("version") not in READ:
        raise ChatFileError(
            f"The file has format version {whole.get('version')!r}; this version of Inferdeck "
            f"supports up to {VERSION}.",
            "Nothing was imported. Update Inferdeck.",
        )
    chats = whole.get("chats")
    if not isinstance(chats, list):
        raise ChatFileError('"chats" is not a list.', _REMEDY)
    return [_bundle(chat, f"Chat {number}") for number, chat in enumerate(chats, start=1)]


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a valid JSON number")


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:  # what computes with it would fail
        raise ChatFileError(
            f"The file has an integer of {len(digits):,} digits; the limit is {MOST_DIGITS}.",
            _REMEDY,
        )
    return int(digits)


def _fields(record: StoredConversation | StoredMessage) -> dict[str, Any]:
    found = {}
    for item in dataclasses.fields(record):
        value = getattr(record, item.name)
        if item.name not in _NOT_WRITTEN and value != _default(item):
            found[item.name] = value
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
    except Exception as error:  # of any kind, from any file
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
                raise ValueError("duplicate id, or its parent does not precede it")
            if columns is not None:
                tokens[message.id] = ReplyTokens.from_columns(columns)
            if moments is not None:
                times[message.id] = from_columns(moments)
        except Exception as error:
            raise _refusal(f"{where}, message {number}", error) from error
        known.add(message.id)
        messages.append(message)
    if not messages:
        raise ChatFileError(f"{where} has no messages.", _REMEDY)
    return Bundle(conversation, tuple(messages), tokens, times)


def _refusal(where: str, error: Exception) -> ChatFileError:
    what = f"missing {error}" if isinstance(error, KeyError) else str(error)
    return ChatFileError(f"{where} is invalid: {what}.", _REMEDY)


_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str, "bool": bool, "int": int, "float": (int, float), "str | None": (str, type(None)),
    "Mapping[str, Any]": Mapping, "Mapping[str, Any] | None": (Mapping, type(None)),
    "Mapping[str, str] | None": (Mapping, type(None)), "float | None": (int, float, type(None)),
    "tuple[Mapping[str, str], ...]": tuple, "tuple[Mapping[str, Any], ...]": tuple,
}  # fmt: skip


def _check_types(record: StoredConversation | StoredMessage) -> None:
    """Raises ValueError with the name of a field of the wrong type."""
    for item in dataclasses.fields(record):
        value = getattr(record, item.name)
        if not isinstance(value, _TYPES[str(item.type)]):
            raise ValueError(f'"{item.name}" is {json.dumps(value)[:40]}')
        if isinstance(value, int | float) and not abs(value) < LARGEST_NUMBER:
            raise ValueError(f'"{item.name}" is {value:.3g}; it must be below {LARGEST_NUMBER:.0g}')
    for attachment in getattr(record, "attachments", ()):
        if not (
            isinstance(attachment, Mapping)
            and set(attachment) == {"name", "text"}
            and all(isinstance(value, str) for value in attachment.values())
        ):
            raise ValueError('an attachment needs "name" and "text" only')
