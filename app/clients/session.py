"""Session with another server: connect, monitor, reconnect."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from app.clients.errors import TargetError
from app.clients.http import Address, TokenCounter
from app.clients.probe import probe as ask
from app.clients.replies import Replies
from app.clients.stream import Streamer
from app.clients.target import LinkChanged, LinkState, OnEvent, Probe, Target
from app.clients.watch import NO_PLAN, Watch, model_named
from engine.config import EngineConfig
from engine.errors import ErrorInfo
from engine.messages import (
    Abort,
    AddRequest,
    BlockInspected,
    Command,
    CountTokens,
    InspectBlock,
    Load,
    Loaded,
    LoadFailed,
    LoadProgress,
    MeasurePeaks,
    PeaksMeasured,
    Reconfigure,
    ReconfigureFailed,
    RequestFailed,
    SnapshotEvent,
    Stop,
    TokensCounted,
    Unload,
)
from engine.snapshot import ModelInfo

log = logging.getLogger(__name__)

SNAPSHOT_S = 0.25
"""Between snapshots while replies stream."""
BUSY_S, IDLE_S, WITHOUT_METRICS_S = 1.0, 2.0, 15.0
"""Between looks at the server's metrics; without any, between looks whether it is still there."""
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 5.0


class Session:
    """All of it belongs to the loop of the thread. found: what was found there, where it was just
    asked; wanted: which of its models, else its first."""

    def __init__(
        self, emit: OnEvent, target: Target, address: Address, found: Probe | None, wanted: str
    ) -> None:
        self._emit = emit
        self._target = target
        self._address = address
        self._found = found
        self._wanted = wanted
        self._streamer = Streamer(target, address)
        self._look_now = asyncio.Event()
        self._replies = Replies(self._streamer, emit, self._look_now.set, self._snapshot)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waiting: list[tuple[Command, float]] = []  # for the connection
        self._link = LinkState.CLOSED
        self._stopped = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None
        self._refusal: ErrorInfo | None = None  # why there is no connection
        self._config: EngineConfig | None = None
        self._model: ModelInfo | None = None
        self._watch: Watch | None = None
        self._counter: TokenCounter | None = None

    @property
    def models(self) -> tuple[str, ...]:
        return self._found.models if self._found is not None else ()

    @property
    def _name(self) -> str:
        return str(self._found.dialect) if self._found is not None else self._address.host

    async def run(self) -> None:
        """Until Stop. Raises nothing of the line's."""
        self._begin_connecting()
        await self._stopped.wait()

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(self._replies.close(), *tasks, return_exceptions=True)
        await self._streamer.close()

    # -- the line ---------------------------------------------------------------------------

    def _begin_connecting(self) -> None:
        self._refusal = None
        self._connecting = self._spawn(self._connect())

    async def _connect(self) -> None:
        """Ask until somebody answers, or says that asking on would not help."""
        self._say_link(LinkState.CONNECTING)
        pause = FIRST_RETRY_S
        while self._found is None:
            self._emit(LoadProgress(f"Connecting to {self._address.host}", 0, 0))
            try:
                self._found = await asyncio.to_thread(ask, self._target)
            except TargetError as error:
                if error.is_final:
                    self._give_up(error.info())
                    return
                self._say_link(LinkState.RECONNECTING, said(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_RETRY_S)
        self._open(self._wanted)
        if self._config is not None:
            self._spawn(self._look())
            self._spawn(self._publish())

    def _give_up(self, error: ErrorInfo, *, cancelled: bool = False) -> None:
        """There will be no connection, until Load asks for one again."""
        self._refusal = error
        self._say_link(LinkState.CLOSED, "" if cancelled else f"{error.cause} {error.remedy}")
        self._emit(LoadFailed(error, cancelled=cancelled))
        waiting, self._waiting = self._waiting, []
        for command, at in waiting:
            self.handle(command, at)

    def cancel_connecting(self) -> None:
        if self._config is None and self._connecting is not None and self._refusal is None:
            self._connecting.cancel()
            remedy = "Reconnect when the server is up."
            self._give_up(ErrorInfo("Connection canceled.", remedy), cancelled=True)

    def _open(self, wanted: str) -> None:
        """Begin with one of the models that are served."""
        found = self._found
        assert found is not None
        name = wanted or (found.models[0] if found.models else "")
        if not found.may_serve(name):
            error = self._no_model(name)
            if self._config is None:
                self._give_up(error)
            else:
                self._emit(LoadFailed(error, serving=self._config.model))
            return
        self._config = EngineConfig(model=name, max_model_len=found.max_model_len)
        self._model = model_named(name, str(found.dialect), found.max_model_len)
        self._counter = TokenCounter(self._streamer.client, self._address, found.dialect, name)
        if self._watch is None:
            self._watch = Watch(self._streamer.client, self._target, self._address, found)
        self._say_link(LinkState.LIVE)
        self._emit(Loaded(self._config, self._model, NO_PLAN))
        waiting, self._waiting = self._waiting, []
        for command, at in waiting:
            self.handle(command, at)

    def _no_model(self, name: str) -> ErrorInfo:
        found = self._found
        assert found is not None
        if not found.models:
            return ErrorInfo(
                f"{self._name} serves no model.",
                "Load one there and reconnect, or enter a name if it loads on demand.",
            )
        return ErrorInfo(
            f"{self._name} does not serve {name!r}.",
            f"It serves: {', '.join(found.models[:10])}.",
        )

    def _say_link(self, state: LinkState, words: str = "") -> None:
        if state is LinkState.LIVE and self._link is LinkState.LIVE:
            return
        self._link = state
        self._emit(LinkChanged(state, time.perf_counter(), words))

    # -- commands ---------------------------------------------------------------------------

    def handle(self, command: Command, at: float) -> None:
        if isinstance(command, Stop):
            self._stopped.set()
            return
        if self._config is None:
            self._handle_without(command, at)
            return
        match command:
            case AddRequest():
                assert self._found is not None
                self._replies.add(command, at, self._found, self._config.model)
            case Abort(request_id):
                self._replies.abort(request_id)
            case Load(config):
                if config.model != self._config.model:
                    self._open(config.model)
                else:
                    assert self._model is not None
                    self._emit(Loaded(self._config, self._model, NO_PLAN))
            case Unload():
                self._emit(LoadFailed(self._not_here("Its model"), serving=self._config.model))
            case Reconfigure():
                self._emit(ReconfigureFailed(self._config, self._not_here("Its settings")))
            case InspectBlock(block):
                self._emit(BlockInspected(block, None))
            case MeasurePeaks():
                why = f"Peak bandwidth and FLOPS are not reported by {self._name}."
                self._emit(PeaksMeasured(None, why))
            case CountTokens(key, text):
                self._spawn(self._count_tokens(key, text))

    def _handle_without(self, command: Command, at: float) -> None:
        """There is no connection yet, or there will be none."""
        if self._refusal is None:
            self._waiting.append((command, at))
        elif isinstance(command, AddRequest):
            self._emit(RequestFailed(command.request_id, self._refusal))
        elif isinstance(command, CountTokens):
            self._emit(TokensCounted(command.key, None))
        elif isinstance(command, Load):
            self._wanted = ""
            self._begin_connecting()

    def _not_here(self, what: str) -> ErrorInfo:
        return ErrorInfo(
            f"{what} cannot be changed from here.", f"Set it when you start {self._name}."
        )

    async def _count_tokens(self, key: str, text: str) -> None:
        assert self._counter is not None
        self._emit(TokensCounted(key, await self._counter.count(text)))

    # -- looking ----------------------------------------------------------------------------

    async def _look(self) -> None:
        """See how the server is, again and again; where it does not answer, until it does."""
        assert self._watch is not None
        pause = FIRST_RETRY_S
        while True:
            self._look_now.clear()
            try:
                await self._watch.look()
            except TargetError as error:
                self._say_link(LinkState.RECONNECTING, said(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_RETRY_S)
                continue
            pause = FIRST_RETRY_S
            if self._link is not LinkState.LIVE:
                await self._again()
            self._snapshot()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._look_now.wait()

    def _pause(self) -> float:
        """Until the next look: in the middle of a whole second, because the charts count tokens in
        whole seconds."""
        assert self._watch is not None
        if not self._watch.has_metrics:
            return WITHOUT_METRICS_S
        length = BUSY_S if self._replies or self._watch.is_busy else IDLE_S
        now = time.perf_counter()
        return math.ceil(now + length - 1.0) + 0.5 - now

    async def _again(self) -> None:
        """It answers again: is it still the same?"""
        assert self._config is not None
        try:
            found = await asyncio.to_thread(ask, self._target)
        except TargetError:
            return  # the next look says how it is
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
        self._emit(SnapshotEvent(self._watch.snapshot(self._config, self._model, rows, samples)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("watching %s failed", self._address.host, exc_info=task.exception())


def said(error: TargetError) -> str:
    """An error in one line."""
    return f"{error.cause} {error.remedy}".strip()
