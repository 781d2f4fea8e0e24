"""Plans the memory of a model before it is loaded.

total                                                    the machine's, or the cgroup's
|<------------------ limit ------------------>|
| weights | activations |      KV cache       |  reserve for the desktop, and what others use
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

from engine.attention.gpu import WORKSPACE_BYTES
from engine.config import EngineConfig
from engine.devices import is_cuda
from engine.errors import OutOfMemoryError, UnsupportedModelError
from engine.graphs import room_for
from engine.kv_dtype import KVDtype, KVWidths
from engine.layers.rotary import bytes_of_tables
from engine.loading.architecture import describe_checkpoint
from engine.loading.checkpoint import Checkpoint
from engine.machine import free_memory
from engine.quantization.scheme import PLAIN, Scheme, scheme_of
from engine.snapshot import MemoryPlan
from engine.speculation.draft_source import draft_dtype, open_draft
from engine.speculation.eagle3.shape import read_shape

GIB = 2**30
_RESERVE = GIB  # left for the desktop, or 5 % of a larger machine, or 10 % of a smaller one
_SHRINK = 0.8  # of a cache's blocks are left where there is less memory than was planned with
_FIXED_ACTIVATIONS = 64 * 2**20  # scratch buffers, the sampler


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The numbers of a model that decide its memory. `kv`: what a token takes in all layers, which
    may differ in heads and head dimensions; `table_rows`: bytes per position of each rotary table,
    which has as many rows as the context that is served, at most `longest`."""

    weights: int
    kv: KVWidths
    itemsize: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    head_dim: int
    vocab_size: int
    table_rows: tuple[int, ...] = ()
    longest: int | None = None

    def loaded_bytes(self, max_model_len: int) -> int:
        """Weights with their rotary tables: what a loaded model takes."""
        length = min(max_model_len, self.longest or max_model_len)
        return self.weights + bytes_of_tables(self.table_rows, length)

    def kv_bytes_per_token(self, dtype: KVDtype) -> int:
        return self.kv.bytes_per_token(dtype, self.itemsize)


def plan_memory(
    checkpoint: Checkpoint,
    config: EngineConfig,
    *,
    in_use: int = 0,
    memory: tuple[int, int] | None = None,
    activations: int | None = None,
) -> MemoryPlan:
    """Plan for `checkpoint` under `config` (its device, dtype and max_model_len resolved).

    `in_use`: bytes that this engine holds now and gives back first. `memory`: (free, total) in
    bytes of the device, measured if None. `activations`: bytes of a step, estimated if None; what
    a GPU holds beside its steps is added.
    Raises UnsupportedModelError, or OutOfMemoryError with the numbers.
    """
    free, total = memory or free_memory(config.device)
    scheme = scheme_of(config, checkpoint.quantization, checkpoint.name)
    sizes = model_sizes(checkpoint, getattr(torch, config.dtype), scheme)
    draft = None
    if config.speculative_method == "draft_model":
        source = open_draft(config)
        draft = model_sizes(source, getattr(torch, draft_dtype(config, source)))
    elif config.speculative_method == "eagle3":
        draft = head_sizes(open_draft(config), checkpoint, getattr(torch, config.dtype))
    return plan(
        sizes, config, free=min(free + in_use, total), total=total, draft=draft,
        activations=activations,
    )  # fmt: skip


def model_sizes(checkpoint: Checkpoint, dtype: torch.dtype, scheme: Scheme = PLAIN) -> ModelSizes:
    """Count a checkpoint's sizes in `dtype` on its class, without reading weights; they are held as
    `scheme` says, or as they are stored."""
    settings = json.dumps(checkpoint.raw_config.get("quantization_config"), default=str)
    key = (checkpoint.path, checkpoint.config.to_json_string(use_diff=False), settings)
    return _sizes(_Held(checkpoint, key), dtype, scheme)


def head_sizes(head: Checkpoint, target: Checkpoint, dtype: torch.dtype) -> ModelSizes:
    """The sizes of an EAGLE-3 head, which computes in the dtype of its model."""
    shape = read_shape(head, target)
    return ModelSizes(
        weights=shape.num_parameters * dtype.itemsize,
        kv=KVWidths(shape.kv_width, shape.kv_width, shape.num_kv_heads),
        itemsize=dtype.itemsize,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_heads=shape.num_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.draft_vocab_size,
    )


