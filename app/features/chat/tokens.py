"""`TokenKeeper`: where the tokens of replies are, and how one gets them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from PySide6.QtCore import QObject

from app.features.chat.saving import Saver
from app.link.tasks import run_task
from app.storage import ChatStore, StorageError
from engine.errors import ErrorInfo
from engine.messages import OutputEvent, TokenLogprob
from widgets.tokens.record import Alternative, Origin, TokenRecord

VERSION = 1


@dataclass(frozen=True, slots=True)
class ReplyTokens:
    """All tokens of a reply, and the name of the model that wrote them."""

    model: str
    records: tuple[TokenRecord, ...]

    def opening(self, index: int, token_id: int) -> tuple[TokenRecord, ...]:
        """The tokens before `index`, then the choice `token_id` of that place: what a branch
        begins with. Raises KeyError where the token is no choice there."""
        before = [
            record if record.origin is Origin.CHOSEN else record._replace(origin=Origin.KEPT)
            for record in self.records[:index]
        ]
        return (*before, _chosen(self.records[index], token_id))

    def as_columns(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        texts: dict[str, str] = {}
        for record in self.records:
            texts[str(record.token_id)] = record.text
            texts.update((str(a.token_id), a.text) for a in record.alternatives)
        others = [a for record in self.records for a in record.alternatives]
        rejected = {i: r.rejected for i, r in enumerate(self.records) if r.rejected}
        drafts = [int(record.is_draft) for record in self.records]
        speculation: dict[str, Any] = {}
        if rejected or any(drafts):
            speculation = {
                "drafts": drafts,
                "rejected": {str(place): list(texts) for place, texts in rejected.items()},
            }
        return {
            "version": VERSION,
            "model": self.model,
            "texts": texts,
            "ids": [record.token_id for record in self.records],
            "logprobs": [round(record.logprob, 4) for record in self.records],
            "ranks": [record.rank for record in self.records],
            "origins": [record.origin.value for record in self.records],
            "counts": [len(record.alternatives) for record in self.records],
            "alternatives": [a.token_id for a in others],
            "alternative_logprobs": [round(a.logprob, 4) for a in others],
            **speculation,
        }

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> ReplyTokens:
        """Raises KeyError, TypeError or ValueError where it is not what `as_columns` gives."""
        if columns["version"] != VERSION:
            raise ValueError(f"tokens of version {columns['version']}")
        texts = columns["texts"]
        others = (
            Alternative(token_id, texts[str(token_id)], float(logprob))
            for token_id, logprob in zip(
                columns["alternatives"], columns["alternative_logprobs"], strict=True
            )
        )
        return cls(columns["model"], tuple(_records(columns, texts, others)))

    def pack(self) -> bytes:
        return zlib.compress(json.dumps(self.as_columns(), separators=(",", ":")).encode())

    @classmethod
    def unpack(cls, packed: bytes) -> ReplyTokens:
        """Raises ValueError for bytes that `pack` did not make."""
        try:
            return cls.from_columns(json.loads(zlib.decompress(packed)))
        except (zlib.error, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the tokens of a reply: {error!r}") from error


def _records(
    columns: Mapping[str, Any], texts: Mapping[str, str], others: Iterator[Alternative]
) -> Iterator[TokenRecord]:
    names = ("ids", "logprobs", "ranks", "origins", "counts")
    drafts = columns.get("drafts", [0] * len(columns["ids"]))
    rejected = columns.get("rejected", {})
    rows = zip(*(columns[n] for n in names), drafts, strict=True)
    for place, (token_id, logprob, rank, origin, count, is_draft) in enumerate(rows):
        yield TokenRecord(
            token_id,
            texts[str(token_id)],
            float(logprob),
            rank,
            tuple(islice(others, count)),
            Origin(origin),
            bool(is_draft),
            tuple(rejected.get(str(place), ())),
        )


def _chosen(record: TokenRecord, token_id: int) -> TokenRecord:
    """`record` with another of its choices; the token itself stays what it was."""
    if token_id == record.token_id:
        return record if record.origin is Origin.CHOSEN else record._replace(origin=Origin.KEPT)
    for place, choice in enumerate(record.alternatives):
        if choice.token_id == token_id:
            return TokenRecord(
                token_id, choice.text, choice.logprob, place + 1, record.alternatives, Origin.CHOSEN
            )
    raise KeyError(token_id)


def record_of(token: TokenLogprob) -> TokenRecord:
    """What the engine reports of a token."""
    alternatives = tuple(Alternative(*alternative) for alternative in token.alternatives)
    return TokenRecord(token.token_id, token.token, token.logprob, token.rank, alternatives)


def records_of(event: OutputEvent) -> list[TokenRecord]:
    """The tokens of an event: the drafts that stood, then the model's own, in place of those that
    did not."""
    records = [record_of(token) for token in event.logprobs]
    if event.drafts is not None and records:
        for i in range(min(event.drafts.num_accepted, len(records))):
            records[i] = records[i]._replace(is_draft=True)
        if event.drafts.rejected:
            records[-1] = records[-1]._replace(rejected=event.drafts.rejected)
    return records


NUM_CACHED = 8
"""Replies whose tokens stay in memory."""

Failed = Callable[[ErrorInfo], None]


class TokenKeeper:
    """The tokens of all replies that have them: in the store, the last used in memory too."""

    def __init__(self, store: ChatStore, saver: Saver) -> None:
        self._store = store
        self._saver = saver
        self._known: set[str] = set()
        self._cache: dict[str, ReplyTokens] = {}  # the last used last

    def has(self, reply_id: str) -> bool:
        return reply_id in self._known

    def learn(self, conversation_id: str) -> None:
        """Which replies of a conversation have tokens. Raises StorageError."""
        self._known |= self._store.messages_with_tokens(conversation_id)

    def keep(self, reply_id: str, model: str, records: Sequence[TokenRecord]) -> None:
        """Save the tokens of a reply that has ended."""
        tokens = ReplyTokens(model, tuple(records))
        self._known.add(reply_id)
        self._remember(reply_id, tokens)
        self._saver.watch(self._store.save_tokens(reply_id, tokens.pack), self._saver.report)

    def of(self, reply_id: str) -> ReplyTokens | None:
        """None where they are not kept, or were not read (see `read`)."""
        found = self._cache.get(reply_id)
        if found is not None:
            self._remember(reply_id, found)
        return found

    def read(
        self, owner: QObject, reply_id: str, done: Callable[[ReplyTokens], None], failed: Failed
    ) -> None:
        """Call `done` with a reply's tokens, at once where they are in memory; `failed` where they
        cannot be read. A long reply takes a while to unpack: that is done off the window."""
        found = self.of(reply_id)
        if found is not None:
            done(found)
            return

        def got(tokens: ReplyTokens) -> None:
            self._remember(reply_id, tokens)
            done(tokens)

        run_task(owner, lambda: self._unpacked(reply_id), got, failed)

    def _unpacked(self, reply_id: str) -> ReplyTokens:
        packed = self._store.packed_tokens(reply_id)
        if packed is None:
            raise StorageError("The tokens of this reply are not kept.", "Write it again.")
        try:
            return ReplyTokens.unpack(packed)
        except ValueError as error:
            raise StorageError(
                f"The tokens of this reply cannot be read: {error}.", "Write it again."
            ) from error

    def _remember(self, reply_id: str, tokens: ReplyTokens) -> None:
        self._cache.pop(reply_id, None)
        self._cache[reply_id] = tokens
        while len(self._cache) > NUM_CACHED:
            del self._cache[next(iter(self._cache))]
