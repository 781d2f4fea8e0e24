"""Owns the loaded model with its cache, and exchanges either without ever holding two."""

from __future__ import annotations

import itertools

from engine.assembly import (
    Assembly,
    Cancelled,
    Progress,
    assemble,
    build,
    build_cache,
    release_memory,
    with_layers,
)
from engine.block_pool import BlockPool, root_hash
from engine.config import EngineConfig
from engine.errors import InferdeckError
from engine.loading.checkpoint import Checkpoint
from engine.memory import plan_memory
from engine.model_runner import ModelRunner
from engine.sampler import Sampler
from engine.snapshot import MemoryPlan, ModelInfo
from engine.tokenization import Tokenizer

_epochs = itertools.count()


class ModelHost:
    """The model, cache and sampler of one engine. Every exchange that fails puts back what was
    there before, then raises."""

    def __init__(self, config: EngineConfig, progress: Progress, cancelled: Cancelled) -> None:
        self._adopt(assemble(config, progress, cancelled))

    @property
    def config(self) -> EngineConfig:
        """The configuration in force, with dtype, max_model_len and num_threads resolved."""
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
        return self.assembly.checkpoint.eos_token_ids | self.tokenizer.eos_token_ids

    def new_pool(self) -> tuple[BlockPool, bytes]:
        """A pool for the cache as it is, and the root of its hash chains: KV of another model,
        precision or cache must never be taken for this one's."""
        namespace = (next(_epochs), self.config.model, self.config.dtype)
        return BlockPool(self.plan.num_blocks, self.config.block_size), root_hash(namespace)

    def plan_for(self, config: EngineConfig, checkpoint: Checkpoint | None = None) -> MemoryPlan:
        """The memory plan of a change, in which what is taken now counts as free."""
        taken = self.assembly.loaded.weights_bytes + self.runner.backend.nbytes
        plan = plan_memory(checkpoint or self.assembly.checkpoint, config, in_use=taken)
        return with_layers(plan, self.assembly.layers, config)

    def use(self, config: EngineConfig) -> None:
        """Take over live settings."""
        self.assembly.config = config

    def rebuild_cache(self, config: EngineConfig, plan: MemoryPlan) -> None:
        before, plan_before = self.config, self.plan
        try:
            self._replace_cache(config, plan)
        except InferdeckError:
            self._replace_cache(before, plan_before)
            raise

    def reload(
        self,
        config: EngineConfig,
        checkpoint: Checkpoint,
        progress: Progress,
        cancelled: Cancelled,
    ) -> None:
        before, checkpoint_before = self.config, self.assembly.checkpoint
        self.drop()
        try:
            self._adopt(build(config, checkpoint, progress, cancelled))
        except (InferdeckError, MemoryError):
            release_memory()
            self._adopt(build(before, checkpoint_before, progress, lambda: False))
            raise

    def drop(self) -> None:
        """Give the memory of weights and cache back to the system."""
        self.assembly.drop()
        release_memory()

    def _adopt(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self.sampler = Sampler(assembly.info.vocab_size, assembly.config.device)

    def _replace_cache(self, config: EngineConfig, plan: MemoryPlan) -> None:
        self.runner.drop_cache()  # the old one goes first: both may not fit
        release_memory()
        self.runner.backend = build_cache(config, self.assembly.layers, plan)
        self.assembly.plan, self.assembly.config = plan, config
