"""The branches of a conversation as records for the overview. No Qt.

    user - reply - user - reply            one branch: nothing to choose
                 |
                 '- user' - reply          from a fork on, every version begins a branch

A branch runs from a version to the next fork, or to its end.
"""

from __future__ import annotations

from app.chat.conversation import Conversation, Message, Role
from widgets.chat.reasoning import without_reasoning
from widgets.chat.records import BranchRecord

TEXT_LENGTH = 80


def branch_records(conversation: Conversation) -> tuple[BranchRecord, ...]:
    """The branches that begin the conversation, each with those that follow it."""
    children: dict[str | None, list[Message]] = {}
    for message in conversation.messages.values():
        children.setdefault(message.parent_id, []).append(message)
    shown = {message.id for message in conversation.path()}
    made: dict[str, BranchRecord] = {}
    ends: dict[str, str] = {}  # message -> the end of what is shown when it is
    # a message comes after its parent: from the last to the first, what follows is made already
    for message in reversed(conversation.messages.values()):
        following = children.get(message.id, [])
        top = max(following, key=lambda m: m.shown, default=None)
        ends[message.id] = message.id if top is None else ends[top.id]
        versions = children[message.parent_id]
        record = BranchRecord(
            message.id, ends[message.id], _title(message), message.created, 1,
            versions.index(message) + 1, len(versions), message.id in shown,
            tuple(made.pop(m.id) for m in following) if len(following) > 1 else (),
        )  # fmt: skip
        if len(following) == 1:
            after = made.pop(following[0].id)
            record = record._replace(num_messages=1 + after.num_messages, branches=after.branches)
        made[message.id] = record
    return tuple(made[message.id] for message in children.get(None, []))


def _title(message: Message) -> str:
    who = "You: " if message.role is Role.USER else "Reply: "
    text = " ".join(without_reasoning(message.text)[: 4 * TEXT_LENGTH].split())
    return who + (text if len(text) <= TEXT_LENGTH else text[:TEXT_LENGTH].rstrip() + "…")
