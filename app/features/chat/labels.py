"""Search hits, dates, models, sampling settings, suggestions and branches as text and records."""

from __future__ import annotations

import json
from pathlib import Path

from app.features.chat.conversation import CONTROLS, Conversation, Message, Role
from app.features.chat.sampling import shown_value
from app.features.chat.shelf import Found
from app.paths import resources_dir, starter_model
from app.storage.model_sources import is_starter
from engine.sampling_params import PARAMETERS, SamplingParams
from engine.snapshot import ModelInfo
from engine.units import precision_name, scaled_count, weights_text
from widgets.chat.reasoning import without_reasoning
from widgets.chat.records import BranchRecord, ConversationRecord, SamplingField


def found_record(found: Found) -> ConversationRecord:
    conversation, (number, count) = found.conversation, found.place
    marks = found.marks if found.message_id else ()
    detail = found.snippet if found.message_id else "title"
    return ConversationRecord(
        conversation.id, conversation.title, detail, False, marks, found.message_id,
        conversation.is_pinned, conversation.is_archived,
        f"{number:,} of {count:,}" if count > 1 else "",
    )  # fmt: skip


def model_text(model: ModelInfo, limit: int | None) -> str:
    """The model in a line: size, precision, device, context."""
    if not model.is_described:
        context = "" if not limit else f"{limit:,}-token context"
        return " · ".join(filter(None, (f"served by {model.device}", context)))
    count = model.num_parameters
    precision = filter(None, (precision_name(model.dtype), weights_text(model.quantization)))
    parts = [f"{scaled_count(count)} parameters", *precision, model.device]
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


TEXT_LENGTH = 80


def branch_records(conversation: Conversation) -> tuple[BranchRecord, ...]:
    """The first branches of the conversation, each with its own branches."""
    children: dict[str | None, list[Message]] = {}
    for message in conversation.messages.values():
        children.setdefault(message.parent_id, []).append(message)
    shown = {message.id for message in conversation.path()}
    made: dict[str, BranchRecord] = {}
    ends: dict[str, str] = {}  # message id -> last message of its shown branch
    # a message comes after its parent: from the last to the first, what follows is made already
    for message in reversed(conversation.messages.values()):
        following = children.get(message.id, [])
        top = max(following, key=lambda m: m.shown, default=None)
        ends[message.id] = message.id if top is None else ends[top.id]
        versions = children[message.parent_id]
        record = BranchRecord(
            message.id, ends[message.id], _branch_title(message), message.created, 1,
            versions.index(message) + 1, len(versions), message.id in shown,
            tuple(made.pop(m.id) for m in following) if len(following) > 1 else (),
        )  # fmt: skip
        if len(following) == 1:
            after = made.pop(following[0].id)
            record = record._replace(num_messages=1 + after.num_messages, branches=after.branches)
        made[message.id] = record
    return tuple(made[message.id] for message in children.get(None, []))


def _branch_title(message: Message) -> str:
    who = "You: " if message.role is Role.USER else "Reply: "
    text = " ".join(without_reasoning(message.text)[: 4 * TEXT_LENGTH].split())
    return who + (text if len(text) <= TEXT_LENGTH else text[:TEXT_LENGTH].rstrip() + "…")
