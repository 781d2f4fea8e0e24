"""Owns the loaded model and its KV cache, and replaces either without holding two."""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial
from typing import NamedTuple

from engine.config import Change, EngineConfig
from engine.errors import (
    EngineLostError,
    InferdeckError,
    OutOfMemoryError,
    is_interrupt,
    let_go,
    refusal_of,
)
from engine.hardware.devices import is_cuda
from engine.host.assembly import Assembly, measuring_runner
from engine.host.description import with_steps
from engine.host.kv_cache import build_caches, capture_steps, with_layers
from engine.host.loading import Cancelled, Progress, assemble, build, release_memory
from engine.host.token_budget import BUDGET_ON_GPU, measured_budget, with_largest_step
from engine.memory.plan import plan_memory, shrunk
from engine.models.checkpoint import Checkpoint
from engine.runner.cuda_graphs import most_rows
from engine.runner.model_runner import ModelRunner
from engine.sampling.sampler import Sampler
from engine.scheduling.block_pool import BlockPool, root_hash
from engine.scheduling.prompt_limit import prompt_limit
from engine.snapshot import MemoryPlan, ModelInfo
from engine.speculation.draft_loading import draft_source, load_draft
from engine.speculation.speculator import Speculator
from engine.text.tokenizer import Tokenizer
from engine.units import bytes_text

_epochs = itertools.count()


class Shortage(NamedTuple):
    """How often memory ran out for something since the cache was built, and the notice about it.
    before: the cache's blocks before the first time."""

    times: int = 0
    text: str = ""
    before: int = 0


