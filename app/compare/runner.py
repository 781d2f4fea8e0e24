"""Runs a comparison: gets both sides an engine, and asks them the same prompts.

    two engines, or one for both    left and right, prompt by prompt
    one after the other             left: 1, 2, 3 ... --switch--> right: 1, 2, 3 ... --back-->

Where the engine has to change, prompts that are added meanwhile are answered first by the side that
is loaded, so that a switch is paid once for all of them. Whatever ends it, the engine of the window
goes back to where it was, unless it is to stay or has failed. See `app.compare.way`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum, auto
from functools import partial

from PySide6.QtCore import QObject, Signal

from app.compare.asker import STOPPED, Asker
from app.compare.progress import SIDES, answering_words, answers_left_s, with_time
from app.compare.record import LEFT, RIGHT, Answer, Comparison, Pair, Side
from app.compare.second import SecondEngine
from app.compare.switcher import Switcher
from app.compare.way import Decision, Setup, Way, agrees, decide, in_turn, other_words
from app.engine_bridge import EngineBridge, EngineState
from app.models.estimate import Estimate, estimate
from app.models.session import ModelSession
from app.precision.times import SwitchTimes
from app.precision.words import precision_words
from app.tasks import Task, run_task
from engine import messages
from engine.config import EngineConfig
from engine.errors import ConfigError, ErrorInfo, LoadCancelled
from engine.evaluation.texts import PromptLine
from engine.snapshot import ModelInfo


class Phase(Enum):
    IDLE = auto()
    WEIGHING = auto()  # what the right side needs
    LOADING = auto()  # an engine beside the one of the window
    ANSWERING = auto()
    SWITCHING = auto()  # the engine of the window


class ComparisonRunner(QObject):
    """`changed`: anything of `comparison`, `phase` or `problem`. `ended`: nothing more will come.
    `stays`: do not go back at the end. `together`: where both engines are there, both answer at the
    same time. `session` opens models in the window; `weigh(config)`: what it needs."""

    changed = Signal()
    ended = Signal()

    def __init__(
        self,
        bridge: EngineBridge,
        times: SwitchTimes,
        parent: QObject | None = None,
        session: ModelSession | None = None,
        weigh: Callable[[EngineConfig], Estimate] | None = None,
    ) -> None:
        super().__init__(parent)
        self._bridge, self._times, self._weigh = bridge, times, weigh
        self.comparison: Comparison | None = None
        self.decision: Decision | None = None
        self.phase, self.problem = Phase.IDLE, ""
        self.stays = self.together = False
        self._setup = Setup({}, "")
        self._left: EngineConfig | None = None  # what the window's engine ran with
        self._is_stopping = False
        self._load_began = 0.0
        self._task: Task | None = None
        self._second: SecondEngine | None = None
        self._own = [self._asker(bridge, side) for side in SIDES]
        self._askers = list(self._own)
        self._seconds: list[list[float]] = [[], []]  # of the answers of each side
        self._switcher = switcher = Switcher(bridge, session, self)
        switcher.switched.connect(self._switched)
        switcher.failed.connect(self._not_switched)
        switcher.disturbed.connect(
            lambda: self._end("The precision was changed meanwhile, so the answers stop here.")
        )
        bridge.state_changed.connect(self._on_state)

    def _asker(self, bridge: EngineBridge, side: int) -> Asker:
        asker = Asker(bridge, self)
        asker.answered.connect(partial(self._answered, side))
        return asker

    # What the user does ------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self.phase is not Phase.IDLE

    def start(self, prompts: Sequence[PromptLine], setup: Setup) -> None:
        """Answer `prompts` with the engine as it is and with `setup`."""
        config, model = self._bridge.config, self._bridge.model
        if self.is_running or config is None or model is None or not self._bridge.is_ready:
            return
        self._setup, self._left = setup, config
        before = {key: getattr(config, key) for key in setup.settings}
        words = precision_words(model, config)
        left = Side(words, before, model.weights_bytes, None, setup.sampling_names[0])
        right = Side(setup.name, dict(setup.settings), sampling=setup.sampling_names[1])
        started = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        self.comparison = Comparison(model.name, started, [left, right])
        self.comparison.pairs = self._new_pairs(prompts)
        self.problem, self._is_stopping = "", False
        self.decision, self._seconds = None, [[], []]
        self._askers = list(self._own)
        self._switcher.begin((before, setup.settings))
        self._find_way(config)

    def add(self, prompts: Sequence[PromptLine]) -> None:
        """More prompts for the comparison that runs."""
        if self.comparison is not None and self.is_running and not self._is_stopping:
            self.comparison.pairs += self._new_pairs(prompts)
            if self.phase is Phase.ANSWERING:
                self._next()
            self.changed.emit()

    def stop(self) -> None:
        """Ask for nothing more, and go back. What was answered stays."""
        if not self.is_running:
            return
        self._is_stopping = True
        for asker in self._askers:
            asker.stop()
        if self.phase is Phase.WEIGHING:
            self._end()
        elif self.phase is Phase.LOADING and self._second is not None:
            self._second.cancel()
        else:
            self._switcher.cancel()
        self.changed.emit()

    def forget(self) -> None:
        """The results of a comparison that has ended."""
        self.comparison, self.decision, self.problem = None, None, ""

    def close(self) -> None:
        """The program ends."""
        if self._task is not None:
            self._task.cancel()
        if self._second is not None:
            second, self._second = self._second, None
            second.end()

    def _new_pairs(self, prompts: Sequence[PromptLine]) -> list[Pair]:
        return [Pair(prompt, is_by_text=self._setup.model is not None) for prompt in prompts]

    # What is said ------------------------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    @property
    def side(self) -> int:
        """The side that is loaded in the window."""
        return self._switcher.side

    @property
    def _sides_ready(self) -> tuple[int, ...]:
        is_in_turn = self.decision is None or self.decision.way.is_in_turn
        return (self.side,) if is_in_turn else SIDES

    @property
    def status(self) -> str:
        """What happens now, in words."""
        comparison = self.comparison
        if comparison is None:
            return ""
        names = [side.precision for side in comparison.sides]
        match self.phase:
            case Phase.IDLE:
                return ""
            case Phase.WEIGHING:
                return "Looking whether both sides fit the memory at once"
            case Phase.LOADING:
                text = f"Loading {names[RIGHT]} beside the engine of the window"
            case Phase.SWITCHING:
                back = "back " if self._switcher.target == LEFT else ""
                text = f"Switching {back}to {names[self._switcher.target]}"
            case Phase.ANSWERING:
                asked = [side for side in self._sides_ready if self._askers[side].is_asking]
                text = answering_words(comparison, asked or [self.side])
        return with_time(text, self.time_left_s)

    @property
    def time_left_s(self) -> float | None:
        """Of answers and of switches; None until an answer was timed."""
        if self.comparison is None or not self.is_running:
            return None
        answers = answers_left_s(self.comparison, self._seconds)
        if answers is None:
            return None
        ways = [s for s in (RIGHT, LEFT) if self._will_switch_to(s)]
        return answers + sum(self._switch_s(side) for side in ways)

    def _will_switch_to(self, side: int) -> bool:
        if self.phase is Phase.SWITCHING and self._switcher.target == side:
            return True
        if self.decision is None or not self.decision.way.is_in_turn:
            return False
        return not self.stays if side == LEFT else self._has_todo(RIGHT) and self.side == LEFT

    def _switch_s(self, side: int) -> float:
        config = self._left if side == LEFT else self.decision and self.decision.config
        expected = self._times.expected(config, None) if config is not None else None
        known = self.comparison.sides[RIGHT].switch_s if self.comparison else None
        return expected.seconds if expected is not None else known or 0.0

    # The way through ---------------------------------------------------------------------------

    def _find_way(self, config: EngineConfig) -> None:
        setup = self._setup
        if setup.model is None and agrees(config, setup.settings):
            self._go(Decision(Way.SAME, "One engine for both: they differ in sampling alone."))
            return
        try:
            wanted = setup.config(config)
        except ConfigError as error:
            self._end(f"{error}")
            return
        if self._weigh is None and "engine.assembly" not in sys.modules:
            # no engine of this process has loaded anything, nor what is needed to look
            self._go(in_turn(setup, "what the right side needs is not known.", wanted))
            return
        self.phase = Phase.WEIGHING
        weigh = self._weigh or estimate
        self._task = run_task(
            self, lambda: weigh(wanted), partial(self._weighed, wanted),
            lambda error: self._go(in_turn(setup, f"{error.cause}", wanted)),
        )  # fmt: skip
        self.changed.emit()

    def _weighed(self, wanted: EngineConfig, found: Estimate) -> None:
        self._task = None
        plan = self._bridge.plan
        if self.phase is not Phase.WEIGHING:
            return
        if plan is None:
            self._end("The model was closed meanwhile.")
            return
        self._go(decide(self._setup, wanted, plan, found))

    def _go(self, decision: Decision) -> None:
        if self.comparison is None or (self._is_stopping and self.phase is Phase.IDLE):
            return
        self.decision, self.comparison.way = decision, decision.why
        if decision.way is Way.BESIDE and decision.config is not None:
            self._open_second(decision.config)
            return
        if decision.way is Way.REPLACE and decision.config is not None:
            self._switcher.replace_models(decision.config)
        if decision.way is Way.SAME:
            left, right = self.comparison.sides
            self.comparison.sides[RIGHT] = replace(
                right, precision=left.precision, weights_bytes=left.weights_bytes
            )
        self._next()

    def _open_second(self, config: EngineConfig) -> None:
        second = self._second = SecondEngine(self._bridge.beside(), self)
        second.ready.connect(self._second_ready)
        second.failed.connect(self._second_failed)
        second.stopped.connect(lambda e: self._end(f"The engine beside it stopped. {e.cause}"))
        self._askers = [self._own[LEFT], self._asker(second.bridge, RIGHT)]
        self.phase, self._load_began = Phase.LOADING, time.perf_counter()
        second.load(config)
        self.changed.emit()

    def _second_ready(self, event: messages.Loaded) -> None:
        if self.phase is Phase.LOADING:
            self._know_right(event.model, event.config, time.perf_counter() - self._load_began)
            self._next()

    def _second_failed(self, error: ErrorInfo, is_cancelled: bool) -> None:
        """What was reckoned to fit did not: one after the other then."""
        if self.phase is not Phase.LOADING or self._left is None:
            return
        self._drop_second()
        if is_cancelled or self._is_stopping:
            self._end()
        else:
            reason = f"a second engine was not loaded. {error.cause}"
            self._go(in_turn(self._setup, reason, self._setup.config(self._left)))

    def _drop_second(self) -> None:
        if self._second is not None:
            second, self._second = self._second, None
            self._askers[RIGHT].forget()
            self._askers = list(self._own)
            second.let_go()

    def _know_right(self, model: ModelInfo, config: EngineConfig, seconds: float) -> None:
        assert self.comparison is not None
        words = precision_words(model, config)
        if self._setup.model is not None:
            words = f"{model.name} · {words}"
        self.comparison.sides[RIGHT] = replace(
            self.comparison.sides[RIGHT],
            precision=" · ".join(filter(None, (words, other_words(self._setup, self._left)))),
            weights_bytes=model.weights_bytes,
            switch_s=seconds,
        )

    def _has_todo(self, side: int) -> bool:
        comparison = self.comparison
        return comparison is not None and any(p.answers[side] is None for p in comparison.pairs)

    def _next(self) -> None:
        """Ask whom there is to ask; else change sides, or end."""
        if not self._is_stopping and self._ask():
            return
        if any(asker.is_asking for asker in self._askers):
            return
        other = RIGHT if self.side == LEFT else LEFT
        is_in_turn = self.decision is not None and self.decision.way.is_in_turn
        if is_in_turn and not self._is_stopping and self._has_todo(other):
            self._switch(other)
        elif is_in_turn and self.side == RIGHT and not self.stays:
            self._switch(LEFT)
        else:
            self._end()

    def _ask(self) -> bool:
        """Whether somebody was asked."""
        assert self.comparison is not None
        asked = False
        for pair in self.comparison.pairs:
            for side in self._sides_ready:
                busy = [a.is_asking for a in self._askers]
                free = not busy[side] if self.together else not any(busy)
                if free and pair.answers[side] is None:
                    params = self._setup.sampling[side]
                    params = replace(params, max_tokens=pair.prompt.max_tokens, logprobs=0)
                    self.phase = Phase.ANSWERING
                    self._askers[side].ask(pair, params)
                    asked = True
        if asked:
            self.changed.emit()
        return asked

    def _switch(self, side: int) -> None:
        self.phase = Phase.SWITCHING
        self._switcher.to(side)
        self.changed.emit()

    def _end(self, problem: str = "") -> None:
        self.problem = problem or self.problem
        self.phase = Phase.IDLE
        self._switcher.end()
        for asker in self._askers:
            asker.forget()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._drop_second()
        self.changed.emit()
        self.ended.emit()

    # What the engine says ----------------------------------------------------------------------

    def _answered(self, side: int, answer: Answer) -> None:
        asker = self._askers[side]
        if asker.pair is None or not self.is_running:
            return
        if answer.problem == STOPPED and not self._is_stopping:
            self.problem = "The answers were stopped meanwhile, as when a model is closed."
            self._is_stopping = True
        asker.pair.answers[side] = answer
        if not answer.problem:
            self._seconds[side].append(asker.seconds)
        self._next()
        self.changed.emit()

    def _switched(self, model: ModelInfo, config: EngineConfig, seconds: float) -> None:
        if self.side == RIGHT:
            self._know_right(model, config, seconds)
        self._next()

    def _not_switched(self, error: ErrorInfo) -> None:
        assert self.comparison is not None
        name = self.comparison.sides[self._switcher.target].precision
        if error.kind == LoadCancelled.__name__:
            self._end("" if self._is_stopping else f"Switching to {name} was cancelled.")
        else:
            self._end(f"Switching to {name} failed. {error.cause} {error.remedy}")

    def _on_state(self, state: EngineState) -> None:
        if self.is_running and state is not EngineState.READY and not self._switcher.is_replacing:
            self._end("The model was closed meanwhile, so the answers stop here.")
