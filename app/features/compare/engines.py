"""`Asker`: one prompt at a time to one engine, and the whole answer back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.features.compare.record import HOME, LEFT, RIGHT, Answer, Pair, Piece
from app.features.compare.way import Setup, agrees, is_same_model, whole_settings
from app.features.models.session import ModelSession
from app.link.bridge import EngineBridge
from engine import messages
from engine.config import EngineConfig
from engine.errors import ErrorInfo
from engine.sampling_params import SamplingParams
from engine.snapshot import FinishReason

STOPPED = "stopped"
_PREFIX = "compare-"


class Asker(QObject):
    """`answered(Answer)`: to `pair`, which took `seconds`. An answer whose problem is STOPPED was
    aborted, by `stop` or by whatever closed the model."""

    answered = Signal(object)

    def __init__(self, bridge: EngineBridge, parent: QObject) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._request, self._began = "", 0.0
        self._events: list[messages.OutputEvent] = []
        self.pair: Pair | None = None
        self.seconds = 0.0
        bridge.outputs.connect(self._on_outputs)
        bridge.request_failed.connect(self._on_failed)

    @property
    def is_asking(self) -> bool:
        return bool(self._request)

    def ask(self, pair: Pair, params: SamplingParams) -> None:
        self.pair, self._events = pair, []
        self._request, self._began = f"{_PREFIX}{uuid.uuid4().hex}", time.perf_counter()
        self._bridge.add_request(self._request, pair.prompt.prompt, params)

    def stop(self) -> None:
        """The answer comes with what there is of it."""
        if self._request:
            self._bridge.abort(self._request)

    def forget(self) -> None:
        """Nothing is waited for any more."""
        self.stop()
        self._request = ""

    def _on_outputs(self, events: list[messages.OutputEvent]) -> None:
        mine = [event for event in events if self._request and event.request_id == self._request]
        if not mine:
            return
        self._events += mine
        last = mine[-1]
        if last.finish_reason is None:
            return
        problem = ""
        if last.finish_reason is FinishReason.ERROR and last.error is not None:
            problem = f"{last.error.cause} {last.error.remedy}".strip()
        elif last.finish_reason is FinishReason.ABORT:
            problem = STOPPED
        self._tell(answer_of(self._events, problem))

    def _on_failed(self, failed: messages.RequestFailed) -> None:
        if self._request and failed.request_id == self._request:
            self._tell(Answer(problem=f"{failed.error.cause} {failed.error.remedy}".strip()))

    def _tell(self, answer: Answer) -> None:
        self._request, self.seconds = "", time.perf_counter() - self._began
        self.answered.emit(answer)


def name_of(request_id: str) -> str:
    """How the user knows a request of a comparison; "" for one of somebody else."""
    return "comparison" if request_id.startswith(_PREFIX) else ""


def answer_of(events: Sequence[messages.OutputEvent], problem: str = "") -> Answer:
    """What was answered, from all events of a request."""
    pieces = [Piece(token.token_id, token.token) for event in events for token in event.logprobs]
    times = events[-1].times if events else None
    gaps = times.itl_s if times is not None else []
    return Answer(
        pieces=tuple(pieces),
        text="".join(event.text for event in events),
        ttft_s=times.ttft_s if times is not None else None,
        tokens_per_s=len(gaps) / sum(gaps) if gaps and sum(gaps) > 0 else None,
        problem=problem,
    )


_END_S = 5.0


class SecondEngine(QObject):
    """`ready(Loaded)`; `failed(ErrorInfo, cancelled)`: it was not loaded; `stopped(ErrorInfo)`: it
    crashed."""

    ready = Signal(object)
    failed = Signal(object, bool)
    stopped = Signal(object)

    def __init__(self, bridge: EngineBridge, parent: QObject) -> None:
        super().__init__(parent)
        self.bridge = bridge
        bridge.loaded.connect(self.ready)
        bridge.load_failed.connect(self._on_failed)
        bridge.crashed.connect(lambda event: self.stopped.emit(event.error))
        bridge.unloaded.connect(self._end_soon)

    def load(self, config: EngineConfig) -> None:
        self.bridge.load(config)

    def cancel(self) -> None:
        self.bridge.cancel_load()

    def let_go(self) -> None:
        """Give its memory back, and end: nothing waits for it, but `end` where the program ends
        first."""
        self.bridge.cancel_load()
        self.bridge.unload()

    def end(self) -> None:
        """End now, with the program or after it gave its memory back. Twice is once."""
        self.bridge.shutdown(_END_S)
        self.bridge.deleteLater()
        self.deleteLater()

    def _end_soon(self) -> None:
        QTimer.singleShot(0, self, self.end)  # not within a signal of what it ends

    def _on_failed(self, event: messages.LoadFailed) -> None:
        self.failed.emit(event.error, event.cancelled)


class Switcher(QObject):
    """`switched(ModelInfo, EngineConfig, seconds)`: the engine is `side` now. `failed(ErrorInfo)`:
    it is not `target`. `disturbed`: somebody else changed what a side is made of."""

    switched = Signal(object, object, float)
    failed = Signal(object)
    disturbed = Signal()

    def __init__(self, bridge: EngineBridge, session: ModelSession | None, parent: QObject) -> None:
        super().__init__(parent)
        self._bridge, self._session = bridge, session
        self.side = self.target = self.home = LEFT
        self.is_switching = self.is_replacing = False
        self._is_watching = False
        self._settings: list[dict[str, Any]] = [{}, {}, {}]
        self._configs: list[EngineConfig] = []
        self._began = 0.0
        bridge.reconfigured.connect(self._on_reconfigured)
        bridge.reconfigure_failed.connect(self._on_refused)
        bridge.loaded.connect(self._on_loaded)
        bridge.load_failed.connect(self._on_load_failed)

    def begin(self, setups: tuple[Setup, Setup], loaded: EngineConfig) -> None:
        """The engine runs with `loaded`: as one of the sides, or as neither. Raises ConfigError."""
        known = self._session.current if self._session is not None else None
        home = known.config() if known is not None else loaded
        settings = whole_settings(setups, loaded)
        as_found = {name: getattr(loaded, name) for name in settings[LEFT]}
        places = [side for side in (LEFT, RIGHT) if setups[side].is_loaded(loaded)]
        self.side = self.target = self.home = places[0] if places else HOME
        configs = [setup.config(home) for setup in setups]
        self._configs, self._settings = [*configs, home], [*settings, as_found]
        self._configs[self.home], self._settings[self.home] = home, as_found
        self.is_switching = self.is_replacing = False
        self._is_watching = True

    def config(self, side: int) -> EngineConfig:
        """What an engine of this side is loaded with."""
        return self._configs[side]

    def to(self, side: int) -> None:
        self.target, self.is_switching = side, True
        self.is_replacing = not is_same_model(self._configs[self.side], self._configs[side])
        self._began = time.perf_counter()
        if not self.is_replacing:
            self._bridge.reconfigure(**self._settings[side])
        elif self._session is not None:
            self._session.load(self._configs[side])
        else:
            self._bridge.load(self._configs[side])

    def cancel(self) -> None:
        """Give up going to a side; the way back is gone to its end."""
        if self.is_switching and self.target != self.home:
            self._bridge.cancel_load()

    def end(self) -> None:
        self._is_watching = self.is_switching = self.is_replacing = False

    def _done(self, model: Any, config: EngineConfig) -> None:
        self.side, self.is_switching, self.is_replacing = self.target, False, False
        self.switched.emit(model, config, time.perf_counter() - self._began)

    def _not_done(self, error: ErrorInfo) -> None:
        self.is_switching = self.is_replacing = False
        self.failed.emit(error)

    def _on_reconfigured(self, event: messages.Reconfigured) -> None:
        if not self._is_watching or self.is_replacing:
            return
        if self.is_switching and agrees(event.config, self._settings[self.target]):
            self._done(event.model or self._bridge.model, event.config)
        elif not agrees(event.config, self._settings[self.side]):
            self.disturbed.emit()

    def _on_refused(self, event: messages.ReconfigureFailed) -> None:
        if self.is_switching and not self.is_replacing:
            self._not_done(event.error)

    def _on_loaded(self, event: messages.Loaded) -> None:
        if self.is_replacing:
            self._done(event.model, event.config)

    def _on_load_failed(self, event: messages.LoadFailed) -> None:
        if self.is_replacing:
            self._not_done(event.error)
