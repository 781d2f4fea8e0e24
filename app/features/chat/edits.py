"""`Edits`: sends edited messages, except those that the engine would refuse."""

from __future__ import annotations

from PySide6.QtCore import QObject

from app.features.chat.attachments import file_content
from app.features.chat.context_use import context_warning
from app.features.chat.controller import BUSY, ChatController
from app.features.chat.conversation import Message, num_context_tokens, unanswered
from app.features.chat.token_counts import TokenCounts, message_parts
from widgets.chat.message_view import UserMessageView
from widgets.chat.transcript import Transcript


class Edits(QObject):
    """Follows the open editors of `transcript`; the reason of a refusal is shown in the editor."""

    def __init__(self, controller: ChatController, transcript: Transcript) -> None:
        super().__init__(transcript)
        self._controller, self._transcript = controller, transcript
        self._counts = TokenCounts(controller, self._texts, self)
        self._counts.changed.connect(self.show_refusals)
        transcript.requests.edit_begun.connect(lambda message_id: self._counts.count())
        transcript.requests.edit_typed.connect(lambda message_id: self._counts.count_soon())
        transcript.requests.edit.connect(self._send)

    def show_refusals(self) -> None:
        for view in self._transcript.edited:
            view.set_refusal(self._refusal(view))

    def _send(self, message_id: str, text: str) -> None:
        view = self._transcript.view(message_id)
        if not isinstance(view, UserMessageView):
            return
        if self._refusal(view):
            self._counts.count()
            return
        view.end_edit()
        self._controller.edit(message_id, text)

    def _refusal(self, view: UserMessageView) -> str:
        if self._controller.is_busy:
            return BUSY
        path, parts = self._parts(view)
        limit = self._controller.context[1]
        use = self._counts.use(num_context_tokens(path), limit, unanswered(path), parts)
        return context_warning(use) if use.is_too_long else ""

    def _parts(self, view: UserMessageView) -> tuple[list[Message], list[str]]:
        """The messages before the edited one, and the texts of its new version."""
        current = self._controller.current
        message = current.messages[view.record.id]
        path = current.path_to(message.parent_id)
        files = [file_content(one["name"], one["text"]) for one in message.attachments]
        return path, message_parts(path, current.system_prompt, files, view.edited_text)

    def _texts(self) -> list[str]:
        found: list[str] = []
        for view in self._transcript.edited:
            path, parts = self._parts(view)
            found += [*unanswered(path), *parts]
        return found
