"""Plain records that the chat's widgets show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class AttachmentRecord(NamedTuple):
    """A text file; `detail` is its size as text."""

    name: str
    detail: str
    text: str


class MessageRecord(NamedTuple):
    """One message. `status`: of a reply that is open or ended early; `figures` and `details`:
    measurements in a line and in full; `error`: (cause, remedy). `has_latency`, `has_tokens`: its
    popovers have data. `marks`: places where something changed, each (character of the text,
    label, explanation); `note` is for copies. `not_continued`: why a cut reply cannot be
    continued, "" if it can; None: there is nothing to continue."""

    id: str
    is_user: bool
    text: str
    is_open: bool = False
    status: str = ""
    figures: str = ""
    details: str = ""
    error: tuple[str, str] | None = None
    version: int = 1
    num_versions: int = 1
    has_latency: bool = False
    has_tokens: bool = False
    attachments: tuple[AttachmentRecord, ...] = ()
    marks: tuple[tuple[int, str, str], ...] = ()
    note: str = ""
    not_continued: str | None = None


class BranchRecord(NamedTuple):
    """Messages from one version to the next fork. `end_id` is the last message on the screen when
    this branch is; `branches` are the versions at the fork."""

    message_id: str
    end_id: str
    title: str
    created: float
    num_messages: int
    version: int
    num_versions: int
    is_shown: bool
    branches: tuple[BranchRecord, ...] = ()


class ConversationRecord(NamedTuple):
    """One row of the list. `detail`: its state or date; `marks`: (start, end) of search matches in
    it. A search lists a conversation once per hit; `place`: "2 of 5"."""

    id: str
    title: str
    detail: str
    is_busy: bool = False
    marks: tuple[tuple[int, int], ...] = ()
    hit: str = ""  # the message that a search found
    is_pinned: bool = False
    is_archived: bool = False
    place: str = ""


class SamplingField(NamedTuple):
    """One sampling parameter. The least value is shown as `unset_text`, where there is one."""

    name: str
    label: str
    help: str
    minimum: float
    maximum: float
    step: float
    decimals: int
    value: float
    unset_text: str = ""


class MessageRecords:
    """The records of a conversation, of which `record_of` makes each when it is looked at.
    `places`: of records by id."""

    def __init__(self, ids: Sequence[str], record_of: Callable[[int], MessageRecord]) -> None:
        self.ids = list(ids)
        self.places = {message_id: place for place, message_id in enumerate(self.ids)}
        self._record_of = record_of
        self._made: dict[int, MessageRecord] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: int) -> MessageRecord:
        made = self._made.get(place)
        if made is None:
            made = self._made[place] = self._record_of(place)
        return made

    def update(self, record: MessageRecord) -> None:
        """Replace a record; one of another conversation is ignored."""
        place = self.places.get(record.id)
        if place is not None:
            self._made[place] = record

    def append_text(self, message_id: str, text: str) -> None:
        """Extend a record that was made: another has the text when it is made."""
        place = self.places.get(message_id, -1)
        if (record := self._made.get(place)) is not None:
            self._made[place] = record._replace(text=record.text + text)
