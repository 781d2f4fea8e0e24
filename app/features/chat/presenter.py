"""`Presenter`: shows the controller's chats in the page's widgets, and passes on what they ask."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from app.features.chat.file_actions import RECOVER, REPLACE
from app.features.chat.labels import found_record, model_text, sampling_fields
from app.features.chat.records import conversation_record, message_record
from app.link.tasks import run_task
from engine.errors import ErrorInfo
from widgets.chat import highlight
from widgets.chat.records import ConversationRecord, MessageRecord
from widgets.chat.sampling_popover import CUSTOM

if TYPE_CHECKING:
    from app.features.chat.page import ChatPage

_EMPTY = {
    "no model": ("No model is open", "You can type now: messages are sent once a model is open."),
    "loading": ("The model is loading", "You can type now: messages are sent after loading."),
    "crashed": ("The engine has stopped", "Restart the engine to send queued messages."),
}


class Presenter(QObject):
    def __init__(self, page: ChatPage) -> None:
        super().__init__(page)
        self._page = page
        self._controller = controller = page.controller
        self._can = (False, False, False)  # stop the reply; rename, delete the chat; continue
        self._connect_widgets(page)
        controller.list_changed.connect(self._show_list)
        controller.current_changed.connect(self._show_current)
        controller.messages_changed.connect(self._messages_changed)
        controller.text_returned.connect(page.draft.give_back)
        controller.settings_changed.connect(lambda conversation_id: self._settings_changed())
        controller.presets_changed.connect(self._show_settings)
        controller.deleted.connect(self._deleted)
        controller.was_archived.connect(self._archived)
        controller.generation.reply_changed.connect(self._message_changed)
        controller.continuation.failed.connect(page.toast.show_message)
        controller.generation.text_appended.connect(self._text_appended)
        controller.engine.state_changed.connect(lambda state: self._follow_engine())
        controller.engine.loaded.connect(lambda event: self._prepare_highlighting())
        controller.saver.problem_changed.connect(self._show_problem)
        self._show_current()
        self._show_list()
        self._show_problem(controller.saver.problem)

    def _connect_widgets(self, page: ChatPage) -> None:
        controller, transcript = self._controller, page.transcript.requests
        page.list.search_changed.connect(lambda text: self._show_list())
        page.list.search_changed.connect(lambda text: page.transcript.unmark())
        page.list.archive_shown.connect(lambda is_shown: self._show_list())
        page.list.renamed.connect(controller.rename)
        page.list.delete_requested.connect(controller.delete)
        page.list.pin_requested.connect(controller.set_pinned)
        page.list.archive_requested.connect(controller.set_archived)
        page.list.export_requested.connect(page.transfer.export_one)
        page.composer.stop_requested.connect(controller.stop)
        page.composer.regenerate_requested.connect(lambda: controller.regenerate())
        transcript.regenerate.connect(controller.regenerate)
        transcript.continue_reply.connect(controller.continuation.start)
        transcript.version.connect(controller.step_version)
        transcript.tokens.connect(page.tokens.show)
        page.sampling.changed.connect(controller.set_sampling)
        page.sampling.preset_chosen.connect(controller.apply_preset)
        page.sampling.preset_saved.connect(controller.save_preset)
        page.sampling.preset_deleted.connect(controller.delete_preset)
        page.system_prompt.changed.connect(controller.set_system_prompt)
        page.transfer.done.connect(self._transferred)
        page.transfer.failed.connect(self._transfer_failed)

    def _show_list(self) -> None:
        query = self._page.list.search.text()
        self._page.list.set_num_archived(len(self._controller.archived))
        current = self._controller.current.id
        if query.strip():
            records = [found_record(found) for found in self._controller.search(query)]
            keys = [(record.id, record.hit) for record in records]
            self._page.list.set_rows(keys, records.__getitem__, current)
            return
        is_archive = self._page.list.archive.isChecked()
        listed = self._controller.archived if is_archive else self._controller.conversations

        def record_of(row: int) -> ConversationRecord:
            return conversation_record(self._controller, listed[row], time.time())

        self._page.list.set_rows([(c.id, "") for c in listed], record_of, current)

    def _show_current(self) -> None:
        """Another conversation: its messages, settings and draft."""
        current = self._controller.current
        self._page.branches.hide()
        self._page.file.hide()
        self._page.draft.follow()
        self._show_messages()
        self._show_settings()
        self._page.list.select(current.id)

    def _show_messages(self) -> None:
        if self._page.tokens.popover.isVisible():
            self._page.tokens.popover.hide()  # its button may be gone
        current = self._controller.current
        path, numbers = current.path(), current.numbering()

        def record_of(place: int) -> MessageRecord:
            message = path[place]
            return message_record(self._controller, current, message, numbers[message.id])

        self._page.transcript.set_rows([message.id for message in path], record_of)
        self._page.stack.setCurrentWidget(self._page.transcript if path else self._page.first)
        self._page.toast.raise_()  # a stacked layout lifts what it shows
        self._show_state()

    def _show_state(self) -> None:
        """The composer's button, the context meter, and the title of an empty page."""
        controller = self._controller
        can_continue = controller.continuation.is_possible()
        can = (controller.is_busy, controller.current.is_stored, can_continue)
        if can != self._can:
            self._can = can
            self._page.actions_changed.emit()
        self._page.composer.set_busy(self._controller.is_busy)
        self._page.draft.show_context()
        self._page.edits.show_refusals()
        if self._controller.current.messages:
            return
        model, state = self._controller.engine.model, str(self._controller.engine.state)
        title = _EMPTY.get(state, ("New chat", ""))
        if model is not None:
            title = (model.name, model_text(model, self._controller.context[1]))
        self._page.empty.set_title(*title)

    def _follow_engine(self) -> None:
        """Whether the last reply can be continued depends on the open model."""
        self._show_state()
        current = self._controller.current
        if (last := current.last) is not None:
            record = message_record(self._controller, current, last)
            self._page.transcript.update_message(record)

    def _prepare_highlighting(self) -> None:
        """So that the first chat with code opens without a stall."""
        run_task(self, highlight.prepare, lambda _: None, lambda error: None)

    def _show_settings(self) -> None:
        current = self._controller.current
        self._page.composer.set_sampling_name(current.preset or CUSTOM)
        self._page.composer.set_system_prompt_used(bool(current.system_prompt.strip()))
        presets = self._controller.presets
        is_own = any(p.name == current.preset and p.is_own for p in presets)
        described = [(preset.name, preset.help) for preset in presets]
        self._page.sampling.set_presets(described, current.preset, is_own)
        self._page.sampling.set_fields(sampling_fields(current.sampling), current.sampling.stop)
        self._page.system_prompt.set_text(current.system_prompt)

    def _settings_changed(self) -> None:
        self._show_settings()
        self._page.draft.show_context()  # a reply has another maximum length

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
            f"Deleted “{title}”.",
            "Undo",
            lambda: self._controller.restore(conversation_id),
            lambda: self._controller.purge(conversation_id),
        )

    def _archived(self, conversation_id: str, title: str) -> None:
        self._page.toast.show_message(
            f"Archived “{title}”.",
            "Undo",
            lambda: self._controller.set_archived(conversation_id, False),
        )

    def _show_problem(self, problem: ErrorInfo | None) -> None:
        text = f"Chats are not being saved. {problem.cause} {problem.remedy}" if problem else ""
        if self._controller.can_recover:
            self._page.problem_notice.say(text, RECOVER, self._controller.recover)
            return
        action = REPLACE if problem and self._controller.can_replace_file else ""
        self._page.problem_notice.say(text, action, lambda: self._page.recovery.begin())

    def _transferred(self, text: str) -> None:
        self._page.transfer_notice.say("")
        self._page.toast.show_message(text)

    def _transfer_failed(self, error: ErrorInfo) -> None:
        notice = self._page.transfer_notice
        notice.say(f"{error.cause} {error.remedy}".strip(), "Close", lambda: notice.say(""))
