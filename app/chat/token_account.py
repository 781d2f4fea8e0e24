"""The tokens of a reply, opened at the button below it; branches are started from there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtWidgets import QWidget

from app.chat.controller import ChatController
from app.chat.tokens import ReplyTokens
from engine.errors import ErrorInfo
from widgets.chat.message_view import AssistantMessageView
from widgets.chat.transcript import Transcript
from widgets.tokens.popover import TokensPopover


class TokenAccount:
    """Shows the tokens that are kept of a reply in `popover`."""

    def __init__(
        self,
        controller: ChatController,
        transcript: Transcript,
        parent: QWidget,
        say: Callable[[str], object],
    ) -> None:
        """`say`: for what went wrong."""
        self._controller = controller
        self._transcript = transcript
        self._shown_id = ""
        self._say = say
        self.popover = TokensPopover(parent)
        self.popover.branch_wanted.connect(self._branch)
        transcript.tokens_requested.connect(self.show)
        # it stands at a button that another conversation, or another version, does not have
        controller.current_changed.connect(self.popover.hide)
        controller.messages_changed.connect(lambda conversation_id: self.popover.hide())

    def show(self, message_id: str) -> None:
        """Open it for a reply; nothing happens where its tokens are not kept."""
        if not self.popover.isHidden():
            self.popover.hide()
        elif self._controller.tokens.has(message_id):
            self._controller.tokens.read(
                self._controller, message_id, partial(self._open, message_id), self._refuse
            )

    def _open(self, message_id: str, tokens: ReplyTokens) -> None:
        view = self._transcript.view(message_id)  # another chat may be open by now
        if isinstance(view, AssistantMessageView) and self.popover.isHidden():
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

    def _refuse(self, error: ErrorInfo) -> None:
        self._say(f"{error.cause} {error.remedy}")

    def _branch(self, index: int, token_id: int) -> None:
        self._controller.branch_from_token(self._shown_id, index, token_id)
