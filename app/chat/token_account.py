"""The tokens of a reply, opened at the button below it; branches are started from there."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from app.chat.controller import ChatController
from widgets.chat.message_view import AssistantMessageView
from widgets.chat.transcript import Transcript
from widgets.tokens.popover import TokensPopover


class TokenAccount:
    """Shows the tokens that are kept of a reply in `popover`."""

    def __init__(self, controller: ChatController, transcript: Transcript, parent: QWidget) -> None:
        self._controller = controller
        self._transcript = transcript
        self._shown_id = ""
        self.popover = TokensPopover(parent)
        self.popover.branch_wanted.connect(self._branch)
        transcript.tokens_requested.connect(self.show)
        # it stands at a button that another conversation, or another version, does not have
        controller.current_changed.connect(self.popover.hide)
        controller.messages_changed.connect(lambda conversation_id: self.popover.hide())

    def show(self, message_id: str) -> None:
        """Open it for a reply; nothing happens where its tokens are not kept."""
        tokens = self._controller.tokens.of(message_id)
        view = self._transcript.view(message_id)
        if tokens is None or not isinstance(view, AssistantMessageView):
            return
        self._shown_id = message_id
        self.popover.show_tokens(tokens.records, self._controller.branch_refusal(message_id))
        self.popover.toggle_at(view.tokens)

    def show_last(self) -> None:
        """Open it for the last reply of the conversation that has tokens."""
        has = self._controller.tokens.has
        known = [m.id for m in self._controller.current.path() if has(m.id)]
        if known:
            self._transcript.reveal(known[-1])
            self.show(known[-1])

    def _branch(self, index: int, token_id: int) -> None:
        self._controller.branch_from_token(self._shown_id, index, token_id)