def plan(
    sizes: ModelSizes,
    config: EngineConfig,
    *,
    free: int,
    total: int,
    draft: ModelSizes | None = None,
    activations: int | None = None,
) -> MemoryPlan:
    """Divide `free` of `total` bytes. Of a draft model, weights and KV are counted in: its layers
    lie under the same blocks.

    The KV cache takes what is left, but no more than max_num_seqs requests of max_model_len
    tokens can use; or exactly kv_cache_memory_bytes, rounded down to blocks.
    """
    assert config.max_model_len is not None, "max_model_len has to be resolved first"
    reserve, limit = reserve_and_limit(config, free=free, total=total)
    activations = activation_bytes(sizes, config) if activations is None else activations
    activations += held_beside_steps(sizes, config)
    draft_weights = draft_per_block = 0
    if draft is not None:
        draft_weights = draft.loaded_bytes(config.max_model_len)
        draft_per_block = config.block_size * draft.kv_bytes_per_token(config.kv_dtype)
    per_token = sizes.kv_bytes_per_token(config.kv_dtype)
    bytes_per_block = config.block_size * per_token + draft_per_block
    weights = sizes.loaded_bytes(config.max_model_len) + draft_weights
    base = weights + activations
    if config.kv_cache_memory_bytes is not None:
        num_blocks = config.kv_cache_memory_bytes // bytes_per_block
        if num_blocks < 1:
            raise OutOfMemoryError(
                f"The KV cache of {config.kv_cache_memory_bytes:,} bytes is smaller than one "
                f"block of {bytes_per_block:,} bytes.",
                f"Set kv_cache_memory_bytes to at least {bytes_per_block:,}, or choose smaller "
                "blocks.",
            )
        needed = base + num_blocks * bytes_per_block
        if needed > limit:
            raise _does_not_fit(
                needed,
                limit,
                free,
                total,
                weights,
                activations,
                num_blocks * bytes_per_block,
                "a smaller kv_cache_memory_bytes",
            )
    else:
        one_request = blocks_of(config.max_model_len, config)
        wanted = max_useful_blocks(config)
        num_blocks = min((limit - base) // bytes_per_block, wanted)
        if num_blocks < one_request:
            kv = one_request * bytes_per_block
            raise _does_not_fit(
                base + kv,
                limit,
                free,
                total,
                weights,
                activations,
                kv,
                f"a max_model_len below {config.max_model_len:,}"
                + ("" if config.kv_dtype.is_quantized else ", an 8-bit kv_cache_dtype"),
            )
    kv_dtype = config.kv_dtype.resolved(config.dtype)
    return MemoryPlan(
        total=total,
        free=free,
        reserve=reserve,
        limit=limit,
        weights=weights,
        activations=activations,
        kv_cache=num_blocks * bytes_per_block,
        bytes_per_block=bytes_per_block,
        num_blocks=num_blocks,
        draft_weights=draft_weights,
        draft_bytes_per_block=draft_per_block,
        key_dtype=kv_dtype.keys,
        value_dtype=kv_dtype.values,
    )


def shrunk(plan: MemoryPlan, least_blocks: int) -> MemoryPlan | None:
    """The plan with a fifth fewer blocks, but `least_blocks`; None where it has no more than so
    many."""
    blocks = max(least_blocks, int(plan.num_blocks * _SHRINK))
    if blocks >= plan.num_blocks:
        return None
    return replace(plan, num_blocks=blocks, kv_cache=blocks * plan.bytes_per_block)


def held_beside_steps(sizes: ModelSizes, config: EngineConfig) -> int:
    """What a GPU holds all the time beside what a step was seen to need: captured graphs, and
    scratch memory of a draft's attention. (A draft's vocabulary is taken for the model's.)"""
    if not is_cuda(config.device):
        return 0
    scratch = WORKSPACE_BYTES if config.drafts_with_weights else 0
    return room_for(config, sizes.vocab_size) + scratch


def reserve_and_limit(config: EngineConfig, *, free: int, total: int) -> tuple[int, int]:
    """(bytes left for the desktop, bytes that the engine may use)."""
    reserve = min(max(_RESERVE, total // 20), total // 10)
    return reserve, max(0, min(int(config.gpu_memory_utilization * total), free - reserve))


def blocks_of(num_tokens: int, config: EngineConfig) -> int:
    return -(-num_tokens // config.block_size)


def max_useful_blocks(config: EngineConfig) -> int:
    """Blocks of max_num_seqs requests of max_model_len tokens, above the watermark."""
    assert config.max_model_len is not None
    full = config.max_num_seqs * blocks_of(config.max_model_len, config)
    return math.ceil(full / (1.0 - config.watermark))


def activation_bytes(sizes: ModelSizes, config: EngineConfig) -> int:
    """An estimate of what one step allocates beside weights and cache.

    Per token: residual, its norm and the attention's output; q, k, v; gate and up of the MLP and
    their product. Per sampled row: logits in float32, and a sorted copy of them.
    """
    tokens = config.step_token_limit
    per_token = (
        4 * sizes.hidden_size + 4 * sizes.num_heads * sizes.head_dim + 3 * sizes.intermediate_size
    )
    logits = min(config.max_num_seqs, tokens) * sizes.vocab_size * 4 * 3
    # 16-bit activations are widened to float32 inside norms and products
    return _FIXED_ACTIVATIONS + tokens * per_token * max(4, sizes.itemsize) + logits


def _does_not_fit(
    needed: int,
    limit: int,
    free: int,
    total: int,
    weights: int,
    activations: int,
    kv: int,
    remedy: str,
) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"{_gib(needed)} are needed (weights {_gib(weights)}, activations "
        f"{_gib(activations)}, KV cache {_gib(kv)}), and {_gib(limit)} may be used "
        f"({_gib(free)} of {_gib(total)} are free).",
        f"Choose {remedy}, fewer bits a weight (quantization), a smaller model or a 16-bit dtype; "
        "or close other programs.",
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


class _Held:
    """A checkpoint as a cache key, equal where folder and config are."""

    def __init__(self, checkpoint: Checkpoint, key: tuple[Path, str, str]) -> None:
        self.checkpoint = checkpoint
        self._key = key

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self._key == other._key


@lru_cache(maxsize=8)
def _sizes(held: _Held, dtype: torch.dtype, scheme: Scheme) -> ModelSizes:
    report = describe_checkpoint(held.checkpoint, dtype=dtype, scheme=scheme)
    if not report.supported:
        raise UnsupportedModelError(report.reason)
    return ModelSizes(
        weights=report.weights_bytes,
        kv=KVWidths.sum(layer.widths for layer in report.kv_layout),
        itemsize=dtype.itemsize,
        hidden_size=report.hidden_size,
        intermediate_size=report.intermediate_size,
        num_heads=report.num_heads,
        head_dim=report.head_dim,
        vocab_size=report.vocab_size,
        table_rows=report.table_rows,
        longest=report.context_length,
    )
