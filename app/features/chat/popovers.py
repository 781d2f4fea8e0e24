"""The popovers of a reply, its latency and its tokens; and web links."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QMessageBox, QWidget

from app.features.chat.controller import ChatController
from app.features.chat.reply_data import ReplyTokens
from app.features.chat.saving import ReplyStore
from engine.errors import ErrorInfo
from engine.snapshot import RequestTimes, StepRecord
from widgets.chat.message_view import AssistantMessageView
from widgets.chat.transcript import Transcript
from widgets.controls.popover import Popover
from widgets.latency.popover import LatencyPopover
from widgets.latency.reply import reply_latency
from widgets.tokens.popover import TokensPopover

Steps = Callable[[float, float], Sequence[StepRecord]]
"""Function that returns the steps within a time range."""
Say = Callable[[str], object]
"""Function that shows an error."""


class ReplyPopover(ABC):
    """Opens a popover at a button below a reply, for replies that have its data in `store`."""

    popover: Popover

    def __init__(
        self, controller: ChatController, store: ReplyStore[Any], transcript: Transcript, say: Say
    ) -> None:
        self._controller, self._store = controller, store
        self._transcript, self._say = transcript, say

    @abstractmethod
    def _open(self, message_id: str, view: AssistantMessageView, data: Any) -> None: ...

    def show(self, message_id: str) -> None:
        """Open it, or close it where it is open."""
        if not self.popover.isHidden():
            self.popover.hide()
        elif self._store.has(message_id):
            self._store.read(
                self._controller, message_id, partial(self._found, message_id), self._refuse
            )

    def show_last(self) -> None:
        """Open it for the last reply of the conversation that has the data."""
        known = [m.id for m in self._controller.current.path() if self._store.has(m.id)]
        if known:
            self._transcript.reveal(known[-1])
            self.show(known[-1])

    def _found(self, message_id: str, data: Any) -> None:
        view = self._transcript.view(message_id)
        # another chat may have been opened meanwhile, or the popover
        if isinstance(view, AssistantMessageView) and self.popover.isHidden():
            self._open(message_id, view, data)

    def _refuse(self, error: ErrorInfo) -> None:
        self._say(f"{error.cause} {error.remedy}")


class ReplyLatencyPopover(ReplyPopover):
    """Of the times of a reply and the steps of the engine."""

    popover: LatencyPopover

    def __init__(
        self,
        controller: ChatController,
        transcript: Transcript,
        parent: QWidget,
        say: Say,
        name_of: Callable[[str], str],
        steps: Steps,
    ) -> None:
        """`name_of`: how the user knows a request."""
        super().__init__(controller, controller.times, transcript, say)
        self._steps = steps
        self.popover = LatencyPopover(parent)
        self.popover.name = name_of

    def _open(self, message_id: str, view: AssistantMessageView, data: RequestTimes) -> None:
        if not data.tokens:
            self._say("No token timings are available for this reply. Regenerate it.")
            return
        # a reply of an earlier session arrives at 0, and has no steps
        steps = self._steps(data.arrival, data.tokens[-1].time) if data.arrival else ()
        self.popover.show_latency(reply_latency(message_id, data, steps))
        self.popover.toggle_at(view.latency)


class ReplyTokensPopover(ReplyPopover):
    """Of the saved tokens of a reply; branches start there."""

    popover: TokensPopover

    def __init__(
        self, controller: ChatController, transcript: Transcript, parent: QWidget, say: Say
    ) -> None:
        super().__init__(controller, controller.tokens, transcript, say)
        self._shown_id = ""
        self.popover = TokensPopover(parent)
        self.popover.branch_wanted.connect(
            lambda index, token_id: controller.branch_from_token(self._shown_id, index, token_id)
        )

    def _open(self, message_id: str, view: AssistantMessageView, data: ReplyTokens) -> None:
        self._shown_id = message_id
        self.popover.show_tokens(data.records, self._controller.branch_refusal(message_id))
        self.popover.toggle_at(view.tokens)


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
