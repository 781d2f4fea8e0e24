"""When the tokens of replies came: kept with the chat, for the account of where the time went.

The engine's clock ends with its process, so times are kept in microseconds since the arrival.
Packed, they are zlib-compressed JSON: {"version", "scheduled" (the first step), "finished", "gaps"
(from one output event to the next, the first from the arrival), "counts" (tokens of each)}.
"""

from __future__ import annotations

import json
import zlib
from itertools import accumulate, pairwise
from typing import Any

from app.chat.saver import Saver
from app.storage import ChatStore, StorageError
from engine.snapshot import RequestTimes, TokenEvent

VERSION = 1


def pack_times(times: RequestTimes) -> bytes:
    return zlib.compress(json.dumps(as_columns(times), separators=(",", ":")).encode())


def as_columns(times: RequestTimes) -> dict[str, Any]:
    """What is written of them, here and in files of chats."""

    def since_arrival(moment: float | None) -> int | None:
        return None if moment is None else round((moment - times.arrival) * 1e6)

    moments = [0, *(round((event.time - times.arrival) * 1e6) for event in times.tokens)]
    return {
        "version": VERSION,
        "scheduled": since_arrival(times.first_scheduled),
        "finished": since_arrival(times.finished),
        "gaps": [after - before for before, after in pairwise(moments)],
        "counts": [event.num_tokens for event in times.tokens],
    }


def unpack_times(packed: bytes) -> RequestTimes:
    """The arrival is at 0. Raises ValueError for bytes that `pack_times` did not make."""
    try:
        columns = json.loads(zlib.decompress(packed))
    except zlib.error as error:
        raise ValueError(f"not the times of a reply: {error!r}") from error
    return from_columns(columns)


def from_columns(columns: Any) -> RequestTimes:
    """The arrival is at 0. Raises ValueError for what `as_columns` did not make."""
    try:
        if columns["version"] != VERSION:
            raise ValueError(f"times of version {columns['version']}")
        whole = [*columns["gaps"], *columns["counts"]]
        whole += [us for us in (columns["scheduled"], columns["finished"]) if us is not None]
        if not all(type(number) is int and number >= 0 for number in whole):
            raise ValueError("not the times of a reply: they are whole numbers")
        moments = (us / 1e6 for us in accumulate(columns["gaps"]))
        tokens = zip(moments, columns["counts"], strict=True)
        scheduled, finished = (
            None if us is None else us / 1e6 for us in (columns["scheduled"], columns["finished"])
        )
        return RequestTimes(0.0, scheduled, tuple(TokenEvent(*t) for t in tokens), finished)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the times of a reply: {error!r}") from error


class TimesKeeper:
    """The times of all replies that have them, in the store."""

    def __init__(self, store: ChatStore, saver: Saver) -> None:
        self._store, self._saver = store, saver
        self._known: set[str] = set()

    def has(self, reply_id: str) -> bool:
        return reply_id in self._known

    def learn(self, conversation_id: str) -> None:
        """Which replies of a conversation have times. Raises StorageError."""
        self._known |= self._store.messages_with_times(conversation_id)

    def keep(self, reply_id: str, times: RequestTimes) -> None:
        """Save the times of a reply that has ended."""
        self._known.add(reply_id)
        future = self._store.save_times(reply_id, lambda: pack_times(times))
        self._saver.watch(future, self._saver.report)

    def read(self, reply_id: str) -> RequestTimes:
        """Raises StorageError where they are not kept, or cannot be read."""
        packed = self._store.packed_times(reply_id)
        if packed is None:
            raise StorageError("The times of this reply are not kept.", "Write it again.")
        try:
            times = unpack_times(packed)
        except ValueError as error:
            raise StorageError(
                f"The times of this reply cannot be read: {error}.", "Write it again."
            ) from error
        if not times.tokens:
            raise StorageError("This reply has no token that took time.", "Write it again.")
        return times
