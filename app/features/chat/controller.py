"""`ChatController`: sends messages, edits, branches and settings of chats. The page shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from app.features.chat.attachments import Attachment
from app.features.chat.continuation import Continuation
from app.features.chat.conversation import (
    Conversation,
    Message,
    Role,
    State,
    num_context_tokens,
    passages_before,
    sampling_to_dict,
)
from app.features.chat.figures import Figures
from app.features.chat.generation import Generation
from app.features.chat.library import ChatLibrary
from app.features.chat.reply_data import ReplyTokens
from app.features.chat.sampling import Preset, with_field
from app.features.chat.saving import storable
from app.features.chat.state_watch import StateWatch
from app.features.chat.titles import Titles, title_of
from app.link.bridge import EngineBridge
from app.link.change_watch import ChangeWatch
from app.storage import ChatStore, StorageError
from engine.sampling_params import SamplingParams
from engine.snapshot import BACKGROUND

BUSY = "Wait for the running reply to finish, or stop it."


class ChatController(ChatLibrary):
    """The user's text is stored before it is sent. `generation` writes the replies. Signals carry
    ids: of the conversation, then of the message."""

    def __init__(
        self,
        engine: EngineBridge,
        store: ChatStore,
        changes: ChangeWatch | None = None,
        name_of: Callable[[str], str] | None = None,
        wants_titles: Callable[[], bool] = lambda: False,
    ) -> None:
        """`name_of`: how the user knows a request, also one that is no reply; `wants_titles`:
        whether the model names chats."""
        super().__init__(store)
        self.engine = engine
        changes = changes or ChangeWatch(engine, self)
        self.generation = Generation(engine, self, changes, name_of or self.title_of)
        self.continuation = Continuation(self)
        self.titles = Titles(self, wants_titles)
        self.states = StateWatch(engine, changes, self)
        self.states.changed.connect(lambda: self.generation.show_states(self.states.text))

    def close(self) -> None:
        """Save what is being generated. The store is closed by its owner, afterwards."""
        self.titles.close()
        self.generation.save_tokens()
        self.saver.close()

    # What there is ---------------------------------------------------------------------------

    def title_of(self, reply_id: str) -> str:
        if reply_id.startswith(BACKGROUND):
            return "Chat title"
        conversation = self.generation.conversation_of(reply_id)
        return conversation.title if conversation is not None else reply_id[:8]

    @property
    def is_busy(self) -> bool:
        """Whether a reply of the current conversation is queued or generating."""
        return bool(self.current.open_replies)

    @property
    def context(self) -> tuple[int | None, int | None]:
        """(tokens used by the current conversation, tokens of the model's context)."""
        config, model = self.engine.config, self.engine.model
        limit = config.max_model_len if config is not None else None
        if limit is None and model is not None:
            limit = model.max_model_len or None  # 0: not reported by its server
        for reply in self.current.open_replies:
            progress = self.generation.progress(reply.id)
            if progress is not None and progress.num_prompt_tokens:
                written = len(reply.opening) + progress.num_tokens
                return progress.num_prompt_tokens + written, limit
        return num_context_tokens(self.current.path()), limit

    # Messages --------------------------------------------------------------------------------

    def send(self, text: str, attachments: Sequence[Attachment] = (), left: str = "") -> bool:
        """Store `text` and files, then generate a reply; `left` stays as the draft. False while a
        reply is open."""
        text = storable(text).strip()
        if not (text or attachments) or self.is_busy:
            return False
        last = self.current.last
        stored = tuple(attachment._asdict() for attachment in attachments)
        self.current.draft = storable(left)  # stored together with what is sent
        self._ask(self.current, last.id if last else None, text, stored)
        return True

    def keep_exchange(
        self,
        prompt: str,
        text: str,
        state: State,
        sampling: SamplingParams,
        figures: Figures | None,
        tokens: ReplyTokens | None,
    ) -> None:
        """Make a conversation of a prompt and a reply from elsewhere, and open it. `tokens`: all of
        the reply's, or none."""
        made = Conversation(sampling=sampling, title=title_of(prompt))
        user = made.add(Role.USER, None, storable(prompt))
        reply = made.add(Role.ASSISTANT, user.id, text)
        reply.state, reply.figures = state, figures
        future = self._store.add_messages(made.record(), user.record(), reply.record())
        self._loaded.add(made.id)
        self._conversations[made.id] = made
        self.saver.watch(future, partial(self._after_keeping, made))
        if tokens is not None:
            self.tokens.keep(reply.id, tokens)
        self.list_changed.emit()
        self.open(made.id)

    def _after_keeping(self, made: Conversation, error: StorageError | None) -> None:
        """Show it even if saving failed, marked as not stored."""
        self.saver.report(error)
        made.is_stored = error is None
        self.list_changed.emit()

    def edit(self, message_id: str, text: str) -> None:
        """Send another version of a user's message, with the same files. The previous version keeps
        its replies."""
        message = self.current.messages.get(message_id)
        text = storable(text).strip()
        if message is not None and message.role is Role.USER and text and not self.is_busy:
            self._ask(self.current, message.parent_id, text, message.attachments)

    def regenerate(self, message_id: str = "") -> None:
        """Generate another version of a reply (the last one by default)."""
        conversation = self.current
        message = conversation.messages.get(message_id) if message_id else conversation.last
        if message is None or self.is_busy:
            return
        asked = message.id if message.role is Role.USER else message.parent_id
        reply = conversation.add(Role.ASSISTANT, asked)
        self._store_and_start(conversation, "", reply)

    def branch_refusal(self, message_id: str) -> str:
        """Why no branch can start from a token of this reply now, or ""."""
        tokens = self.tokens.of(message_id)
        model = self.engine.model
        if tokens is None:
            return "No tokens were saved for this reply."
        if self.is_busy:
            return BUSY
        if model is None:
            return "Open a model first."
        if model.name != tokens.model:
            return f"Generated by {tokens.model}, but {model.name} is loaded."
        return ""

    def branch_from_token(self, message_id: str, index: int, token_id: int) -> None:
        """Generate another version of a reply: the same tokens before `index`, then `token_id`, one
        of the choices there."""
        message, tokens = self.current.messages.get(message_id), self.tokens.of(message_id)
        if message is None or tokens is None or self.branch_refusal(message_id):
            return
        reply = self.current.add(Role.ASSISTANT, message.parent_id)
        reply.opening = tokens.opening(index, token_id)
        reply.passages = passages_before(message.passages, index)
        self._store_and_start(self.current, "", reply)

    def stop(self) -> None:
        self._stop(self.current)

    def _stop(self, conversation: Conversation) -> None:
        self.generation.stop(conversation)
        for reply in conversation.open_replies:
            if reply.state is State.WAITING:  # for the store: it will not be sent
                reply.state = State.STOPPED
                self.saver.touch(reply)
                self.generation.reply_changed.emit(conversation.id, reply.id)

    def step_version(self, message_id: str, step: int) -> None:
        """Show the previous (-1) or the next (+1) version of a message."""
        message = self.current.messages.get(message_id)
        if message is not None:
            versions = self.current.versions(message.parent_id)
            position = versions.index(message) + step
            if 0 <= position < len(versions):
                self._show_version(versions[position])

    def _ask(
        self,
        conversation: Conversation,
        parent_id: str | None,
        text: str,
        attachments: tuple[Mapping[str, str], ...] = (),
    ) -> None:
        if conversation.title_is_automatic and not conversation.messages:
            conversation.title = title_of(text or attachments[0]["name"])
        user = conversation.add(Role.USER, parent_id, text, attachments)
        reply = conversation.add(Role.ASSISTANT, user.id)
        self._store_and_start(conversation, text, user, reply)

    def _store_and_start(self, conversation: Conversation, text: str, *messages: Message) -> None:
        conversation.updated, conversation.is_archived = time.time(), False
        records = [message.record() for message in messages]
        future = self._store.add_messages(
            conversation.record(), *records, unsent=conversation.draft
        )
        done = partial(self._after_store, conversation, text, messages)
        self._loaded.add(conversation.id)
        self._conversations[conversation.id] = conversation
        self.messages_changed.emit(conversation.id)
        self.list_changed.emit()
        self.saver.watch(future, done)

    def _after_store(
        self,
        conversation: Conversation,
        text: str,
        messages: tuple[Message, ...],
        error: StorageError | None,
    ) -> None:
        """Generate a reply if the message was stored; else give the text back."""
        self.saver.report(error)
        reply = messages[-1]
        if error is None:
            conversation.is_stored = True
            if reply.state is State.WAITING:  # not stopped meanwhile
                self.generation.start(conversation, reply)
            return
        for message in messages:
            conversation.messages.pop(message.id, None)
        if not conversation.is_stored:
            self._conversations.pop(conversation.id, None)
            conversation.title = Conversation().title
        self.messages_changed.emit(conversation.id)
        self.list_changed.emit()
        given = [Attachment(**stored) for stored in messages[0].attachments]
        if text or given:
            self.text_returned.emit(self._reachable(conversation).id, text, given)

    # Settings --------------------------------------------------------------------------------

    def set_system_prompt(self, text: str) -> None:
        if text != self.current.system_prompt:
            self.current.system_prompt = storable(text)
            self._settings_changed()

    def set_sampling(self, name: str, value: Any) -> None:
        self.current.sampling = with_field(self.current.sampling, name, value)
        same = [p.name for p in self.presets if p.params == self.current.sampling]
        self.current.preset = same[0] if same else ""
        self._settings_changed()

    def apply_preset(self, name: str) -> None:
        for preset in self.presets:
            if preset.name == name:
                self.current.sampling, self.current.preset = preset.params, name
                self._settings_changed()

    def save_preset(self, name: str) -> None:
        """Save the current sampling settings under `name`. Built-in names are refused."""
        name = " ".join(name.split())
        if not name or any(p.name.lower() == name.lower() and not p.is_own for p in self.presets):
            return
        params = self.current.sampling
        self.presets = [p for p in self.presets if p.name != name]
        self.presets.append(Preset(name, "Custom preset.", params, is_own=True))
        save = partial(self._store.save_preset, name, sampling_to_dict(params))
        self.saver.submit(f"preset {name}", save)
        self.current.preset = name
        self._settings_changed()
        self.presets_changed.emit()

    def delete_preset(self, name: str) -> None:
        """Delete one of the user's presets; conversations keep their settings."""
        if any(p.name == name and p.is_own for p in self.presets):
            self.presets = [p for p in self.presets if p.name != name]
            self.saver.submit(f"preset {name}", partial(self._store.delete_preset, name))
            if self.current.preset == name:
                self.current.preset = ""
                self._settings_changed()
            self.presets_changed.emit()

    def _settings_changed(self) -> None:
        if self.current.is_stored:
            self.saver.touch(self.current)
        self.settings_changed.emit(self.current.id)
