"""Titles of chats: the first words of the first message, then one from the model.

    first reply complete -> wait until nothing runs -> request of a few tokens -> title
                                       ^ anything that is sent or arrives cancels it
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer

from app.features.chat.conversation import NEW_TITLE, Conversation, Message, Role, State
from app.storage.model_sources import is_starter
from engine.messages import ChatMessages, OutputEvent, RequestFailed
from engine.sampling_params import SamplingParams
from engine.snapshot import BACKGROUND, EngineSnapshot
from widgets.chat.reasoning import split_reasoning, without_reasoning

if TYPE_CHECKING:
    from app.features.chat.controller import ChatController

TITLE_LENGTH = 48
MOST_WORDS = 8
"""A longer answer is a sentence, not a title."""
QUOTED = 600
"""Characters of each message that the model reads."""
IDLE_MS = 1500
"""Nothing has run for so long before a title is requested."""
PARAMS = SamplingParams(temperature=0.0, max_tokens=24)
_ASK = (
    "Write a title of at most six words for the conversation below. Answer with the title only.\n\n"
)
_MARKUP = re.compile(r"^[#>*\-\s`]+|[*_`]+")
_LABEL = re.compile(r"^(?:chat |conversation )?title\s*[:\-–]\s*", re.IGNORECASE)
_AROUND = "\"'“”‘’«»„`.,;: "


def title_of(text: str) -> str:
    """A title from the first line of a message, without markup, cut at a word."""
    return _cut(_first_line(text)) or NEW_TITLE


def clean_title(text: str) -> str:
    """A title from a model's answer; "" where the answer is none."""
    parts = split_reasoning(text)
    if parts.is_open:
        return ""
    line = _LABEL.sub("", _first_line(parts.answer)).strip(_AROUND)
    words = line.split()
    if not words or "<" in line or len(set(map(str.lower, words))) * 2 <= len(words):
        return ""  # markup, or one word again and again
    if len(words) > MOST_WORDS or max(map(len, words)) > TITLE_LENGTH // 2:
        return ""
    return _cut(line)


def _first_line(text: str) -> str:
    lines = [_MARKUP.sub("", line).strip() for line in text.splitlines()]
    return re.sub(r"\s+", " ", next((line for line in lines if line), ""))


def _cut(line: str) -> str:
    if len(line) <= TITLE_LENGTH:
        return line
    cut = line[:TITLE_LENGTH]
    return (cut[: cut.rindex(" ")] if " " in cut else cut).rstrip(" ,.;:") + "…"


def title_prompt(messages: Sequence[Message]) -> ChatMessages:
    names = {Role.USER: "User", Role.ASSISTANT: "Assistant"}
    said = (
        f"{names[message.role]}: {without_reasoning(message.text)[:QUOTED].strip()}"
        for message in messages
    )
    return ({"role": "user", "content": _ASK + "\n\n".join(said)},)


class Titles(QObject):
    """Names a chat after its first reply, while nothing else runs on the local engine. A title of
    the user is never replaced. `is_wanted`: the user's setting."""

    def __init__(self, controller: ChatController, is_wanted: Callable[[], bool]) -> None:
        super().__init__(controller)
        self._controller, self._is_wanted = controller, is_wanted
        self._engine = engine = controller.engine
        self._waiting: list[Conversation] = []
        self._asked: Conversation | None = None
        self._request_id, self._text = "", ""
        self._numbers = itertools.count(1)
        self._load = 0  # requests of others
        self._timer = QTimer(self, singleShot=True, interval=IDLE_MS)
        self._timer.timeout.connect(self._ask)
        controller.generation.reply_changed.connect(self._on_reply)
        controller.generation.started.connect(self.cancel)
        engine.snapshot.connect(self._on_snapshot)
        engine.outputs.connect(self._on_outputs)
        engine.request_failed.connect(self._on_failed)
        engine.state_changed.connect(lambda state: self._on_state())

    @property
    def may_ask(self) -> bool:
        """Whether the loaded model's titles are of use, and cost nobody anything."""
        model = self._engine.model
        return (
            self._is_wanted()
            and model is not None
            and model.has_chat_template
            and not (self._engine.is_remote or model.is_dummy or is_starter(model.path))
        )

    def cancel(self) -> None:
        """Stop a request under way; its chat waits again."""
        if self._asked is not None:
            self._waiting.append(self._asked)
            self._asked = None
            self._engine.abort(self._request_id)
        self._timer.stop()
        if self._waiting:
            self._timer.start()

    def close(self) -> None:
        self._timer.stop()
        self._waiting.clear()

    def _on_reply(self, conversation_id: str, reply_id: str) -> None:
        conversation = self._controller.conversation(conversation_id)
        if conversation is None or conversation in self._waiting or not self.may_ask:
            return
        reply = conversation.messages.get(reply_id)
        if reply is not None and reply.state is State.COMPLETE and _is_first(conversation):
            self._waiting.append(conversation)
            self._timer.start()

    def _ask(self) -> None:
        self._waiting = [one for one in self._waiting if _is_first(one) and self._is_there(one)]
        if not self._waiting or not self.may_ask:
            self._waiting.clear()
            return
        if self._asked is not None or self._load or self._controller.generation.num_open:
            self._timer.start()
            return
        conversation = self._asked = self._waiting.pop(0)
        self._request_id, self._text = f"{BACKGROUND}title-{next(self._numbers)}", ""
        self._engine.add_request(self._request_id, title_prompt(conversation.path()), PARAMS)

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        own = any(one.request_id == self._request_id for one in snapshot.requests)
        self._load = snapshot.num_running + snapshot.num_waiting - own
        if self._load and self._asked is not None:
            self.cancel()

    def _on_outputs(self, events: list[OutputEvent]) -> None:
        for event in events:
            if event.request_id == self._request_id and self._asked is not None:
                self._text += event.text
                if event.finish_reason is not None:
                    conversation, self._asked = self._asked, None
                    self._take(conversation)

    def _take(self, conversation: Conversation) -> None:
        title = clean_title(self._text)
        if title and conversation.title_is_automatic and self._is_there(conversation):
            conversation.title = title
            self._controller.saver.save_now(conversation)
            self._controller.list_changed.emit()
        if self._waiting:
            self._timer.start()

    def _on_failed(self, failed: RequestFailed) -> None:
        if failed.request_id == self._request_id:
            self._asked = None
            if self._waiting:
                self._timer.start()

    def _is_there(self, conversation: Conversation) -> bool:
        """Whether it was not deleted meanwhile."""
        return self._controller.conversation(conversation.id) is conversation

    def _on_state(self) -> None:
        if not self._engine.is_ready:
            self._asked, self._load = None, 0


def _is_first(conversation: Conversation) -> bool:
    """Whether it has one reply and no title of the user's."""
    replies = [m for m in conversation.messages.values() if m.role is Role.ASSISTANT]
    return conversation.title_is_automatic and len(replies) == 1 and bool(replies[0].text)
