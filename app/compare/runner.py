"""Runs a comparison on the one engine: all answers of one side, a switch, all of the other.

    left: prompt 1, 2, 3 ... --switch--> right: prompt 1, 2, 3 ... --switch back--> left

Prompts that are added meanwhile are answered first by the side that is loaded, so that a switch is
paid once for all of them. Whatever ends it, the engine goes back to where it was, unless it is to
stay or has failed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum, auto
from statistics import fmean
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.compare.record import LEFT, RIGHT, Answer, Comparison, Pair, Piece, Side
from app.engine_bridge import EngineBridge, EngineState
from app.precision.times import SwitchTimes
from app.precision.words import precision_words
from engine import messages
from engine.config import EngineConfig
from engine.errors import LoadCancelled
from engine.evaluation.texts import PromptLine
from engine.sampling_params import SamplingParams
from engine.snapshot import FinishReason


class Phase(Enum):
    IDLE = auto()
    ANSWERING = auto()
    SWITCHING = auto()


class ComparisonRunner(QObject):
    """`changed`: anything of `comparison`, `phase` or `problem`. `ended`: nothing more will come.
    `expected_s(config)`: how long loading with it takes, None where that is not known."""

    changed = Signal()
    ended = Signal()

    def __init__(
        self, bridge: EngineBridge, times: SwitchTimes, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._bridge, self._times = bridge, times
        self.comparison: Comparison | None = None
        self.phase = Phase.IDLE
        self.problem = ""
        self.stays = False
        self._settings: list[dict[str, Any]] = [{}, {}]
        self._side = self._target = LEFT  # loaded; being loaded while SWITCHING
        self._is_stopping = False
        self._request = ""
        self._pair: Pair | None = None
        self._events: list[messages.OutputEvent] = []
        self._began = 0.0
        self._seconds: list[list[float]] = [[], []]  # of the answers of each side
        bridge.outputs.connect(self._on_outputs)
        bridge.request_failed.connect(self._on_failed)
        bridge.reconfigured.connect(self._on_reconfigured)
        bridge.reconfigure_failed.connect(self._on_refused)
        bridge.state_changed.connect(self._on_state)

    # What the user does ------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self.phase is not Phase.IDLE

    def start(self, prompts: Sequence[PromptLine], right: Mapping[str, Any], name: str) -> None:
        """Answer `prompts` with the engine as it is and with the settings `right`, called `name`
        until the engine says how it runs."""
        config, model = self._bridge.config, self._bridge.model
        if self.is_running or config is None or model is None or not self._bridge.is_ready:
            return
        self._settings = [{key: getattr(config, key) for key in right}, dict(right)]
        left = Side(precision_words(model, config), self._settings[LEFT], model.weights_bytes)
        started = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        pairs = [Pair(prompt) for prompt in prompts]
        self.comparison = Comparison(model.name, started, [left, Side(name, dict(right))], pairs)
        self.problem, self._side, self._is_stopping = "", LEFT, False
        self._seconds = [[], []]
        self._next()

    def add(self, prompts: Sequence[PromptLine]) -> None:
        """More prompts for the comparison that runs."""
        if self.comparison is not None and self.is_running and not self._is_stopping:
            self.comparison.pairs += [Pair(prompt) for prompt in prompts]
            self.changed.emit()

    def stop(self) -> None:
        """Ask for nothing more, and go back. What was answered stays."""
        if not self.is_running:
            return
        self._is_stopping = True
        if self.phase is Phase.ANSWERING:
            self._bridge.abort(self._request)
        elif self._target == RIGHT:
            self._bridge.cancel_load()
        self.changed.emit()

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    @property
    def side(self) -> int:
        """The side that is loaded."""
        return self._side

    @property
    def status(self) -> str:
        """What happens now, in words."""
        comparison = self.comparison
        if comparison is None or not self.is_running:
            return ""
        if self.phase is Phase.SWITCHING:
            back = "back " if self._target == LEFT else ""
            text = f"Switching {back}to {comparison.sides[self._target].precision}"
        else:
            done = sum(pair.answers[self._side] is not None for pair in comparison.pairs)
            name = comparison.sides[self._side].precision
            text = f"Prompt {done + 1:,} of {len(comparison.pairs):,}, by {name}"
        left = self.time_left_s
        return text if left is None else f"{text} · about {max(1, round(left)):,} s left"

    @property
    def time_left_s(self) -> float | None:
        """Of answers, as long as those before took, and of switches; None until an answer was
        timed."""
        comparison, known = self.comparison, [*self._seconds[LEFT], *self._seconds[RIGHT]]
        if comparison is None or not self.is_running or not known:
            return None
        total = 0.0
        for side in (LEFT, RIGHT):
            todo = sum(pair.answers[side] is None for pair in comparison.pairs)
            total += todo * fmean(self._seconds[side] or known)
        ways = [s for s in (RIGHT, LEFT) if self._will_switch_to(s)]
        return total + sum(self._switch_s(side) for side in ways)

    # The way through ---------------------------------------------------------------------------

    def _will_switch_to(self, side: int) -> bool:
        if self.phase is Phase.SWITCHING and self._target == side:
            return True
        return not self.stays if side == LEFT else self._has_todo(RIGHT) and self._side == LEFT

    def _switch_s(self, side: int) -> float:
        config = self._bridge.config
        if config is None:
            return 0.0
        wanted = config.replace(**_without_auto(self._settings[side]))
        expected = self._times.expected(wanted, None)
        known = self.comparison.sides[RIGHT].switch_s if self.comparison else None
        return expected.seconds if expected is not None else known or 0.0

    def _has_todo(self, side: int) -> bool:
        comparison = self.comparison
        return comparison is not None and any(p.answers[side] is None for p in comparison.pairs)

    def _next(self) -> None:
        other = RIGHT if self._side == LEFT else LEFT
        if not self._is_stopping and self._has_todo(self._side):
            self._ask()
        elif not self._is_stopping and self._has_todo(other):
            self._switch(other)
        elif self._side == RIGHT and not self.stays:
            self._switch(LEFT)
        else:
            self._end()

    def _ask(self) -> None:
        assert self.comparison is not None
        self._pair = next(p for p in self.comparison.pairs if p.answers[self._side] is None)
        line = self._pair.prompt
        self.phase, self._events = Phase.ANSWERING, []
        self._request, self._began = f"compare-{uuid.uuid4().hex}", time.perf_counter()
        params = SamplingParams(
            temperature=0.0, seed=0, max_tokens=line.max_tokens, logprobs=0
        )
        self._bridge.add_request(self._request, line.prompt, params)
        self.changed.emit()

    def _switch(self, side: int) -> None:
        self.phase, self._target = Phase.SWITCHING, side
        self._bridge.reconfigure(**self._settings[side])
        self.changed.emit()

    def _end(self, problem: str = "") -> None:
        self.problem = problem or self.problem
        self.phase, self._request, self._pair = Phase.IDLE, "", None
        self.changed.emit()
        self.ended.emit()

    # What the engine says ----------------------------------------------------------------------

    def _on_outputs(self, events: list[messages.OutputEvent]) -> None:
        mine = [event for event in events if event.request_id == self._request]
        if not mine or self.phase is not Phase.ANSWERING:
            return
        self._events += mine
        last = mine[-1]
        if last.finish_reason is None:
            return
        problem = ""
        if last.finish_reason is FinishReason.ERROR and last.error is not None:
            problem = f"{last.error.cause} {last.error.remedy}".strip()
        elif last.finish_reason is FinishReason.ABORT:
            problem = "stopped"
            if not self._is_stopping:
                self.problem = "The answers were stopped meanwhile, as when a model is closed."
                self._is_stopping = True
        self._answered(answer_of(self._events, problem))

    def _on_failed(self, failed: messages.RequestFailed) -> None:
        if failed.request_id == self._request and self.phase is Phase.ANSWERING:
            self._answered(Answer(problem=f"{failed.error.cause} {failed.error.remedy}".strip()))

    def _answered(self, answer: Answer) -> None:
        assert self._pair is not None
        self._pair.answers[self._side] = answer
        if not answer.problem:
            self._seconds[self._side].append(time.perf_counter() - self._began)
        self._request = ""
        self._next()

    def _on_reconfigured(self, event: messages.Reconfigured) -> None:
        if not self.is_running or self.comparison is None:
            return
        if self.phase is Phase.SWITCHING and _agrees(event.config, self._settings[self._target]):
            self._switched(event)
        elif not _agrees(event.config, self._settings[self._side]):
            self._give_up("The precision was changed meanwhile, so the answers stop here.")

    def _switched(self, event: messages.Reconfigured) -> None:
        assert self.comparison is not None
        self._side = self._target
        side = self.comparison.sides[self._side]
        if self._side == RIGHT and event.model is not None:
            self.comparison.sides[RIGHT] = replace(
                side,
                precision=precision_words(event.model, event.config),
                weights_bytes=event.model.weights_bytes,
                switch_s=event.seconds,
            )
        self._next()

    def _on_refused(self, event: messages.ReconfigureFailed) -> None:
        if self.phase is not Phase.SWITCHING or self.comparison is None:
            return
        name = self.comparison.sides[self._target].precision
        if event.error.kind == LoadCancelled.__name__:
            self._end("" if self._is_stopping else f"Switching to {name} was cancelled.")
        else:
            self._end(f"Switching to {name} failed. {event.error.cause} {event.error.remedy}")

    def _on_state(self, state: EngineState) -> None:
        if self.is_running and state is not EngineState.READY:
            self._end("The model was closed meanwhile, so the answers stop here.")

    def _give_up(self, problem: str) -> None:
        if self._request:
            self._bridge.abort(self._request)
        self._end(problem)


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


def _agrees(config: EngineConfig, settings: Mapping[str, Any]) -> bool:
    return all(getattr(config, n) == v for n, v in _without_auto(settings).items())


def _without_auto(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without what the engine resolves by itself."""
    return {n: v for n, v in settings.items() if not (n == "dtype" and v == "auto")}
