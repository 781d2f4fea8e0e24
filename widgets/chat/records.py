"""What the chat's widgets show, as plain records."""

from __future__ import annotations

from typing import NamedTuple


class AttachmentRecord(NamedTuple):
    """A text file; `detail` is its size in words."""

    name: str
    detail: str
    text: str


class MessageRecord(NamedTuple):
    """One message. `status` is said of a reply that is open or ended early; `figures` and
    `details` are measurements in a line and in full; `error` is (cause, remedy).
    `has_latency`: it is known where its time went. `has_tokens`: its tokens are. `marks`: places
    where something changed, each (character of the text, label, explanation); `note` says so in a
    copy."""

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
    """One line of the list. `detail` is its state or date; `marks` are (start, end) in it that a
    search found. A search gives a conversation a line for every hit; `place`: "2 of 5"."""

    id: str
    title: str
    detail: str
    is_busy: bool = False
    marks: tuple[tuple[int, int], ...] = ()
    hit: str = ""  # the message that a search found
    is_pinned: bool = False
    is_archived: bool = False
    place: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What tells a line from all others."""
        return self.id, self.hit


class SamplingFieldRecord(NamedTuple):
    """One number in the sampling settings. `unset` is the value that is shown as `unset_text`."""

    name: str
    label: str
    help: str
    minimum: float
    maximum: float
    step: float
    decimals: int
    value: float
    unset_text: str = ""


class PresetRecord(NamedTuple):
    name: str
    help: str
    is_own: bool = False
