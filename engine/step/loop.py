"""The step loop: launches a step, reads it, commits its tokens, and makes the events.

With async scheduling the next step is launched before this one is read: see `execute`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from engine.config import EngineConfig
from engine.errors import EngineLostError, ErrorInfo, in_one_line, is_out_of_memory
from engine.hardware.devices import CPU, make_current
from engine.hardware.step_threads import StepThreads
from engine.host.loading import release_memory
from engine.host.model_host import ModelHost
from engine.memory.plan import shrunk
from engine.messages import OutputEvent
from engine.scheduling.request import Outcome, Preempted, Request, StepPlan, refit
from engine.scheduling.scheduler import Scheduler
from engine.snapshot import FinishReason, MemoryPlan
from engine.step.execute import InFlightStep, launch, launch_next
from engine.step.output import OutputStream, accept
from engine.telemetry.recorder import Recorder, entries_of


class StepLoop:
    """The requests of an engine, and the steps that serve them. `settle` before anything changes
    that a step in flight uses; `exchange` around a change of the KV cache."""

    def __init__(self, host: ModelHost, clock: Callable[[], float]) -> None:
        self._host = host
        self._clock = clock
        self.recorder = Recorder()
        self.requests: dict[str, Request] = {}
        self.streams: dict[str, OutputStream] = {}
        self.pending: list[OutputEvent] = []  # they come with the next step
        self.on_size: Callable[[int], None] = lambda num_tokens: None
        self.scheduler = Scheduler(host.config, *host.new_pool(), host.prompt_limit)
        self.speculator = host.new_speculator()
        self.threads = self._new_threads()
        self._next: InFlightStep | None = None  # launched before the last one was read
        self._committed = 0.0  # when the last step was
        self._shortage = ""  # of memory, after the last step
        self.preempted = Preempted()
        self._is_retry = False  # of a step that ran out of memory
        self._async: bool | None = None

    # -- requests ---------------------------------------------------------------------------

    def add(self, request: Request, stream: OutputStream, ended: FinishReason | None) -> None:
        """`ended`: the reason if the tokens that the output begins with end it."""
        if ended is None:
            self.scheduler.add(request)  # first: where it fails nobody has the request
            self.recorder.arrived(request, self.scheduler.tables)
        self.requests[request.request_id] = request
        self.streams[request.request_id] = stream
        if ended is None:
            return
        request.finished = request.arrival_time
        self._close(request, ended, request.arrival_time)

    def end(self, request: Request, error: ErrorInfo | None = None) -> None:
        """End a request from outside a step: aborted, or failed with `error`."""
        now = self._clock()
        reason = FinishReason.ABORT if error is None else FinishReason.ERROR
        self.scheduler.finish(request, reason, now)
        self.recorder.finished([request])
        self._close(request, reason, now, error)

    def _close(
        self, request: Request, reason: FinishReason, now: float, error: ErrorInfo | None = None
    ) -> None:
        stream = self.streams[request.request_id]
        stream.close(error)
        self.pending.append(stream.event(Outcome((), reason), now, self.recorder.num_steps))
        self._forget(request)

    def _forget(self, request: Request) -> None:
        del self.requests[request.request_id]
        del self.streams[request.request_id]
        self._host.sampler.forget(request.request_id)
        if self.speculator is not None:
            self.speculator.forget(request.request_id)

    # -- one step ---------------------------------------------------------------------------

    @property
    def async_scheduling(self) -> bool:
        """Whether the next step is launched before the last one is read: on GPUs, unless set. It
        never changes the tokens."""
        on_device = self._host.runner.device.type == "cuda"
        return on_device if self._async is None else self._async

    @async_scheduling.setter
    def async_scheduling(self, value: bool) -> None:
        self.settle()
        self._async = value

    def step(self) -> list[OutputEvent]:
        """Run one step; the events since the last one."""
        events, self.pending = self.pending, []
        step = self._take_next()
        if step is not None:
            self.on_size(step.plan.num_tokens)
        else:
            step = self._launch_or_make_room()
        if step is None:
            return events
        if self._may_launch_next:
            self._next = launch_next(
                step, self.scheduler, self._host.runner, self._host.sampler,
                self._host.note_skipped_async,
            )  # fmt: skip
            if self._next is not None:
                self._next.timer.num_threads = step.timer.num_threads
        self.scheduler.next_plan = None if self._next is None else self._next.plan
        return events + self._finish(step)

    def settle(self) -> None:
        """Finish the step in flight; its events come with the next step."""
        step = self._take_next()
        if step is not None:
            self.pending += self._finish(step)

    @property
    def _may_launch_next(self) -> bool:
        drafting = None if self.speculator is None else self.speculator.drafting
        return drafting is None and self.async_scheduling

    def _take_next(self) -> InFlightStep | None:
        """The step in flight, if one of its requests still runs. From here on this thread's current
        device is the engine's."""
        make_current(self._host.config.device)
        step, self._next = self._next, None
        self.scheduler.next_plan = None
        if step is not None:
            step.drop_ended()
        return step if step is not None and step.plan.grants else None

    def _finish(self, step: InFlightStep) -> list[OutputEvent]:
        """Read a step, commit its tokens, and return its events."""
        timer, drafting_s = step.timer, step.timer.draft_s
        if step.is_async:
            # it was computed while the step before it was committed, and counts from there
            timer.start = step.launched = self._committed
        waiting = self._clock()
        sampling, verified = step.read()
        drawn = self._clock()
        timer.add_wait(waiting - step.launched, drawn - waiting, step.verification.device_s)
        plan = step.plan
        outcomes = accept(self.streams, sampling, verified)
        accepted = self._clock()
        self._follow(plan, outcomes)
        follow_s = self._clock() - accepted
        entries = entries_of(plan, outcomes)
        kv_usage = self.scheduler.pool.usage  # before finished requests free their blocks
        finished = [g.request for g in sampling if outcomes[g.request.request_id].finish_reason]
        for request in finished:
            # NaN in a block would reach its next owner through masked, zero-weight keys
            if outcomes[request.request_id].finish_reason is FinishReason.ERROR:
                blocks = self.scheduler.tables.private(request)
                self._host.runner.backend.clear_blocks(blocks)
        self.scheduler.commit(plan, outcomes, self._clock())
        now = self._committed = self._clock()
        timer.draft_s += follow_s
        timer.commit_s = now - drawn - follow_s
        if self.speculator is not None:
            self.speculator.observe(
                plan, outcomes, drafting_s, timer.model_s, now - timer.start, follow_s,
                is_replayed=step.is_replayed,
            )  # fmt: skip
        if not step.is_async:
            self.threads.ended(now - timer.start, now)
        for request in finished:
            request.finished = now
        events = []
        for grant in sampling:
            outcome = outcomes[grant.request.request_id]
            if outcome.token_ids:
                self.recorder.tokens(grant.request, len(outcome.token_ids), now)
            stream = self.streams[grant.request.request_id]
            events.append(stream.event(outcome, now, self.recorder.num_steps))
        for request in finished:
            self._forget(request)
        self.recorder.step(plan, entries, finished, self.scheduler, timer, now, kv_usage)
        return events

    def _follow(self, plan: StepPlan, outcomes: Mapping[str, Outcome]) -> None:
        """Pass a step's results to the speculator. If this runs out of memory, the proposer's
        context has a gap, as if drafting had been off for the step, and the cache shrinks before
        the next."""
        if self.speculator is None:
            return
        try:
            self.speculator.follow(plan, outcomes)
        except (RuntimeError, MemoryError) as error:
            self._shortage = _shortage_of(error)

    # -- out of memory ----------------------------------------------------------------------

    def _launch_or_make_room(self) -> InFlightStep | None:
        """Launch the next step. Out of memory the cache becomes smaller, the requests are
        preempted, and the step after this one resumes them. A cache that cannot become smaller is
        tried again once: the memory may be free by then."""
        why, self._shortage = self._shortage, ""
        if not (why and self._can_shrink):
            try:
                step = launch(
                    self.scheduler, self.speculator, self._host, self.threads, self._clock,
                    self.on_size, is_followed=self._may_launch_next,
                )  # fmt: skip
                self._is_retry = False
                return step
            except (RuntimeError, MemoryError) as error:
                why = _shortage_of(error)
        # after the handler: the error's frames hold tensors of the step
        with self.exchange():
            if self._is_retry or self._can_shrink:
                self._host.shrink_cache(self._least_blocks, why)
            else:
                self._is_retry = True
                release_memory()
        self.refit(self._host.config, self._host.plan)
        return None

    @property
    def _can_shrink(self) -> bool:
        return shrunk(self._host.plan, self._least_blocks) is not None

    @property
    def _least_blocks(self) -> int:
        """KV blocks that the longest request needs for its next token."""
        longest = max((request.num_tokens for request in self.requests.values()), default=0)
        return self.scheduler.pool.blocks_for(longest + 1)

    # -- changes ----------------------------------------------------------------------------

    def update(self, config: EngineConfig) -> None:
        """Apply live settings."""
        self.scheduler.update(config, self._host.prompt_limit)
        if self.speculator is not None:
            self.speculator.update(config)
        self.threads.update(config)

    def refit(self, config: EngineConfig, plan: MemoryPlan) -> None:
        """Raises ConfigError, and changes nothing, if a request exceeds the cache of `plan`."""
        num_slots = plan.num_blocks * config.block_size
        refit(self.requests.values(), num_slots, config.max_model_len or num_slots)

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Replaces the cache inside of it: preempts all requests, which resume afterwards."""
        self.preempted = self.preempted.and_of(self.scheduler.running)
        self.scheduler.preempt_all()
        self.speculator = None
        self.threads.rest()
        self._shortage = ""
        try:
            yield
        except EngineLostError:
            raise  # nothing serves: there is no cache to fit
        except BaseException:
            self._fit_cache()
            raise
        self._fit_cache()

    def _fit_cache(self) -> None:
        pool, root = self._host.new_pool()
        self.scheduler.replace_pool(self._host.config, pool, root, self._host.prompt_limit)
        self.speculator = self._host.new_speculator()
        self.threads = self._new_threads()

    def close(self, error: ErrorInfo | None = None) -> None:
        """End all requests, aborted or with `error`, and the threads."""
        for request in list(self.requests.values()):
            self.end(request, error)
        self._next = self.scheduler.next_plan = None
        self.speculator = None
        self.threads.rest()

    def _new_threads(self) -> StepThreads:
        weights_bytes = self._host.assembly.loaded.bytes_on.get(CPU)
        return StepThreads(self._host.config, weights_bytes, self._clock)


def _shortage_of(error: Exception) -> str:
    """The first sentence of an out-of-memory error; any other is raised again."""
    if not is_out_of_memory(error):
        raise error
    return in_one_line(error).partition(". ")[0]
