"""The branch of a chat that is on the screen, as markdown for people. No Qt."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from app.chat.attachments import fence_for
from app.chat.conversation import Conversation, Message, Role
from app.chat.passages import note_of
from app.chat.transfer.bundle import Bundle
from widgets.chat.reasoning import split_reasoning


def as_markdown(bundle: Bundle) -> str:
    """Title, system prompt, then every message under the name of who wrote it."""
    conversation = Conversation.from_record(bundle.conversation)
    conversation.load(bundle.messages)
    path = conversation.path()
    others = len(conversation.messages) - len(path)
    when = datetime.fromtimestamp(conversation.updated).strftime("%Y-%m-%d %H:%M")
    note = f"Last used {when}."
    if others:
        count = "1 message" if others == 1 else f"{others:,} messages"
        note += f" Not in this file: {count} of other branches."
    parts = [f"# {conversation.title}", note]
    if conversation.system_prompt.strip():
        parts += ["## System prompt", conversation.system_prompt.strip()]
    for message in path:
        parts += _message(message)
    return "\n\n".join(parts) + "\n"


def _message(message: Message) -> list[str]:
    if message.role is Role.USER:
        return ["## You", message.text, *(_attachment(a) for a in message.attachments)]
    name = message.figures.model if message.figures and message.figures.model else "Reply"
    thought, answer, _ = split_reasoning(message.text)
    parts = [f"## {name}"]
    if thought:
        parts.append(f"<details><summary>Reasoning</summary>\n\n{thought}\n\n</details>")
    if answer.strip():
        parts.append(answer.strip())
    if note_of(message.passages):
        parts.append(f"*{note_of(message.passages)}*")
    if message.error is not None:
        parts.append(f"*{message.error.cause} {message.error.remedy}*")
    return parts


def _attachment(attachment: Mapping[str, str]) -> str:
    fence = fence_for(attachment["text"])
    return f"Attached: {attachment['name']}\n\n{fence}\n{attachment['text']}\n{fence}"
