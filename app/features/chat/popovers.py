"""The tokens of a reply in a popover; web links."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QMessageBox, QWidget

from app.features.chat.controller import ChatController
from app.features.chat.reply_data import ReplyTokens
from engine.errors import ErrorInfo
from widgets.chat.message_view import AssistantMessageView
from widgets.chat.transcript import Transcript
from widgets.tokens.popover import TokensPopover

Say = Callable[[str], object]
"""Function that shows an error."""


class ReplyTokensPopover:
    """Opens the saved tokens of a reply at the button below it; branches start there."""

    def __init__(
        self, controller: ChatController, transcript: Transcript, parent: QWidget, say: Say
    ) -> None:
        self._controller, self._transcript, self._say = controller, transcript, say
        self._shown_id = ""
        self.popover = TokensPopover(parent)
        self.popover.branch_wanted.connect(
            lambda index, token_id: controller.branch_from_token(self._shown_id, index, token_id)
        )

    def show(self, message_id: str) -> None:
        """Open it, or close it where it is open."""
        store = self._controller.tokens
        if not self.popover.isHidden():
            self.popover.hide()
        elif store.has(message_id):
            store.read(self._controller, message_id, partial(self._found, message_id), self._refuse)

    def show_last(self) -> None:
        """Open it for the last reply of the conversation that has tokens."""
        path, has = self._controller.current.path(), self._controller.tokens.has
        known = [message.id for message in path if has(message.id)]
        if known:
            if self._transcript.view(known[-1]) is None:
                self._transcript.reveal(known[-1])
            self.show(known[-1])

    def _found(self, message_id: str, data: ReplyTokens) -> None:
        view = self._transcript.view(message_id)
        # another chat may have been opened meanwhile, or the popover
        if isinstance(view, AssistantMessageView) and self.popover.isHidden():
            self._transcript.ensureWidgetVisible(view.tokens)
            self._shown_id = message_id
            self.popover.show_tokens(data.records, self._controller.branch_refusal(message_id))
            self.popover.toggle_at(view.tokens)

    def _refuse(self, error: ErrorInfo) -> None:
        self._say(f"{error.cause} {error.remedy}")


def open_link(address: str, parent: QWidget, refuse: Say, asks: bool) -> None:
    """Open a web address in the browser, after confirmation if `asks`. `refuse` is called for other
    addresses."""
    url = QUrl(address, QUrl.ParsingMode.StrictMode)
    if url.scheme() not in ("http", "https") or not url.host():
        refuse(f"Only http and https links can be opened: {address[:80]}")
        return
    if not asks:
        QDesktopServices.openUrl(url)
        return
    box = QMessageBox(parent, icon=QMessageBox.Icon.Question, textFormat=Qt.TextFormat.PlainText)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.setWindowTitle("Open link")
    box.setText(f"Open {url.host()} in the browser?")
    box.setInformativeText(url.toDisplayString())
    opens = box.addButton("Open", QMessageBox.ButtonRole.AcceptRole)
    box.addButton(QMessageBox.StandardButton.Cancel)
    opens.clicked.connect(lambda: QDesktopServices.openUrl(url))
    box.open()
