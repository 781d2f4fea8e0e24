"""A conversation as a tree of messages, with its sampling parameters. No Qt.

    user 1 -- assistant 1
           '- assistant 2 (regenerated)  <- shown
    user 1' (edited) -- assistant 3

Messages with the same parent are versions of one another, in the order in which they were made;
the one with the greatest `shown` is on the screen. The path is the chain of shown messages.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from app.features.chat.attachments import message_content
from app.features.chat.figures import Figures
from app.storage.records import StoredConversation, StoredMessage
from engine.errors import ErrorInfo
from engine.messages import ChatMessages
from engine.sampling_params import PARAMETERS, Control, SamplingParams
from widgets.tokens.record import TokenRecord

CONTROLS: dict[str, Control] = {
    name: parameter.control for name, parameter in PARAMETERS.items() if parameter.control
}
"""Parameters that the chat shows as numbers, in order."""

NUM_ALTERNATIVES = 5
DEFAULT = SamplingParams(logprobs=NUM_ALTERNATIVES)
"""Of a chat. Top logprobs cost below 1 ms per step and request with a vocabulary of 150,000 tokens
on one core, in proportion to it."""

_SAVED = (*CONTROLS, "stop")

NEW_TITLE = "New chat"


class Role(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"


class State(StrEnum):
    COMPLETE = "complete"
    WAITING = "waiting"  # to be stored, or for a model
    STREAMING = "streaming"
    STOPPED = "stopped"  # by the user
    INTERRUPTED = "interrupted"  # the program ended
    ERROR = "error"

    @property
    def is_open(self) -> bool:
        """Whether it is queued or generating."""
        return self in _OPEN


_OPEN = frozenset((State.WAITING, State.STREAMING))


def new_id() -> str:
    return uuid.uuid4().hex


class Passage(NamedTuple):
    """Generated in `precision` from the character `start` on, after `num_tokens` tokens."""

    start: int
    num_tokens: int
    precision: str

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Passage:
        """Raises KeyError, TypeError or ValueError for what `_asdict` did not give."""
        start, num_tokens = int(stored["start"]), int(stored["num_tokens"])
        if start < 0 or num_tokens < 0 or not isinstance(stored["precision"], str):
            raise ValueError(f"invalid passage: {dict(stored)}")
        return cls(start, num_tokens, stored["precision"])


Passages = tuple[Passage, ...]


def followed(passages: Passages, text: str, num_tokens: int, precision: str) -> Passages:
    """`passages` of a reply that has `text` so far and continues in `precision`."""
    last = passages[-1] if passages else None
    if last is not None and last.precision == precision:
        return passages
    if last is not None and last.num_tokens == num_tokens:  # nothing was written in it
        return followed(passages[:-1], text, num_tokens, precision)
    return (*passages, Passage(len(text), num_tokens, precision))


def passages_before(passages: Passages, num_tokens: int) -> Passages:
    """Passages that begin within the first `num_tokens` tokens."""
    return tuple(p for p in passages if p.num_tokens < num_tokens)


@dataclass(slots=True)
class Message:
    """`opening`: tokens that a reply keeps from the version that it branches from; not stored.
    `attachments`: files of a user's message, each a "name" and a "text". `passages`: which part of
    a reply was generated in which precision."""

    conversation_id: str
    parent_id: str | None
    role: Role
    text: str = ""
    state: State = State.COMPLETE
    shown: int = 0
    figures: Figures | None = None
    error: ErrorInfo | None = None
    id: str = field(default_factory=new_id)
    created: float = field(default_factory=time.time)
    opening: tuple[TokenRecord, ...] = ()
    attachments: tuple[Mapping[str, str], ...] = ()
    passages: Passages = ()

    def record(self) -> StoredMessage:
        return StoredMessage(
            self.id, self.conversation_id, self.parent_id, self.role.value, self.text,
            self.state.value, self.shown, self.created,
            asdict(self.figures) if self.figures else None,
            self.error._asdict() if self.error else None, self.attachments,
            tuple(passage._asdict() for passage in self.passages),
        )  # fmt: skip

    @classmethod
    def from_record(cls, record: StoredMessage) -> Message:
        return cls(
            record.conversation_id, record.parent_id, Role(record.role), record.text,
            State(record.state), record.shown,
            Figures.from_dict(record.figures) if record.figures else None,
            ErrorInfo(**msgspec.convert(record.error, dict[str, str])) if record.error else None,
            record.id, record.created, attachments=record.attachments,
            passages=tuple(Passage.of(passage) for passage in record.passages),
        )  # fmt: skip


@dataclass(slots=True, weakref_slot=True)
class Conversation:
    """`is_stored` is False until its first message was saved. `draft`: text that was
    typed and not sent yet, as last saved."""

    title: str = NEW_TITLE
    title_is_automatic: bool = True
    system_prompt: str = ""
    sampling: SamplingParams = DEFAULT
    preset: str = ""
    id: str = field(default_factory=new_id)
    created: float = field(default_factory=time.time)
    updated: float = field(default_factory=time.time)
    is_stored: bool = False
    is_pinned: bool = False
    is_archived: bool = False
    messages: dict[str, Message] = field(default_factory=dict)
    draft: str = ""

    def record(self) -> StoredConversation:
        return StoredConversation(
            self.id, self.title, self.title_is_automatic, self.system_prompt,
            sampling_to_dict(self.sampling), self.preset, self.created, self.updated,
            is_pinned=self.is_pinned, is_archived=self.is_archived,
        )  # fmt: skip

    @classmethod
    def from_record(cls, record: StoredConversation) -> Conversation:
        return cls(
            record.title, record.title_is_automatic, record.system_prompt,
            sampling_from_dict(record.sampling), record.preset, record.id, record.created,
            record.updated, is_stored=True, is_pinned=record.is_pinned,
            is_archived=record.is_archived,
        )  # fmt: skip

    def load(self, records: Iterable[StoredMessage]) -> None:
        self.messages = {record.id: _message(record) for record in connected(records)}

    # The tree --------------------------------------------------------------------------------

    def versions(self, parent_id: str | None) -> list[Message]:
        """Messages that follow `parent_id` (None: the first messages), oldest first."""
        return [m for m in self.messages.values() if m.parent_id == parent_id]

    def path(self) -> list[Message]:
        """The messages on the screen, first to last."""
        children: dict[str | None, Message] = {}
        for message in self.messages.values():
            best = children.get(message.parent_id)
            if best is None or message.shown > best.shown:
                children[message.parent_id] = message
        found: list[Message] = []
        parent: str | None = None
        while (message := children.get(parent)) is not None:  # type: ignore[assignment]
            found.append(message)
            parent = message.id
        return found

    def path_to(self, message_id: str | None) -> list[Message]:
        """The chain of messages that ends with `message_id`, first to last."""
        found: list[Message] = []
        while message_id is not None:
            message = self.messages[message_id]
            found.append(message)
            message_id = message.parent_id
        return found[::-1]

    def version_of(self, message: Message) -> tuple[int, int]:
        """(its number from 1, number of versions)."""
        return self.numbering()[message.id]

    def numbering(self) -> dict[str, tuple[int, int]]:
        """`version_of` for all messages together."""
        families: dict[str | None, list[str]] = {}
        for message in self.messages.values():
            families.setdefault(message.parent_id, []).append(message.id)
        return {
            message_id: (number, len(family))
            for family in families.values()
            for number, message_id in enumerate(family, 1)
        }

    def add(
        self,
        role: Role,
        parent_id: str | None,
        text: str = "",
        attachments: tuple[Mapping[str, str], ...] = (),
    ) -> Message:
        """Append a message as the shown version after `parent_id`. A reply starts in the state
        WAITING."""
        state = State.WAITING if role is Role.ASSISTANT else State.COMPLETE
        shown = 1 + max((m.shown for m in self.versions(parent_id)), default=0)
        message = Message(self.id, parent_id, role, text, state, shown, attachments=attachments)
        self.messages[message.id] = message
        return message

    def show(self, message: Message) -> dict[str, int]:
        """Show the branch with `message`; returns the changed `shown` values."""
        changed: dict[str, int] = {}
        for step in self.path_to(message.id):
            top = max(self.versions(step.parent_id), key=lambda m: m.shown)
            if top is not step:
                step.shown = changed[step.id] = top.shown + 1
        return changed

    # For the controller ------------------------------------------------------------------------

    @property
    def last(self) -> Message | None:
        path = self.path()
        return path[-1] if path else None

    @property
    def open_replies(self) -> list[Message]:
        """Replies of any version that are waiting or streaming."""
        # of thousands of messages, several times a second: `is_open` takes thirteen times as long
        return [m for m in self.messages.values() if m.state in _OPEN]

    def prompt_for(self, reply: Message) -> ChatMessages:
        """The prompt of `reply`: system prompt and the messages before it.

        Empty replies (an error, stopped at once) are left out and the messages around them joined:
        many chat templates require alternating roles.
        """
        chain = [m for m in self.path_to(reply.parent_id) if m.text or m.role is Role.USER]
        entries: list[dict[str, str]] = []
        for message in chain:
            content = message.text
            if message.attachments:
                content = message_content(content, message.attachments)
            if entries and entries[-1]["role"] == message.role.value:
                entries[-1]["content"] += "\n\n" + content
            else:
                entries.append({"role": message.role.value, "content": content})
        if self.system_prompt.strip():
            entries.insert(0, {"role": "system", "content": self.system_prompt})
        return tuple(entries)


def num_context_tokens(path: Sequence[Message]) -> int | None:
    """Tokens of prompt and reply of the last reply of `path` with figures."""
    for message in reversed(path):
        if message.figures is not None:
            return message.figures.num_context_tokens
    return None


def unanswered(path: Sequence[Message]) -> list[str]:
    """Messages after that reply that were refused or failed: the next prompt contains them."""
    texts: list[str] = []
    for message in reversed(path):
        if message.figures is not None:
            break
        if message.text or message.attachments:
            texts.append(message_content(message.text, message.attachments))
    return texts[::-1]


def is_cut(message: Message) -> bool:
    """Whether a reply ended before the model ended it: stopped, at its limit, by an error, or with
    the program."""
    if message.role is not Role.ASSISTANT or not message.text:
        return False
    figures = message.figures
    at_limit = figures is not None and figures.finish_reason == "length"
    return message.state in (State.STOPPED, State.INTERRUPTED, State.ERROR) or (
        message.state is State.COMPLETE and at_limit
    )


def connected(records: Iterable[StoredMessage]) -> list[StoredMessage]:
    """In the given order, but each after its parent: what was written during a recovery is stored
    before what was recovered. A damaged file may have messages of unknown parents, or in a circle:
    each of those, and one of a circle, follows the message that was stored before it."""
    found = {record.id: record for record in records}
    placed: dict[str, StoredMessage] = {}
    waiting: dict[str, list[StoredMessage]] = {}  # by the id of the parent

    def place(record: StoredMessage) -> None:
        following = [record]
        while following:
            record = following.pop()
            if record.id not in placed:
                placed[record.id] = record
                following += reversed(waiting.pop(record.id, ()))

    for record in found.values():
        if record.parent_id is None or record.parent_id in placed:
            place(record)
        else:
            waiting.setdefault(record.parent_id, []).append(record)
    for in_circles in (False, True):
        before: str | None = None
        for record in found.values():
            if record.id not in placed and (in_circles or record.parent_id not in found):
                place(replace(record, parent_id=before))
            if record.id in placed:
                before = record.id
    return list(placed.values())


def _message(record: StoredMessage) -> Message:
    """The text alone where the rest is damaged: one message must not hide the others."""
    try:
        return Message.from_record(record)
    except (TypeError, ValueError, KeyError, msgspec.ValidationError):
        role = record.role if record.role in list(Role) else Role.ASSISTANT
        state = record.state if record.state in list(State) else State.COMPLETE
        plain = replace(
            record, role=role, state=state, figures=None, error=None, attachments=(), passages=()
        )
        return Message.from_record(plain)


def sampling_to_dict(params: SamplingParams) -> dict[str, Any]:
    """The parameters that differ from `DEFAULT`, as plain data."""
    found = {
        name: getattr(params, name)
        for name in _SAVED
        if getattr(params, name) != getattr(DEFAULT, name)
    }
    if "stop" in found:
        found["stop"] = list(found["stop"])
    return found


def sampling_from_dict(values: Mapping[str, Any]) -> SamplingParams:
    """Unknown names are ignored. Raises InvalidRequestError for a value out of range."""
    known = {name: values[name] for name in _SAVED if name in values}
    return dataclasses.replace(DEFAULT, **known)
