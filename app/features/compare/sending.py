"""`SideReplies`: sends the prompts of a comparison to the engines of both sides, and times them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from PySide6.QtCore import QObject, Signal

from app.features.compare.placement import Setup
from app.features.compare.record import SIDES, PromptReplies
from app.features.compare.replies import COMPARE, Reply
from app.features.compare.requests import ReplyRunner
from app.link.bridge import EngineBridge


class SideReplies(QObject):
    """Replies of both sides, by the engine of `bridge` unless `use` gives a side another one.
    `appended(reply, text)`: more text; `changed(side, reply)`: another stage."""

    appended = Signal(object, str)
    changed = Signal(int, object)

    def __init__(self, bridge: EngineBridge, parent: QObject) -> None:
        super().__init__(parent)
        self._by_main = [self._make(bridge, side) for side in SIDES]
        self._runners = list(self._by_main)
        self._seconds: list[list[float]] = [[], []]  # of the replies of each side

    @property
    def is_running(self) -> bool:
        return any(runner.is_running for runner in self._runners)

    def is_side_running(self, side: int) -> bool:
        return self._runners[side].is_running

    def begin(self) -> None:
        """Forget the times of an earlier comparison."""
        self._seconds = [[], []]

    def use(self, side: int, bridge: EngineBridge) -> None:
        """Another engine generates the replies of `side`."""
        self._runners[side] = self._make(bridge, side)

    def use_main(self, side: int) -> None:
        """The main engine generates the replies of `side`; open ones are aborted."""
        runner, self._runners[side] = self._runners[side], self._by_main[side]
        runner.forget()
        if runner is not self._by_main[side]:
            runner.deleteLater()

    def send(
        self,
        pairs: Sequence[PromptReplies],
        setups: Sequence[Setup],
        sides: Collection[int],
        together: bool,
        is_raw: bool,
    ) -> bool:
        """Send the next prompt of each of `sides` that is free, or of one if not `together`.
        is_raw: text prompts are sent without the chat template. Returns whether any was sent."""
        is_sent = False
        for pair in pairs:
            for side in sides:
                is_free = not (self.is_side_running(side) if together else self.is_running)
                if is_free and pair.replies[side] is None:
                    most = pair.prompt.max_tokens
                    params = replace(setups[side].sampling, max_tokens=most, logprobs=0)
                    name = f"{COMPARE}-{uuid.uuid4().hex}"
                    reply = pair.replies[side] = Reply(name, pair.prompt.shown, params)
                    self._runners[side].send_line(reply, pair.prompt, is_raw)
                    is_sent = True
        return is_sent

    def stop(self) -> None:
        """Abort the open replies; keep their text so far."""
        for runner in self._runners:
            runner.stop()

    def forget(self) -> None:
        """Abort the open replies and ignore their remaining events."""
        for runner in self._runners:
            runner.forget()

    def seconds_left(self, pairs: Sequence[PromptReplies]) -> float | None:
        """For the missing replies, from the mean of their side; None before any is complete."""
        known = [seconds for side in self._seconds for seconds in side]
        if not known:
            return None
        return sum(
            fmean(seconds or known) * sum(not pair.has_ended(side) for pair in pairs)
            for side, seconds in enumerate(self._seconds)
        )

    def _make(self, bridge: EngineBridge, side: int) -> ReplyRunner:
        made = ReplyRunner(bridge, self)
        made.appended.connect(self.appended)
        made.changed.connect(partial(self._on_reply, side))
        return made

    def _on_reply(self, side: int, reply: Reply) -> None:
        if reply.is_done:
            self._seconds[side].append(time.perf_counter() - reply.sent)
        self.changed.emit(side, reply)
