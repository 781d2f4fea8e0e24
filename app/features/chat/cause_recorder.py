"""`CauseRecorder`: finds why the gaps of open replies were long while the steps are at hand. No Qt.

    reply   begin ... output output output ...... end ---- done(times with reasons)
    steps         [ taken with every snapshot, kept until no open reply needs them ]

A long reply is explained piece by piece, so that no more than a few thousand steps are kept.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from engine.messages import OutputEvent
from engine.snapshot import RequestTimes, StepRecord, TokenEvent, packed
from widgets.latency.causes import Changed, Reason, ReplyTimes, Usual
from widgets.latency.reply import reply_latency

PIECE = 2000
"""Output events that are explained together."""
MOST_CHANGES = 100
LATE_S = 10.0
"""Tokens may arrive so long after the step that made them."""
MOST_STEPS = 50_000
"""Kept for replies that wait for long, such as preempted ones; older gaps have no cause then."""
PATIENCE = 3
"""Snapshots after which the last steps of an ended reply are no longer waited for."""

Done = Callable[[ReplyTimes], None]


@dataclass(slots=True)
class _Reply:
    """`tokens`: output events from number `first` on, which follow gaps that are explained."""

    begun: float
    tokens: list[TokenEvent] = field(default_factory=list)
    first: int = 0
    reasons: list[Reason] = field(default_factory=list)
    usual: Usual | None = None  # of the piece with the least median gap
    times: RequestTimes | None = None  # once it has ended
    done: Done = lambda times: None
    patience: int = PATIENCE


class CauseRecorder:
    """`name_of`: how the user knows another request."""

    def __init__(self, name_of: Callable[[str], str]) -> None:
        self._name_of = name_of
        self._replies: dict[str, _Reply] = {}
        self._steps: list[StepRecord] = []
        self._changes: deque[Changed] = deque(maxlen=MOST_CHANGES)

    @property
    def num_steps(self) -> int:
        return len(self._steps)

    def begin(self, request_id: str, now: float | None = None) -> None:
        """A request is being sent; `now` on the engine's clock."""
        self._replies[request_id] = _Reply(time.perf_counter() if now is None else now)

    def take_outputs(self, events: Iterable[OutputEvent]) -> None:
        for event in events:
            reply = self._replies.get(event.request_id)
            if reply is not None and event.token_ids:
                reply.tokens.append(TokenEvent(event.time, len(event.token_ids)))

    def take_change(self, change: Changed) -> None:
        self._changes.append(change)

    def take_steps(self, steps: Iterable[StepRecord]) -> None:
        """Those of the next snapshot, in order."""
        if not self._replies:
            return
        self._steps += map(packed, steps)
        for request_id, reply in list(self._replies.items()):
            if reply.times is not None:
                reply.patience -= 1
                self._try_to_end(request_id, reply)
            elif len(reply.tokens) > PIECE:
                self._explain_piece(request_id, reply)
        self._forget_steps()

    def end(self, request_id: str, times: RequestTimes, done: Done) -> None:
        """A reply has ended; `done` is called once, when its last steps are known or do not come.
        Nothing is called for a request that was not begun, or has no gaps."""
        reply = self._replies.get(request_id)
        if reply is None or len(times.tokens) < 2:
            self._replies.pop(request_id, None)
            return
        reply.times, reply.done = times, done
        self._try_to_end(request_id, reply)

    def drop(self, request_id: str) -> None:
        self._replies.pop(request_id, None)

    def _try_to_end(self, request_id: str, reply: _Reply) -> None:
        times = reply.times
        assert times is not None
        is_known = bool(self._steps) and self._steps[-1].end >= times.tokens[-1].time
        if not is_known and reply.patience > 0:
            return
        del self._replies[request_id]
        rest = RequestTimes(times.arrival, times.first_scheduled, times.tokens[reply.first :])
        reasons = (*reply.reasons, *self._reasons(request_id, reply, rest))
        reply.done(
            ReplyTimes(times.arrival, times.first_scheduled, times.tokens, times.finished, reasons)
        )

    def _explain_piece(self, request_id: str, reply: _Reply) -> None:
        """The gaps whose steps are all known."""
        known = self._steps[-1].end if self._steps else 0.0
        count = bisect_right(reply.tokens, known, key=lambda event: event.time)
        if count < 2:
            return
        piece = RequestTimes(reply.tokens[0].time, None, tuple(reply.tokens[:count]))
        reply.reasons += self._reasons(request_id, reply, piece)
        reply.first += count - 1
        del reply.tokens[: count - 1]

    def _reasons(self, request_id: str, reply: _Reply, times: RequestTimes) -> list[Reason]:
        steps = self._steps[self._first_after(times.tokens[0].time - 1.0) :]
        changes = tuple(self._changes)
        latency = reply_latency(request_id, times, steps, changes, reply.usual)
        if reply.usual is None or latency.usual_s < reply.usual.seconds:
            reply.usual = Usual.of(latency.gaps)
        return [
            reason._replace(place=reason.place + reply.first).named(self._name_of)
            for reason in latency.reasons
        ]

    def _first_after(self, moment: float) -> int:
        return bisect_left(self._steps, moment, key=lambda step: step.end)

    def _forget_steps(self) -> None:
        """Those before the first gap of every open reply."""
        if not self._replies or not self._steps:
            self._steps.clear()
            return
        newest = self._steps[-1].end
        since = min(
            reply.tokens[0].time - 1.0 if reply.tokens else max(reply.begun, newest - LATE_S)
            for reply in self._replies.values()
        )
        del self._steps[: max(self._first_after(since), len(self._steps) - MOST_STEPS)]
