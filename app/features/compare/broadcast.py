"""`Broadcast`: many requests at once through the engine of the window, and their replies."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Sequence

from PySide6.QtCore import QObject, Signal

from app.features.compare.broadcast_replies import Reply, Stage
from app.link.bridge import EngineBridge, EngineState
from engine import messages
from engine.errors import ErrorInfo
from engine.sampling_params import SamplingParams

CLOSED = ErrorInfo("The model was closed.", "Open one, and send it again.")


class Broadcast(QObject):
    """`begun`: there are new replies. `appended(reply, text)`. `changed(reply)`: its stage.
    Requests are named by `name_of`, and are in every view of the engine like any other."""

    begun = Signal()
    appended = Signal(object, str)
    changed = Signal(object)

    def __init__(self, bridge: EngineBridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self.replies: list[Reply] = []
        self.model = ""
        self._open: dict[str, Reply] = {}
        self._numbers: dict[str, int] = {}  # of all that were sent, for who names requests
        bridge.outputs.connect(self._on_outputs)
        bridge.request_failed.connect(self._on_failed)
        bridge.crashed.connect(lambda event: self._fail_all(event.error))
        bridge.state_changed.connect(self._on_state)

    @property
    def is_running(self) -> bool:
        return bool(self._open)

    def name_of(self, request_id: str) -> str:
        """ "broadcast 3"; "" for a request of somebody else."""
        number = self._numbers.get(request_id)
        return f"broadcast {number}" if number is not None else ""

    def start(self, asked: Sequence[tuple[str, SamplingParams]]) -> None:
        """Send all of them now, in place of those before."""
        model = self._bridge.model
        if self.is_running or model is None or not self._bridge.is_ready:
            return
        self.model = model.name
        run = uuid.uuid4().hex
        self.replies = [
            Reply(number, f"broadcast-{run}-{number}", prompt, params, time.perf_counter())
            for number, (prompt, params) in enumerate(asked, start=1)
        ]
        self._open = {reply.request_id: reply for reply in self.replies}
        self._numbers |= {reply.request_id: reply.number for reply in self.replies}
        self.begun.emit()
        for reply in self.replies:
            prompt: messages.Prompt = reply.prompt
            if model.has_chat_template:
                prompt = ({"role": "user", "content": reply.prompt},)
            reply.sent = time.perf_counter()
            self._bridge.add_request(reply.request_id, prompt, reply.params)

    def stop(self) -> None:
        """Stop all that are waiting or being written; what was written stays."""
        for request_id in list(self._open):
            self._bridge.abort(request_id)

    def _on_outputs(self, events: list[messages.OutputEvent]) -> None:
        for event in events:
            reply = self._open.get(event.request_id)
            if reply is None:
                continue
            stage = reply.stage
            reply.add(event, self.model)
            if event.text:
                self.appended.emit(reply, event.text)
            if not reply.stage.is_open:
                del self._open[event.request_id]
            if reply.stage is not stage:
                self.changed.emit(reply)

    def _on_failed(self, failed: messages.RequestFailed) -> None:
        reply = self._open.pop(failed.request_id, None)
        if reply is not None:
            self._fail(reply, failed.error)

    def _on_state(self, state: EngineState) -> None:
        if state is EngineState.EMPTY:
            self._fail_all(CLOSED)

    def _fail_all(self, error: ErrorInfo) -> None:
        left, self._open = self._open, {}
        for reply in left.values():
            self._fail(reply, error)

    def _fail(self, reply: Reply, error: ErrorInfo) -> None:
        reply.stage, reply.error = Stage.FAILED, error
        self.changed.emit(reply)


def seeds(prompt: str, params: SamplingParams, count: int) -> list[tuple[str, SamplingParams]]:
    """One prompt `count` times, each from the next seed."""
    first = params.seed or 0
    return [(prompt, dataclasses.replace(params, seed=first + i)) for i in range(count)]


def lines(text: str, params: SamplingParams, most: int) -> list[tuple[str, SamplingParams]]:
    """A prompt a line, blank lines left out, at most `most`."""
    found = [line.strip() for line in text.splitlines() if line.strip()]
    return [(line, params) for line in found[:most]]
