"""Plans memory before a model is loaded: weights, activations, KV cache.

total                                                    the machine's, or the cgroup's
|<------------------ limit ------------------>|
| weights | activations |      KV cache       |  reserve for the desktop, and what others use

In RAM an automatic KV cache takes at most half of what is free beside the weights: desktop, page
cache and other programs grow too. An automatic context length is one for which that suffices; one
that is set gets the cache that a request of it needs. (vLLM's CPU backend takes 4 GiB, llama.cpp
what all its slots need.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import torch

from engine.attention.gpu import WORKSPACE_BYTES
from engine.config import SETTINGS, EngineConfig
from engine.errors import OutOfMemoryError
from engine.hardware.device_map import host_layers_of
from engine.hardware.devices import CPU, is_cuda
from engine.hardware.machine import free_memory
from engine.memory.model_sizes import ModelSizes, head_sizes, model_sizes, sizes_of
from engine.models.checkpoint import Checkpoint
from engine.models.config_bounds import rope_parts
from engine.models.materialise import follows_length
from engine.runner.cuda_graphs import room_for
from engine.snapshot import MemoryPlan
from engine.speculation.draft_loading import draft_dtype, open_draft
from engine.units import bytes_text

GIB = 2**30
_RESERVE = GIB  # left for the desktop, or 5 % of a larger machine, or 10 % of a smaller one
_RAM_SHARE = 0.5  # of what is free beside the weights: for an automatic cache
_SHRINK = 0.8  # of a cache's blocks are left where there is less memory than was planned with
_SHORTEST_CONTEXT = 2048  # that is proposed
_LEAST_CONTEXT = 4096  # that is chosen
NOTHING: Mapping[str, int] = MappingProxyType({})
_FIXED_ACTIVATIONS = 64 * 2**20  # scratch buffers, the sampler
PlanPart = Callable[[ModelSizes, EngineConfig], MemoryPlan]
"""The plan of a part of the model in the memory of one device. Raises OutOfMemoryError."""


def plan_memory(
    checkpoint: Checkpoint,
    config: EngineConfig,
    *,
    in_use: Mapping[str, int] = NOTHING,
    memory: tuple[int, int] | None = None,
    host_memory: tuple[int, int] | None = None,
    activations: int | None = None,
    host_layers: int | None = None,
) -> MemoryPlan:
    """Plan for `checkpoint` under `config` (its device, dtype and max_model_len resolved).

    `in_use`: bytes that this engine holds now on each device, and gives back first. `memory`,
    `host_memory`: (free, total) of the device and of RAM, measured if None. `activations`: bytes of
    a step, estimated if None; what a GPU holds beside its steps is added. `host_layers`: of a model
    that is loaded; None: what the configuration says, or as few as make it fit.
    Raises UnsupportedModelError, or OutOfMemoryError with the numbers.
    """
    free, total = memory or free_memory(config.device)
    free = min(free + in_use.get(config.device, 0), total)
    sizes = sizes_of(checkpoint, config)
    draft = None
    if config.speculative_method == "draft_model":
        source = open_draft(config)
        draft = model_sizes(source, getattr(torch, draft_dtype(config, source)))
    elif config.speculative_method == "eagle3":
        draft = head_sizes(open_draft(config), checkpoint, getattr(torch, config.dtype))
    if host_layers is None:
        count = len(sizes.layer_weights)
        host_layers = host_layers_of(config.device, config.gpu_layers, count)

    on_device = partial(plan, free=free, total=total, draft=draft, activations=activations)
    if host_layers == 0:
        return on_device(sizes, config)
    ram, all_ram = host_memory or free_memory()
    on_host = partial(plan, free=min(ram + in_use.get(CPU, 0), all_ram), total=all_ram)
    draft_kv = 0 if draft is None else _block_bytes(draft, config)
    if host_layers is not None:
        return _plan_offload(sizes, config, host_layers, on_device, on_host, draft_kv)
    try:
        return on_device(sizes, config)
    except OutOfMemoryError as error:
        problem = error
    for count in range(1, len(sizes.layer_weights)):
        try:
            found = _plan_offload(sizes, config, count, on_device, on_host, draft_kv)
        except OutOfMemoryError:
            continue
        return replace(found, undivided_model_len=_undivided_len(sizes, config, on_device))
    raise OutOfMemoryError(f"{problem.cause} CPU offload is insufficient.", problem.remedy)


def _plan_part(
    plan: PlanPart, sizes: ModelSizes, config: EngineConfig, where: str, remedy: str
) -> MemoryPlan:
    try:
        return plan(sizes, config)
    except OutOfMemoryError as error:
        raise OutOfMemoryError(f"{where}: {error.cause}", remedy + error.remedy) from error


def _plan_offload(
    sizes: ModelSizes,
    config: EngineConfig,
    host_layers: int,
    on_gpu: PlanPart,
    on_host: PlanPart,
    draft_kv_bytes: int,
) -> MemoryPlan:
    """With so many layers on the CPU. Both parts have the same blocks, so that the smaller of both
    memories decides how many there are. draft_kv_bytes: of a draft model in each block, on the
    GPU."""
    layers = len(sizes.layer_weights)
    gpu_sizes = sizes.part(host_layers, layers)
    host_sizes = replace(sizes.part(0, host_layers), vocab_size=0)  # no logits
    gpu_config, host_config = config, for_host(config)
    if config.kv_cache_memory_bytes is not None:  # of both parts together
        parts = [_block_bytes(part, config) for part in (gpu_sizes, host_sizes)]
        parts[0] += draft_kv_bytes
        blocks = _whole_blocks(config.kv_cache_memory_bytes, sum(parts))
        gpu_config, host_config = (
            part.replace(kv_cache_memory_bytes=blocks * size)
            for part, size in zip((gpu_config, host_config), parts, strict=True)
        )
    where = f"{layers - host_layers} of {layers} layers on {config.device}"
    remedy = "Choose fewer GPU layers (gpu_layers). "
    gpu = _plan_part(on_gpu, gpu_sizes, gpu_config, where, remedy)
    where, remedy = f"{host_layers} of {layers} layers on the CPU", remedy.replace("fewer", "more")
    host = _plan_part(on_host, host_sizes, host_config, where, remedy)
    found = replace(
        gpu,
        host_layers=host_layers,
        host_free=host.free,
        host_limit=host.limit,
        host_weights=host.weights,
        host_activations=host.activations,
        host_bytes_per_block=host.bytes_per_block,
    )
    return found.with_blocks(min(gpu.num_blocks, host.num_blocks))


def for_host(config: EngineConfig) -> EngineConfig:
    """The configuration for planning the CPU's part: the memory limit and the draft model are the
    GPU's."""
    share = SETTINGS["gpu_memory_utilization"].default
    return config.replace(device=CPU, speculative_method="off", gpu_memory_utilization=share)


