"""The engine: requests in, steps, outputs out. One thread owns it; see `EngineThread`."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from engine.config import Change, EngineConfig
from engine.errors import ConfigError, InferdeckError, InvalidRequestError, is_out_of_memory
from engine.hardware.cpu_threads.step_threads import StepThreads
from engine.hardware.devices import make_current
from engine.host.assembly import Cancelled, Progress, release_memory
from engine.host.model_host import ModelHost
from engine.host.resolve import resolve
from engine.memory.plan import shrunk
from engine.messages import OutputEvent, Prompt
from engine.runner.model_runner import ModelRunner
from engine.sampling.sampler import check_token_ids as check_parameter_ids
from engine.sampling_params import SamplingParams
from engine.scheduling.admission import check_token_ids, longest_length, refit
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_plan import Outcome, StepPlan
from engine.snapshot import BlockDetails, EngineSnapshot, FinishReason, MemoryPlan, ModelInfo
from engine.speculation.proposer import Proposer
from engine.speculation.speculator import Speculator
from engine.step.async_step import launch_ahead
from engine.step.execute import Flight, launch
from engine.step.output import OutputStream, RequestOutput, accept
from engine.telemetry.observation import MemoryMeter, inspect_block, observe
from engine.telemetry.recorder import Recorder, entries_of, finished_in
from engine.text.prompts import encode_prompt
from engine.text.tokenizer import Tokenizer


class LLMEngine:
    """Runs one model. Not thread-safe: every call comes from the thread that made it.

        engine = LLMEngine(EngineConfig(model="path"))
        outputs = engine.generate(["Hello"], SamplingParams(max_tokens=16))

    or request by request: `add_request`, then `step` until `has_unfinished` is false.
    Raises CheckpointError, UnsupportedModelError, OutOfMemoryError or ConfigError on loading.
    """

    def __init__(
        self,
        config: EngineConfig,
        progress: Progress = lambda stage, done, total: None,
        cancelled: Cancelled = lambda: False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._recorder = Recorder()
        self._meter = MemoryMeter()
        self._streams: dict[str, OutputStream] = {}
        self._arrivals = itertools.count()
        self._requests: dict[str, Request] = {}
        self._pending: list[OutputEvent] = []
        self._seeds = random.Random(config.seed)
        self._host = ModelHost(config, progress, cancelled)
        self._scheduler = Scheduler(self.config, *self._host.new_pool())
        self._speculator = self._host.new_speculator()
        self._threads = self._new_threads()
        self._ahead: Flight | None = None
        self._landed = 0.0  # when the last step was booked
        self._short = ""  # what memory did not suffice for after the last step
        self._is_retry = False  # whether the next step is one for which memory did not suffice
        self._looks_ahead: bool | None = None

    # -- what it is -------------------------------------------------------------------------

    @property
    def config(self) -> EngineConfig:
        """The configuration in force, with dtype, max_model_len and num_threads resolved."""
        return self._host.config

    @property
    def model_info(self) -> ModelInfo:
        return self._host.info

    @property
    def plan(self) -> MemoryPlan:
        return self._host.plan

    @property
    def times_shrunk(self) -> int:
        """How often steps that found no memory made the cache smaller since it was made."""
        return self._host.shrinking.times if self._host.shrinking is not None else 0

    @property
    def times_not_ahead(self) -> int:
        """How often memory did not suffice to launch a step ahead since the cache was made."""
        return self._host.not_ahead.times if self._host.not_ahead is not None else 0

    @property
    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished or bool(self._pending)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._host.tokenizer

    @property
    def runner(self) -> ModelRunner:
        """The model and its cache, for measurements while no request is there and no prefix is
        cached yet: they may write to any block (see engine.evaluate)."""
        make_current(self.config.device)
        return self._host.runner

    @property
    def looks_ahead(self) -> bool:
        """Whether the next step is launched before the last one is read: where the device works by
        itself, unless it was set. It never changes the tokens."""
        on_device = self._host.runner.device.type == "cuda"
        return on_device if self._looks_ahead is None else self._looks_ahead

    @looks_ahead.setter
    def looks_ahead(self, value: bool) -> None:
        self._settle()
        self._looks_ahead = value

    def snapshot(self) -> EngineSnapshot:
        """The state now, and the steps and latency samples since the last call."""
        return observe(
            self._host.assembly,
            self._scheduler,
            self._recorder,
            self._meter,
            self._speculator.snapshot(),
            self._threads.figures(),
            self._clock(),
        )

    def inspect_block(self, block: int) -> BlockDetails | None:
        """What a KV block holds now; None where the cache has no such block."""
        return inspect_block(self._scheduler, self.tokenizer.decode, block)

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, without those that stand at the beginning of every prompt."""
        return len(self.tokenizer.encode(text)) - len(self.tokenizer.encode(""))

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every invariant of scheduler and block pool holds."""
        self._scheduler.check_integrity()
        if set(self._requests) != {r.request_id for r in self._scheduler.requests}:
            raise InferdeckError("The engine and its scheduler know different requests.")

    # -- requests ---------------------------------------------------------------------------

    def add_request(
        self,
        prompt: Prompt | Sequence[Any],
        params: SamplingParams | None = None,
        request_id: str | None = None,
        begin_with: Sequence[int] = (),
        *,
        arrival: float | None = None,
    ) -> str:
        """Queue a prompt (text, token ids, or chat messages); returns its id. The output begins
        with the tokens `begin_with`, as if they had been sampled. arrival: when it was sent, on
        the engine's clock; None: now.

        Raises InvalidRequestError where it can never be served, with the numbers.
        """
        arrival = self._clock() if arrival is None else arrival
        params = params or SamplingParams()
        index = next(self._arrivals)
        request_id = f"request-{index}" if request_id is None else request_id
        if request_id in self._requests:
            raise InvalidRequestError(
                f"A request {request_id!r} is running.", "Give each request its own id."
            )
        encoded = encode_prompt(prompt, self.tokenizer, params)
        check_token_ids([*encoded.token_ids, *begin_with], self.model_info.vocab_size)
        check_parameter_ids(params, self.model_info.vocab_size)
        request = Request(
            request_id=request_id,
            prompt_token_ids=encoded.token_ids,
            params=encoded.params,
            arrival_index=index,
            arrival_time=arrival,
            max_num_tokens=longest_length(
                len(encoded.token_ids), params, self._context, self._scheduler.pool
            ),
            seed=self._seeds.getrandbits(63) if params.seed is None else params.seed,
            eos_token_ids=self._host.eos_token_ids,
        )
        self._requests[request_id] = request
        stream = self._streams[request_id] = OutputStream(request, self.tokenizer)
        ended = stream.open(begin_with)
        if ended is None:
            self._scheduler.add(request)
        else:
            request.finished = request.arrival_time
            self._pending.append(
                stream.closing_event(ended, request.arrival_time, self._recorder.num_steps)
            )
            self._forget(request)
        return request_id

    def abort(self, request_id: str) -> None:
        """End a request now; its last event comes with the next `step`. Unknown ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, FinishReason.ABORT)

    def generate(
        self,
        prompts: Sequence[Prompt | Sequence[Any]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        on_event: Callable[[OutputEvent], None] = lambda event: None,
    ) -> list[RequestOutput]:
        """Serve all prompts together and return their outputs in order."""
        if isinstance(sampling_params, SamplingParams) or sampling_params is None:
            sampling_params = [sampling_params or SamplingParams()] * len(prompts)
        if len(sampling_params) != len(prompts):
            raise InvalidRequestError(
                f"{len(prompts)} prompts came with {len(sampling_params)} sampling parameters.",
                "Give one for all, or one for each.",
            )
        outputs: dict[str, RequestOutput] = {}
        try:
            for prompt, params in zip(prompts, sampling_params, strict=True):
                request_id = self.add_request(prompt, params)
                length = self._requests[request_id].num_prompt_tokens
                outputs[request_id] = RequestOutput(request_id, length)
            while any(output.finish_reason is None for output in outputs.values()):
                for event in self.step():
                    if event.request_id in outputs:
                        outputs[event.request_id].extend(event)
                    on_event(event)
        except BaseException:
            for request_id in outputs:
                self.abort(request_id)
            raise
        return list(outputs.values())

    # -- one step ---------------------------------------------------------------------------

    def step(self) -> list[OutputEvent]:
        """Run one step and return what became visible with it. On a device the step after it may
        be launched already when this returns: see engine/lookahead.py."""
        make_current(self.config.device)
        events, self._pending = self._pending, []
        flight = self._take_ahead() or self._launch_or_make_room()
        if flight is None:
            return events
        if self._may_launch_ahead:
            self._ahead = launch_ahead(
                flight, self._scheduler, self._host.runner, self._host.sampler,
                self._host.tell_not_ahead,
            )  # fmt: skip
            if self._ahead is not None:
                self._ahead.timer.num_threads = flight.timer.num_threads
        self._scheduler.ahead = None if self._ahead is None else self._ahead.plan
        return events + self._land(flight)

    @property
    def _may_launch_ahead(self) -> bool:
        return self.looks_ahead and not self._speculator.may_draft

    def _launch_or_make_room(self) -> Flight | None:
        """Launch the next step. Where memory runs out the cache becomes smaller, the requests are
        preempted, and the step after this one computes them again. A cache that cannot become
        smaller is left as it is once: what took the memory may be over by then."""
        why, self._short = self._short, ""
        if not (why and self._can_shrink):
            try:
                flight = launch(
                    self._scheduler, self._speculator, self._host, self._threads, self._clock,
                    is_followed=self._may_launch_ahead,
                )  # fmt: skip
                self._is_retry = False
                return flight
            except (RuntimeError, MemoryError) as error:
                why = _what_memory_lacked(error)
        # after the handler: what was computed so far hung on the error
        with self._exchange():
            if self._is_retry or self._can_shrink:
                self._host.shrink_cache(self._least_blocks, why)
            else:
                self._is_retry = True
                release_memory()
        self._refit(self.config, self.plan)
        return None

    @property
    def _can_shrink(self) -> bool:
        return shrunk(self.plan, self._least_blocks) is not None

    @property
    def _least_blocks(self) -> int:
        """What the longest request in flight needs for its next token."""
        longest = max((request.num_tokens for request in self._requests.values()), default=0)
        return self._scheduler.pool.blocks_for(longest + 1)

    def _follow(self, plan: StepPlan, outcomes: Mapping[str, Outcome]) -> None:
        """Show a step to what drafts. Where memory runs out its context has a gap, as if drafting
        had been off for that step, and the cache becomes smaller before the next."""
        try:
            self._speculator.follow(plan, outcomes)
        except (RuntimeError, MemoryError) as error:
            self._short = _what_memory_lacked(error)

    def _land(self, flight: Flight) -> list[OutputEvent]:
        """Read what a step gave, book it, and return its events."""
        timer, drafting_s = flight.timer, flight.timer.draft_s
        if flight.is_ahead:
            # it was computed while the step before it was booked, and counts from there
            timer.start = flight.launched = self._landed
        waiting = self._clock()
        sampling, verified = flight.read()
        drawn = self._clock()
        timer.add_wait(waiting - flight.launched, drawn - waiting, flight.verification.device_s)
        plan = flight.plan
        outcomes = accept(self._streams, sampling, verified)
        accepted = self._clock()
        self._follow(plan, outcomes)
        follow_s = self._clock() - accepted
        entries = entries_of(plan, outcomes)
        kv_usage = self._scheduler.pool.usage  # before what ends gives its blocks back
        finished = finished_in(plan, outcomes)
        self._clear_failed(plan, outcomes)
        self._scheduler.commit(plan, outcomes, self._clock())
        now = self._landed = self._clock()
        timer.draft_s += follow_s
        timer.commit_s = now - drawn - follow_s
        self._speculator.observe(
            plan, outcomes, drafting_s, timer.model_s, now - timer.start, follow_s,
            is_replayed=flight.is_replayed,
        )  # fmt: skip
        if not flight.is_ahead:
            self._threads.ended(now - timer.start, now)
        for request in finished:
            request.finished = now
        events = []
        for grant in sampling:
            outcome = outcomes[grant.request.request_id]
            if outcome.token_ids:
                self._recorder.tokens(grant.request, len(outcome.token_ids), now)
            stream = self._streams[grant.request.request_id]
            events.append(stream.event(outcome, now, self._recorder.num_steps))
        for request in finished:
            self._forget(request)
        self._recorder.step(plan, entries, finished, self._scheduler, timer, now, kv_usage)
        return events

    def _take_ahead(self) -> Flight | None:
        """The step that was launched ahead, if somebody in it still runs."""
        flight, self._ahead = self._ahead, None
        self._scheduler.ahead = None
        if flight is not None:
            flight.drop_ended()
        return flight if flight is not None and flight.plan.grants else None

    def _settle(self) -> None:
        """Land the step that was launched ahead, so that anything may change; its events come with
        the next step."""
        make_current(self.config.device)
        flight = self._take_ahead()
        if flight is not None:
            self._pending += self._land(flight)

    def _clear_failed(self, plan: StepPlan, outcomes: dict[str, Outcome]) -> None:
        """NaN in a block would reach whoever gets it next through masked, zero-weight keys."""
        for grant in plan.grants:
            request = grant.request
            outcome = outcomes.get(request.request_id)
            if outcome is not None and outcome.finish_reason is FinishReason.ERROR:
                blocks = self._scheduler.tables.private(request)
                self._host.runner.backend.clear_blocks(blocks)

    # -- settings ---------------------------------------------------------------------------

    def reconfigure(
        self,
        progress: Progress = lambda stage, done, total: None,
        cancelled: Cancelled = lambda: False,
        **changes: Any,
    ) -> Change | None:
        """Apply changed settings; running requests survive. Returns the class of the change.

        Live settings hold from the next step; a cache rebuild or a reload preempts the running
        requests, which resume afterwards. On failure the settings before are in force again and
        the error is raised.
        """
        if changes.get("model", self.config.model) != self.config.model:
            raise ConfigError(
                "reconfigure changes settings of the model that is loaded.",
                "Load another model into an engine of its own.",
            )
        wanted = self.config.replace(**changes)
        change = wanted.change_class(self.config)
        if change is not None:
            self._settle()
        if change is Change.LIVE:
            self._host.use(wanted)
            self._scheduler.update(wanted)
            self._speculator.update(wanted)
            self._threads.update(wanted)
        elif change is Change.CACHE_REBUILD:
            plan = self._host.plan_for(wanted)
            self._refit(wanted, plan)
            with self._exchange():
                self._host.rebuild_cache(wanted, plan, progress, cancelled)
        elif change is Change.RELOAD:
            resolved, checkpoint = resolve(wanted)
            self._refit(resolved, self._host.plan_for(resolved, checkpoint))
            with self._exchange():
                self._host.reload(resolved, checkpoint, progress, cancelled)
        return change

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """Around an exchange of the cache: everybody gives up their blocks and comes back."""
        self._scheduler.preempt_all()
        self._speculator.close()
        self._threads.rest()
        self._short = ""
        try:
            yield
        finally:
            self._scheduler.replace_pool(self.config, *self._host.new_pool())
            self._speculator = self._host.new_speculator()
            self._threads = self._new_threads()

    def _new_threads(self) -> StepThreads:
        return StepThreads(self.config, self._host.assembly.cpu_weights_bytes, self._clock)

    def _refit(self, config: EngineConfig, plan: MemoryPlan) -> None:
        places = plan.num_blocks * config.block_size
        refit(self._requests.values(), places, config.max_model_len or places)

    def use_proposer(self, proposer: Proposer | None) -> None:
        """Draft with a proposer of the caller's own, until the next cache rebuild or reload; for
        measurements."""
        self._settle()
        self._speculator.close()
        self._speculator = Speculator(self.config, proposer)

    def shutdown(self) -> None:
        """Abort what runs and give the model's memory back. The engine cannot be used again."""
        for request in list(self._requests.values()):
            self._end(request, FinishReason.ABORT)
        self._ahead = self._scheduler.ahead = None
        self._speculator.close()
        self._threads.rest()
        self._meter.close()
        self._host.drop()

    @property
    def _context(self) -> int:
        assert self.config.max_model_len is not None, "resolved at loading"
        return self.config.max_model_len

    def _end(self, request: Request, reason: FinishReason) -> None:
        """End a request from outside a step."""
        now = self._clock()
        self._scheduler.finish(request, reason, now)
        self._recorder.finished([request])
        stream = self._streams[request.request_id]
        self._pending.append(stream.closing_event(reason, now, self._recorder.num_steps))
        self._forget(request)

    def _forget(self, request: Request) -> None:
        del self._requests[request.request_id]
        del self._streams[request.request_id]
        self._host.sampler.forget(request.request_id)
        self._speculator.forget(request.request_id)


def _what_memory_lacked(error: Exception) -> str:
    """The first sentence of an error of memory; any other is raised again."""
    if not is_out_of_memory(error):
        raise error
    return str(error).partition(". ")[0]
