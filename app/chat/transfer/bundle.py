"""A conversation with all that belongs to it, out of the store and into it again. No Qt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from app.chat.conversation import new_id
from app.chat.times import pack_times, unpack_times
from app.chat.tokens import ReplyTokens
from app.storage import ChatStore, StoredConversation, StoredMessage
from app.storage.records import INTERRUPTED, STREAMING, WAITING
from engine.snapshot import RequestTimes


@dataclass(frozen=True, slots=True)
class Bundle:
    """`messages` in the order in which they were made, every version of them; `tokens` and
    `times` (of when they came) of the replies that have them, by the reply's id."""

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
    messages = tuple(found.values())
    tokens = {}
    for message_id in store.messages_with_tokens(conversation.id):
        packed = store.packed_tokens(message_id)
        if packed is not None:
            tokens[message_id] = ReplyTokens.unpack(packed)
    times = {}
    for message_id in store.messages_with_times(conversation.id):
        packed = store.packed_times(message_id)
        if packed is not None:
            with suppress(ValueError):  # the chat is worth more than these
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
        store.save_tokens(message_id, tokens.pack).result()
    for message_id, times in bundle.times.items():
        store.save_times(message_id, partial(pack_times, times)).result()
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
