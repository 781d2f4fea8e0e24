"""Records of messages and conversations: their states, figures and dates as text."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from app.features.chat.attachments import Attachment
from app.features.chat.controller import ChatController
from app.features.chat.conversation import Conversation, Message, Role, State
from app.features.chat.figures import (
    GAP,
    figures_details,
    figures_line,
    marks_of,
    note_of,
    precisions_of,
)
from app.features.chat.library import Found
from app.features.chat.sampling import CONTROLS, shown_value
from app.paths import resources_dir, starter_model
from app.storage.model_sources import is_starter
from app.units import format_bytes
from engine.sampling_params import PARAMETERS, SamplingParams
from engine.snapshot import ModelInfo
from widgets.chat.records import AttachmentRecord, ConversationRecord, MessageRecord, SamplingField
from widgets.controls.text import milliseconds
from widgets.live.figures import weights_text

_QUEUED = {
    "no model": "queued until a model is loaded",
    "loading": "queued until the model is loaded",
    "crashed": "queued until the engine restarts",
    "ready": "sending",
}


def message_record(
    controller: ChatController,
    conversation: Conversation,
    message: Message,
    numbers: tuple[int, int] | None = None,
) -> MessageRecord:
    """`numbers`: of its version, where they are known."""
    version, count = numbers or conversation.version_of(message)
    figures = message.figures
    error = message.error
    precisions = precisions_of(message.passages)
    return MessageRecord(
        id=message.id,
        is_user=message.role is Role.USER,
        text=message.text,
        is_open=message.state.is_open,
        status=_status(controller, message),
        figures=figures_line(figures, precisions) if figures else "",
        details=figures_details(figures, precisions) if figures else "",
        error=(error.cause, error.remedy) if error else None,
        version=version,
        num_versions=count,
        has_latency=controller.times.has(message.id),
        has_tokens=controller.tokens.has(message.id),
        attachments=tuple(
            AttachmentRecord(a.name, format_bytes(a.num_bytes), a.text)
            for a in (Attachment(**stored) for stored in message.attachments)
        ),
        marks=marks_of(message.passages),
        note=note_of(message.passages),
    )


def _status(controller: ChatController, message: Message) -> str:
    """The state of a reply that is open or did not finish; "" for all others."""
    precisions = precisions_of(message.passages)
    figures = figures_line(message.figures, precisions) if message.figures else ""
    match message.state:
        case State.WAITING:
            return _QUEUED.get(str(controller.engine.state), _QUEUED["ready"])
        case State.STREAMING:
            return _progress(controller, message)
        case State.STOPPED:
            return GAP.join(filter(None, ["stopped", figures]))
        case State.INTERRUPTED:
            return "interrupted: Inferdeck closed during generation"
        case State.COMPLETE if message.figures and message.figures.finish_reason == "length":
            return GAP.join(["max tokens reached", figures])
    return ""


def _progress(controller: ChatController, message: Message) -> str:
    progress = controller.generation.progress(message.id)
    if progress is None or not progress.num_tokens:
        return "waiting for first token"
    parts = ["generating"]
    if progress.itl_ms is not None:
        parts.append(f"{milliseconds(progress.itl_ms)}/token")
    count = progress.num_tokens
    parts.append(f"{count:,} token" if count == 1 else f"{count:,} tokens")
    others = controller.generation.num_sent - 1
    shared = f"batched with {others} other {'chat' if others == 1 else 'chats'}" if others else ""
    where = f"step {progress.step_index:,}" if progress.step_index >= 0 else ""
    parts += [" ".join(filter(None, (where, shared)))] if where or shared else []
    return GAP.join(parts)


def conversation_record(
    controller: ChatController, conversation: Conversation, now: float
) -> ConversationRecord:
    busy = conversation.open_replies
    detail = _busy_detail(controller, busy[-1]) if busy else date_text(conversation.updated, now)
    return ConversationRecord(
        conversation.id, conversation.title, detail, bool(busy),
        is_pinned=conversation.is_pinned, is_archived=conversation.is_archived,
    )  # fmt: skip


def _busy_detail(controller: ChatController, reply: Message) -> str:
    if reply.state is State.WAITING:
        return "queued"
    progress = controller.generation.progress(reply.id)
    if progress is None or progress.itl_ms is None:
        return "generating"
    return f"generating · {milliseconds(progress.itl_ms)}/token"


def found_record(found: Found) -> ConversationRecord:
    conversation, (number, count) = found.conversation, found.place
    marks = found.marks if found.message_id else ()
    detail = found.snippet if found.message_id else "title"
    return ConversationRecord(
        conversation.id, conversation.title, detail, False, marks, found.message_id,
        conversation.is_pinned, conversation.is_archived,
        f"{number:,} of {count:,}" if count > 1 else "",
    )  # fmt: skip


def date_text(moment: float, now: float) -> str:
    """14:05, yesterday, Mon, 12 Mar, 12 Mar 2025."""
    return _date_text(moment, datetime.fromtimestamp(now).date())


@lru_cache(maxsize=2**15)  # there may be ten thousand in the list
def _date_text(moment: float, today: date) -> str:
    then = datetime.fromtimestamp(moment)
    days = (today - then.date()) // timedelta(days=1)
    if days <= 0:
        return f"{then:%H:%M}"
    if days == 1:
        return "yesterday"
    if days < 7:
        return f"{then:%a}"
    return f"{then.day} {then:%b}" + (f" {then.year}" if then.year != today.year else "")


def model_text(model: ModelInfo, limit: int | None) -> str:
    """The model in a line: size, precision, device, context."""
    if not model.is_described:
        context = "" if not limit else f"{limit:,}-token context"
        return " · ".join(filter(None, (f"served by {model.device}", context)))
    count = model.num_parameters
    size = f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.0f} M"
    precision = filter(None, (model.dtype, weights_text(model)))
    parts = [f"{size} parameters", *precision, model.device]
    if limit is not None:
        parts.append(f"{limit:,}-token context")
    if model.is_dummy:
        parts.append("random weights: output is meaningless")
    return " · ".join(parts)


def sampling_fields(params: SamplingParams) -> list[SamplingField]:
    return [
        SamplingField(
            name, PARAMETERS[name].label, PARAMETERS[name].help, control.minimum, control.maximum,
            control.step, control.decimals, shown_value(params, name), control.unset_text,
        )
        for name, control in CONTROLS.items()
    ]  # fmt: skip


SHOWN = 6
"""Number of suggestions."""

Suggestion = tuple[str, str]
"""Title and prompt."""


def suggestions_for(model_path: str) -> list[Suggestion]:
    """The starter model has suggestions about its training data; other models have general ones."""
    if is_starter(model_path):
        return _read(starter_model().parent / "suggestions.json", "suggestions")[:SHOWN]
    return _read(resources_dir() / "prompts" / "suggestions.json", "suggestions")


def long_prompts() -> list[Suggestion]:
    """Prompts with long, predictable replies of the starter model."""
    return _read(starter_model().parent / "suggestions.json", "long_prompts")


def _read(file: Path, key: str) -> list[Suggestion]:
    entries = json.loads(file.read_text(encoding="utf-8"))[key]
    return [(entry["title"], entry["prompt"]) for entry in entries]
