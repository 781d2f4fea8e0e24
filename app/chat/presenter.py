"""What the chat page shows: the state of the controller, brought to the page's widgets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from app.chat.anew import BEGIN
from app.chat.conversation import Conversation
from app.chat.present import (
    conversation_record,
    found_record,
    message_record,
    model_text,
    preset_records,
    sampling_fields,
)
from engine.errors import ErrorInfo
from widgets.chat.records import ConversationRecord, MessageRecord
from widgets.chat.sampling_popover import CUSTOM

if TYPE_CHECKING:
    from app.chat.page import ChatPage

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
