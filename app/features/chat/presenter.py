"""Conversations and messages as the records that the widgets show. No Qt."""

from __future__ import annotations

import time
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

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
from app.features.chat.recovery import BEGIN
from app.features.chat.sampling import CONTROLS, shown_value
from app.units import format_bytes
from engine.errors import ErrorInfo
from engine.sampling_params import PARAMETERS, SamplingParams
from engine.snapshot import ModelInfo
from widgets.chat.records import (
    AttachmentRecord,
    ConversationRecord,
    MessageRecord,
    PresetRecord,
    SamplingFieldRecord,
)
from widgets.chat.sampling_popover import CUSTOM
from widgets.controls.text import milliseconds
from widgets.live.figures import weights_words

if TYPE_CHECKING:
    from app.features.chat.page import ChatPage


_WAITING = {
    "no model": "waiting: sent as soon as a model is open",
    "loading": "waiting: sent as soon as the model has loaded",
    "crashed": "waiting: sent as soon as the engine runs again",
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
        has_latency=controller.has_times(message.id),
        has_tokens=controller.tokens.has(message.id),
        attachments=tuple(
            AttachmentRecord(a.name, format_bytes(a.num_bytes), a.text)
            for a in map(Attachment.of, message.attachments)
        ),
        marks=marks_of(message.passages),
        note=note_of(message.passages),
    )


def _status(controller: ChatController, message: Message) -> str:
    """What is said of a reply that is open or did not end by itself; "" for all others."""
    precisions = precisions_of(message.passages)
    figures = figures_line(message.figures, precisions) if message.figures else ""
    match message.state:
        case State.WAITING:
            return _WAITING.get(str(controller.engine.state), _WAITING["ready"])
        case State.STREAMING:
            return _progress(controller, message)
        case State.STOPPED:
            return GAP.join(filter(None, ["stopped", figures]))
        case State.INTERRUPTED:
            return "interrupted: Inferdeck ended while this was written"
        case State.COMPLETE if message.figures and message.figures.finish_reason == "length":
            return GAP.join(["cut at the length limit", figures])
    return ""


def _progress(controller: ChatController, message: Message) -> str:
    progress = controller.generation.progress(message.id)
    if progress is None or not progress.num_tokens:
        return "waiting for the first token"
    parts = ["generating"]
    if progress.itl_ms is not None:
        parts.append(f"{milliseconds(progress.itl_ms)}/token")
    count = progress.num_tokens
    parts.append(f"{count:,} token" if count == 1 else f"{count:,} tokens")
    others = controller.generation.num_sent - 1
    shared = f" shared with {others} other {'chat' if others == 1 else 'chats'}" if others else ""
    where = f"step {progress.step_index:,}" if progress.step_index >= 0 else ""
    parts += [f"{where}{shared}".strip()] if where or shared else []
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
        return "waiting"
    progress = controller.generation.progress(reply.id)
    if progress is None or progress.itl_ms is None:
        return "generating"
    return f"generating · {milliseconds(progress.itl_ms)}/token"


def found_record(found: Found) -> ConversationRecord:
    """What a search found in a conversation: with the text around it."""
    conversation, (number, count) = found.conversation, found.place
    marks = found.marks if found.message_id else ()
    detail = found.snippet if found.message_id else "title"
    return ConversationRecord(
        conversation.id, conversation.title, detail, False, marks, found.message_id,
        conversation.is_pinned, conversation.is_archived,
        f"{number:,} of {count:,}" if count > 1 else "",
    )  # fmt: skip


def date_text(moment: float, now: float) -> str:
    """A moment as one says it: 14:05, yesterday, Mon, 12 Mar, 12 Mar 2025."""
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
    """What answers here, in a line."""
    if not model.is_described:
        context = "" if not limit else f"context of {limit:,} tokens"
        return " · ".join(filter(None, (f"served by {model.device}", context)))
    count = model.num_parameters
    size = f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.0f} M"
    precision = filter(None, (model.dtype, weights_words(model)))
    parts = [f"{size} parameters", *precision, model.device]
    if limit is not None:
        parts.append(f"context of {limit:,} tokens")
    if model.is_dummy:
        parts.append("random weights: its answers are noise")
    return " · ".join(parts)


def sampling_fields(params: SamplingParams) -> list[SamplingFieldRecord]:
    return [
        SamplingFieldRecord(
            name, PARAMETERS[name].label, PARAMETERS[name].help, control.minimum, control.maximum,
            control.step, control.decimals, shown_value(params, name), control.unset_text,
        )
        for name, control in CONTROLS.items()
    ]  # fmt: skip


def preset_records(controller: ChatController) -> list[PresetRecord]:
    return [PresetRecord(p.name, p.help, p.is_own) for p in controller.presets]


_EMPTY = {
    "no model": ("No model is open", "Write already: it is sent as soon as a model is open."),
    "loading": ("The model is loading", "Write already: it is sent as soon as it has loaded."),
    "crashed": ("The engine has stopped", "Start it again; what you write is sent then."),
}


