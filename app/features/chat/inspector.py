"""`ReplyInspector`: which reply the inspector shows, and its data, live and stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from PySide6.QtCore import QObject, QTimer, Signal

from app.features.chat.controller import ChatController
from app.features.chat.conversation import Message, Role
from app.features.chat.inspection import BlockHistory, Phases, Prompt
from app.features.chat.inspector_view import NO_DRAFTS, NO_SERVED_DRAFTS, InspectorView
from app.features.chat.reply_data import ReplyTokens
from app.link.tasks import LatestTask
from engine.errors import ErrorInfo
from engine.messages import OutputEvent
from engine.snapshot import EngineSnapshot, Part, RequestSnapshot, RequestTimes, StepRecord
from widgets.controls.text import not_reported_text
from widgets.latency.growing import GrowingLatency
from widgets.latency.reply import ReplyLatency, reply_latency
from widgets.tokens.record import TokenRecord

Steps = Callable[[RequestTimes], Sequence[StepRecord]]
"""Function that returns the steps of a request."""
AT_ONCE = 2000
"""Tokens of a reply that is explained in the GUI thread."""
LIVE_MS, COST_SHARE = 400, 100
"""Least interval of updates while a reply is generated; they take at most 1/100 of the time."""
NOT_OF_SESSION = "No KV blocks: the reply was not generated in this session."
NO_BLOCKS_YET = "No KV blocks allocated yet."
NEVER_ANY = "No KV blocks: the reply ended before any were allocated."


class Explained(NamedTuple):
    """The latency of a reply. times: as it ended, None while it is generated; latency: None while
    another thread computes it."""

    times: RequestTimes | None
    latency: ReplyLatency | None


class Pin(NamedTuple):
    """A reply that the user chose, and the last one at that time."""

    reply: str
    last: str


class ReplyInspector(QObject):
    """Shows the last reply of the conversation, or the one that the user chose until the next one
    begins. `chosen_changed(message id)`: another reply is shown, "" for none."""

    chosen_changed = Signal(str)

    def __init__(
        self,
        controller: ChatController,
        view: InspectorView,
        say: Callable[[str], object],
        name_of: Callable[[str], str],
        steps_of: Steps,
    ) -> None:
        """`name_of`: how the user knows a request; `say`: shows an error."""
        super().__init__(view)
        self._controller, self.view, self._say, self._steps_of = controller, view, say, steps_of
        view.latency.name = name_of
        self._blocks = BlockHistory(self._is_of_session)
        self._growing = GrowingLatency()
        self._explaining = LatestTask(self)
        self._explained = Explained(None, None)  # the latency on the screen
        self._latest: EngineSnapshot | None = None
        self._pin = Pin("", "")
        self.chosen = ""
        """The reply that is shown."""
        self._live = QTimer(self, singleShot=True)
        self._live.timeout.connect(self._refresh_live)
        self._ending = QTimer(self, singleShot=True)
        self._ending.timeout.connect(self._show_ended)
        controller.current_changed.connect(self.follow)
        controller.messages_changed.connect(lambda conversation_id: self.follow())
        controller.generation.reply_changed.connect(self._on_reply)
        controller.engine.outputs.connect(self._on_outputs)
        self.follow()

    # Which reply -------------------------------------------------------------------------------

    def choose(self, message_id: str) -> None:
        """Show this reply until another one begins."""
        self._pin = Pin(message_id, "".join(self._replies()[-1:]))
        self.follow()

    def follow(self) -> None:
        """Show the chosen reply of the conversation, else its last one."""
        replies = self._replies()
        chosen = "".join(replies[-1:])
        if self._pin.last == chosen and self._pin.reply in replies:
            chosen = self._pin.reply
        if chosen != self.chosen:
            self.chosen = chosen
            self.chosen_changed.emit(chosen)
        self.refresh()

    def _replies(self) -> list[str]:
        path = self._controller.current.path()
        return [message.id for message in path if message.role is Role.ASSISTANT]

    def _is_of_session(self, reply_id: str) -> bool:
        return self._controller.generation.conversation_of(reply_id) is not None

    @property
    def _message(self) -> Message | None:
        return self._controller.current.messages.get(self.chosen)

    # Showing -----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Show everything that is known of the reply; nothing while the panel is folded."""
        if not self.view.isVisible():
            return
        message = self._message
        if message is None:
            self.view.show_nothing()
        elif not self._is_ending(message):
            self._show(message)
        elif not self._ending.isActive():
            self._ending.start(LIVE_MS)

    def _is_ending(self, message: Message) -> bool:
        """Whether a long reply was generated until now. It is being saved, and the causes of its
        last gaps are looked for: what the panel shows of it can wait."""
        times, shown = self._explained
        if shown is None or times is not None or len(shown.gaps) <= AT_ONCE:
            return False
        is_over = self._controller.generation.progress(message.id) is None
        return is_over and shown.request_id == message.id

    def _show_ended(self) -> None:
        message = self._message
        if message is not None and self.view.isVisible():
            self._show(message)

    def _show(self, message: Message) -> None:
        asked = self._controller.current.messages.get(message.parent_id or "")
        self.view.show_prompt(message.id, " ".join(asked.text[:200].split()) if asked else "")
        self._show_blocks(message)
        if self._controller.generation.progress(message.id) is not None:
            self._refresh_live()
        else:
            self._read(message)

    def take(self, snapshot: EngineSnapshot) -> None:
        """A new snapshot: the figures of a running reply follow soon."""
        self._latest = snapshot
        self._blocks.take(snapshot)
        if self.view.isVisible() and not self._live.isActive() and self._request is not None:
            self._live.start(LIVE_MS)

    @property
    def _request(self) -> RequestSnapshot | None:
        """The reply's request in the engine."""
        requests = self._latest.requests if self._latest is not None else ()
        return next((r for r in requests if r.request_id == self.chosen), None)

    def _refresh_live(self) -> None:
        message, progress = self._message, self._controller.generation.progress(self.chosen)
        if message is None or progress is None or not self.view.isVisible():
            return
        began, request = time.perf_counter(), self._request
        if request is None:
            times, prompt = RequestTimes(began), Prompt()
        else:
            given = len(message.opening)  # a continued reply sends its tokens with the prompt
            times = request.times
            sent = request.num_prompt_tokens + given
            prompt = Prompt(sent, request.num_cached_tokens, self._is_served(message))
        self._show_phases(times, prompt)
        if times.tokens:
            latency = self._growing.update(self.chosen, times, self._steps_of(times))
            self._explained = Explained(None, latency)
            self.view.show_latency(latency)
        self._show_blocks(message)
        self._show_tokens(message, self._controller.generation.tokens_of(self.chosen))
        cost_ms = 1e3 * (time.perf_counter() - began)
        self._live.start(max(LIVE_MS, round(COST_SHARE * cost_ms)))

    def _on_reply(self, conversation_id: str, message_id: str) -> None:
        message = self._message
        if message_id == self.chosen and message is not None and not message.state.is_open:
            self.refresh()  # it has ended

    def _on_outputs(self, events: Sequence[OutputEvent]) -> None:
        for event in events:
            if self._blocks.end(event) and event.request_id == self.chosen:
                message = self._message
                if message is not None and self.view.isVisible():
                    self._show_blocks(message)

    def _read(self, message: Message) -> None:
        """The stored times and tokens; they may arrive later."""
        times, tokens = self._controller.times, self._controller.tokens
        if times.has(message.id):
            shown = partial(self._got_times, message.id)
            times.read(self, message.id, shown, self._refuse)
        elif not message.state.is_open:
            self.view.show_latency(None)
        if tokens.has(message.id):
            tokens.read(self, message.id, partial(self._got_tokens, message.id), self._refuse)
        else:
            self._show_tokens(message, ())

    def _got_times(self, message_id: str, times: RequestTimes) -> None:
        message = self._message
        if message_id == self.chosen and message is not None:
            figures = message.figures
            prompt = Prompt(is_served=self._is_served(message))
            if figures is not None:
                sent, cached = figures.num_sent_tokens, figures.num_cached_tokens
                prompt = prompt._replace(num_tokens=sent, num_cached=cached)
            self._show_phases(times, prompt)
            if times.tokens:
                self._explain(times)

    def _explain(self, times: RequestTimes) -> None:
        """Show the latency of a finished reply. For a long one, continue the analysis from the time
        it was generated, or run it in another thread."""
        if times is not self._explained.times:
            self._explaining.cancel()
            self._explained = Explained(times, None)
            given = self.chosen, times, self._steps_of(times)
            if len(times.tokens) <= AT_ONCE:
                self._explained = Explained(times, reply_latency(*given))
            elif self._growing.request_id == self.chosen:
                self._explained = Explained(times, self._growing.update(*given))
            else:
                explain, done = partial(reply_latency, *given), partial(self._got_latency, times)
                self._explaining.run(explain, done, self._refuse)
        if self._explained.latency is not None:
            self.view.show_latency(self._explained.latency)

    def _got_latency(self, times: RequestTimes, latency: ReplyLatency) -> None:
        if times is not self._explained.times:
            return  # the reply was continued meanwhile
        self._explained = Explained(times, latency)
        if latency.request_id == self.chosen and self.view.isVisible():
            self.view.show_latency(latency)

    def _got_tokens(self, message_id: str, tokens: ReplyTokens) -> None:
        message = self._message
        if message_id == self.chosen and message is not None:
            self._show_tokens(message, tokens.records)

    def _show_tokens(self, message: Message, records: Sequence[TokenRecord]) -> None:
        self.view.drafts.show_tokens(records, self._no_drafts(message))

    def _no_drafts(self, message: Message) -> str:
        """Why there are no drafts of a reply."""
        if not self._is_served(message):
            return NO_DRAFTS
        latest = self._latest
        if latest is None or not self._is_of_session(message.id):
            return NO_SERVED_DRAFTS
        return not_reported_text(latest, "Drafts", Part.STEPS) or NO_SERVED_DRAFTS

    def _is_served(self, message: Message) -> bool:
        """Whether another server generates or generated it."""
        if message.figures is not None:
            return message.figures.is_served
        return self._latest is not None and Part.STEPS in self._latest.missing

    def _show_phases(self, times: RequestTimes, prompt: Prompt) -> None:
        self.view.phases.show_phases(Phases.of(times, time.perf_counter()), prompt)

    def _show_blocks(self, message: Message) -> None:
        blocks = self._blocks.of(message.id)
        if blocks is not None:
            self.view.blocks.show_blocks(message.id, blocks)
        else:
            self.view.blocks.show_none(self._no_blocks(message))

    def _no_blocks(self, message: Message) -> str:
        """Why there are no KV blocks of a reply."""
        if not message.state.is_open and not self._is_of_session(message.id):
            return NOT_OF_SESSION
        if self._latest is not None and (
            text := not_reported_text(self._latest, "KV blocks", Part.BLOCKS)
        ):
            return text
        return NO_BLOCKS_YET if message.state.is_open else NEVER_ANY

    def _refuse(self, error: ErrorInfo) -> None:
        self.view.show_latency(None)
        self._say(f"{error.cause} {error.remedy}")
