"""Tokens and times of a reply as compressed JSON, for the store and files of chats. No Qt."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import Any, TypeGuard, TypeVar

from engine.snapshot import RequestTimes, TokenEvent
from widgets.latency.causes import Cause, Reason, ReplyTimes
from widgets.tokens.record import Alternative, Origin, TokenRecord

VERSION = 1
Data = TypeVar("Data")


@dataclass(frozen=True, slots=True)
class ReplyTokens:
    """All tokens of a reply, and the name of the model that wrote them."""

    model: str
    records: tuple[TokenRecord, ...]

    def opening(self, index: int, token_id: int) -> tuple[TokenRecord, ...]:
        """The first tokens of a branch: those before `index`, then the choice `token_id`. Raises
        KeyError if the token is no choice there."""
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
        """Inverse of `as_columns`. Raises KeyError, TypeError or ValueError for malformed data."""
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
        return _packed(self.as_columns())

    @classmethod
    def unpack(cls, packed: bytes) -> ReplyTokens:
        """Inverse of `pack`. Raises ValueError for malformed data."""
        return _unpacked(packed, "tokens", cls.from_columns)


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


LARGEST_UNPACKED = 2**28
"""Bytes of a reply's data: damaged data must not fill the memory."""


def _packed(columns: Mapping[str, Any]) -> bytes:
    return zlib.compress(json.dumps(columns, separators=(",", ":")).encode())


def _unpacked(packed: bytes, name: str, read: Callable[[Any], Data]) -> Data:
    try:
        text = zlib.decompressobj().decompress(packed, LARGEST_UNPACKED)
        return read(json.loads(text))
    except Exception as error:  # of any kind, from a damaged file
        raise ValueError(f"not the {name} of a reply: {error!r}") from error


def pack_times(times: RequestTimes) -> bytes:
    return _packed(as_columns(times))


def as_columns(times: RequestTimes) -> dict[str, Any]:
    """Plain data, for JSON: microseconds since the arrival. Reasons are rows, of long gaps only."""

    def since_arrival(moment: float | None) -> int | None:
        return None if moment is None else round((moment - times.arrival) * 1e6)

    moments = [0, *(round((event.time - times.arrival) * 1e6) for event in times.tokens)]
    return {
        "version": VERSION,
        "scheduled": since_arrival(times.first_scheduled),
        "finished": since_arrival(times.finished),
        "gaps": [after - before for before, after in pairwise(moments)],
        "counts": [event.num_tokens for event in times.tokens],
        **({"reasons": list(map(_row, times.reasons))} if _has_reasons(times) else {}),
    }


def _has_reasons(times: RequestTimes) -> TypeGuard[ReplyTimes]:
    return isinstance(times, ReplyTimes) and bool(times.reasons)


def _row(reason: Reason) -> list[Any]:
    """The values of a reason, without those at the end that are its defaults."""
    values = [*reason._replace(seconds=round(reason.seconds, 6))]
    values[Reason._fields.index("others")] = list(reason.others)
    defaults = [*Reason._field_defaults.values()]
    defaults[-2] = []
    while defaults and values[-1] == defaults[-1]:
        values.pop()
        defaults.pop()
    return values


def _reason(row: list[Any]) -> Reason | None:
    """Inverse of `_row`; None for a cause of a newer version. Raises TypeError or ValueError."""
    if len(row) < 2 or row[1] not in list(Cause):
        return None
    reason = Reason(row[0], Cause(row[1]), *row[2 : len(Reason._fields)])
    numbers = (reason.place, *reason[3:8])
    if not all(type(one) is int for one in numbers) or type(reason.seconds) not in (int, float):
        raise ValueError(f"not a reason: {row}")
    if not all(type(one) is str for one in (*reason.others, reason.text)):
        raise ValueError(f"not a reason: {row}")
    return reason._replace(others=tuple(reason.others))


def unpack_times(packed: bytes) -> RequestTimes:
    """Inverse of `pack_times`, with the arrival at 0. Raises ValueError for malformed data."""
    return _unpacked(packed, "times", from_columns)


def from_columns(columns: Any) -> RequestTimes:
    """Inverse of `as_columns`, with the arrival at 0. Raises KeyError, TypeError or ValueError for
    malformed data."""
    if columns["version"] != VERSION:
        raise ValueError(f"times of version {columns['version']}")
    marks = columns["scheduled"], columns["finished"]
    whole = [*columns["gaps"], *columns["counts"], *(us for us in marks if us is not None)]
    if not all(type(number) is int and number >= 0 for number in whole):
        raise ValueError("not the times of a reply: they are whole numbers")
    moments = (us / 1e6 for us in accumulate(columns["gaps"]))
    tokens = zip(moments, columns["counts"], strict=True)
    scheduled, finished = (None if us is None else us / 1e6 for us in marks)
    events = tuple(TokenEvent(*t) for t in tokens)
    reasons = map(_reason, columns.get("reasons", ()))
    known = tuple(one for one in reasons if one is not None and 0 <= one.place < len(events) - 1)
    times = RequestTimes(0.0, scheduled, events, finished)
    return ReplyTimes(0.0, scheduled, events, finished, known) if known else times


def continued(before: RequestTimes, after: RequestTimes, num_computed: int) -> ReplyTimes:
    """The times of a continued reply, without the pause between its parts: the second part
    arrives as the first one ends. `num_computed`: tokens of the second prefill."""
    end = before.tokens[-1].time if before.tokens else before.arrival
    shift = end - after.arrival
    moved = tuple(event._replace(time=event.time + shift) for event in after.tokens)
    first, offset = before.tokens, len(before.tokens)
    reasons = list(before.reasons) if isinstance(before, ReplyTimes) else []
    if first and moved:
        queue = after.queue_s or 0.0
        reasons.append(Reason(offset - 1, Cause.CONTINUED, queue, max(0, num_computed)))
    if isinstance(after, ReplyTimes):
        reasons += [one._replace(place=one.place + offset) for one in after.reasons]
    finished = None if after.finished is None else after.finished + shift - before.arrival
    scheduled = before.first_scheduled
    if not first and after.first_scheduled is not None:  # its first token is one of the second part
        scheduled = after.first_scheduled + shift
    since = lambda moment: moment - before.arrival
    return ReplyTimes(
        0.0,
        None if scheduled is None else since(scheduled),
        tuple(event._replace(time=since(event.time)) for event in (*first, *moved)),
        finished,
        tuple(reasons),
    )
