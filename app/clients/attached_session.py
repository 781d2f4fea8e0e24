"""Attach session of a window: clock offset, commands and events, resuming.

    ours    sent ------------------- received
    theirs           now

`now` lies between `sent` and `received`. The offset is the middle of the quickest exchange; its
error is at most half of that round trip. Clocks drift, and a quicker exchange may follow: a
backward correction is spread over twice its length, so that later events are never shown earlier,
and a converted time never changes.
"""

from __future__ import annotations

import asyncio
import dataclasses
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from app.clients.target import Event, Past
from app.server.attach_permissions import refused
from app.wire.codec import EventReader, History, WireCommand, write_command
from app.wire.protocol import Frame, Welcome
from app.wire.sequencer import Sequencer
from engine import messages as m
from engine.errors import ErrorInfo
from engine.heartbeat import Pulse
from engine.units import rough_duration

LATEST = 60
"""Number of recent exchanges of which the quickest counts: a minute, at one a second."""
LEAST_S = 0.0005
"""Smaller corrections are skipped."""
JUMP_S = 1.0
"""Larger corrections apply at once: a machine slept."""
MAX_KNOTS = 512


class Exchange(NamedTuple):
    round_trip: float
    offset: float


class _Knot(NamedTuple):
    """A correction that applies from `time` of the server's clock on."""

    time: float
    before: float
    after: float

    def offset(self, time: float) -> float:
        if self.before - self.after > JUMP_S:
            return self.after
        return max(self.after, self.before - (time - self.time) / 2)


class Clock:
    """Converts the server's times to ours; before the first exchange they are unchanged."""

    def __init__(self) -> None:
        self._exchanges: deque[Exchange] = deque(maxlen=LATEST)
        self._knots: list[_Knot] = []

    def reset(self) -> None:
        """New connection: only its exchanges count from now on; converted times stay as they
        are."""
        self._exchanges.clear()

    def heard(self, sent: float, now: float, received: float) -> None:
        """An exchange: `sent` and `received` of our clock, `now` of the server's."""
        self._exchanges.append(Exchange(received - sent, (sent + received) / 2 - now))
        best = min(self._exchanges)
        if not self._knots:
            self._knots.append(_Knot(now, best.offset, best.offset))
            return
        last = self._knots[-1]
        current = last.offset(now)
        # Within its own error an exchange contradicts nothing.
        if now > last.time and abs(best.offset - current) > max(LEAST_S, best.round_trip / 2):
            self._knots.append(_Knot(now, current, best.offset))
            del self._knots[:-MAX_KNOTS]

    def here(self, time: float) -> float:
        """A time of the server's clock in ours."""
        if not self._knots:
            return time
        index = bisect_right(self._knots, time, key=lambda knot: knot.time)
        if index == 0:
            return time + self._knots[0].before
        return time + self._knots[index - 1].offset(time)


class Talk:
    """The window's side of a session. `emit` receives the engine's events, in order."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self.clock = Clock()
        self.pulse: Pulse | None = None
        """The engine's, at the last exchange; None: not reported."""
        self.session = ""
        self.sequencer = Sequencer()
        self._reader = EventReader(self.clock.here)
        self._waiting: deque[WireCommand] = deque()
        self._requests: set[str] = set()
        self._history = History()
        self._loaded: m.Loaded | None = None
        self._changed = asyncio.Event()

    # Commands --------------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self.sequencer.unacknowledged)

    def give(self, command: WireCommand) -> None:
        if isinstance(command, m.AddRequest):
            self._requests.add(command.request_id)
        self._waiting.append(command)
        self.wake()

    def wake(self) -> None:
        self._changed.set()

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def frames(self) -> list[bytes]:
        """Frames for the waiting commands, as far as the send window allows."""
        made = []
        while self._waiting and self.sequencer.has_room:
            command = self._waiting.popleft()
            made.append(self.sequencer.number([write_command(command)], about=command))
        if made and self._waiting:
            self.wake()
        return made

    def refuse(self, command: WireCommand, error: ErrorInfo) -> None:
        """Answer a command that cannot reach the engine."""
        for event in refused(command, error, self._loaded):
            self._note(event)
            self._emit(event)

    # The session -----------------------------------------------------------------------------

    def welcomed(self, welcome: Welcome) -> list[bytes]:
        """The frames to resend; none in a new session. Raises ProtocolError."""
        if welcome.resumed:
            return self.sequencer.resend_after(welcome.received)
        if self.session:
            cut = (
                f"Disconnected for {rough_duration(welcome.after_s)}"
                if welcome.after_s
                else ("Session expired: the server restarted, or the connection was down too long")
            )
            self._fail_pending(f"{cut}. The reply was aborted.")
        self.session = welcome.session
        self.sequencer = Sequencer()
        self._reader = EventReader(self.clock.here)
        self._history = History()
        return []

    def give_up(self, seconds: float) -> None:
        """The connection was lost for longer than the server keeps a session."""
        if self.session:
            gone = rough_duration(seconds)
            self._fail_pending(f"Disconnected for {gone}. The reply was aborted.")
            self.session = ""
            self.sequencer = Sequencer()

    def close(self, words: str) -> None:
        """There will be no further connection."""
        self._fail_pending(words)
        while self._waiting:
            self.refuse(self._waiting.popleft(), ErrorInfo(words, "Reconnect."))

    def _fail_pending(self, words: str) -> None:
        """Fail all pending requests."""
        error = ErrorInfo(words, "Send the message again.")
        sent = [s.about for s in self.sequencer.unacknowledged]
        waiting = {c.request_id for c in self._waiting if isinstance(c, m.AddRequest)}
        for command in sent:
            if not isinstance(command, m.AddRequest):  # these are among the requests
                self.refuse(command, error)
        for request_id in sorted(self._requests - waiting):
            self._requests.discard(request_id)
            self._emit(m.RequestFailed(request_id, error))

    # What the server says --------------------------------------------------------------------

    def hear(self, frame: Frame) -> tuple[tuple[str, bytes], ...]:
        """Take a frame; returns the messages that are not of the engine. Raises ProtocolError."""
        messages = self.sequencer.receive(frame)
        if frame.number == 0:
            return tuple((kind, bytes(body)) for kind, body in messages)
        for kind, body in messages:
            event = self._reader.read(kind, body)
            if isinstance(event, History):
                pairs = zip(self._history, event, strict=True)
                self._history = History(*(before + more for before, more in pairs))  # type: ignore
            else:
                self._hand_on(event)
        return ()

    def _hand_on(self, event: Event) -> None:
        if isinstance(event, m.SnapshotEvent) and any(self._history):
            before, self._history = self._history, History()
            if before.past:
                self._emit(Past(before.past))
            s = event.snapshot
            snapshot = dataclasses.replace(
                s, steps=before.steps + s.steps, ttft=before.ttft + s.ttft, itl=before.itl + s.itl
            )
            event = m.SnapshotEvent(snapshot)
        self._note(event)
        self._emit(event)

    def _note(self, event: Event) -> None:
        match event:
            case m.OutputEvent() if event.finish_reason is not None:
                self._requests.discard(event.request_id)
            case m.RequestFailed(request_id):
                self._requests.discard(request_id)
            case m.Loaded():
                self._loaded = event
            case m.Reconfigured(config) if self._loaded is not None:
                self._loaded = dataclasses.replace(self._loaded, config=config)
            case m.Unloaded() | m.EngineCrashed():
                self._loaded = None
            case m.LoadFailed(serving=None):
                self._loaded = None
        if isinstance(event, m.EngineCrashed):
            self._requests.clear()  # the window fails them itself
