"""Records of messages and of rows of the list, with their states as text."""

from __future__ import annotations

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
from engine.units import bytes_text, counted, date_text, duration_text
from widgets.chat.records import AttachmentRecord, ConversationRecord, MessageRecord

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
    figures, error, passages = message.figures, message.error, message.passages
    return MessageRecord(
        id=message.id,
        is_user=message.role is Role.USER,
        text=message.text,
        is_open=message.state.is_open,
        status=_status(controller, message),
        figures=figures_line(figures, precisions_of(passages)) if figures else "",
        details=figures_details(figures, precisions_of(passages)) if figures else "",
        error=(error.cause, error.remedy) if error else None,
        version=version,
        num_versions=count,
        has_latency=message.state is State.STREAMING or controller.times.has(message.id),
        has_tokens=controller.tokens.has(message.id),
        attachments=tuple(
            AttachmentRecord(a.name, bytes_text(a.num_bytes), a.text)
            for a in (Attachment(**stored) for stored in message.attachments)
        ),
        marks=marks_of(passages) if len(passages) > 1 else (),
        note=note_of(passages) if len(passages) > 1 else "",
        not_continued=controller.continuation.refusal(message),
    )


def _status(controller: ChatController, message: Message) -> str:
    """The state of a reply that is open or did not finish; "" for all others."""
    figures = ""
    if message.figures:
        figures = figures_line(message.figures, precisions_of(message.passages))
    match message.state:
        case State.WAITING:
            return _QUEUED.get(str(controller.engine.state), _QUEUED["ready"])
        case State.STREAMING:
            return _progress(controller, message)
        case State.STOPPED:
            return GAP.join(filter(None, ["stopped", figures]))
        case State.INTERRUPTED:
            return GAP.join(filter(None, ["interrupted: Inferdeck closed", figures]))
        case State.COMPLETE if message.figures and message.figures.finish_reason == "length":
            return GAP.join(["max tokens reached", figures])
    return ""


def _progress(controller: ChatController, message: Message) -> str:
    progress = controller.generation.progress(message.id)
    waits_for = controller.states.text(message.id)
    if progress is None or not progress.num_tokens:
        return waits_for or "waiting for the first token"
    parts = [waits_for or "generating"]
    if progress.itl_s is not None and not waits_for:
        parts.append(f"{duration_text(progress.itl_s)}/token")
    parts.append(counted(progress.num_tokens, "token"))
    others = controller.generation.num_sent - 1
    shared = f"batched with {counted(others, 'other chat')}" if others else ""
    where = f"step {progress.step_index:,}" if progress.step_index >= 0 else ""
    if not waits_for and (where or shared):
        parts.append(" ".join(filter(None, (where, shared))))
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
        return _QUEUED.get(str(controller.engine.state), _QUEUED["ready"])
    if waits_for := controller.states.text(reply.id):
        return waits_for
    progress = controller.generation.progress(reply.id)
    if progress is None or progress.itl_s is None:
        return "generating" if progress and progress.num_tokens else "waiting for the first token"
    return f"generating · {duration_text(progress.itl_s)}/token"