def _undivided_len(sizes: ModelSizes, config: EngineConfig, on_gpu: PlanPart) -> int:
    """The longest context, a power of two, at which the whole model fits on the GPU; 0 if none of
    useful length does, or the cache size is set."""
    if config.kv_cache_memory_bytes is not None:
        return 0
    assert config.max_model_len is not None, "resolved before"
    length = 1 << max(0, (config.max_model_len - 1).bit_length() - 1)
    while length >= _SHORTEST_CONTEXT:
        try:
            on_gpu(sizes, config.replace(max_model_len=length))
            return length
        except OutOfMemoryError:
            length //= 2
    return 0


def _block_bytes(sizes: ModelSizes, config: EngineConfig) -> int:
    """KV bytes of a block."""
    return config.block_size * sizes.kv_bytes_per_token(config.kv_dtype)


def _whole_blocks(cache_bytes: int, bytes_per_block: int) -> int:
    if cache_bytes < bytes_per_block:
        raise OutOfMemoryError(
            f"The KV cache of {cache_bytes:,} bytes is smaller than one block of "
            f"{bytes_per_block:,} bytes.",
            f"Set kv_cache_memory_bytes to at least {bytes_per_block:,}, or reduce block_size.",
        )
    return cache_bytes // bytes_per_block


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

    The KV cache takes what is left (in RAM: half of it), but no more than max_num_seqs requests of
    max_model_len tokens can use; or exactly kv_cache_memory_bytes, rounded down to blocks.
    """
    assert config.max_model_len is not None, "max_model_len has to be resolved first"
    reserve, limit = reserve_and_limit(config, free=free, total=total)
    activations = activation_bytes(sizes, config) if activations is None else activations
    activations += held_beside_steps(sizes, config)
    draft_weights = draft_per_block = 0
    if draft is not None:
        draft_weights = draft.loaded_bytes(config.max_model_len)
        draft_per_block = _block_bytes(draft, config)
    bytes_per_block = _block_bytes(sizes, config) + draft_per_block
    weights = sizes.loaded_bytes(config.max_model_len) + draft_weights
    if config.kv_cache_memory_bytes is not None:
        num_blocks = least_blocks = _whole_blocks(config.kv_cache_memory_bytes, bytes_per_block)
        remedies = ["a smaller kv_cache_memory_bytes"]
    else:
        least_blocks = blocks_of(config.max_model_len, config)
        left = (limit - weights - activations) // bytes_per_block
        if not is_cuda(config.device):
            rest = int(_RAM_SHARE * (free - weights - activations))
            left = min(left, max(least_blocks, rest // bytes_per_block))
        num_blocks = min(left, max_useful_blocks(config))
        remedies = [f"a max_model_len below {config.max_model_len:,}"]
        if not config.kv_dtype.is_quantized:
            remedies.append("an 8-bit kv_cache_dtype")
    least_kv = least_blocks * bytes_per_block
    needed = weights + activations + least_kv
    if needed > limit:
        raise OutOfMemoryError(
            f"{bytes_text(needed)} needed (weights {bytes_text(weights)}, activations "
            f"{bytes_text(activations)}, KV cache {bytes_text(least_kv)}); {bytes_text(limit)} "
            f"usable ({bytes_text(free)} of {bytes_text(total)} free).",
            f"Choose {', '.join(remedies)}, a lower-bit quantization, a smaller model or a 16-bit "
            "dtype; or close other programs.",
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


def automatic_length(
    checkpoint: Checkpoint,
    config: EngineConfig,
    limit: int,
    in_use: Mapping[str, int] = NOTHING,
) -> int:
    """The context length where none is set: the model's limit. In RAM no more than the automatic
    cache holds, rounded down to a power of two, but at least _LEAST_CONTEXT; the limit also where
    results depend on the length. `config`: its device and dtype resolved. `in_use`: as of
    `plan_memory`."""
    is_fixed = any(
        follows_length(one.get("rope_type")) and not one.get("alpha")  # which replaces the length
        for one in rope_parts(checkpoint.config)
    )
    is_fixed = is_fixed or config.kv_cache_memory_bytes is not None
    if is_fixed or is_cuda(config.device):
        return limit
    sizes = sizes_of(checkpoint, config)
    free, total = free_memory(CPU)
    rest = min(free + in_use.get(CPU, 0), total)
    rest -= sizes.loaded_bytes(limit) + activation_bytes(sizes, config)
    fitting = max(0, int(_RAM_SHARE * rest)) // max(1, sizes.kv_bytes_per_token(config.kv_dtype))
    if fitting >= limit:
        return limit
    return min(limit, max(_LEAST_CONTEXT, 1 << max(0, fitting.bit_length() - 1)))


def shrunk(plan: MemoryPlan, least_blocks: int) -> MemoryPlan | None:
    """The plan with a fifth fewer blocks, but at least `least_blocks`; None if it has no more than
    these."""
    blocks = max(least_blocks, int(plan.num_blocks * _SHRINK))
    return None if blocks >= plan.num_blocks else plan.with_blocks(blocks)


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
