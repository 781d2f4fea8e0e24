"""Routes events and commands between one engine and its attached windows. No Qt.

    outputs, failures, answers     to the window that asked; that a request ended, to all
    what is loaded, settings, snapshots     to all

Everything here belongs to the server's loop; the engine's events come through the engine client.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import deque
from collections.abc import Callable

from app.paths import program_version
from app.server import attach_permissions as permissions
from app.server.attach_permissions import Offers
from app.server.attach_session import Session
from app.server.engine_client import EngineClient
from app.server.options import ServerOptions
from app.wire.codec import CancelLoad, WireCommand
from app.wire.protocol import MAX_WINDOWS, SESSION_S, VERSION, Hello, ProtocolError, Welcome
from engine import messages as m
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.heartbeat import Pulse

log = logging.getLogger(__name__)

MAX_ASKED = 64
"""Maximum unanswered queries per window."""


class Hub:
    def __init__(self, engine: EngineClient, options: ServerOptions) -> None:
        self._engine = engine
        self._options = options
        self._offers = Offers(options.models, trusts_paths=options.trusts_paths)
        self._sessions: dict[str, Session] = {}
        self._owners: dict[str, Session] = {}  # of requests that have not ended
        self._askers: dict[object, list[tuple[Session, str]]] = {}  # with their own keys
        self._changes: deque[Session] = deque()
        self._number = 0
        engine.listener = self.on_event

    @property
    def offers(self) -> Offers:
        loaded = self._engine.attach_state.loaded
        if loaded is not None:
            self._offers.add(loaded.config.model)
        return self._offers

    @property
    def pulse(self) -> Pulse | None:
        return self._engine.pulse()

    @property
    def num_windows(self) -> int:
        return len(self._sessions)

    # Windows come and go ----------------------------------------------------------------------

    def open(self, hello: Hello) -> tuple[Session, Welcome]:
        """The session that `hello` names, or a new one. Raises ProtocolError with a message for the
        window."""
        if hello.version != VERSION:
            raise ProtocolError(
                f"Protocol mismatch: server version {VERSION} (Inferdeck "
                f"{program_version()}), window version {hello.version} (Inferdeck "
                f"{hello.program[:40] or 'unknown'}). Install the same version on both."
            )
        session = self._sessions.get(hello.session)
        if session is not None:
            session.sequencer.resend_after(hello.received)  # raises if it cannot resume
            session.reads = frozenset(hello.reads)
            return session, self._welcome(session, resumed=True)
        if len(self._sessions) >= MAX_WINDOWS and not self._make_room():
            raise ProtocolError(f"Window limit reached: {MAX_WINDOWS} windows are attached.")
        self._number += 1
        session = Session(f"window {self._number}", hello.reads)
        self._sessions[session.id] = session
        for event in self._engine.attach_state.events():
            session.tell(self._offers.redacted(event))
        return session, self._welcome(session, resumed=False)

    def _welcome(self, session: Session, *, resumed: bool) -> Welcome:
        return Welcome(
            VERSION, program_version(), session.id, resumed, session.sequencer.received,
            session.cut_for_s, self._offers.all(), self._options.allows_control,
            self._options.trusts_paths,
        )  # fmt: skip

    def cut(self, session: Session) -> None:
        """Its connection was lost: keep the session for SESSION_S."""
        loop = asyncio.get_running_loop()
        session.cut_at = at = loop.time()
        loop.call_later(SESSION_S, self._expire, session, at)

    def _make_room(self) -> bool:
        """Make room: end the session that lost its connection first, of those without requests if
        there are any; else one whose window has not finished its greeting. False if all windows are
        attached."""
        cut = [s for s in self._sessions.values() if s.cut_at is not None or not s.was_ready]
        if not cut:
            return False
        self.forget(min(cut, key=lambda s: (s.cut_at is None, bool(s.requests), s.cut_at or 0.0)))
        return True

    def _expire(self, session: Session, cut_at: float) -> None:
        if session.cut_at == cut_at:
            log.info("an attached window did not reconnect within %.0f s", SESSION_S)
            self.forget(session)

    def forget(self, session: Session) -> None:
        """The window has left: abort its requests."""
        session.is_ended = True
        session.heard()
        self._sessions.pop(session.id, None)
        for request_id in session.requests:
            # It stays registered until the engine reports its end.
            self._engine.submit(m.Abort(request_id))

    def close(self) -> None:
        for session in list(self._sessions.values()):
            self.forget(session)
        self._engine.listener = None
        self._engine.foreign.clear()

    # Events of the engine ---------------------------------------------------------------------

    def on_event(self, event: m.Event) -> None:
        match event:
            case m.OutputEvent():
                self._on_output(event)
            case m.RequestFailed(request_id):
                self._answer(self._end(request_id), event)
            case m.TokensCounted(question, count):
                self._answer_askers(question, lambda key: m.TokensCounted(key, count))
            case m.BlockInspected(block):
                self._answer_askers(block, lambda key: event)
            case m.PeaksMeasured():
                self._answer_askers(m.MeasurePeaks, lambda key: event)
            case m.StepsProfiled():
                self._answer_askers(m.ProfileSteps, lambda key: event)
            case m.ReconfigureFailed() if self._changes:
                self._answer(self._changes.popleft(), self._offers.redacted(event))
            case _:
                self._to_all(event)

    def _on_output(self, event: m.OutputEvent) -> None:
        owner = self._owners.get(event.request_id)
        self._answer(owner, event)
        if event.finish_reason is None:
            return
        self._end(event.request_id)
        ended = dataclasses.replace(event, text="", token_ids=(), logprobs=(), drafts=None)
        for session in list(self._sessions.values()):
            if session is not owner:
                self._answer(session, ended)

    def _to_all(self, event: m.Event) -> None:
        if isinstance(event, m.Reconfigured) and self._changes:
            self._changes.popleft()
        if isinstance(event, (m.Loaded, m.Unloaded, m.EngineCrashed)):
            self._changes.clear()
        if isinstance(event, m.EngineCrashed):
            for request_id in list(self._owners):  # the engine does not name them
                self._end(request_id)
        if not self._sessions:
            return
        event = self._offers.redacted(event)
        for session in list(self._sessions.values()):
            self._answer(session, event)

    def _answer_askers(self, question: object, answer: Callable[[str], m.Event]) -> None:
        for session, key in self._askers.pop(question, ()):
            session.num_asked -= 1
            self._answer(session, answer(key))

    def _answer(self, session: Session | None, event: m.Event) -> None:
        if session is None or session.is_ended:
            return
        session.tell(event)
        if session.queue.is_full:
            log.warning("disconnected a slow window: its send queue is full")
            self.forget(session)

    def _end(self, request_id: str) -> Session | None:
        session = self._owners.pop(request_id, None)
        self._engine.foreign.discard(request_id)
        if session is not None:
            session.requests.discard(request_id)
        return session

    # A window says ----------------------------------------------------------------------------

    def command(self, session: Session, command: WireCommand) -> None:
        """Forward a command, or answer why not."""
        if session.is_ended:
            return
        if isinstance(command, m.Abort) and not self._options.allows_control:
            request_id = command.request_id  # where others give it requests too, all may run
            if request_id not in self._owners and not self._engine.knows(request_id):
                return  # it has just ended
        try:
            permissions.check_allowed(command, self._options, session.requests)
            self._obey(session, command)
        except ConfigError as error:
            loaded = self._engine.attach_state.loaded
            for event in permissions.refused(command, error.info(), loaded):
                session.tell(self._offers.redacted(event))

    def _obey(self, session: Session, command: WireCommand) -> None:
        """Raises ConfigError with a message for the window."""
        submit = self._engine.submit
        match command:
            case m.AddRequest():
                self._add(session, command)
            case m.Load(config):
                asked = EngineConfig(**self._offers.asked(config.as_dict()))
                for other in self._sessions.values():
                    if other is not session:
                        other.tell(m.LoadProgress(f"loading {config.model}", 0, 0))
                submit(m.Load(asked))
            case m.Reconfigure(changes):
                asked_changes = self._offers.asked(changes)
                if len(self._changes) >= MAX_ASKED:
                    raise ConfigError("Too many pending settings changes.", "Try again shortly.")
                if self._engine.attach_state.loaded is not None:
                    self._changes.append(session)
                submit(m.Reconfigure(asked_changes))
            case CancelLoad():
                self._engine.cancel_load()
            case m.CountTokens(key, text):
                self._number += 1
                question = f"window-{self._number}"
                self._ask(session, question, m.CountTokens(question, text, session.client), key)
            case m.InspectBlock(block):
                self._ask(session, block, command)
            case m.MeasurePeaks():
                self._ask(session, m.MeasurePeaks, command)
            case m.ProfileSteps():
                if m.ProfileSteps in self._askers:
                    raise ConfigError("Another profile is running.", "Wait until it ends.")
                self._ask(session, m.ProfileSteps, command)
            case m.Unload() | m.Abort():
                submit(command)

    def _add(self, session: Session, command: m.AddRequest) -> None:
        if command.request_id in self._owners or self._engine.knows(command.request_id):
            # under its own name it would end the other one
            raise ConfigError("This request id is already in use.", "Use a different id.")
        permissions.check_request(command, self._options.limits)
        room = self._engine.room(self._options.limits.max_queued)
        if self._engine.is_closing or room < 1:
            why = "The server is stopping." if self._engine.is_closing else "The queue is full."
            raise ConfigError(why, "Try again shortly.")
        self._owners[command.request_id] = session
        self._engine.foreign.add(command.request_id)
        session.requests.add(command.request_id)
        self._engine.submit(dataclasses.replace(command, client=session.client))

    def _ask(self, session: Session, question: object, command: m.Command, key: str = "") -> None:
        if session.num_asked >= MAX_ASKED:
            raise ConfigError("Too many pending queries.", "Try again shortly.")
        session.num_asked += 1
        self._askers.setdefault(question, []).append((session, key))
        self._engine.submit(command)
