"""`ChangeWatch`: a change of settings, from Apply until paused replies continue.

    Apply ------ engine applies it ------ Reconfigured ---- requests recompute ---- next tokens
      |<----------- applied.engine_s ---------->|                                       |
      |<--------------------------- applied.waited_s ---------------------------------->|
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from PySide6.QtCore import QObject, Signal

from app.link.bridge import EngineBridge, EngineState
from engine.config import SETTINGS, Change, costliest, differences_text
from engine.messages import OutputEvent, Reconfigured
from engine.snapshot import EngineSnapshot, RequestState
from engine.units import bytes_text, counted, duration_text


class Applying(NamedTuple):
    """A cache rebuild or reload under way. `since`: when it was sent. `tokens`: of each request
    that it pauses, to be computed again. `answer`: the engine's, once it has applied the change."""

    change: Change
    since: float
    text: str
    tokens: Mapping[str, int]
    answer: Reconfigured | None = None


class Applied(NamedTuple):
    """A change of settings with its effects: `engine_s` until the engine had applied it,
    `waited_s` until the last of `num_paused` requests produced a token again, after `num_tokens`
    were recomputed."""

    change: Change
    text: str
    engine_s: float
    waited_s: float
    num_paused: int = 0
    num_tokens: int = 0
    weights: tuple[int, int] = (0, 0)
    """Bytes of the model's weights before and after."""

    @property
    def sentence(self) -> str:
        """ "Cache rebuild 0.7 s + recomputation of 573 tokens 13.9 s: replies waited 14.6 s."."""
        name = self.change.value.capitalize()
        before, after = self.weights
        weights = ""
        if before and after and before != after:
            weights = f" Weights {bytes_text(before)} → {bytes_text(after)}."
        if not self.num_paused:
            return f"{name} completed in {duration_text(self.engine_s)}.{weights}"
        again = duration_text(self.waited_s - self.engine_s)
        whose = "the reply" if self.num_paused == 1 else f"{self.num_paused:,} replies"
        return (
            f"{name} {duration_text(self.engine_s)} + recomputation of "
            f"{counted(self.num_tokens, 'token')} {again}: {whose} waited "
            f"{duration_text(self.waited_s)}.{weights}"
        )


class ChangeWatch(QObject):
    """`changed`: `applying` has changed; `answered(Reconfigured, text)`: the engine has applied a
    change; `applied(Applied)`: and the requests that it paused generate again."""

    changed = Signal()
    answered = Signal(object, str)
    applied = Signal(object)

    def __init__(self, bridge: EngineBridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.applying: Applying | None = None
        self._bridge = bridge
        self._config = bridge.config
        self._weights = (0, bridge.model.weights_bytes if bridge.model is not None else 0)
        self._snapshot: EngineSnapshot | None = None
        self._paused: set[str] = set()  # requests that have produced no token since
        self._counts: dict[str, int] = {}  # their output tokens as the engine answered
        bridge.reconfiguring.connect(self._on_sent)
        bridge.reconfigured.connect(self._on_answer)
        bridge.reconfigure_failed.connect(lambda event: self._drop())
        bridge.outputs.connect(self._on_outputs)
        bridge.snapshot.connect(self._on_snapshot)
        bridge.state_changed.connect(self._on_state)

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        self._snapshot = snapshot
        if self.applying is not None and self.applying.answer is not None:
            self._see_others(snapshot)

    def _see_others(self, snapshot: EngineSnapshot) -> None:
        """Requests of other windows send no outputs here: read their token counts."""
        counts = {one.request_id: one.num_output_tokens for one in snapshot.requests}
        gone = {
            one for one in self._paused
            if one not in counts or counts[one] > self._counts.setdefault(one, counts[one])
        }  # fmt: skip
        if gone:
            self._paused -= gone
            self._end_if_all_continue()

    def _on_state(self, state: object) -> None:
        if state is not EngineState.READY:
            self._snapshot = None
            self._drop()
        model = self._bridge.model
        if self._config is None and model is not None:  # it has just been opened
            self._config, self._weights = self._bridge.config, (0, model.weights_bytes)
        elif state is not EngineState.READY:
            self._config = None

    def _on_sent(self, changes: Mapping[str, Any]) -> None:
        now = self._bridge.config
        if now is None or self.applying is not None:
            return
        differences = {
            name: (getattr(now, name), value)
            for name, value in changes.items()
            if name in SETTINGS and getattr(now, name) != value
        }
        change = costliest(differences)
        if change is Change.LIVE:
            return
        requests = self._snapshot.requests if self._snapshot is not None else ()
        tokens = {
            one.request_id: one.num_prompt_tokens + one.num_output_tokens
            for one in requests
            if one.state is RequestState.RUNNING
        }
        text = differences_text(differences)
        self.applying = Applying(change, time.perf_counter(), text, tokens)
        self._paused, self._counts = set(tokens), {}
        self.changed.emit()

    def _on_answer(self, event: Reconfigured) -> None:
        before, self._config = self._config, event.config
        text = differences_text(before.differences(event.config)) if before is not None else ""
        weights = event.model.weights_bytes if event.model is not None else 0
        self._weights = (self._weights[1], weights)
        self.answered.emit(event, text)
        applying = self.applying
        if event.change is None or event.change is Change.LIVE:
            return
        if applying is None:  # another window sent it
            made = Applied(event.change, text, event.seconds, event.seconds)
            self.applied.emit(made._replace(weights=self._weights))
            return
        self.applying = applying._replace(answer=event)
        self.changed.emit()
        self._end_if_all_continue()

    def _on_outputs(self, events: list[OutputEvent]) -> None:
        if self.applying is None:
            return
        is_made = self.applying.answer is not None
        for event in events:
            # tokens sent before the change do not count
            if event.finish_reason is not None or (is_made and event.token_ids):
                self._paused.discard(event.request_id)
        if is_made:
            self._end_if_all_continue()

    def _end_if_all_continue(self) -> None:
        applying = self.applying
        if applying is None or applying.answer is None or self._paused:
            return
        answer = applying.answer
        waited_s = time.perf_counter() - applying.since if answer.num_preempted else answer.seconds
        self.applying = None
        self.changed.emit()
        self.applied.emit(
            Applied(
                applying.change, applying.text, answer.seconds, waited_s,
                answer.num_preempted, answer.num_lost_tokens, self._weights,
            )
        )  # fmt: skip

    def _drop(self) -> None:
        self._paused.clear()
        if self.applying is not None:
            self.applying = None
            self.changed.emit()
