"""The user's own requests as a workload: those of chats, and those that the server has seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from app.bench.workload import Workload, of_lines
from app.features.chat.conversation import Conversation
from app.server.call_log import CallLog
from app.storage import ChatStore
from engine.evaluate.task import PromptLine, TextError

MOST = 256
"""Requests of a workload: the latest."""
Request = tuple[Any, int]
"""A prompt, text or messages, and the tokens of its reply."""


class Source(NamedTuple):
    """`read` raises TextError where there are none."""

    title: str
    read: Callable[[], Workload]


def of_chats(store: ChatStore) -> Source:
    """Each reply that has ended: the messages before it, and as many tokens as it had."""

    def found() -> Iterable[Request]:
        for record in store.conversations():
            conversation = Conversation.from_record(record)
            conversation.load(store.messages(record.id))
            for message in reversed(conversation.messages.values()):
                if message.figures is not None and message.figures.num_tokens:
                    yield conversation.prompt_for(message), message.figures.num_tokens

    return _source("Prompts of chats", found, "No chat has a reply.", "Chat, then try again.")


def of_calls(calls: CallLog) -> Source:
    """Each call whose content was kept whole."""

    def found() -> Iterable[Request]:
        for record in reversed(calls.since(0)):
            content = calls.content(record.number)
            if content is None or not record.num_tokens:
                continue
            try:
                body = json.loads(content.request)
                prompt = _prompt(body["messages"] if "messages" in body else body["prompt"])
            except (ValueError, KeyError, TypeError):
                continue  # cut, or of another kind
            yield prompt, record.num_tokens

    return _source(
        "Prompts of server calls", found, "No prompts were recorded.",
        "Check Keep content on the Server page, then call the server.",
    )  # fmt: skip


def _source(title: str, found: Callable[[], Iterable[Request]], cause: str, remedy: str) -> Source:
    def read() -> Workload:
        latest = list(islice(found(), MOST))[::-1]
        if not latest:
            raise TextError(cause, remedy)
        lines = [PromptLine(place, *one) for place, one in enumerate(latest, 1)]
        return of_lines(title, lines, "In the order in which they were sent, repeated.")

    return Source(title, read)


def _prompt(told: Any) -> Any:
    """Raises TypeError for an empty one, one of token ids or one with images."""
    if not told:
        raise TypeError("empty")
    if isinstance(told, str):
        return told
    messages = tuple({"role": one["role"], "content": one["content"]} for one in told)
    if not all(isinstance(text, str) for one in messages for text in one.values()):
        raise TypeError("not text")
    return messages
