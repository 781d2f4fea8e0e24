"""The account of where a reply's time went, opened at the button below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtWidgets import QWidget

from app.chat.controller import ChatController
from app.storage import StorageError
from engine.snapshot import StepRecord
from widgets.chat.message_view import AssistantMessageView
from widgets.chat.transcript import Transcript
from widgets.latency.popover import LatencyPopover
from widgets.latency.reply import reply_latency

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
    ) -> None:
        """`say`: for what went wrong."""
        self._controller = controller
        self._say = say
        self._transcript = transcript
        self._steps: Steps = lambda start, end: ()
        self.popover = LatencyPopover(parent)
        self.popover.name = controller.title_of
        transcript.latency_requested.connect(self.show)
        # it stands at a button that another conversation, or another version, does not have
        controller.current_changed.connect(self.popover.hide)
        controller.messages_changed.connect(lambda conversation_id: self.popover.hide())

    def set_steps(self, steps: Steps) -> None:
        """Where the steps of the engine are kept."""
        self._steps = steps

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
