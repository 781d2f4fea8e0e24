"""`ComparisonRunner`: gives both sides an engine and sends them the same prompts.

    two engines, or one for both    left and right, prompt by prompt
    one after the other             left: 1, 2, 3 ... --switch--> right: 1, 2, 3 ... --back-->

If the main engine is neither side, it becomes the left one first. With one side after the other,
prompts that are added during a run first run on the loaded side: all share one switch. At the end
the main engine returns to its original state, unless it is to stay or has failed. See
`app.features.compare.placement`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from PySide6.QtCore import QObject, Signal

from app.features.compare.engines import SecondEngine, Switcher
from app.features.compare.placement import (
    Decision,
    Placement,
    Setup,
    decide,
    in_turn,
    needs_one,
    other_settings,
)
from app.features.compare.progress import Progress
from app.features.compare.record import (
    HOME,
    LEFT,
    RIGHT,
    SIDE_NAMES,
    SIDES,
    Comparison,
    Phase,
    PromptReplies,
    Side,
)
from app.features.compare.replies import Reply, Stage
from app.features.compare.sending import SideReplies
from app.features.models.estimate import Estimate, estimate, has_libraries
from app.features.models.precision import Expected, SwitchTimes, precision_text
from app.features.models.session import ModelSession
from app.link.bridge import EngineBridge, EngineState
from app.link.row_names import by_row
from app.link.tasks import Task, run_task
from engine import messages
from engine.config import EngineConfig
from engine.errors import ConfigError, ErrorInfo, LoadCancelled
from engine.evaluate.task import PromptLine
from engine.snapshot import ModelInfo

CLOSED = "Comparison stopped: the model was closed."
ABORTED = "Comparison stopped: replies were aborted."
LOCKED = "Settings are locked while a comparison runs."
CHANGED = "Comparison stopped: the precision was changed."


class ComparisonRunner(QObject):
    """Runs one comparison at a time. `changed`: `comparison`, `phase` or `problem`;
    `appended(reply, text)`: more text; `ended` once at the end. `stays`: the main engine keeps the
    last side. `together`: two engines generate in parallel. `is_raw`: text prompts are sent without
    the chat template. `session` opens models in the main engine."""

    changed = Signal()
    appended = Signal(object, str)
    ended = Signal()

    def __init__(
        self, bridge: EngineBridge, times: SwitchTimes, session: ModelSession, parent: QObject
    ) -> None:
        super().__init__(parent)
        self._bridge, self._times = bridge, times
        self._weigh: Callable[[EngineConfig], Estimate] | None = None
        self.comparison: Comparison | None = None
        self.decision: Decision | None = None
        self.phase, self.problem = Phase.IDLE, ""
        self.stays = self.together = self.is_raw = self.is_stopping = False
        self._setups = (Setup({}, ""), Setup({}, ""))
        self._found: EngineConfig | None = None  # original state of the main engine
        self._own = LEFT  # the first side of the main engine
        self._load_began = 0.0
        self._task: Task | None = None
        self._second: SecondEngine | None = None
        self._replies = SideReplies(bridge, self)
        self._replies.appended.connect(self.appended)
        self._replies.changed.connect(self._on_reply)
        self._switcher = switcher = Switcher(bridge, session, self)
        switcher.switched.connect(self._switched)
        switcher.failed.connect(self._not_switched)
        switcher.disturbed.connect(lambda: self._end(CHANGED))
        bridge.state_changed.connect(self._on_state)

    # What the user does ------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self.phase is not Phase.IDLE

    def start(self, prompts: Sequence[PromptLine], setups: tuple[Setup, Setup]) -> None:
        """Run `prompts` with both `setups`, left and right."""
        config, model = self._bridge.config, self._bridge.model
        if self.is_running or config is None or model is None or not self._bridge.is_ready:
            return
        self._setups, self._found = setups, config
        sides = [
            Side(s.name, dict(s.settings), sampling=s.sampling_name,
                 path=s.model.path if s.model is not None else "",
                 load_format=s.model.load_format if s.model is not None else "auto")
            for s in setups
        ]  # fmt: skip
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self.comparison = Comparison(model.name, started, sides)
        self.comparison.pairs = self._new_pairs(prompts)
        self.problem, self.is_stopping = "", False
        self.decision = None
        self._replies.begin()
        try:
            self._switcher.begin(setups, config)
        except ConfigError as error:
            self._end(by_row(f"{error}"))
            return
        self._bridge.lock_settings(LOCKED)
        self._own = self.side if self.side in SIDES else LEFT
        if self.side == HOME:
            self._switch(self._own)
        else:
            self._describe(self._own, model, config, None)
            self._place_sides()

    def add(self, prompts: Sequence[PromptLine]) -> None:
        if self.comparison is not None and self.is_running and not self.is_stopping:
            self.comparison.pairs += self._new_pairs(prompts)
            if self.phase is Phase.ANSWERING:
                self._next()
            self.changed.emit()

    def stop(self) -> None:
        """Stop sending, then restore the main engine. Replies so far stay."""
        if not self.is_running:
            return
        self.is_stopping = True
        self._replies.stop()
        if self.phase is Phase.WEIGHING:
            self._next()
        elif self.phase is Phase.LOADING and self._second is not None:
            self._second.bridge.cancel_load()
        else:
            self._switcher.cancel()
        self.changed.emit()

    def forget(self) -> None:
        """Discard the results of a finished comparison."""
        self.comparison, self.decision, self.problem = None, None, ""

    def close(self) -> None:
        """End all second engines, as the program exits."""
        if self._task is not None:
            self._task.cancel()
        self._second = None
        for second in self.findChildren(SecondEngine):  # also those that are still unloading
            second.end()

    def _new_pairs(self, prompts: Sequence[PromptLine]) -> list[PromptReplies]:
        left, right = (setup.model for setup in self._setups)
        is_same = left is right or (left is not None and right is not None and left.is_same(right))
        return [PromptReplies(prompt, is_by_text=not is_same) for prompt in prompts]

    # Progress ----------------------------------------------------------------------------------

    @property
    def side(self) -> int:
        """The current side of the main engine; HOME for neither."""
        return self._switcher.side

    @property
    def _is_in_turn(self) -> bool:
        return self.decision is not None and self.decision.placement.is_in_turn

    @property
    def _sides_ready(self) -> tuple[int, ...]:
        if self.side == HOME:
            return ()
        return (self.side,) if self.decision is None or self._is_in_turn else SIDES

    @property
    def status(self) -> str:
        """Current activity and the time left."""
        if self.comparison is None or not self.is_running:
            return ""
        return Progress(
            self.comparison, self.phase, self._sides_ready, self._own,
            self._other if self._is_in_turn else None, self.stays, self._switcher, self._replies,
            self._expected,
        ).text  # fmt: skip

    def _expected(self, side: int) -> Expected | None:
        config = self._found if side == self._switcher.home else self._switcher.config(side)
        return self._times.expected(config, None) if config is not None else None

    # Placing the sides -------------------------------------------------------------------------

    @property
    def _other(self) -> int:
        return RIGHT if self._own == LEFT else LEFT

    def _place_sides(self) -> None:
        """Decide where the side runs that the main engine is not."""
        taken, wanted = self._switcher.config(self._own), self._switcher.config(self._other)
        if self._found is not None and needs_one(self._setups, self._found):
            self._go(Decision(Placement.SHARED, "One engine: the sides differ only in sampling."))
            return
        if self._weigh is None and not has_libraries():
            # no engine of this process has loaded anything, nor what an estimate needs
            reason = f"No memory estimate for the {SIDE_NAMES[self._other]} side."
            self._go(in_turn(reason, wanted, taken))
            return
        self.phase = Phase.WEIGHING
        weigh = self._weigh or estimate
        self._task = run_task(
            self, lambda: weigh(wanted), partial(self._weighed, wanted, taken),
            lambda error: self._go(in_turn(f"{error.cause}", wanted, taken)),
        )  # fmt: skip
        self.changed.emit()

    def _weighed(self, wanted: EngineConfig, taken: EngineConfig, found: Estimate) -> None:
        self._task = None
        plan = self._bridge.plan
        if self.phase is not Phase.WEIGHING:
            return
        if plan is None:
            self._end(CLOSED)
            return
        self._go(decide(wanted, taken, plan, found, SIDE_NAMES[self._other]))

    def _go(self, decision: Decision) -> None:
        if self.comparison is None or (self.is_stopping and self.phase is Phase.IDLE):
            return
        self.decision, self.comparison.placement = decision, decision.why
        if decision.placement is Placement.CONCURRENT and decision.config is not None:
            self._open_second(decision.config)
            return
        if decision.placement is Placement.SHARED:
            sides, own = self.comparison.sides, self.comparison.sides[self._own]
            sides[self._other] = replace(
                sides[self._other], precision=own.precision, weights_bytes=own.weights_bytes
            )
        self._next()

    def _open_second(self, config: EngineConfig) -> None:
        bridge = self._bridge.beside()
        self._second = SecondEngine(bridge, self)
        bridge.loaded.connect(self._second_loaded)
        bridge.load_failed.connect(self._second_failed)
        bridge.crashed.connect(
            lambda event: self._give_up(f"The second engine crashed. {event.error.cause}")
        )
        self._replies.use(self._other, bridge)
        self.phase, self._load_began = Phase.LOADING, time.perf_counter()
        bridge.load(config)
        self.changed.emit()

    def _second_loaded(self, event: messages.Loaded) -> None:
        if self.phase is Phase.LOADING:
            seconds = time.perf_counter() - self._load_began
            self._describe(self._other, event.model, event.config, seconds)
            self._next()

    def _second_failed(self, event: messages.LoadFailed) -> None:
        """Fall back to one side after the other: the estimate was wrong."""
        if self.phase is not Phase.LOADING:
            return
        self._drop_second()
        if event.cancelled or self.is_stopping:
            self.is_stopping = True
            self._next()
        else:
            reason = f"The second engine failed to load. {event.error.cause}"
            wanted, taken = (self._switcher.config(side) for side in (self._other, self._own))
            self._go(in_turn(reason, wanted, taken))

    def _drop_second(self) -> None:
        if self._second is not None:
            second, self._second = self._second, None
            self._replies.use_main(self._other)
            second.let_go()

    def _describe(
        self, side: int, model: ModelInfo, config: EngineConfig, seconds: float | None
    ) -> None:
        assert self.comparison is not None
        setup, words = self._setups[side], precision_text(model, config)
        if any(setup.model is not None for setup in self._setups):
            words = f"{model.name} · {words}"
        self.comparison.sides[side] = replace(
            self.comparison.sides[side],
            precision=" · ".join(filter(None, (words, other_settings(setup, self._found)))),
            weights_bytes=model.weights_bytes,
            switch_s=seconds,
        )

    def _has_todo(self, side: int) -> bool:
        return self.comparison is not None and self.comparison.has_todo(side)

    def _next(self) -> None:
        """Send the next prompts; else switch sides, or end."""
        if self.side == HOME:
            self._next_at_home()
            return
        if not self.is_stopping and self._ask():
            return
        if self._replies.is_running:
            return
        other = RIGHT if self.side == LEFT else LEFT
        if self._is_in_turn and not self.is_stopping and self._has_todo(other):
            self._switch(other)
            return
        self._drop_second()
        if self.side != self._switcher.home and not self.stays:
            self._switch(self._switcher.home)
        else:
            self._end()

    def _next_at_home(self) -> None:
        """End, unless prompts were added during the switch back."""
        if not self.is_stopping and any(self._has_todo(side) for side in SIDES):
            self.decision = None
            self._switch(self._own)
        else:
            self._end()

    def _ask(self) -> bool:
        """Send the next prompts; whether there were any."""
        assert self.comparison is not None
        pairs, sides = self.comparison.pairs, self._sides_ready
        is_sent = self._replies.send(pairs, self._setups, sides, self.together, self.is_raw)
        if is_sent:
            self.phase = Phase.ANSWERING
            self.changed.emit()
        return is_sent

    def _switch(self, side: int) -> None:
        self.phase = Phase.SWITCHING
        self._switcher.to(side)
        self.changed.emit()

    def _end(self, problem: str = "") -> None:
        self.problem = problem or self.problem
        self.phase = Phase.IDLE
        self._bridge.lock_settings("")
        self._switcher.end()
        self._replies.forget()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._drop_second()
        self.changed.emit()
        self.ended.emit()

    # Events of the engines ---------------------------------------------------------------------

    def _on_reply(self, side: int, reply: Reply) -> None:
        if self.is_running and not reply.stage.is_open:
            if reply.stage is Stage.STOPPED and not self.is_stopping:
                self.problem, self.is_stopping = ABORTED, True
            self._next()
        self.changed.emit()

    def _switched(self, model: ModelInfo, config: EngineConfig, seconds: float) -> None:
        if self.side in SIDES and self.side != self._switcher.home:
            self._describe(self.side, model, config, seconds)
        if self.decision is None and self.side == self._own and not self.is_stopping:
            self._place_sides()
        else:
            self._next()

    def _not_switched(self, error: ErrorInfo) -> None:
        assert self.comparison is not None
        name = self.comparison.name_of(self._switcher.target)
        if error.kind == LoadCancelled.__name__:
            self._give_up("" if self.is_stopping else f"Switching to {name} was cancelled.")
        else:
            self._give_up(f"Switching to {name} failed. {error.cause} {error.remedy}")

    def _give_up(self, problem: str) -> None:
        """Restore the main engine if necessary, and end with `problem`."""
        switcher = self._switcher
        self._drop_second()
        is_lost = not self._bridge.is_ready or switcher.target == switcher.home
        if is_lost or switcher.side == switcher.home:
            self._end(problem)
        else:
            self.problem, self.is_stopping = problem, True
            self._next()

    def _on_state(self, state: EngineState) -> None:
        if self.is_running and state is not EngineState.READY and not self._switcher.is_replacing:
            self._end(CLOSED)
