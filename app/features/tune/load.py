"""`BackgroundLoad`: sends requests of a workload preset to the engine of the chats.

    closed loop:  `concurrency` requests in flight; one that ends is replaced
    open loop:    Poisson arrivals, whatever the engine is doing

The seed determines lengths and arrival times. Tokens differ at every start, so that no prompt is
in the prefix cache already. They are ordinary requests; `name_of` gives their display names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QObject, Qt, QTimer, Signal

from app.bench.load import Pace
from app.bench.workload import (
    BenchRequest,
    special_token_ids,
    stand_in_ids,
    text_of,
    usable_token_ids,
)
from app.features.tune.load_plan import LoadCounts, LoadPlan, LoadState, tokens_asked, why_not
from app.link.bridge import EngineBridge, EngineState
from app.link.tasks import Task, run_task
from engine import messages
from engine.errors import ErrorInfo
from engine.sampling_params import SamplingParams
from engine.snapshot import EngineSnapshot, FinishReason

PREFIX = "load-"
MOST_IN_FLIGHT = 512
"""Open loop: arrivals beyond this are dropped."""
MOST_AT_ONCE = 16
FAILURES_TO_STOP = 3
"""Consecutive failures that end the load."""


class BackgroundLoad(QObject):
    """Sends the requests of a `LoadPlan`. `changed`: state or counts. `happened(short, full)`: it
    began, ended or changed its pace; becomes a mark on the charts."""

    changed = Signal()
    happened = Signal(str, str)

    def __init__(self, bridge: EngineBridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self.state = LoadState.IDLE
        self.counts = LoadCounts()
        self.plan: LoadPlan | None = None
        self.problem: ErrorInfo | None = None  # why it ended by itself, or did not begin
        self._began_at = 0.0
        self._lasted_s = 0.0
        self._number = 0  # of the request sent last, over all runs
        self._num_runs = 0
        self._failures = 0
        self._tokens_left: dict[str, int] = {}  # by request; aborted when none is left
        self._requests: Iterator[BenchRequest] = iter(())
        self._arrivals: Iterator[float] = iter(())
        self._arrivals_from = self._next_due = 0.0
        self._task: Task | None = None
        self._vocabulary: tuple[str, list[int]] = ("", [])
        self._capacity: int | None = None  # tokens of the KV cache
        self._clock = QTimer(self, singleShot=True, timerType=Qt.TimerType.PreciseTimer)
        self._clock.timeout.connect(self._send_more)
        bridge.request_failed.connect(self._on_failed)
        bridge.state_changed.connect(self._on_state)
        bridge.snapshot.connect(self._on_snapshot)

    @property
    def is_on(self) -> bool:
        return self.state is not LoadState.IDLE

    @property
    def seconds(self) -> float:
        """Duration of the current or last run."""
        running = self.state is LoadState.RUNNING
        return time.perf_counter() - self._began_at if running else self._lasted_s

    def name_of(self, request_id: str) -> str | None:
        """ "load 12" for a request of the load, else None."""
        return request_id.replace("-", " ") if request_id.startswith(PREFIX) else None

    # What the user does ------------------------------------------------------------------------

    def start(self, plan: LoadPlan) -> None:
        """Start; if that is impossible, `problem` says why."""
        if self.is_on:
            return
        self.problem = self._check(plan)
        self.counts = LoadCounts()
        self.plan = plan
        if self.problem is not None:
            self.changed.emit()
            return
        self.state = LoadState.PREPARING
        model = self._bridge.model
        assert model is not None
        path, size = model.path, model.vocab_size
        if not model.is_described:  # elsewhere: its token ids are not known
            self._run((path, stand_in_ids()))
            return
        # the files of an engine elsewhere are not here: any token may be among its prompts
        is_here = self._bridge.offers is None
        if self._vocabulary[0] == path:
            self._run(self._vocabulary)
        else:
            self._task = run_task(
                self,
                lambda: (
                    path,
                    usable_token_ids(size, special_token_ids(Path(path)) if is_here else set()),
                ),
                self._run,
                self._end,
            )
        self.changed.emit()

    def stop(self) -> None:
        """Stop; requests in flight are aborted."""
        self._end(None)

    def set_pace(self, pace: Pace) -> None:
        """Change concurrency or rate, also during a run. Surplus requests in flight still
        finish."""
        if self.plan is None or pace == self.plan.pace:
            return
        self.plan = replace(self.plan, pace=pace)
        if self.state is LoadState.RUNNING:
            self.happened.emit(self.plan.in_short, self.plan.words)
            self._begin_arrivals()
            self.changed.emit()

    # Sending -----------------------------------------------------------------------------------

    def _check(self, plan: LoadPlan) -> ErrorInfo | None:
        config, memory = self._bridge.config, self._bridge.plan
        if not self._bridge.is_ready or config is None or memory is None:
            return ErrorInfo("No model is loaded.", "Open a model.")
        capacity = self._capacity or memory.num_blocks * config.block_size or None
        return why_not(plan.workload, config, capacity)

    def _run(self, vocabulary: tuple[str, list[int]]) -> None:
        self._task = None
        if self.state is not LoadState.PREPARING or self.plan is None:
            return
        self._vocabulary = vocabulary
        self.state = LoadState.RUNNING
        self._bridge.outputs.connect(self._on_outputs)
        self._began_at = time.perf_counter()
        self._failures = 0
        plan = self.plan
        self._num_runs += 1
        model = self._bridge.model
        workload = plan.workload.for_model(model is None or model.has_chat_template)
        self._requests = workload.stream(plan.variant, vocabulary[1], plan.seed, self._num_runs)
        self.happened.emit(plan.in_short, plan.words)
        self._begin_arrivals()
        self.changed.emit()

    def _begin_arrivals(self) -> None:
        self._clock.stop()
        assert self.plan is not None
        if self.plan.pace.request_rate is None:
            self._fill()
            return
        self._arrivals = self.plan.pace.arrivals(self.plan.seed)
        self._arrivals_from = time.perf_counter()
        self._next_due = self._arrivals_from + next(self._arrivals)
        self._send_due()

    def _send_more(self) -> None:
        if self.plan is not None and self.plan.pace.request_rate is not None:
            self._send_due()
        else:
            self._fill()

    def _send_due(self) -> None:
        """Open loop: send everything that is due, then wait for the next arrival."""
        now = time.perf_counter()
        while self._next_due <= now:
            if len(self._tokens_left) < MOST_IN_FLIGHT:
                self._send()
            else:
                self.counts.dropped += 1
            self._next_due = self._arrivals_from + next(self._arrivals)
        self._clock.start(max(round((self._next_due - now) * 1e3), 1))

    def _fill(self) -> None:
        """Closed loop: refill to the wanted concurrency, in parts, because long prompts take time
        to make."""
        assert self.plan is not None
        missing = (self.plan.pace.concurrency or 0) - len(self._tokens_left)
        for _ in range(min(missing, MOST_AT_ONCE)):
            self._send()
        if missing > MOST_AT_ONCE:
            self._clock.start(0)

    def _send(self) -> None:
        request = next(self._requests)
        self._number += 1
        request_id = f"{PREFIX}{self._number}"
        params = SamplingParams(
            temperature=0.0,
            max_tokens=tokens_asked(self._bridge.config, request.output_len, request.max_tokens),
            ignore_eos=True,
        )
        self._tokens_left[request_id] = request.output_len
        self.counts.in_flight += 1
        model, ids = self._bridge.model, request.prompt_token_ids
        is_known = model is None or model.is_described
        prompt = request.prompt or (ids if is_known else text_of(ids))
        self._bridge.add_request(request_id, prompt, params)

    # What the engine says ----------------------------------------------------------------------

    def _on_outputs(self, events: list[messages.OutputEvent]) -> None:
        ended = 0
        for event in events:
            before = self._tokens_left.get(event.request_id)
            if before is None:
                continue
            left = self._tokens_left[event.request_id] = before - len(event.token_ids)
            if event.finish_reason is not None:
                self._book(event, left)
                ended += 1
            elif left <= 0 < before:
                self._bridge.abort(event.request_id)
        if ended:
            self._after_end()

    def _book(self, event: messages.OutputEvent, tokens_left: int) -> None:
        if event.finish_reason is FinishReason.ERROR:
            error = event.error or ErrorInfo("A request ended without output.")
            self._book_failure(event.request_id, error)
            return
        self._forget(event.request_id)
        if event.finish_reason is FinishReason.ABORT and tokens_left > 0:
            self.counts.aborted += 1
        else:
            self._failures = 0
            self.counts.completed += 1

    def _on_failed(self, event: messages.RequestFailed) -> None:
        if event.request_id in self._tokens_left:
            self._book_failure(event.request_id, event.error)
            self._after_end()

    def _forget(self, request_id: str) -> None:
        del self._tokens_left[request_id]
        self.counts.in_flight -= 1

    def _book_failure(self, request_id: str, error: ErrorInfo) -> None:
        self._forget(request_id)
        self._failures += 1
        self.counts.failed += 1
        if self._failures >= FAILURES_TO_STOP and self.is_on:
            self._end(error)

    def _after_end(self) -> None:
        if self.state is LoadState.RUNNING and self._bridge.is_ready:
            self._fill()
        self.changed.emit()

    def _on_state(self, state: EngineState) -> None:
        if state is EngineState.READY:
            return
        self._capacity = None
        if self.is_on:
            reason = {
                EngineState.LOADING: "Another model is loading.",
                EngineState.EMPTY: "The model was unloaded.",
                EngineState.CRASHED: "The engine stopped.",
            }[state]
            remedy = "Once a model is loaded, start the background load again."
            self._end(ErrorInfo(f"Background load stopped. {reason}", remedy))

    def _on_snapshot(self, snapshot: EngineSnapshot) -> None:
        self._capacity = snapshot.blocks.num_blocks * snapshot.blocks.block_size or None

    # -------------------------------------------------------------------------------------------

    def _end(self, problem: ErrorInfo | None) -> None:
        if not self.is_on:
            return
        was_running = self.state is LoadState.RUNNING
        self._lasted_s = self.seconds if was_running else 0.0
        self.state, self.problem = LoadState.IDLE, problem
        self._clock.stop()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        aborted, self._tokens_left = self._tokens_left, {}
        for request_id in aborted:
            self._bridge.abort(request_id)
        self.counts.in_flight = 0
        self.counts.aborted += len(aborted)
        if was_running:
            self._bridge.outputs.disconnect(self._on_outputs)
        if was_running and self.plan is not None:
            self.happened.emit("load ended", f"Background load ended: {self.plan.words}")
        self.changed.emit()
