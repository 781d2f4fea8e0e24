"""The current branch of a chat as markdown, and back. No Qt.

# Title                           A comment, which no renderer shows, names the kind of each part,
                                  so that headings inside a message are never taken for the next
<!-- inferdeck: user -->          message.
## You

What is paging?
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from app.features.chat.attachments import fence_for
from app.features.chat.conversation import Conversation, Message, Role, new_id
from app.features.chat.figures import note_of
from app.features.chat.files import Bundle, ChatFileError
from app.storage import StoredConversation, StoredMessage
from widgets.chat.reasoning import BEGIN, END, split_reasoning

MARK = re.compile(r"^<!-- inferdeck: (\w+) -->\n", re.MULTILINE)
_MARK_IN_TEXT, _HIDDEN = "<!-- inferdeck:", "<!-- inferdeck\\:"
_DETAILS, _DETAILS_END = "<details><summary>Reasoning</summary>\n\n", "\n\n</details>"
_USED = "Last used %Y-%m-%d %H:%M."


def as_markdown(bundle: Bundle) -> str:
    """Title, system prompt, then every message under its author."""
    conversation = Conversation.from_record(bundle.conversation)
    conversation.load(bundle.messages)
    path = conversation.path()
    others = len(conversation.messages) - len(path)
    note = datetime.fromtimestamp(conversation.updated).strftime(_USED)
    if others:
        count = "1 message" if others == 1 else f"{others:,} messages"
        note += f" Not in this file: {count} from other branches."
    parts = [f"# {conversation.title}", note]
    if conversation.system_prompt.strip():
        parts.append(_part("system", f"## System prompt\n\n{conversation.system_prompt.strip()}"))
    for message in path:
        parts += _message(message)
    return "\n\n".join(parts) + "\n"


def _message(message: Message) -> list[str]:
    if message.role is Role.USER:
        asked = _part("user", f"## You\n\n{message.text}")
        return [asked, *(_part("file", _attachment(a)) for a in message.attachments)]
    name = message.figures.model if message.figures and message.figures.model else "Reply"
    thought, answer, _ = split_reasoning(message.text)
    parts = [_part("reply", f"## {name}")]
    if thought:
        parts.append(_part("reasoning", f"{_DETAILS}{thought}{_DETAILS_END}"))
    if answer.strip():
        parts.append(_part("text", answer.strip()))
    if note_of(message.passages):
        parts.append(_part("note", f"*{note_of(message.passages)}*"))
    if message.error is not None:
        parts.append(_part("note", f"*{message.error.cause} {message.error.remedy}*"))
    return parts


def _part(kind: str, text: str) -> str:
    return f"<!-- inferdeck: {kind} -->\n{text.replace(_MARK_IN_TEXT, _HIDDEN)}"


def _attachment(attachment: Mapping[str, str]) -> str:
    fence = fence_for(attachment["text"])
    return f"Attached: {attachment['name']}\n\n{fence}\n{attachment['text']}\n{fence}"


def from_markdown(text: str) -> Bundle:
    """The chat in such a file: one branch. Raises ChatFileError."""
    head, *rest = MARK.split(text.replace("\r\n", "\n"))
    sections = zip(rest[::2], rest[1::2], strict=True)
    title, _, note = head.partition("\n")
    used = _used(note.strip())
    chat = StoredConversation(
        new_id(), title.removeprefix("#").strip(), False, "", {}, "", used, used
    )
    messages: list[StoredMessage] = []
    for kind, body in sections:
        body = body.removesuffix("\n").removesuffix("\n").replace(_HIDDEN, _MARK_IN_TEXT)
        if kind == "system":
            chat = replace(chat, system_prompt=_below(body))
        elif kind in ("user", "reply"):
            parent = messages[-1].id if messages else None
            role = Role.USER if kind == "user" else Role.ASSISTANT
            messages.append(
                StoredMessage(new_id(), chat.id, parent, role.value, _below(body), created=used)
            )
        elif messages:
            messages[-1] = _with(messages[-1], kind, body)
    if not messages:
        raise ChatFileError(
            "This Markdown file contains no chat messages.",
            "Nothing was imported. Choose a file exported by Inferdeck.",
        )
    return Bundle(chat, tuple(messages))


def _with(message: StoredMessage, kind: str, body: str) -> StoredMessage:
    """A message with another part appended; notes are left out."""
    if kind == "text":
        return replace(message, text=message.text + body)
    if kind == "reasoning":
        thought = body.removeprefix(_DETAILS).removesuffix(_DETAILS_END)
        return replace(message, text=f"{BEGIN}\n{thought}\n{END}\n\n{message.text}")
    if kind == "file":
        first, _, fenced = body.partition("\n\n")
        lines = fenced.split("\n")
        given = {"name": first.removeprefix("Attached: "), "text": "\n".join(lines[1:-1])}
        return replace(message, attachments=(*message.attachments, given))
    return message


def _below(body: str) -> str:
    return body.partition("\n\n")[2]


def _used(note: str) -> float:
    """Time of last use; now if the file lacks it."""
    try:
        return datetime.strptime(note.partition(".")[0] + ".", _USED).timestamp()
    except (ValueError, OverflowError):
        return time.time()
