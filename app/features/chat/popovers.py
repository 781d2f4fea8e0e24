"""The account of where a reply's time went, opened at the button below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QMessageBox, QWidget

from app.features.chat.controller import ChatController
from app.features.chat.tokens import ReplyTokens
from app.storage import StorageError
from engine.errors import ErrorInfo
from engine.snapshot import StepRecord
from widgets.chat.message_view import AssistantMessageView
from widgets.chat.transcript import Transcript
from widgets.latency.popover import LatencyPopover
from widgets.latency.reply import reply_latency
from widgets.tokens.popover import TokensPopover

Steps = Callable[[float, float], Sequence[StepRecord]]
"""The steps that ran at some moment of a stretch of the engine's clock."""


class LatencyAccount:
    """Puts the times of a reply and the steps of the engine together in `popover`."""

    def __init__(
        self,
        controller: ChatController,
        transcript: Transcript,
        parent: QWidget,
        say: Callable[[str], object],
        name_of: Callable[[str], str],
        steps: Steps,
    ) -> None:
        """`say`: shows an error. `name_of`: how the user knows a request. `steps`: of the engine,
        between two times."""
        self._controller = controller
        self._say = say
        self._transcript = transcript
        self._steps = steps
        self.popover = LatencyPopover(parent)
        self.popover.name = name_of
        transcript.latency_requested.connect(self.show)
        # it stands at a button that another conversation, or another version, does not have
        controller.current_changed.connect(self.popover.hide)
        controller.messages_changed.connect(lambda conversation_id: self.popover.hide())

    def show(self, message_id: str) -> None:
        """Open it for a reply; nothing happens where its times are not known. What was written
        before the program was started has its own times alone, no steps of the engine."""
        view = self._transcript.view(message_id)
        if not (self._controller.has_times(message_id) and isinstance(view, AssistantMessageView)):
            return
        times = self._controller.generation.times_of(message_id)
        steps: Sequence[StepRecord] = ()
        if times is not None:
            steps = self._steps(times.arrival, times.tokens[-1].time)
        else:
            try:
                times = self._controller.times.read(message_id)
            except StorageError as error:
                self._say(f"{error.cause} {error.remedy}")
                return
        self.popover.show_latency(reply_latency(message_id, times, steps))
        self.popover.toggle_at(view.latency)

    def show_last(self) -> None:
        """Open it for the last reply of the conversation that has one."""
        has = self._controller.has_times
        known = [m.id for m in self._controller.current.path() if has(m.id)]
        if known:
            self._transcript.reveal(known[-1])
            self.show(known[-1])


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


def ask_to_open(address: str, parent: QWidget, refuse: Callable[[str], object]) -> None:
    """Ask, then hand a web address to the browser. Other kinds of address are not opened:
    `refuse` is told so."""
    url = _web_address(address, refuse)
    if url is None:
        return
    box = QMessageBox(parent)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.setIcon(QMessageBox.Icon.Question)
    box.setWindowTitle("Open a link")
    box.setText(f"Open {url.host()} in the browser?")
    box.setInformativeText(url.toDisplayString())
    box.setTextFormat(Qt.TextFormat.PlainText)
    opens = box.addButton("Open", QMessageBox.ButtonRole.AcceptRole)
    box.addButton(QMessageBox.StandardButton.Cancel)
    opens.clicked.connect(lambda: QDesktopServices.openUrl(url))
    box.open()


def open_at_once(address: str, parent: QWidget, refuse: Callable[[str], object]) -> None:
    """As `ask_to_open`, for a user who does not want to be asked."""
    url = _web_address(address, refuse)
    if url is not None:
        QDesktopServices.openUrl(url)


def _web_address(address: str, refuse: Callable[[str], object]) -> QUrl | None:
    url = QUrl(address, QUrl.ParsingMode.StrictMode)
    if url.scheme() not in ("http", "https") or not url.host():
        refuse(f"Only web addresses are opened: {address[:80]}")
        return None
    return url
