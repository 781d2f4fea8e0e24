"""One of the models of an evaluation: its own engine, with a cache of the required size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from engine.config import EngineConfig
from engine.errors import ConfigError, LoadCancelled
from engine.evaluate.report import ModelFacts, Speed
from engine.evaluate.task import (
    Cancelled,
    EvaluationCancelled,
    Progress,
    check,
    measurable,
)
from engine.host.resolve import resolve
from engine.llm_engine import LLMEngine
from engine.memory.plan import blocks_of, plan_memory
from engine.models.checkpoint import Checkpoint
from engine.text.tokenizer import Tokenizer

PARALLEL_ANSWERS = 4
"""Prompts that are answered together, each with room for a whole window and its answer."""


class Side(NamedTuple):
    """A model before it is loaded: its configuration resolved, its folder and tokenizer open."""

    name: str
    config: EngineConfig
    checkpoint: Checkpoint
    tokenizer: Tokenizer

    @property
    def max_model_len(self) -> int:
        assert self.config.max_model_len is not None, "resolved"
        return self.config.max_model_len

    @property
    def vocab_size(self) -> int:
        return int(self.checkpoint.config.vocab_size)


class Need(NamedTuple):
    """The required size of a cache, in tokens: one window of a text, and `num_sequences` requests
    of `longest` tokens."""

    window: int
    longest: int
    num_sequences: int


def prepare(name: str, config: EngineConfig) -> Side:
    """Open a model without loading it. Raises what loading would raise for an invalid folder."""
    resolved, checkpoint = resolve(measurable(config))
    if config.max_model_len is None and (limit := checkpoint.max_position_embeddings):
        resolved = resolved.replace(max_model_len=limit)  # the cache has the size that is needed
    missing_is_fine = resolved.load_format == "dummy"
    tokenizer = Tokenizer.from_folder(checkpoint.path, allow_missing=missing_is_fine)
    return Side(name, resolved, checkpoint, tokenizer)


@contextmanager
def opened(side: Side, need: Need, progress: Progress, cancelled: Cancelled) -> Iterator[LLMEngine]:
    """The engine of `side`, with a cache for `need` unless the configuration names a size. Shut
    down at the end whatever happens."""
    config = with_cache(side, need)

    def loading(stage: str, done: int, total: int) -> None:
        progress(f"{side.name}: {stage[:1].lower()}{stage[1:]}", done, total)

    try:
        engine = LLMEngine(config, loading, cancelled)
    except LoadCancelled as error:
        raise EvaluationCancelled(error.cause, error.remedy) from error
    try:
        check(cancelled)
        if side.config.kv_cache_memory_bytes is None and _room(engine) < need.window:
            # an architecture whose KV cache is larger than its config says
            needed = _num_blocks(config, need) * engine.plan.block_bytes_in_all
            engine.reconfigure(kv_cache_memory_bytes=needed)
        room = _room(engine)
        if room < need.window:
            raise ConfigError(
                f"Each window needs {need.window:,} tokens; the KV cache has room for {room:,}.",
                "Raise kv_cache_memory_bytes, or choose a smaller context length.",
            )
        yield engine
    finally:
        engine.shutdown()


def with_cache(side: Side, need: Need) -> EngineConfig:
    """The configuration with a cache of just the required size: one planned from free memory would
    take memory that other programs, and the window's own engine, need."""
    config = side.config
    if config.kv_cache_memory_bytes is not None:
        return config
    longest = min(need.longest, side.max_model_len)
    small = config.replace(max_model_len=longest, max_num_seqs=need.num_sequences)
    per_block = plan_memory(side.checkpoint, small).block_bytes_in_all
    return config.replace(
        kv_cache_memory_bytes=_num_blocks(config, need) * per_block,
        max_num_seqs=min(config.max_num_seqs, need.num_sequences),
    )


def _num_blocks(config: EngineConfig, need: Need) -> int:
    """One block more for each sequence, and the watermark, which is kept free."""
    blocks = need.num_sequences * (blocks_of(need.longest, config) + 1)
    return int(blocks / (1.0 - config.watermark)) + 1


def _room(engine: LLMEngine) -> int:
    return engine.plan.num_blocks * engine.config.block_size


def facts_of(engine: LLMEngine, speed: Speed | None) -> ModelFacts:
    info, plan = engine.model_info, engine.plan
    return ModelFacts(
        name=info.name,
        path=info.path,
        architecture=info.architecture,
        dtype=info.dtype,
        num_parameters=info.num_parameters,
        weights_bytes=info.weights_bytes,
        kv_bytes_per_token=plan.block_bytes_in_all / engine.config.block_size,
        config=engine.config.as_dict(),
        notices=info.notices,
        speed=speed,
        quantization=info.quantization,
    )
