"""The engine: requests in, steps, outputs out. One thread owns it; see `EngineThread`."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from engine.assembly import (
    Assembly,
    Cancelled,
    Progress,
    assemble,
    build,
    build_cache,
    release_memory,
    resolve,
)
from engine.batch import pack
from engine.block_pool import BlockPool, root_hash
from engine.config import Change, EngineConfig
from engine.errors import (
    ConfigError,
    InferdeckError,
    InvalidRequestError,
    NumericalError,
)
from engine.memory import plan_memory
from engine.messages import OutputEvent, Prompt
from engine.observation import observe
from engine.output import OutputStream, RequestOutput
from engine.prompts import encode_prompt
from engine.recorder import Recorder, StepTimer, entries_of, finished_in, sampling_grants
from engine.request import Request
from engine.sampler import SampledTokens, Sampler, SamplingRow
from engine.sampling_params import SamplingParams
from engine.scheduler import Grant, Outcome, Scheduler, StepPlan
from engine.snapshot import EngineSnapshot, FinishReason, MemoryPlan, ModelInfo

_epochs = itertools.count()


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
        self._streams: dict[str, OutputStream] = {}
        self._arrivals = itertools.count()
        self._requests: dict[str, Request] = {}
        self._pending: list[OutputEvent] = []
        self._seeds = random.Random(config.seed)
        self._adopt(assemble(config, progress, cancelled))
        pool, root = self._new_pool()
        self._scheduler = Scheduler(self.config, pool, root)

    # -- what it is -------------------------------------------------------------------------

    @property
    def model_info(self) -> ModelInfo:
        return self._assembly.info

    @property
    def plan(self) -> MemoryPlan:
        return self._assembly.plan

    @property
    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished or bool(self._pending)

    @property
    def tokenizer(self) -> Any:
        return self._assembly.tokenizer

    def snapshot(self) -> EngineSnapshot:
        """The state now, and the steps and latency samples since the last call."""
        return observe(self.config, self._assembly, self._scheduler, self._recorder, self._clock())

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
    ) -> str:
        """Queue a prompt (text, token ids, or chat messages); returns its id.

        Raises InvalidRequestError where it can never be served, with the numbers.
        """
        params = params or SamplingParams()
        index = next(self._arrivals)
        request_id = f"request-{index}" if request_id is None else request_id
        if request_id in self._requests:
            raise InvalidRequestError(
                f"A request {request_id!r} is running.", "Give each request its own id."
            )
        encoded = encode_prompt(prompt, self._assembly.tokenizer, params)
        request = Request(
            request_id=request_id,
            prompt_token_ids=encoded.token_ids,
            params=encoded.params,
            arrival_index=index,
            arrival_time=self._clock(),
            max_num_tokens=self._max_num_tokens(encoded.token_ids, params),
            seed=self._seeds.getrandbits(63) if params.seed is None else params.seed,
            eos_token_ids=self._eos_token_ids(),
        )
        self._requests[request_id] = request
        self._streams[request_id] = OutputStream(request, self._assembly.tokenizer)
        self._scheduler.add(request)
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
        """Run one step and return what became visible with it."""
        events, self._pending = self._pending, []
        timer = StepTimer(self._clock())
        plan = self._scheduler.plan(timer.start)
        if not plan.grants:
            return events
        batch = pack(plan, self._scheduler.pool.block_size)
        entries = entries_of(plan)
        sampling = sampling_grants(plan)
        planned = self._clock()
        logits = self._assembly.runner.execute(batch)
        computed = self._clock()
        sampled = self._sampler.sample(logits, [self._row(grant.request) for grant in sampling])
        drawn = self._clock()
        outcomes = self._accept(sampling, sampled)
        finished = finished_in(plan, outcomes)
        self._clear_failed(plan, outcomes)
        self._scheduler.commit(plan, outcomes, self._clock())
        now = self._clock()
        timer.schedule_s, timer.model_s = planned - timer.start, computed - planned
        timer.sample_s, timer.commit_s = drawn - computed, now - drawn
        for grant in sampling:
            outcome = outcomes[grant.request.request_id]
            if outcome.token_ids:
                self._recorder.tokens(grant.request, len(outcome.token_ids), now)
            stream = self._streams[grant.request.request_id]
            events.append(stream.event(outcome, now, self._recorder.num_steps))
        for request in finished:
            self._forget(request)
        self._recorder.step(plan, entries, finished, self._scheduler, timer, now)
        return events

    def _row(self, request: Request) -> SamplingRow:
        return SamplingRow(
            request_id=request.request_id,
            params=request.params,
            seed=request.seed,
            position=request.num_tokens,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=request.output_token_ids,
            eos_token_ids=request.eos_token_ids,
        )

    def _accept(self, sampling: list[Grant], sampled: SampledTokens) -> dict[str, Outcome]:
        outcomes = {}
        failed = set(sampled.failed)
        for row, grant in enumerate(sampling):
            request = grant.request
            if row in failed:
                outcomes[request.request_id] = Outcome((), FinishReason.ERROR)
                continue
            stream = self._streams[request.request_id]
            outcomes[request.request_id] = stream.accept(
                sampled.token_ids[row], sampled.logprobs[row]
            )
        return outcomes

    def _clear_failed(self, plan: StepPlan, outcomes: dict[str, Outcome]) -> None:
        """NaN in a block would reach whoever gets it next through masked, zero-weight keys."""
        for grant in plan.grants:
            request = grant.request
            outcome = outcomes.get(request.request_id)
            if outcome is not None and outcome.finish_reason is FinishReason.ERROR:
                self._streams[request.request_id].fail(NUMERICAL_FAILURE.info())
                first = request.num_published_blocks
                self._assembly.runner.backend.clear_blocks(request.block_table[first:])

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
        if change is Change.LIVE:
            self.config = wanted
            self._scheduler.update(wanted)
        elif change is Change.CACHE_REBUILD:
            self._rebuild_cache(wanted)
        elif change is Change.RELOAD:
            self._reload(wanted, progress, cancelled)
        return change

    def _rebuild_cache(self, wanted: EngineConfig) -> None:
        plan = plan_memory(self._assembly.checkpoint, wanted, in_use=self._in_use())
        self._require_fit(wanted, plan)
        before, plan_before = self.config, self._assembly.plan
        self._scheduler.preempt_all()
        try:
            self._replace_cache(wanted, plan)
        except InferdeckError:
            self._replace_cache(before, plan_before)
            raise

    def _replace_cache(self, config: EngineConfig, plan: MemoryPlan) -> None:
        assembly = self._assembly
        assembly.runner.backend = None  # type: ignore[assignment] - the old cache goes first
        release_memory()
        assembly.runner.backend = build_cache(config, assembly.layers, plan)
        assembly.plan = plan
        assembly.config = self.config = config
        self._scheduler.replace_pool(config, *self._new_pool())

    def _reload(self, wanted: EngineConfig, progress: Progress, cancelled: Cancelled) -> None:
        resolved, checkpoint = resolve(wanted)
        self._require_fit(resolved, plan_memory(checkpoint, resolved, in_use=self._in_use()))
        before, checkpoint_before = self.config, self._assembly.checkpoint
        self._scheduler.preempt_all()
        self._drop_model()
        try:
            self._adopt(build(resolved, checkpoint, progress, cancelled))
        except (InferdeckError, MemoryError):
            self._adopt(build(before, checkpoint_before, progress, lambda: False))
            raise
        finally:
            self._scheduler.replace_pool(self.config, *self._new_pool())

    def _require_fit(self, config: EngineConfig, plan: MemoryPlan) -> None:
        """A change that would strand a request in flight is refused before anything happens."""
        places = plan.num_blocks * config.block_size
        limit = min(places, config.max_model_len or places)
        for request in self._requests.values():
            if request.num_tokens > limit:
                raise ConfigError(
                    f"{request.request_id} holds {request.num_tokens:,} tokens; with this change "
                    f"the engine could hold {limit:,}.",
                    "Stop the request first, or choose a larger cache or context length.",
                )
        for request in self._requests.values():
            request.max_num_tokens = min(request.max_num_tokens, limit + 1)

    def shutdown(self) -> None:
        """Abort what runs and give the model's memory back. The engine cannot be used again."""
        for request in list(self._requests.values()):
            self._end(request, FinishReason.ABORT)
        self._drop_model()

    # -- parts ------------------------------------------------------------------------------

    def _adopt(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self.config = assembly.config
        self._sampler = Sampler(assembly.info.vocab_size, assembly.config.device)

    def _new_pool(self) -> tuple[BlockPool, bytes]:
        namespace = (next(_epochs), self.config.model, self.config.dtype)
        pool = BlockPool(self._assembly.plan.num_blocks, self.config.block_size)
        return pool, root_hash(namespace)

    def _drop_model(self) -> None:
        self._assembly.loaded.model = None  # type: ignore[assignment]
        self._assembly.runner.model = None  # type: ignore[assignment]
        self._assembly.runner.backend = None  # type: ignore[assignment]
        release_memory()

    def _in_use(self) -> int:
        """Bytes that are taken now and would be free for the plan of a change."""
        return self._assembly.loaded.weights_bytes + self._assembly.runner.backend.nbytes

    def _eos_token_ids(self) -> frozenset[int]:
        assembly = self._assembly
        return assembly.checkpoint.eos_token_ids | assembly.tokenizer.eos_token_ids

    def _max_num_tokens(self, prompt: Sequence[int], params: SamplingParams) -> int:
        """Where the request ends at the latest; InvalidRequestError if it can never fit."""
        pool = self._scheduler.pool
        context = self.config.max_model_len or 0
        length, vocab_size = len(prompt), self.model_info.vocab_size
        if not length:
            raise InvalidRequestError("The prompt is empty.", "Give at least one token.")
        if not 0 <= min(prompt) <= max(prompt) < vocab_size:
            raise InvalidRequestError(
                f"The prompt has token ids from {min(prompt)} to {max(prompt)}; the model knows 0 "
                f"to {vocab_size - 1}.",
                "Use token ids of this model's tokenizer.",
            )
        if length >= context:
            raise InvalidRequestError(
                f"The prompt has {length:,} tokens; the context holds {context:,}, reply included.",
                "Shorten the prompt, or raise max_model_len if the model allows it.",
            )
        capacity = pool.num_blocks * pool.block_size + 1  # the last token is never stored
        wanted = length + (params.max_tokens or context)
        if length >= capacity or (params.max_tokens and min(wanted, context) > capacity):
            asked = f" and asks for {params.max_tokens:,}" if params.max_tokens else ""
            raise InvalidRequestError(
                f"The request has {length:,} prompt tokens{asked}; the KV cache holds "
                f"{capacity - 1:,} ({pool.num_blocks:,} blocks of {pool.block_size}).",
                "Raise the cache size, or lower max_tokens or the prompt's length.",
            )
        return min(wanted, context, capacity)

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
        self._sampler.forget(request.request_id)


NUMERICAL_FAILURE = NumericalError(
    "The model produced NaN or infinite logits.",
    "Try float32 in place of a 16-bit precision; if it stays, the checkpoint is damaged.",
)
