"""`Asker`: one prompt at a time to one engine, and the whole answer back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from PySide6.QtCore import QObject, Signal

from app.compare.record import Answer, Pair, Piece
from app.engine_bridge import EngineBridge
from engine import messages
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
