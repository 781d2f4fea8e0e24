"""`ChatController`: everything that one can do with chats. The page shows it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from PySide6.QtCore import QObject, Signal

from app.chat.conversation import Conversation, Message, Role, State, title_of
from app.chat.engine import ChatEngine
from app.chat.generation import Generation
from app.chat.sampling import (
    DEFAULT_PRESET,
    Preset,
    built_in_presets,
    sampling_from_dict,
    sampling_to_dict,
    with_field,
)
from app.chat.saver import Saver
from app.chat.tokens import TokenKeeper
from app.storage import ChatStore, StorageError, StoredConversation
from engine.errors import ErrorInfo, InferdeckError


class Found(NamedTuple):
    """A conversation that a search found; `message_id` is "" where its title was hit."""

    conversation: Conversation
    message_id: str
    snippet: str
    marks: tuple[tuple[int, int], ...]


class ChatController(QObject):
    """Conversations, the one on the screen (`current`, perhaps not stored yet), and actions.

    The user's text is stored before it is sent. Signals carry ids: of the conversation, then of
    the message.
    """

    list_changed = Signal()
    current_changed = Signal()
    messages_changed = Signal(str)  # which messages are on the screen
    message_changed = Signal(str, str)  # state or figures of one
    text_appended = Signal(str, str, str)
    text_returned = Signal(str, str)  # what could not be stored, back to the composer
    settings_changed = Signal(str)  # system prompt, sampling
    presets_changed = Signal()
    deleted = Signal(str, str)  # id, title: can be undone until `purge`
    archived_one = Signal(str, str)  # id, title
    engine_changed = Signal()
    problem_changed = Signal(object)  # ErrorInfo: chats are not saved; None: they are again

    def __init__(self, engine: ChatEngine, store: ChatStore, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.engine = engine
        self._store = store
        self._saver = Saver(store, self)
        self.tokens = TokenKeeper(store, self._saver)
        self._generation = Generation(engine, self._saver, self.tokens, self)
        self._presets: list[Preset] = built_in_presets()
        self._conversations: dict[str, Conversation] = {}
        self._deleted: dict[str, Conversation] = {}
        self._loaded: set[str] = set()  # conversations whose messages were read
        try:
            for record in store.conversations():
                self._conversations[record.id] = Conversation.from_record(record)
            self._presets += _own_presets(store)
        except InferdeckError as error:
            self._report_read(error)
        self.current = self._draft()
        self._generation.text_appended.connect(self.text_appended)
        self._generation.reply_changed.connect(self.message_changed)
        self._saver.problem_changed.connect(self.problem_changed)
        engine.state_changed.connect(lambda state: self.engine_changed.emit())

    def close(self) -> None:
        """Save what is being written. The store is closed by its owner, afterwards."""
        self._saver.close()

    # What there is ---------------------------------------------------------------------------

    @property
    def conversations(self) -> list[Conversation]:
        """Those that are not archived: pinned ones first, then the last used."""
        listed = [c for c in self._conversations.values() if not c.is_archived]
        return sorted(listed, key=lambda c: (c.is_pinned, c.updated), reverse=True)

    @property
    def archived(self) -> list[Conversation]:
        """The last used first."""
        kept = [c for c in self._conversations.values() if c.is_archived]
        return sorted(kept, key=lambda c: c.updated, reverse=True)

    def conversation(self, conversation_id: str) -> Conversation | None:
        if conversation_id == self.current.id:
            return self.current
        return self._conversations.get(conversation_id)

    def title_of(self, reply_id: str) -> str:
        """The title of the conversation that a reply belongs to, for whoever knows its request."""
        conversation = self._generation.conversation_of(reply_id)
        return conversation.title if conversation is not None else reply_id[:8]

    @property
    def problem(self) -> ErrorInfo | None:
        """Why chats are not saved at the moment."""
        return self._saver.problem

    @property
    def presets(self) -> list[Preset]:
        return list(self._presets)

    @property
    def generation(self) -> Generation:
        return self._generation

    @property
    def is_busy(self) -> bool:
        """Whether a reply of the current conversation is waiting or being written."""
        return bool(self.current.open_replies)

    @property
    def context(self) -> tuple[int | None, int | None]:
        """(tokens used by the current conversation, tokens of the model's context)."""
        config, model = self.engine.config, self.engine.model
        limit = config.max_model_len if config is not None else None
        if limit is None and model is not None:
            limit = model.max_model_len
        for reply in self.current.open_replies:
            progress = self._generation.progress(reply.id)
            if progress is not None and progress.num_prompt_tokens:
                written = len(reply.opening) + progress.num_tokens
                return progress.num_prompt_tokens + written, limit
        return self.current.num_context_tokens(), limit

    def search(self, query: str) -> list[Found]:
        """Conversations that contain every word of `query`."""
        try:
            hits = self._store.search(query)
        except StorageError as error:
            self._report_read(error)
            return []
        return [
            Found(conversation, hit.message_id or "", hit.snippet, hit.marks)
            for hit in hits
            if (conversation := self._conversations.get(hit.conversation_id)) is not None
        ]

    # Conversations ---------------------------------------------------------------------------

    def new_conversation(self) -> None:
        """Begin a new one, with the same sampling settings; it is listed with its first message."""
        if self.current.messages:
            before = self.current
            self._show(self._draft())
            self.current.sampling, self.current.preset = before.sampling, before.preset
            self.settings_changed.emit(self.current.id)

    def open(self, conversation_id: str) -> None:
        conversation = self._conversations.get(conversation_id)
        if conversation is not None and conversation is not self.current:
            self._read(conversation)
            self._show(conversation)

    def open_message(self, conversation_id: str, message_id: str) -> None:
        """Open a conversation with the version that has `message_id` on the screen."""
        self.open(conversation_id)
        message = self.current.messages.get(message_id)
        if message is not None:
            self._show_version(message)

    def rename(self, conversation_id: str, title: str) -> None:
        conversation = self._conversations.get(conversation_id)
        title = " ".join(title.split())
        if conversation is not None and title:
            conversation.title, conversation.title_is_automatic = title, False
            self._saver.save_now(conversation)
            self.list_changed.emit()

    def set_pinned(self, conversation_id: str, is_pinned: bool) -> None:
        """Keep a conversation on top of the list, or no longer."""
        conversation = self._conversations.get(conversation_id)
        if conversation is not None and conversation.is_pinned != is_pinned:
            conversation.is_pinned = is_pinned
            self._saver.save_now(conversation)
            self.list_changed.emit()

    def set_archived(self, conversation_id: str, is_archived: bool) -> None:
        """Put a conversation away, or back into the list. It can be searched, opened and gone on
        with as before: a message that is sent in it brings it back."""
        conversation = self._conversations.get(conversation_id)
        if conversation is None or conversation.is_archived == is_archived:
            return
        conversation.is_archived = is_archived
        self._saver.save_now(conversation)
        if is_archived and conversation is self.current:
            self._show_another()
        self.list_changed.emit()
        if is_archived:
            self.archived_one.emit(conversation_id, conversation.title)

    def _show_another(self) -> None:
        """The first of the list, in place of one that leaves it."""
        following = self.conversations
        if following:
            self.open(following[0].id)
        else:
            self._show(self._draft())

    def delete(self, conversation_id: str) -> None:
        """Stop and hide a conversation; `restore` brings it back until `purge`."""
        conversation = self._conversations.pop(conversation_id, None)
        if conversation is None:
            return
        self._stop(conversation)
        self._deleted[conversation_id] = conversation
        future = self._store.delete_conversation(conversation_id)
        self._saver.watch(future, partial(self._after_delete, conversation))
        if conversation is self.current:
            self._show_another()
        self.list_changed.emit()
        self.deleted.emit(conversation_id, conversation.title)

    def _after_delete(self, conversation: Conversation, error: StorageError | None) -> None:
        self._saver.report(error)
        if error is not None and self._deleted.pop(conversation.id, None) is not None:
            self._conversations[conversation.id] = conversation
            self.list_changed.emit()

    def restore(self, conversation_id: str) -> None:
        """Undo `delete`."""
        conversation = self._deleted.pop(conversation_id, None)
        if conversation is not None:
            self._conversations[conversation_id] = conversation
            self._saver.watch(self._store.restore_conversation(conversation_id), self._saver.report)
            self.list_changed.emit()
            self.open(conversation_id)

    def purge(self, conversation_id: str) -> None:
        """Remove a deleted conversation for good."""
        if self._deleted.pop(conversation_id, None) is not None:
            self._loaded.discard(conversation_id)
            self._saver.watch(self._store.purge_deleted(conversation_id), self._saver.report)

    def saved_store(self) -> ChatStore:
        """The store, with everything on its way to it; `flush` waits until it is there."""
        self._saver.save()
        return self._store

    def add_imported(self, records: Sequence[StoredConversation]) -> None:
        """List conversations that were added to the store, and open the first."""
        for record in records:
            self._conversations[record.id] = Conversation.from_record(record)
        self.list_changed.emit()
        if records:
            self.open(records[0].id)

    # Messages --------------------------------------------------------------------------------

    def send(self, text: str) -> bool:
        """Store `text`, then have it answered. False where a reply is still being written."""
        text = _storable(text).strip()
        if not text or self.is_busy:
            return False
        last = self.current.last
        self._ask(self.current, last.id if last else None, text)
        return True

    def edit(self, message_id: str, text: str) -> None:
        """Send another version of a user's message; the one before is kept with its replies."""
        message = self.current.messages.get(message_id)
        text = _storable(text).strip()
        if message is not None and message.role is Role.USER and text and not self.is_busy:
            self._ask(self.current, message.parent_id, text)

    def regenerate(self, message_id: str = "") -> None:
        """Have a reply (the last one by default) written again, as another version."""
        conversation = self.current
        message = conversation.messages.get(message_id) if message_id else conversation.last
        if message is None or self.is_busy:
            return
        asked = message.id if message.role is Role.USER else message.parent_id
        reply = conversation.add(Role.ASSISTANT, asked)
        self._store_and_start(conversation, "", reply)

    def branch_refusal(self, message_id: str) -> str:
        """Why no branch can be started from a token of this reply now; "" where one can."""
        tokens = self.tokens.of(message_id)
        model = self.engine.model
        if tokens is None:
            return "The tokens of this reply are not kept."
        if self.is_busy:
            return "A reply is being written: wait for its end, or stop it."
        if model is None:
            return "No model is open."
        if model.name != tokens.model:
            return f"These are tokens of {tokens.model}; {model.name} is open."
        return ""

    def branch_from_token(self, message_id: str, index: int, token_id: int) -> None:
        """Write another version of a reply: the same tokens before `index`, then `token_id`, which
        is one of the choices there, then what follows."""
        message, tokens = self.current.messages.get(message_id), self.tokens.of(message_id)
        if message is None or tokens is None or self.branch_refusal(message_id):
            return
        reply = self.current.add(Role.ASSISTANT, message.parent_id)
        reply.opening = tokens.opening(index, token_id)
        self._store_and_start(self.current, "", reply)

    def stop(self) -> None:
        """Stop what is waiting or being written in the current conversation."""
        self._stop(self.current)

    def _stop(self, conversation: Conversation) -> None:
        self._generation.stop(conversation)
        for reply in conversation.open_replies:
            if reply.state is State.WAITING:  # for the store: it will not be sent
                reply.state = State.STOPPED
                self._saver.touch(reply)
                self.message_changed.emit(conversation.id, reply.id)

    def step_version(self, message_id: str, step: int) -> None:
        """Show the version before (-1) or after (+1) a message."""
        message = self.current.messages.get(message_id)
        if message is not None:
            versions = self.current.versions(message.parent_id)
            position = versions.index(message) + step
            if 0 <= position < len(versions):
                self._show_version(versions[position])

    def _ask(self, conversation: Conversation, parent_id: str | None, text: str) -> None:
        if conversation.title_is_automatic and not conversation.messages:
            conversation.title = title_of(text)
        user = conversation.add(Role.USER, parent_id, text)
        reply = conversation.add(Role.ASSISTANT, user.id)
        self._store_and_start(conversation, text, user, reply)

    def _store_and_start(self, conversation: Conversation, text: str, *messages: Message) -> None:
        conversation.updated, conversation.is_archived = time.time(), False
        records = [message.record() for message in messages]
        future = self._store.add_messages(conversation.record(), *records)
        done = partial(self._after_store, conversation, text, messages)
        self._loaded.add(conversation.id)
        self._conversations[conversation.id] = conversation
        self.messages_changed.emit(conversation.id)
        self.list_changed.emit()
        self._saver.watch(future, done)

    def _after_store(
        self,
        conversation: Conversation,
        text: str,
        messages: tuple[Message, ...],
        error: StorageError | None,
    ) -> None:
        """What is stored may be sent; what is not goes back to where it was written."""
        self._saver.report(error)
        reply = messages[-1]
        if error is None:
            conversation.is_stored = True
            if reply.state is State.WAITING:  # not stopped meanwhile
                self._generation.start(conversation, reply)
            return
        conversation.remove(*messages)
        if not conversation.is_stored:
            self._conversations.pop(conversation.id, None)
            conversation.title = Conversation().title
        self.messages_changed.emit(conversation.id)
        self.list_changed.emit()
        if text:
            self.text_returned.emit(conversation.id, text)

    def _show_version(self, message: Message) -> None:
        changed = self.current.show(message)
        if changed:
            self._saver.watch(self._store.show_versions(changed), self._saver.report)
        self.messages_changed.emit(self.current.id)

    # Settings --------------------------------------------------------------------------------

    def set_system_prompt(self, text: str) -> None:
        if text != self.current.system_prompt:
            self.current.system_prompt = _storable(text)
            self._settings_changed()

    def set_sampling(self, name: str, value: Any) -> None:
        """Change one sampling setting of the current conversation."""
        self.current.sampling = with_field(self.current.sampling, name, value)
        same = [p.name for p in self._presets if p.params == self.current.sampling]
        self.current.preset = same[0] if same else ""
        self._settings_changed()

    def apply_preset(self, name: str) -> None:
        for preset in self._presets:
            if preset.name == name:
                self.current.sampling, self.current.preset = preset.params, name
                self._settings_changed()

    def save_preset(self, name: str) -> None:
        """Keep the current sampling settings under `name`. A built-in name is refused."""
        name = " ".join(name.split())
        if not name or any(p.name.lower() == name.lower() and not p.is_own for p in self._presets):
            return
        params = self.current.sampling
        self._presets = [p for p in self._presets if p.name != name]
        self._presets.append(Preset(name, "Your own.", params, is_own=True))
        future = self._store.save_preset(name, sampling_to_dict(params))
        self._saver.watch(future, self._saver.report)
        self.current.preset = name
        self._settings_changed()
        self.presets_changed.emit()

    def delete_preset(self, name: str) -> None:
        """Forget one of the user's own presets; conversations keep their settings."""
        if any(p.name == name and p.is_own for p in self._presets):
            self._presets = [p for p in self._presets if p.name != name]
            self._saver.watch(self._store.delete_preset(name), self._saver.report)
            if self.current.preset == name:
                self.current.preset = ""
                self._settings_changed()
            self.presets_changed.emit()

    def _settings_changed(self) -> None:
        if self.current.is_stored:
            self._saver.touch(self.current)
        self.settings_changed.emit(self.current.id)

    # -----------------------------------------------------------------------------------------

    def _draft(self) -> Conversation:
        preset = next(p for p in self._presets if p.name == DEFAULT_PRESET)
        return Conversation(sampling=preset.params, preset=preset.name)

    def _show(self, conversation: Conversation) -> None:
        self.current = conversation
        self.current_changed.emit()

    def _read(self, conversation: Conversation) -> None:
        if conversation.id not in self._loaded:
            try:
                conversation.load(self._store.messages(conversation.id))
                self.tokens.learn(conversation.id)
                self._loaded.add(conversation.id)
            except StorageError as error:
                self._report_read(error)

    def _report_read(self, error: InferdeckError) -> None:
        self._saver.report(
            error if isinstance(error, StorageError) else StorageError(error.cause, error.remedy)
        )


def _own_presets(store: ChatStore) -> list[Preset]:
    return [
        Preset(name, "Your own.", sampling_from_dict(values), is_own=True)
        for name, values in store.presets().items()
    ]


def _storable(text: str) -> str:
    """`text` without halves of surrogate pairs, which no encoding can write."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