class Presenter(QObject):
    """Lives as long as the page, whose widgets it fills whenever the controller says so."""

    def __init__(self, page: ChatPage) -> None:
        super().__init__(page)
        self._page = page
        self._controller = controller = page.controller
        self._can = (False, False)  # stop the reply; rename, delete the chat
        page.list.search_changed.connect(lambda text: self._show_list())
        page.list.archive_shown.connect(lambda is_shown: self._show_list())
        controller.list_changed.connect(self._show_list)
        controller.current_changed.connect(self._show_current)
        controller.messages_changed.connect(self._messages_changed)
        controller.message_changed.connect(self._message_changed)
        controller.text_appended.connect(self._text_appended)
        controller.text_returned.connect(page.draft.give_back)
        controller.settings_changed.connect(lambda conversation_id: self._show_settings())
        controller.presets_changed.connect(self._show_settings)
        controller.deleted.connect(self._deleted)
        controller.archived_one.connect(self._archived)
        controller.engine_changed.connect(self._show_state)
        controller.problem_changed.connect(self._show_problem)
        self._show_current()
        self._show_list()
        self._show_problem(controller.problem)

    def _show_list(self) -> None:
        query = self._page.list.search.text()
        self._page.list.set_num_archived(len(self._controller.archived))
        current = self._controller.current.id
        if query.strip():
            records = [found_record(found) for found in self._controller.search(query)]
            self._page.list.set_conversations(records, current)
            return
        listed = self._listed()

        def record_of(row: int) -> ConversationRecord:
            return conversation_record(self._controller, listed[row], time.time())

        self._page.list.set_rows([(c.id, "") for c in listed], record_of, current)

    def _listed(self) -> list[Conversation]:
        if self._page.list.archive.isChecked():
            return self._controller.archived
        return self._controller.conversations

    def _show_current(self) -> None:
        """Another conversation: its messages, settings, and what was being written to it."""
        current = self._controller.current
        self._page.branches.hide()
        self._page.file.hide()
        self._page.draft.follow()
        self._show_messages()
        self._show_settings()
        self._page.list.select(current.id)

    def _show_messages(self) -> None:
        current = self._controller.current
        path, numbers = current.path(), current.numbering()

        def record_of(place: int) -> MessageRecord:
            message = path[place]
            return message_record(self._controller, current, message, numbers[message.id])

        self._page.transcript.set_rows([message.id for message in path], record_of)
        self._page.stack.setCurrentWidget(self._page.transcript if path else self._page.empty)
        self._page.toast.raise_()  # a stacked layout lifts what it shows
        self._show_state()

    def _show_state(self) -> None:
        """The composer's button and the context meter, and what an empty page says."""
        can = (self._controller.is_busy, self._controller.current.is_stored)
        if can != self._can:
            self._can = can
            self._page.actions_changed.emit()
        self._page.composer.set_busy(self._controller.is_busy)
        self._page.draft.show_context()
        model = self._controller.engine.model
        if model is not None:
            limit = self._controller.context[1]
            self._page.empty.set_title(model.name, model_text(model, limit))
        else:
            self._page.empty.set_title(
                *_EMPTY.get(str(self._controller.engine.state), ("New chat", ""))
            )

    def _show_settings(self) -> None:
        current = self._controller.current
        self._page.composer.set_sampling_name(current.preset or CUSTOM)
        self._page.composer.set_system_prompt_used(bool(current.system_prompt.strip()))
        self._page.sampling.set_presets(preset_records(self._controller), current.preset)
        self._page.sampling.set_fields(sampling_fields(current.sampling), current.sampling.stop)
        self._page.system_prompt.set_text(current.system_prompt)
        self._page.draft.show_context()

    def _messages_changed(self, conversation_id: str) -> None:
        if conversation_id == self._controller.current.id:
            self._show_messages()

    def _message_changed(self, conversation_id: str, message_id: str) -> None:
        conversation = self._controller.conversation(conversation_id)
        if conversation is None or message_id not in conversation.messages:
            return
        if not self._page.list.search.text().strip():
            record = conversation_record(self._controller, conversation, time.time())
            self._page.list.update_conversation(record)
        if conversation is self._controller.current:
            message = conversation.messages[message_id]
            self._page.transcript.update_message(
                message_record(self._controller, conversation, message)
            )
            self._show_state()

    def _text_appended(self, conversation_id: str, message_id: str, text: str) -> None:
        if conversation_id == self._controller.current.id:
            self._page.transcript.append_text(message_id, text)

    def _deleted(self, conversation_id: str, title: str) -> None:
        self._page.toast.show_message(
            f"“{title}” was deleted.",
            "Undo",
            lambda: self._controller.restore(conversation_id),
            lambda: self._controller.purge(conversation_id),
        )

    def _archived(self, conversation_id: str, title: str) -> None:
        self._page.toast.show_message(
            f"“{title}” was archived.",
            "Undo",
            lambda: self._controller.set_archived(conversation_id, False),
        )

    def _show_problem(self, problem: ErrorInfo | None) -> None:
        text = f"Chats are not being saved. {problem.cause} {problem.remedy}" if problem else ""
        anew = self._page.anew
        action = BEGIN if problem and anew.is_possible else ""
        self._page.problem_notice.say(text, action, anew.begin)
