"""`SimulatedEngine`: the scheduler on a clock that a step-time model advances.

No model is computed. It takes the same calls as `LLMEngine` and answers with the same records, so
that a load generator drives either; requests end with their max_tokens. Deterministic. No torch.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, cast

from engine.config import Change, EngineConfig
from engine.messages import OutputEvent
from engine.sampling_params import SamplingParams
from engine.scheduling.block_pool import BlockPool, root_hash
from engine.scheduling.prompt_limit import prompt_limit
from engine.scheduling.request import Grant, Outcome, Request, longest_length, refit
from engine.scheduling.scheduler import Scheduler
from engine.simulate.decode_run import DecodeRun, simulated_token
from engine.simulate.settings import check_replayed, plan_of
from engine.simulate.step_time import Noise, StepTimes, StepWork
from engine.snapshot import (
    EngineSnapshot,
    FinishReason,
    MemoryPlan,
    ModelInfo,
    RequestState,
    StepRecord,
    TokenEvent,
)
from engine.telemetry.recorder import Recorder, StepTimer, entries_of
from engine.telemetry.snapshots import block_snapshot

Encode = Callable[[Any], Sequence[int]]
"""The token ids of a prompt."""


def as_it_is(prompt: Any) -> Sequence[int]:
    """Of a prompt that consists of token ids."""
    found: Sequence[int] = prompt
    return found


class SimulatedEngine:
    """like: a snapshot of the engine that is imitated. Its settings, with `changes`, are in force.
    encode: prompts to token ids, if they are not these already. Raises ConfigError for a setting
    that is not among REPLAYED."""

    def __init__(
        self,
        like: EngineSnapshot,
        times: StepTimes,
        encode: Encode = as_it_is,
        **changes: Any,
    ) -> None:
        self._encode = encode
        self.config: EngineConfig = like.config.replace(max_model_len=like.model.max_model_len)
        self.plan: MemoryPlan = like.memory.plan
        self.model_info: ModelInfo = like.model
        self._like = like
        self._times, self._noise = times, Noise(times)
        self._works: list[StepWork] = []
        self._now = 0.0
        self._num_added = itertools.count()
        self._requests: dict[str, Request] = {}
        self._told: dict[str, int] = {}  # tokens in the events of each request so far
        self._outcomes: dict[str, Outcome] = {}  # of a step that does not end the request
        self._pending: list[OutputEvent] = []
        self._until = -math.inf
        self._recorder = Recorder()
        self._scheduler = Scheduler(self.config, *self._new_pool(), self._prompt_limit)
        self.reconfigure(**changes)

    # -- the clock --------------------------------------------------------------------------

    def now(self) -> float:
        """Simulated seconds since the start."""
        return self._now

    def sleep(self, seconds: float) -> None:
        # at least the smallest step: who sleeps up to a time arrives, whatever is rounded
        self._now = max(self._now + seconds, math.nextafter(self._now, math.inf))

    def expect(self, until: float) -> None:
        """Nothing but the end of a request needs attention before this time: `step` goes on until
        then, or until the end of a request."""
        self._until = until

    @property
    def standard_error(self) -> float:
        """Relative, of the time of all steps so far, from the fit of the step times alone."""
        return self._times.uncertainty(self._works)

    # -- as LLMEngine -----------------------------------------------------------------------

    @property
    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished or bool(self._pending)

    def add_request(
        self, prompt: Any, params: SamplingParams, arrival: float | None = None
    ) -> str:
        """Queue a prompt; returns the request's id. arrival: None for now. Raises
        ContextLengthError."""
        request = self._new_request(prompt, params, self._now if arrival is None else arrival)
        self._scheduler.add(request)
        self._recorder.arrived(request, self._scheduler.tables)
        return request.request_id

    def resume(
        self, prompt: Any, params: SamplingParams, num_output: int, arrival: float, last: float
    ) -> str:
        """As `add_request`, for one of whose reply `num_output` tokens are computed, the last at
        time `last`. It runs on, or waits where there is no room."""
        request = self._new_request(prompt, params, arrival)
        request.token_ids += [simulated_token(request)] * num_output
        request.token_events.append(TokenEvent(last, num_output))
        request.first_scheduled = arrival
        self._told[request.request_id] = num_output
        scheduler = self._scheduler
        if len(scheduler.running) < self.config.max_num_seqs:
            scheduler.tables.fill(request, request.num_tokens - 1, self._now)
        if request.num_computed_tokens:
            request.state = RequestState.RUNNING
            scheduler.running.append(request)
        else:
            scheduler.add(request)
        return request.request_id

    def remember(self, token_ids: Sequence[int]) -> None:
        """Put the full blocks of a prompt in the prefix cache, as if it had been computed."""
        tables = self._scheduler.tables
        request = Request("", token_ids, SamplingParams(), 0, self._now, len(token_ids))
        if self.config.enable_prefix_caching:
            tables.fill(request, len(token_ids), self._now)
            tables.release(request)

    def _new_request(self, prompt: Any, params: SamplingParams, arrival: float) -> Request:
        token_ids = self._encode(prompt)
        index = next(self._num_added)
        context = self.model_info.max_model_len
        request = Request(
            request_id=f"request-{index}",
            prompt_token_ids=token_ids,
            params=params,
            arrival_index=index,
            arrival_time=arrival,
            max_num_tokens=longest_length(len(token_ids), params, context, self._scheduler.pool),
        )
        self._requests[request.request_id] = request
        self._outcomes[request.request_id] = Outcome((simulated_token(request),))
        self._told[request.request_id] = 0
        return request

    def abort(self, request_id: str) -> None:
        """End a request now; its last event comes with the next `step`. Unknown ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self._scheduler.finish(request, FinishReason.ABORT, self._now)
            self._recorder.finished([request])
            self._pending.append(self._event(request))
            del self._requests[request_id]

    def step(self) -> list[OutputEvent]:
        """The next step, and the events since the last one. All steps up to the time that is
        expected, and the events of requests that ended, with their tokens so far."""
        events, self._pending = self._pending, []
        several = self._until > self._now
        while True:
            run = DecodeRun.of(self._scheduler) if several else None
            sampling, ended = self._one_step() if run is None else self._decode(run)
            if not several:
                events += map(self._event, sampling)
            elif not ended and self._scheduler.has_unfinished and self._now < self._until:
                continue
            else:
                events += map(self._event, ended)
            for request in ended:
                del self._requests[request.request_id]
            return events

    def _one_step(self) -> tuple[Sequence[Request], list[Request]]:
        """Returns the requests with a new token, and of these the ones that ended."""
        scheduler = self._scheduler
        timer = StepTimer(self._now)
        plan = scheduler.plan(timer.start)
        if not plan.grants:
            self._until = -math.inf  # time passes by sleeping alone
            return [], []
        sampling = [grant.request for grant in plan.grants if grant.samples]
        outcomes = {
            request.request_id: self._outcomes[request.request_id]
            if len(request.token_ids) + 1 < request.max_num_tokens else self._last(request)
            for request in sampling
        }  # fmt: skip
        entries = entries_of(plan, outcomes)
        pool = scheduler.pool
        kv_usage = pool.usage  # before finished requests free their blocks
        used_blocks = pool.num_blocks - pool.num_free_blocks
        work = StepWork.of(entries, pool.block_size, used_blocks, self._evicted)
        self._works.append(work)
        timer.model_s = self._noise.seconds(work)
        now = self._now = timer.start + timer.model_s
        scheduler.commit(plan, outcomes, now)
        self._recorder.token_each(sampling, now)
        finished = [request for request in sampling if request.finish_reason is not None]
        self._recorder.step(plan, entries, finished, scheduler, timer, now, kv_usage)
        return sampling, finished

    def _decode(self, run: DecodeRun) -> tuple[Sequence[Request], list[Request]]:
        """As `_one_step`, for the steps of the run up to the time that is expected."""
        scheduler, works = self._scheduler, run.works(self._evicted)
        seconds = self._noise.ahead(works)
        ends = list(itertools.accumulate(seconds, initial=self._now))
        count = bisect_left(ends, self._until, hi=run.num_steps)  # that start before
        self._noise.skip(count)
        self._works += works[:count]
        held_back = tuple(r.request_id for r in scheduler.held_back(_one_token_each(run.requests)))
        waiting = len(scheduler.waiting)
        ended = run.advance(scheduler, count, ends[count])
        num_blocks = scheduler.pool.num_blocks
        usage = (1 - (num_blocks - run.used_blocks) / num_blocks).tolist()  # as a pool's
        columns = zip(ends, ends[1 : count + 1], seconds, run.entries(), usage, strict=False)
        steps = [
            StepRecord(
                index=self._recorder.num_steps + index,
                start=start,
                duration=end - start,
                entries=cast("Any", entries),
                num_running=len(run.requests),
                num_waiting=waiting,
                model_s=model_s,
                held_back=held_back,
                kv_usage=kv_usage,
            )
            for index, (start, end, model_s, entries, kv_usage) in enumerate(columns)
        ]
        if ended:
            steps[-1] = dataclasses.replace(
                steps[-1],
                num_running=len(scheduler.running),
                finished=tuple(request.request_id for request in ended),
            )
        self._recorder.decoded(run.requests, steps, ended)
        self._now = ends[count]
        return run.requests, ended

    @property
    def _evicted(self) -> float:
        return self._works[-1].evicted_next if self._works else 0.0

    def snapshot(self) -> EngineSnapshot:
        """The state now, and the steps and latency samples since the last call."""
        scheduler = self._scheduler
        return dataclasses.replace(
            self._like,
            time=self._now,
            step_index=self._recorder.num_steps,
            config=self.config,
            requests=tuple(request.snapshot() for request in scheduler.requests),
            blocks=block_snapshot(scheduler.pool, scheduler.running),
            memory=dataclasses.replace(
                self._like.memory,
                plan=self.plan,
                kv_cache=self.plan.kv_cache,
                host_kv_cache=self.plan.host_kv_cache,
            ),
            counters=self._recorder.counters(scheduler, scheduler.pool.num_evictions),
            **self._recorder.drain()._asdict(),
            speculation=None,
            threads=None,
            settings_since=0.0,
        )

    def reconfigure(self, **changes: Any) -> Change | None:
        """Apply changed settings, at once; running requests survive."""
        check_replayed([n for n, value in changes.items() if value != getattr(self.config, n)])
        wanted = self.config.replace(**changes)
        budget = self.model_info.token_budget
        if wanted.max_num_batched_tokens is None and budget is not None:  # as measured at load
            wanted = wanted.replace(max_num_batched_tokens=budget.tokens)
        change = wanted.change_class(self.config)
        if change is Change.CACHE_REBUILD:
            plan = plan_of(self.plan, self.config, wanted)
            refit(self._requests.values(), plan.num_blocks * wanted.block_size,
                  self.model_info.max_model_len)  # fmt: skip
            self._scheduler.preempt_all()
            self.config, self.plan = wanted, plan
            self._scheduler.replace_pool(wanted, *self._new_pool(), self._prompt_limit)
        elif change is not None:
            self.config = wanted
            self._scheduler.update(wanted, self._prompt_limit)
        return change

    # -- parts ------------------------------------------------------------------------------

    @property
    def _prompt_limit(self) -> int:
        return prompt_limit(self.config, self.model_info.token_budget)

    def _new_pool(self) -> tuple[BlockPool, bytes]:
        pool = BlockPool(self.plan.num_blocks, self.config.block_size)
        return pool, root_hash(("simulated", self.config.block_size))

    def _last(self, request: Request) -> Outcome:
        """Its end. No simulated token is among those at which a request stops."""
        return self._outcomes[request.request_id]._replace(finish_reason=FinishReason.LENGTH)

    def _event(self, request: Request) -> OutputEvent:
        """Its tokens since its last event, and its end."""
        told, ended = self._told[request.request_id], request.finish_reason is not None
        new = request.num_output_tokens - told
        self._told[request.request_id] += new
        if ended:
            del self._told[request.request_id], self._outcomes[request.request_id]
        is_first = told == 0 and new > 0
        return OutputEvent(
            request_id=request.request_id,
            text="",
            token_ids=(simulated_token(request),) * new,
            time=self._now,
            step_index=self._recorder.num_steps - 1,
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=request.num_cached_tokens,
            finish_reason=request.finish_reason,
            times=request.times() if is_first or ended else None,
            is_first=is_first,
            num_preemptions=request.num_preemptions,
            blocks=request.last_blocks,
        )




def _one_token_each(requests: Sequence[Request]) -> list[Grant]:
    return [Grant(request, request.num_computed_tokens, 1) for request in requests]
