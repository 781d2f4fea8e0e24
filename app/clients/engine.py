"""ForeignEngine: another server with the interface of EngineThread.

    window  -- submit(m.Command) -->  loop of the thread "external-engine"  -- HTTP -->  server
    window  <-- on_event(Event) --  replies as they stream, /metrics once a second

Each snapshot's `missing` names what the server does not report. Latencies are measured client-side:
from the command to the arriving bytes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from app.clients.calls import CONTINUES
from app.clients.errors import TargetError, of_silent_metrics
from app.clients.http import TokenCounter
from app.clients.loop_thread import LoopThread
from app.clients.probe import probe as ask
from app.clients.replies import Replies
from app.clients.stream import Streamer
from app.clients.target import (
    Continues,
    LinkChanged,
    LinkState,
    OnEvent,
    Probe,
    Remark,
    ServerType,
    Target,
    parse_address,
)
from app.clients.traces import receive
from app.clients.watch import NO_PLAN, SILENCE_S, Watch, model_named
from engine import messages as m
from engine.config import EngineConfig
from engine.errors import ErrorInfo, describe
from engine.snapshot import ModelInfo

log = logging.getLogger(__name__)

SNAPSHOT_S = 0.25
"""Between snapshots while replies stream."""
BUSY_S, IDLE_S, WITHOUT_METRICS_S = 1.0, 2.0, 15.0
"""Polling intervals of the server's metrics; of its health, if it has none."""
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 5.0


