"""`ChatShelf`: the conversations, and the current one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from PySide6.QtCore import QObject, Signal

from app.features.chat.conversation import Conversation, Message, sampling_from_dict
from app.features.chat.reply_data import ReplyTokens, pack_times, unpack_times
from app.features.chat.sampling import DEFAULT_PRESET, Preset, built_in_presets
from app.features.chat.saving import ReplyStore, Saver, storable
from app.storage import (
    NEW,
    TIMES,
    TOKENS,
    ChatStore,
    StorageError,
    StoredConversation,
)
from engine.errors import InferdeckError
from engine.snapshot import RequestTimes


class Found(NamedTuple):
    """A search hit; `message_id` is "" for a hit in the title. `place`: its number, from 1, and the
    number of hits in the conversation."""

    conversation: Conversation
    message_id: str
    snippet: str
    marks: tuple[tuple[int, int], ...]
    place: tuple[int, int] = (1, 1)


class ChatShelf(QObject):
    """`current` is the conversation on the screen, perhaps not stored yet. Signals carry the id of
    a conversation."""

    list_changed = Signal()
    current_changed = Signal()
    messages_changed = Signal(str)  # which messages are on the screen
    settings_changed = Signal(str)  # system prompt, sampling
    presets_changed = Signal()
    text_returned = Signal(str, str, object)  # text, attachments: not stored, or recovered
    deleted = Signal(str, str)  # id, title: can be undone until `purge`
    was_archived = Signal(str, str)  # id, title

    def __init__(self, store: ChatStore) -> None:
        super().__init__()
        self._store = store
        self.saver = Saver(store, self)
        self.tokens = ReplyStore[ReplyTokens](
            self.saver, "tokens",
            partial(store.messages_with, TOKENS), partial(store.packed, TOKENS), ReplyTokens.unpack,
            lambda reply_id, tokens: store.save_packed(TOKENS, reply_id, tokens.pack),
            num_cached=8,
        )  # fmt: skip
        self.times = ReplyStore[RequestTimes](
            self.saver, "latency",
            partial(store.messages_with, TIMES), partial(store.packed, TIMES), unpack_times,
            lambda reply_id, times: store.save_packed(TIMES, reply_id, lambda: pack_times(times)),
            num_cached=500,
        )  # fmt: skip
        self.presets: list[Preset] = built_in_presets()
        self._conversations: dict[str, Conversation] = {}
        self._deleted: dict[str, Conversation] = {}
        self._loaded: set[str] = set()  # conversations whose messages were read
        self._drafts = self._add_stored()
        self.current = self._new = self._make_new()
        self._new.draft = self._drafts.get(NEW, "")

    def _add_stored(self) -> dict[str, str]:
        """List the stored conversations and presets that are not listed yet; returns the unsent
        texts."""
        drafts: dict[str, str] = {}
        try:
            drafts = self._store.unsent()
            known = set(self._conversations)
            self._add_new()
            for conversation_id, made in self._conversations.items():
                if conversation_id not in known:
                    made.draft = drafts.get(conversation_id, "")
            names = {preset.name for preset in self.presets}
            for name, values in self._store.presets().items():
                with suppress(InferdeckError, TypeError, ValueError):  # of a newer version
                    params = sampling_from_dict(values)
                    if name not in names:
                        self.presets.append(Preset(name, "Custom preset.", params, is_own=True))
        except InferdeckError as error:
            self._report_read(error)
        return drafts

    def _add_new(self) -> None:
        """List the stored conversations that are not listed yet."""
        for record in self._store.conversations():
            if record.id not in self._conversations and record.id not in self._deleted:
                self._conversations[record.id] = _conversation(record)

    def _stop(self, conversation: Conversation) -> None:
        """Abort the replies of a deleted conversation. Overridden by the subclass that
        generates."""

    # What there is ---------------------------------------------------------------------------

    @property
    def conversations(self) -> list[Conversation]:
        """Conversations that are not archived: pinned ones first, then by last use."""
        listed = [c for c in self._conversations.values() if not c.is_archived]
        return sorted(listed, key=lambda c: (c.is_pinned, c.updated), reverse=True)

    @property
    def archived(self) -> list[Conversation]:
        """Archived conversations by last use."""
        kept = [c for c in self._conversations.values() if c.is_archived]
        return sorted(kept, key=lambda c: c.updated, reverse=True)

    @property
    def has_any(self) -> bool:
        return bool(self._conversations)

    def conversation(self, conversation_id: str) -> Conversation | None:
        for unlisted in (self.current, self._new):
            if conversation_id == unlisted.id:
                return unlisted
        return self._conversations.get(conversation_id)

    def search(self, query: str) -> list[Found]:
        """Every title and message that contains every word of `query`."""
        try:
            hits = self._store.search(storable(query))
        except StorageError as error:
            self._report_read(error)
            return []
        self.saver.report(None)
        counts = Counter(hit.conversation_id for hit in hits)
        numbers: Counter[str] = Counter()
        found = []
        for hit in hits:
            conversation = self._conversations.get(hit.conversation_id)
            if conversation is not None:
                numbers[conversation.id] += 1
                place, message_id = numbers[conversation.id], hit.message_id or ""
                of_all = (place, counts[conversation.id])
                found.append(Found(conversation, message_id, hit.snippet, hit.marks, of_all))
        return found

    # Conversations ---------------------------------------------------------------------------

    def new_conversation(self) -> None:
        """Open the unused conversation, with the same sampling settings unless it has a draft. Its
        first message lists it."""
        if self.current.messages:
            before, new = self.current, self._unused()
            self._show(new)
            if not (new.draft or new.system_prompt):
                new.sampling, new.preset = before.sampling, before.preset
            self.settings_changed.emit(new.id)

    def open(self, conversation_id: str) -> None:
        conversation = self._conversations.get(conversation_id)
        if conversation is None or conversation is self.current:
            return
        if self._read(conversation):
            self._show(conversation)

    def open_message(self, conversation_id: str, message_id: str) -> None:
        """Open a conversation on the branch with `message_id`."""
        self.open(conversation_id)
        message = self.current.messages.get(message_id)
        if message is not None:
            self._show_version(message)

    def rename(self, conversation_id: str, title: str) -> None:
        conversation = self._conversations.get(conversation_id)
        title = " ".join(title.split())
        if conversation is not None and title:
            conversation.title, conversation.title_is_automatic = title, False
            self.saver.save_now(conversation)
            self.list_changed.emit()

    def set_pinned(self, conversation_id: str, is_pinned: bool) -> None:
        conversation = self._conversations.get(conversation_id)
        if conversation is not None and conversation.is_pinned != is_pinned:
            conversation.is_pinned = is_pinned
            self.saver.save_now(conversation)
            self.list_changed.emit()

    def set_archived(self, conversation_id: str, is_archived: bool) -> None:
        """Archive a conversation, or restore it to the list. An archived one can be searched and
        opened; sending a message restores it."""
        conversation = self._conversations.get(conversation_id)
        if conversation is None or conversation.is_archived == is_archived:
            return
        conversation.is_archived = is_archived
        self.saver.save_now(conversation)
        if is_archived and conversation is self.current:
            self._show_another()
        self.list_changed.emit()
        if is_archived:
            self.was_archived.emit(conversation_id, conversation.title)

    def _show_another(self) -> None:
        following = self.conversations
        if following:
            self.open(following[0].id)
        else:
            self._show(self._unused())

    def delete(self, conversation_id: str) -> None:
        """Stop and hide a conversation; `restore` undoes it until `purge`."""
        conversation = self._conversations.pop(conversation_id, None)
        if conversation is None:
            return
        self._stop(conversation)
        self._deleted[conversation_id] = conversation
        future = self._store.delete_conversation(conversation_id)
        self.saver.watch(future, partial(self._after_delete, conversation))
        if conversation is self.current:
            self._show_another()
        self.list_changed.emit()
        self.deleted.emit(conversation_id, conversation.title)

    def _after_delete(self, conversation: Conversation, error: StorageError | None) -> None:
        self.saver.report(error)
        if error is not None and self._deleted.pop(conversation.id, None) is not None:
            self._conversations[conversation.id] = conversation
            self.list_changed.emit()

    def restore(self, conversation_id: str) -> None:
        conversation = self._deleted.pop(conversation_id, None)
        if conversation is not None:
            self._conversations[conversation_id] = conversation
            restore = partial(self._store.restore_conversation, conversation_id)
            self.saver.submit(f"deleted {conversation_id}", restore)
            self.list_changed.emit()
            self.open(conversation_id)

    def purge(self, conversation_id: str) -> None:
        if self._deleted.pop(conversation_id, None) is not None:
            self._loaded.discard(conversation_id)
            purge = partial(self._store.purge_deleted, conversation_id)
            self.saver.submit(f"deleted {conversation_id}", purge)

    def add_imported(self, records: Sequence[StoredConversation]) -> None:
        for record in records:
            self._conversations[record.id] = Conversation.from_record(record)
        self.list_changed.emit()
        if records:
            self.open(records[0].id)

    def _show_version(self, message: Message) -> None:
        changed = self.current.show(message)
        if changed:
            show = partial(self._store.show_versions, changed)
            self.saver.submit(f"shown {' '.join(sorted(changed))}", show)
        self.messages_changed.emit(self.current.id)

    def _unused(self) -> Conversation:
        """The conversation without messages."""
        if self._new.messages:
            self._new = self._make_new()
        return self._new

    def _reachable(self, conversation: Conversation) -> Conversation:
        """The conversation to which unsent text returns: `conversation`, or the new chat if that
        was never stored and another one was begun."""
        known = (*self._conversations, *self._deleted, self.current.id)
        if conversation.id in known:
            return conversation
        new = self._unused()
        if not new.draft and new is not self.current:
            self._new = new = conversation
        return new

    def _make_new(self) -> Conversation:
        preset = next(p for p in self.presets if p.name == DEFAULT_PRESET)
        return Conversation(sampling=preset.params, preset=preset.name)

    def _show(self, conversation: Conversation) -> None:
        self.current = conversation
        self.current_changed.emit()

    def _read(self, conversation: Conversation) -> bool:
        """Read its messages; False while they are being recovered."""
        if conversation.id not in self._loaded:
            try:
                stored = self._store.messages(conversation.id)
                if self._store.is_recovering and not stored:
                    self.saver.report(None)
                    return False
                conversation.load(stored)
                self.tokens.learn(conversation.id)
                self.times.learn(conversation.id)
                self._loaded.add(conversation.id)
                self.saver.report(None)
            except StorageError as error:
                self._report_read(error)
        return True

    def _report_read(self, error: InferdeckError) -> None:
        self.saver.report(
            error if isinstance(error, StorageError) else StorageError(error.cause, error.remedy)
        )


def _conversation(record: StoredConversation) -> Conversation:
    """With the default sampling parameters where the stored ones are damaged, or of another
    version: one such record must not hide the others."""
    try:
        return Conversation.from_record(record)
    except (InferdeckError, TypeError, ValueError):
        return Conversation.from_record(replace(record, sampling={}))
