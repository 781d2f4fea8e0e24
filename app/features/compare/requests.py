"""`ReplyRunner`: sends prompts to an engine and collects the replies; `Broadcast`: many at once."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from PySide6.QtCore import QObject, Signal

from app.features.compare.replies import BROADCAST, Reply, Stage
from app.link.bridge import EngineBridge, EngineState
from engine import messages
from engine.errors import ErrorInfo
from engine.evaluate.task import PromptLine
from engine.sampling_params import SamplingParams

CLOSED = ErrorInfo("The model was closed.", "Open a model, then send again.")


class ReplyRunner(QObject):
    """Sends prompts to one engine. `appended(reply, text)`: more text; `changed(reply)`: another
    stage."""

    appended = Signal(object, str)
    changed = Signal(object)

    def __init__(self, bridge: EngineBridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._open: dict[str, Reply] = {}

    @property
    def is_running(self) -> bool:
        return bool(self._open)

    def send(self, reply: Reply, prompt: messages.Prompt) -> None:
        if not self._open:
            self._bridge.outputs.connect(self._on_outputs)
            self._bridge.request_failed.connect(self._on_failed)
        self._open[reply.request_id] = reply
        reply.sent = time.perf_counter()
        self._bridge.add_request(reply.request_id, prompt, reply.params)

    def send_line(self, reply: Reply, line: PromptLine, is_raw: bool = False) -> None:
        """Send it with the model's chat template, if it has one, unless `is_raw`."""
        model = self._bridge.model
        is_chat = (model is None or model.has_chat_template) and not is_raw
        self.send(reply, line.for_model(is_chat).prompt)

    def stop(self) -> None:
        """Abort every open request; keep the text so far."""
        for request_id in list(self._open):
            self._bridge.abort(request_id)

    def forget(self) -> None:
        """Abort every open request and ignore its remaining events."""
        self.stop()
        for request_id in list(self._open):
            reply = self._close(request_id)
            if reply is not None:
                reply.stage = Stage.STOPPED

    def fail_all(self, error: ErrorInfo) -> None:
        for request_id in list(self._open):
            self._on_failed(messages.RequestFailed(request_id, error))

    def _close(self, request_id: str) -> Reply | None:
        reply = self._open.pop(request_id, None)
        if reply is not None and not self._open:  # outputs of chats are none of its business
            self._bridge.outputs.disconnect(self._on_outputs)
            self._bridge.request_failed.disconnect(self._on_failed)
        return reply

    def _on_outputs(self, events: list[messages.OutputEvent]) -> None:
        model = self._bridge.model
        for event in events:
            reply = self._open.get(event.request_id)
            if reply is None:
                continue
            stage = reply.stage
            reply.add(event, model.name if model is not None else "")
            if event.text:
                self.appended.emit(reply, event.text)
            if not reply.stage.is_open:
                self._close(event.request_id)
            if reply.stage is not stage:
                self.changed.emit(reply)

    def _on_failed(self, failed: messages.RequestFailed) -> None:
        reply = self._close(failed.request_id)
        if reply is not None:
            reply.fail(failed.error)
            self.changed.emit(reply)


class Broadcast(ReplyRunner):
    """Many requests at once. `begun`: `replies` of `model` replaced the previous ones; `ended`:
    the last of them is complete."""

    begun = Signal()
    ended = Signal()

    def __init__(self, bridge: EngineBridge, parent: QObject | None = None) -> None:
        super().__init__(bridge, parent)
        self.replies: list[Reply] = []
        self.model = self.started = ""
        self.changed.connect(self._on_changed)
        bridge.crashed.connect(lambda event: self.fail_all(event.error))
        bridge.state_changed.connect(self._on_state)

    @property
    def is_running(self) -> bool:
        return any(reply.stage.is_open for reply in self.replies)

    def start(self, asked: Sequence[tuple[str, SamplingParams]]) -> None:
        """Send all of them."""
        model = self._bridge.model
        if self.is_running or model is None or not self._bridge.is_ready:
            return
        self.model, run = model.name, uuid.uuid4().hex
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.replies = [
            Reply(f"{BROADCAST}-{run}-{number}", prompt, params, number, time.perf_counter())
            for number, (prompt, params) in enumerate(asked, start=1)
        ]
        self.begun.emit()
        for reply in self.replies:
            self.send_line(reply, PromptLine(reply.number, reply.prompt))

    def _on_changed(self, reply: Reply) -> None:
        if not reply.stage.is_open and not self.is_running:
            self.ended.emit()

    def _on_state(self, state: EngineState) -> None:
        if state is EngineState.EMPTY:
            self.fail_all(CLOSED)


def seeds(prompt: str, params: SamplingParams, count: int) -> list[tuple[str, SamplingParams]]:
    """One prompt `count` times, with consecutive seeds."""
    first = params.seed or 0
    return [(prompt, dataclasses.replace(params, seed=first + i)) for i in range(count)]


def lines(text: str, params: SamplingParams, most: int) -> list[tuple[str, SamplingParams]]:
    """One prompt per line without blank lines, at most `most`."""
    found = [line.strip() for line in text.splitlines() if line.strip()]
    return [(line, params) for line in found[:most]]
