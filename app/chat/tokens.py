"""The tokens of replies: from the events of the engine to records, packed, and back. No Qt.

Packed, a reply is zlib-compressed JSON in columns: {"version", "model", "texts" (id -> text),
"ids", "logprobs", "ranks", "origins", "alternatives" (ids and logprobs of each token in turn),
"counts" (how many alternatives each token has), and of a reply with speculative decoding "drafts"
(1 for a draft that stood) and "rejected" (place -> texts of the drafts that did not)}. Log
probabilities are kept to four decimals. A token with five alternatives takes about 40 bytes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

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
