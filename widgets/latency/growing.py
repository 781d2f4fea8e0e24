"""`GrowingLatency`: the latency breakdown of a reply while it is generated. An
update processes new tokens only. No Qt."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from engine.snapshot import RequestTimes, StepRecord
from widgets.latency.causes import Gap, ReplyTimes, Usual, explained
from widgets.latency.reply import ReplyLatency, gaps_between, has_first, own_steps, stretches_of

RECENT = 2000
"""The last gaps, from which the medians of steps are taken."""


class GrowingLatency:
    """`update` gives what `reply_latency` does, with reasons for the slow gaps alone, and those
    that are stored with the times. A step that the history dropped is dropped here too; the reasons
    found in it stay."""

    def __init__(self) -> None:
        self.request_id = ""
        """Of the last update."""
        self._restart("", 0.0)

    def _restart(self, request_id: str, arrival: float) -> None:
        self.request_id, self._arrival = request_id, arrival
        self._gaps: list[Gap] = []
        self._settled = 0  # output events whose steps are all in their gaps
        self._dropped = 0  # gaps whose steps are no longer in the history
        self._had_steps = False

    def update(
        self, request_id: str, times: RequestTimes, steps: Sequence[StepRecord]
    ) -> ReplyLatency:
        is_same = (request_id, times.arrival) == (self.request_id, self._arrival)
        if not is_same or len(times.tokens) < self._settled or bool(steps) != self._had_steps:
            self._restart(request_id, times.arrival)
        self._had_steps = bool(steps)
        own = own_steps(times, steps)
        self._add(times, own)
        self._drop_old(own)
        for reason in times.reasons if isinstance(times, ReplyTimes) else ():
            if reason.place < len(self._gaps):
                gap = self._gaps[reason.place]
                self._gaps[reason.place] = gap._replace(reason=reason, is_stored=True)
        found = ReplyLatency(
            request_id, tuple(stretches_of(request_id, times, own)), tuple(self._gaps)
        )
        return self._explained(found, is_complete=has_first(own, request_id))

    def _add(self, times: RequestTimes, own: Sequence[StepRecord]) -> None:
        """The gaps of the events that are not settled."""
        first = max(0, self._settled - 1)
        del self._gaps[first:]
        events = tuple(times.tokens[first:])
        if events:
            begin = bisect_left(own, events[0].time, key=lambda step: step.start)
            self._gaps += gaps_between(times.arrival, events, own[begin:])
        end = own[-1].end if own else (-math.inf if self._had_steps else math.inf)
        self._settled = first + bisect_right(events, end, key=lambda event: event.time)

    def _drop_old(self, own: Sequence[StepRecord]) -> None:
        begin = own[0].start - self._arrival if own else 0.0
        while self._dropped < len(self._gaps) and self._gaps[self._dropped].end <= begin:
            self._gaps[self._dropped] = self._gaps[self._dropped]._replace(steps=())
            self._dropped += 1

    def _explained(self, latency: ReplyLatency, *, is_complete: bool) -> ReplyLatency:
        """With the reasons of slow gaps that have none yet."""
        places = [
            place
            for place in latency.slow_places
            if (gap := self._gaps[place]).reason is None
            and (gap.steps or (is_complete and self._dropped <= place < self._settled - 1))
        ]
        if not places:
            return latency
        usual = Usual.of(self._gaps[-RECENT:])._replace(seconds=latency.usual_s)
        for place in places:
            gap = self._gaps[place]
            self._gaps[place] = gap._replace(
                reason=explained(place, gap, self.request_id, usual)
            )
        return ReplyLatency(latency.request_id, latency.stretches, tuple(self._gaps))