class ModelHost:
    """The model, cache and sampler of one engine. If an exchange fails, the previous state is
    restored before the error is raised; if that fails too, EngineLostError is raised."""

    def __init__(self, config: EngineConfig, progress: Progress, cancelled: Cancelled) -> None:
        self.shrinking = self.skipped_async = Shortage()
        self._adopt(assemble(config, progress, cancelled))

    @property
    def config(self) -> EngineConfig:
        """The configuration in force, with all that it left open resolved."""
        return self.assembly.config

    @property
    def info(self) -> ModelInfo:
        return self.assembly.info

    @property
    def plan(self) -> MemoryPlan:
        return self.assembly.plan

    @property
    def tokenizer(self) -> Tokenizer:
        return self.assembly.tokenizer

    @property
    def runner(self) -> ModelRunner:
        return self.assembly.runner

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self.assembly.eos_token_ids

    def new_speculator(self) -> Speculator | None:
        """The speculator for the loaded model; None if the method is off."""
        draft, proposer = self.assembly.draft, self.assembly.proposer
        if proposer is None:
            return None
        return Speculator(self.config, proposer, draft.name if draft else "")

    def new_pool(self) -> tuple[BlockPool, bytes]:
        """A pool for the cache as it is, and the root of its hash chains: KV of another model,
        precision or cache must never be taken for this one's."""
        config = self.config
        namespace = (next(_epochs), config.model, config.dtype, *config.kv_dtype)
        return BlockPool(self.plan.num_blocks, self.config.block_size), root_hash(namespace)

    def plan_for(self, config: EngineConfig, checkpoint: Checkpoint | None = None) -> MemoryPlan:
        """The memory plan of a change; memory that the engine uses now counts as free."""
        assembly = self.assembly
        stays = config.change_class(self.config) is not Change.RELOAD
        plan = plan_memory(
            checkpoint or assembly.checkpoint,
            with_largest_step(config, assembly.info.token_budget),
            in_use=assembly.taken,
            activations=assembly.step_bytes if self._has_same_steps(config) else None,
            host_layers=assembly.host_layers if stays else None,
        )
        return with_layers(plan, assembly.layers, config)

    def _has_same_steps(self, config: EngineConfig) -> bool:
        """Whether a step needs on the GPU what it was measured to need. (Blocks and what they hold
        decide where attention is not by our kernels; drafts, how many rows are sampled.)"""
        if not is_cuda(config.device):
            return False
        changed = config.differences(self._measured_with)
        return not {"max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "model",
                    "device", "dtype", "quantization", "max_model_len", "block_size",
                    "kv_cache_dtype", "speculative_method", "num_speculative_tokens", "gpu_layers",
                    } & set(changed)  # fmt: skip

    def with_budget(self, config: EngineConfig) -> EngineConfig:
        """`config` with the measured token budget where it leaves that open."""
        if config.max_num_batched_tokens is not None:
            return config
        if is_cuda(config.device):
            return config.replace(max_num_batched_tokens=BUDGET_ON_GPU)
        assembly, budget = self.assembly, self.info.token_budget
        if budget is None:
            runner = partial(measuring_runner, self.config, assembly.loaded, assembly.layers)
            budget = measured_budget(self.config, runner)
            assembly.info = dataclasses.replace(assembly.info, token_budget=budget)
        return config.replace(max_num_batched_tokens=budget.tokens)

    @property
    def prompt_limit(self) -> int:
        """See `Scheduler`."""
        return prompt_limit(self.config, self.info.token_budget)

    def use(self, config: EngineConfig) -> None:
        """Apply live settings; capture graphs if more requests may run."""
        assembly, before = self.assembly, self.config
        assembly.config = config
        grows = most_rows(config) > most_rows(before) or config.max_num_seqs > before.max_num_seqs
        if grows and self.runner.graphs is not None:
            self._capture(lambda stage, done, total: None)

    def rebuild_cache(
        self, config: EngineConfig, plan: MemoryPlan, progress: Progress, cancelled: Cancelled
    ) -> None:
        """Replace the cache, and the draft model if it changes."""
        self._end_shortages()
        before, plan_before = self.config, self.plan
        try:
            self._replace_cache(config, plan, progress, cancelled)
            return
        except BaseException as error:  # whatever it is, requests wait for the old one
            problem = error
        let_go(problem)  # and of what was made so far, before the old one is made again
        try:
            self._replace_cache(before, plan_before, progress, lambda: False)
        except BaseException as error:
            let_go(error)
            raise EngineLostError.of(problem, error) from None
        raise problem if is_interrupt(problem) else refusal_of(problem)

    def shrink_cache(self, least_blocks: int, why: str) -> None:
        """Make the cache smaller after a step ran out of memory. Raises OutOfMemoryError if the
        cache has no more than `least_blocks`, which the requests in flight need, or if not even
        these fit any more."""
        before, last = self.plan, self.shrinking
        plan = shrunk(before, least_blocks)
        if plan is not None:
            self._end_shortages()
        while plan is not None:
            try:
                self._replace_cache(self.config, plan, lambda *_: None, lambda: False)
                break
            except (InferdeckError, MemoryError) as error:
                let_go(error)  # other programs may take what the old one gave back
            plan = shrunk(plan, least_blocks)
        if plan is None:
            raise OutOfMemoryError(
                f"Out of memory on {self.config.device} ({why}). The KV cache ("
                f"{before.num_blocks:,} blocks) cannot shrink: one request needs {least_blocks:,}.",
                "Lower max_num_batched_tokens or max_num_seqs, choose a lower-bit quantization, or "
                "close other programs.",
            )
        times, first = last.times + 1, last.before or before.num_blocks
        steps, often = ("1 step", "") if times == 1 else (f"{times} steps", f" {times} times")
        text = (
            f"Out of memory on {self.config.device} in {steps} ({why}). KV cache reduced{often}: "
            f"{first:,} → {plan.num_blocks:,} blocks "
            f"({bytes_text(plan.cache_bytes_in_all)}). No request was lost."
        )
        self._replace_notice("", text)
        self.shrinking = Shortage(times, text, first)

    def note_skipped_async(self, error: Exception) -> None:
        """Count a step that was not launched early because of low memory. A notice appears the
        first time, and each time the count has doubled."""
        times, said = self.skipped_async.times + 1, self.skipped_async.text
        text = said
        if not times & (times - 1):
            steps = "1 step" if times == 1 else f"{times:,} steps"
            text = (
                f"Async scheduling skipped for {steps}: out of memory on {self.config.device} "
                f"({str(error).partition('. ')[0]}). No request was lost; the KV cache size is "
                "unchanged."
            )
            self._replace_notice(said, text)
        self.skipped_async = Shortage(times, text)

    def _replace_notice(self, old: str, new: str) -> None:
        info = self.assembly.info
        notices = [notice for notice in info.notices if notice != old]
        notices += [new] if new else []
        self.assembly.info = dataclasses.replace(info, notices=tuple(notices))

    def _end_shortages(self) -> None:
        """Remove the notices about shortages: the cache is rebuilt."""
        for shortage in (self.shrinking, self.skipped_async):
            self._replace_notice(shortage.text, "")
        self.shrinking = self.skipped_async = Shortage()

    def reload(
        self,
        config: EngineConfig,
        checkpoint: Checkpoint,
        progress: Progress,
        cancelled: Cancelled,
    ) -> None:
        before, checkpoint_before = self.config, self.assembly.checkpoint
        tokenizer = self.tokenizer
        self.shrinking = self.skipped_async = Shortage()
        try:
            self.drop()
            self._adopt(build(config, checkpoint, progress, cancelled))
            if tokenizer is not self.tokenizer:
                tokenizer.rest()
            return
        except BaseException as error:  # whatever it is, requests wait for the old one
            problem = error
        let_go(problem)  # and of what was made so far, before the old one is made again
        release_memory()
        try:
            self._adopt(build(before, checkpoint_before, progress, lambda: False))
        except BaseException as error:
            let_go(error)
            raise EngineLostError.of(problem, error) from None
        raise problem if is_interrupt(problem) else refusal_of(problem)

    def drop(self) -> None:
        """Return the memory of weights, cache and scratch buffers to the system."""
        self.assembly.drop()
        self.sampler = Sampler(self.info.vocab_size, self.config.device)
        release_memory()

    def _adopt(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self._measured_with = assembly.config
        self.sampler = Sampler(assembly.info.vocab_size, assembly.config.device)

    def _replace_cache(
        self, config: EngineConfig, plan: MemoryPlan, progress: Progress, cancelled: Cancelled
    ) -> None:
        assembly = self.assembly
        source = draft_source(config, assembly.checkpoint, self.tokenizer, assembly.host_layers)
        assembly.drop_drafting()
        changed = {"speculative_method", "speculative_model"} & set(config.differences(self.config))
        if source is None or changed:
            assembly.draft = None
        draft = assembly.draft
        self.runner.drop_cache()  # the old one goes first: both may not fit
        release_memory()
        if source is not None and draft is None:
            draft = load_draft(
                config, source, assembly.checkpoint, self.runner.model, progress, cancelled
            )
        self.runner.backend, assembly.proposer = build_caches(
            config, assembly.layers, draft, plan
        )
        assembly.draft, assembly.plan, assembly.config = draft, plan, config
        assembly.measure()
        self._capture(progress)

    def _capture(self, progress: Progress) -> None:
        """Capture steps over the current cache, and update the description."""
        assembly = self.assembly
        capture_steps(self.runner, assembly.proposer, assembly.config, assembly.plan, progress)
        assembly.info = with_steps(assembly.info, self.runner, assembly.proposer)