class ForeignEngine(LoopThread):
    """Serves commands until `stop`. probe: a recent result of `probe`, if any; model: which of its
    models, else its first. Everything with a leading _ is used on the loop only."""

    def __init__(
        self, on_event: OnEvent, target: Target, probe: Probe | None = None, model: str = ""
    ) -> None:
        super().__init__("external-engine")
        self._emit = on_event
        self.target = target
        self._found = probe
        self._wanted = model
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waiting: list[tuple[m.Command, float]] = []  # for the connection
        self._link = LinkState.CLOSED
        self._look_now = asyncio.Event()
        self._stopped = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None
        self._refusal: ErrorInfo | None = None  # why there is no connection
        self._config: EngineConfig | None = None
        self._model: ModelInfo | None = None
        self._watch: Watch | None = None
        self._counter: TokenCounter | None = None

    # -- called from any thread -------------------------------------------------------------

    @property
    def offers(self) -> tuple[str, ...]:
        """Names of the models that it serves; none before it has answered."""
        return self._found.models if self._found is not None else ()

    @property
    def continues(self) -> Continues:
        """Whether the server continues a last message of the assistant."""
        is_able = self._found is not None and self._found.server_type in CONTINUES
        return Continues.TEXT if is_able else Continues.NOT

    @property
    def place(self) -> str:
        """Its name in the window."""
        try:
            return self.target.name or parse_address(self.target.base_url).host
        except TargetError:
            return self.target.base_url

    def submit(self, command: m.Command) -> None:
        self._post(self._handle, command, time.perf_counter())

    def cancel_load(self) -> None:
        """Stop connecting; no effect once connected."""
        self._post(self._cancel_connecting)

    # -- the thread -------------------------------------------------------------------------

    async def _live(self) -> None:
        try:
            self._address = parse_address(self.target.base_url)
            self._streamer = Streamer(self.target, self._address)
        except TargetError as error:
            self._emit(LinkChanged(LinkState.CLOSED, time.perf_counter(), str(error)))
            self._emit(m.LoadFailed(error.info()))
            return
        replies = Replies(self._streamer, self._emit, self._look_now.set, self._snapshot)
        self._replies = replies
        if port := self.target.traces_port:
            self._spawn(receive(port, replies.take_span))
        self._begin_connecting()
        try:
            await self._stopped.wait()
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(replies.close(), *tasks, return_exceptions=True)
            await self._streamer.close()

    def _leave(self) -> None:
        self._stopped.set()

    def _on_failed(self, error: BaseException) -> None:
        log.exception("connection to %s failed", self.target.base_url)
        self._emit(m.EngineCrashed(describe(error), ""))

    @property
    def _server(self) -> str:
        return str(self._found.server_type) if self._found is not None else self._address.host

    # -- the line ---------------------------------------------------------------------------

    def _begin_connecting(self) -> None:
        self._refusal = None
        self._connecting = self._spawn(self._connect())

    async def _connect(self) -> None:
        """Retry until the server responds, or retrying is pointless."""
        self._say_link(LinkState.CONNECTING)
        pause = FIRST_RETRY_S
        while self._found is None:
            self._emit(m.LoadProgress(f"Connecting to {self._address.host}", 0, 0))
            try:
                self._found = await asyncio.to_thread(ask, self.target)
            except TargetError as error:
                if error.is_final:
                    self._give_up(error.info())
                    return
                self._say_link(LinkState.RECONNECTING, str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_RETRY_S)
        self._open(self._wanted)
        if self._config is not None:
            self._spawn(self._look())
            self._spawn(self._publish())

    def _give_up(self, error: ErrorInfo, *, cancelled: bool = False) -> None:
        """Stop connecting until the next Load."""
        self._refusal = error
        self._say_link(LinkState.CLOSED, "" if cancelled else f"{error.cause} {error.remedy}")
        self._emit(m.LoadFailed(error, cancelled=cancelled))
        waiting, self._waiting = self._waiting, []
        for command, at in waiting:
            self._handle(command, at)

    def _cancel_connecting(self) -> None:
        if self._config is None and self._connecting is not None and self._refusal is None:
            self._connecting.cancel()
            remedy = "Reconnect when the server is up."
            self._give_up(ErrorInfo("Connection cancelled.", remedy), cancelled=True)

    def _open(self, wanted: str) -> None:
        """Use one of the served models."""
        found = self._found
        assert found is not None
        name = wanted or (found.models[0] if found.models else "")
        if not found.may_serve(name):
            error = ErrorInfo(
                f"{self._server} does not serve {name!r}.",
                f"Available: {', '.join(found.models[:10])}.",
            )
            if not found.models:
                error = ErrorInfo(
                    f"{self._server} has no model loaded.",
                    "Load a model there and reconnect, or enter a model name to load on demand.",
                )
            if self._config is None:
                self._give_up(error)
            else:
                self._emit(m.LoadFailed(error, serving=self._config.model))
            return
        self._config = EngineConfig(model=name, max_model_len=found.max_model_len)
        self._model = model_named(name, str(found.server_type), found.max_model_len)
        self._counter = TokenCounter(self._streamer.client, self._address, found.server_type, name)
        if self._watch is None:
            self._watch = Watch(self._streamer.client, self.target, self._address, found)
            if found.server_type is ServerType.VLLM:
                self._spawn(self._watch.follow_blocks())
        self._say_link(LinkState.LIVE)
        self._emit(m.Loaded(self._config, self._model, NO_PLAN))
        waiting, self._waiting = self._waiting, []
        for command, at in waiting:
            self._handle(command, at)

    def _say_link(self, state: LinkState, words: str = "") -> None:
        if state is LinkState.LIVE and self._link is LinkState.LIVE:
            return
        self._link = state
        self._emit(LinkChanged(state, time.perf_counter(), words))

    # -- commands ---------------------------------------------------------------------------

    def _handle(self, command: m.Command, at: float) -> None:
        if self._config is None:
            self._handle_without(command, at)
            return
        match command:
            case m.AddRequest():
                assert self._found is not None
                self._replies.add(command, at, self._found, self._config.model)
            case m.Abort(request_id):
                self._replies.abort(request_id)
            case m.Load(config):
                if config.model != self._config.model:
                    self._open(config.model)
                else:
                    assert self._model is not None
                    self._emit(m.Loaded(self._config, self._model, NO_PLAN))
            case m.Unload():
                self._emit(m.LoadFailed(self._not_here("The model"), serving=self._config.model))
            case m.Reconfigure():
                self._emit(m.ReconfigureFailed(self._config, self._not_here("The settings")))
            case m.InspectBlock(block):
                self._emit(m.BlockInspected(block, None))
            case m.MeasurePeaks():
                why = f"{self._server} does not report peak bandwidth or FLOPS."
                self._emit(m.PeaksMeasured(None, why))
            case m.ProfileSteps():
                self._emit(m.StepsProfiled(why_not=f"{self._server} cannot be profiled."))
            case m.CountTokens(key, text):
                self._spawn(self._count_tokens(key, text))

    def _handle_without(self, command: m.Command, at: float) -> None:
        """Handle a command while there is no connection."""
        if self._refusal is None:
            self._waiting.append((command, at))
        elif isinstance(command, m.AddRequest):
            self._emit(m.RequestFailed(command.request_id, self._refusal))
        elif isinstance(command, m.CountTokens):
            self._emit(m.TokensCounted(command.key, None))
        elif isinstance(command, m.Load):
            self._wanted = ""
            self._begin_connecting()

    def _not_here(self, what: str) -> ErrorInfo:
        return ErrorInfo(
            f"{what} cannot be changed from this window.", f"Restart {self._server} to change this."
        )

    async def _count_tokens(self, key: str, text: str) -> None:
        assert self._counter is not None
        self._emit(m.TokensCounted(key, await self._counter.count(text)))

    # -- looking ----------------------------------------------------------------------------

    async def _look(self) -> None:
        """Poll the server; while it does not respond, retry."""
        assert self._watch is not None
        pause, is_silent = FIRST_RETRY_S, False
        while True:
            self._look_now.clear()
            try:
                await self._watch.look()
            except TargetError as error:
                self._say_link(LinkState.RECONNECTING, str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_RETRY_S)
                continue
            pause = FIRST_RETRY_S
            if self._link is not LinkState.LIVE:
                await self._again()
            if self._watch.is_silent and not is_silent:
                self._emit(Remark(str(of_silent_metrics(self._address.host, SILENCE_S))))
            is_silent = self._watch.is_silent
            self._snapshot()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._look_now.wait()

    def _pause(self) -> float:
        """Seconds until the next poll: in the middle of a whole second, because the charts count
        tokens per whole second."""
        assert self._watch is not None
        if not self._watch.has_metrics:
            return WITHOUT_METRICS_S
        length = BUSY_S if self._replies or self._watch.is_busy else IDLE_S
        now = time.perf_counter()
        return math.ceil(now + length - 1.0) + 0.5 - now

    async def _again(self) -> None:
        """The server responds again: check that it is still the same."""
        assert self._config is not None
        try:
            found = await asyncio.to_thread(ask, self.target)
        except TargetError:
            return  # the next poll tries again
        self._found = found
        if found.may_serve(self._config.model):
            self._say_link(LinkState.LIVE)
        else:
            self._open("")  # it was started with another model

    async def _publish(self) -> None:
        while True:
            await asyncio.sleep(SNAPSHOT_S)
            if self._replies:
                self._snapshot()

    def _snapshot(self) -> None:
        if self._config is None or self._model is None or self._watch is None:
            return
        rows, samples = self._replies.rows(), self._replies.samples
        self._emit(m.SnapshotEvent(self._watch.snapshot(self._config, self._model, rows, samples)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("polling %s failed", self._address.host, exc_info=task.exception())
