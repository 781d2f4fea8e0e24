"""The engine: requests in, steps, outputs out. One thread owns it; see `EngineThread`.

add_request -> Scheduler.plan -> ModelRunner.execute -> Sampler -> OutputStream -> events
               `-------------------- StepLoop.step ---------------------'
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import torch

from engine.attention.interface import report_layers
from engine.config import Change, EngineConfig
from engine.errors import (
    ConfigError,
    EngineLostError,
    ErrorInfo,
    InferdeckError,
    InvalidRequestError,
    is_interrupt,
    refusal_of,
)
from engine.hardware.devices import make_current
from engine.hardware.peaks import Peaks, peaks_for
from engine.host.loading import Cancelled, Progress
from engine.host.model_host import ModelHost
from engine.host.resolve import resolve
from engine.kernels.weight_rates import prompt_rate, weight_rates
from engine.messages import OutputEvent, Prompt
from engine.runner.model_runner import ModelRunner
from engine.sampling_params import SamplingParams
from engine.scheduling.request import Preempted, Request, check_token_ids, longest_length
from engine.snapshot import BlockDetails, EngineSnapshot, MemoryPlan, ModelInfo
from engine.step.loop import StepLoop
from engine.step.output import OutputStream, RequestOutput
from engine.telemetry.profiler import StepProfiler
from engine.telemetry.snapshots import MemoryMeter, inspect_block, take_snapshot
from engine.text.encoder import without_surrogates
from engine.text.tokenizer import Tokenizer, encode_prompt, prompt_work
from engine.text.work import Text


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
        self._meter = MemoryMeter()
        self._num_added = itertools.count()
        self._seeds = random.Random(config.seed)
        self._host = ModelHost(config, progress, cancelled)
        self._chosen_budget = config.max_num_batched_tokens
        self._loop = StepLoop(self._host, clock)
        self._settings_since = clock()

    # -- what it is -------------------------------------------------------------------------

    @property
    def config(self) -> EngineConfig:
        """The configuration in force, with all that it left open resolved."""
        return self._host.config

    @property
    def chosen_config(self) -> EngineConfig:
        """`config` for another load: the token budget is as chosen, None where it was measured."""
        return self.config.replace(max_num_batched_tokens=self._chosen_budget)

    @property
    def model_info(self) -> ModelInfo:
        return self._host.info

    @property
    def plan(self) -> MemoryPlan:
        return self._host.plan

    @property
    def times_shrunk(self) -> int:
        """How often the cache was made smaller, out of memory, since it was built."""
        return self._host.shrinking.times

    @property
    def times_not_async(self) -> int:
        """How often memory did not allow async scheduling since the cache was built."""
        return self._host.skipped_async.times

    @property
    def preempted(self) -> Preempted:
        """What replacing the cache has sent back to the queue so far."""
        return self._loop.preempted

    @property
    def has_unfinished(self) -> bool:
        return self._loop.scheduler.has_unfinished or bool(self._loop.pending)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._host.tokenizer

    @property
    def runner(self) -> ModelRunner:
        """The model and its cache, for measurements without requests and cached prefixes: they may
        write to any block (see engine.evaluate)."""
        make_current(self.config.device)
        return self._host.runner

    def snapshot(self) -> EngineSnapshot:
        """The state now, and the steps and latency samples since the last call."""
        loop = self._loop
        speculation = None if loop.speculator is None else loop.speculator.snapshot()
        return take_snapshot(
            self._host.assembly, loop.scheduler, loop.recorder, self._meter, speculation,
            loop.threads.figures(), self._clock(), self._settings_since,
        )  # fmt: skip

    def inspect_block(self, block: int) -> BlockDetails | None:
        """Content and owners of a KV block; None if the cache has no such block."""
        return inspect_block(self._loop.scheduler, self.tokenizer.decode, block)

    def count_tokens(self, text: str, client: str = "") -> Future[list[int]]:
        """Token ids of a text, without those that begin every prompt. Returns at once. client: as
        for `encode`."""
        work = Text(without_surrogates(text), special=False)
        return self.tokenizer.submit(work, f"{client} counts")

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every invariant of scheduler and block pool holds."""
        self._loop.scheduler.check_integrity()
        if set(self._loop.requests) != {r.request_id for r in self._loop.scheduler.requests}:
            raise InferdeckError("Engine and scheduler track different requests.")

    # -- requests ---------------------------------------------------------------------------

    def encode(
        self, prompt: Prompt | Sequence[Any], params: SamplingParams, client: str = ""
    ) -> tuple[Future[list[int]], SamplingParams]:
        """What `add_request` takes instead of `prompt` and `params`, for callers that do not wait.
        client: clients take turns. The future and this raise InvalidRequestError."""
        work = prompt_work(prompt, self.tokenizer, params, self.model_info.max_model_len)
        return work.submit(self.tokenizer, client), work.params

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
        index = next(self._num_added)
        request_id = f"request-{index}" if request_id is None else request_id
        if request_id in self._loop.requests:
            raise InvalidRequestError(
                f"Request id {request_id!r} is already in use.", "Use a unique id per request."
            )
        context = self.model_info.max_model_len
        encoded = encode_prompt(prompt, self.tokenizer, params, context)
        vocab_size = self.model_info.vocab_size
        check_token_ids([*encoded.token_ids, *begin_with], params, vocab_size)
        request = Request(
            request_id=request_id,
            prompt_token_ids=encoded.token_ids,
            params=encoded.params,
            arrival_index=index,
            arrival_time=arrival,
            max_num_tokens=longest_length(
                len(encoded.token_ids), params, context, self._loop.scheduler.pool,
            ),
            seed=self._seeds.getrandbits(63) if params.seed is None else params.seed,
            eos_token_ids=self._host.eos_token_ids,
        )  # fmt: skip
        stream = OutputStream(request, self.tokenizer)
        self._loop.add(request, stream, stream.open(begin_with))
        return request_id

    def abort(self, request_id: str) -> None:
        """End a request now; its last event comes with the next `step`. Unknown ids are ignored."""
        request = self._loop.requests.get(request_id)
        if request is not None:
            self._loop.end(request)

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
                f"Got {len(prompts)} prompts but {len(sampling_params)} sampling parameters.",
                "Pass one SamplingParams, or one per prompt.",
            )
        outputs: dict[str, RequestOutput] = {}
        try:
            for prompt, params in zip(prompts, sampling_params, strict=True):
                request_id = self.add_request(prompt, params)
                length = self._loop.requests[request_id].num_prompt_tokens
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
        """Run one step and return its events. With async scheduling the next step may be launched
        already when this returns."""
        return self._loop.step()

    def use_idle_time(self) -> bool:
        """Prepare the memory of later prompts, for some milliseconds. Whether there is more to do
        while no request comes."""
        num_used = self._loop.scheduler.pool.num_used
        return not self.has_unfinished and self.runner.use_ahead(num_used)

    def report_steps(self, size: Callable[[int], None], layer: Callable[[], None]) -> None:
        """Call `size` with the tokens of each step, before the model computes them, and `layer` at
        each of its layers in this thread."""
        self._loop.on_size = size
        report_layers(layer)

    def profiler(self) -> StepProfiler:
        """For the next steps: `with engine.profiler() as one: one.step(engine.step)`. End it before
        settings are changed."""
        self._loop.settle()
        return StepProfiler(self._host.runner, self._host.sampler, self._loop.speculator)

    def measure_peaks(self, cancelled: Cancelled = lambda: False) -> Peaks:
        """Peak rates of the model's devices (see `peaks_for`), no lower than those of the kernels,
        which are part of it for a model on one device. Disturbs steps that run meanwhile."""
        config, model, host_layers = self.config, self.model_info, self.plan.host_layers
        self._loop.threads.rest()  # a small step leaves fewer
        peaks, width = peaks_for(config, model, host_layers, cancelled), model.hidden_size
        if host_layers:
            return peaks
        dtype = getattr(torch, config.dtype)
        group = config.quantization_group_size
        rates = weight_rates(dtype, config.device, width, group, cancelled)
        own = prompt_rate(dtype, config.device, width, cancelled)
        flops = max(peaks.flops_per_s, own)
        return dataclasses.replace(peaks, flops_per_s=flops, weight_rates=rates)

    # -- settings ---------------------------------------------------------------------------

    def reconfigure(
        self,
        progress: Progress = lambda stage, done, total: None,
        cancelled: Cancelled = lambda: False,
        **changes: Any,
    ) -> Change | None:
        """Apply changed settings; running requests survive. Returns the class of the change.

        Live settings hold from the next step; a cache rebuild or a reload preempts the running
        requests, which resume afterwards. On failure the previous settings are restored and the
        error is raised; EngineLostError if they cannot be: then only `shutdown` may be called.
        """
        if changes.get("model", self.config.model) != self.config.model:
            raise ConfigError(
                "reconfigure cannot load another model.",
                "Create a new engine for another model.",
            )
        wanted = self.config.replace(**changes)
        change = wanted.change_class(self.config)
        if change is not None:
            self._loop.settle()
        if change is Change.RELOAD:
            wanted = self.chosen_config.replace(**changes)
        elif wanted.max_num_batched_tokens is None:
            self._loop.threads.rest()
            with _nothing_changed():
                wanted = self._host.with_budget(wanted)
            change = wanted.change_class(self.config)
        if change is Change.LIVE:
            self._update(wanted)
        elif change is Change.CACHE_REBUILD:
            with _nothing_changed():
                plan = self._host.plan_for(wanted)
                self._loop.refit(wanted, plan)
            with self._exchange():
                self._host.rebuild_cache(wanted, plan, progress, cancelled)
        elif change is Change.RELOAD:
            with _nothing_changed():
                resolved, checkpoint = resolve(wanted, self._host.assembly.taken)
                self._loop.refit(resolved, self._host.plan_for(resolved, checkpoint))
            with self._exchange():
                self._host.reload(resolved, checkpoint, progress, cancelled)
        self._chosen_budget = changes.get("max_num_batched_tokens", self._chosen_budget)
        return change

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """Also where it fails and leads back: nothing was computed for as long as it took."""
        try:
            with self._loop.exchange():
                yield
        finally:
            self._settings_since = self._clock()

    def _update(self, wanted: EngineConfig) -> None:
        before = self.config
        with _nothing_changed():
            try:
                self._host.use(wanted)
                self._loop.update(wanted)
            except BaseException as error:
                try:
                    self._host.use(before)
                    self._loop.update(before)
                except BaseException as second:
                    raise EngineLostError.of(error, second) from None
                raise
        self._settings_since = self._clock()

    def shutdown(self, error: ErrorInfo | None = None) -> None:
        """End all requests, aborted or with `error`, and free the model's memory. The engine cannot
        be used again."""
        self._loop.close(error)
        self._meter.close()
        self._host.drop()
        self.tokenizer.rest()


@contextmanager
def _nothing_changed() -> Iterator[None]:
    """Around work that leaves everything as it was where it fails: a refusal, and no crash."""
    try:
        yield
    except InferdeckError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise refusal_of(error) from error
