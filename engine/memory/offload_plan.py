"""Plans memory with CPU offload: how many layers go to the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.config import SETTINGS, EngineConfig
from engine.errors import OutOfMemoryError
from engine.hardware.devices import CPU
from engine.memory.model_sizes import ModelSizes
from engine.snapshot import MemoryPlan

_SHORTEST_CONTEXT = 2048  # that is proposed

PlanPart = Callable[[ModelSizes, EngineConfig], MemoryPlan]
"""The plan of a part of the model in the memory of one device. Raises OutOfMemoryError."""


def plan_divided(
    sizes: ModelSizes,
    config: EngineConfig,
    host_layers: int | None,
    on_gpu: PlanPart,
    on_host: PlanPart,
    draft_kv_bytes: int = 0,
) -> MemoryPlan:
    """The plan with `host_layers` on the CPU; with None, with as few as it takes. draft_kv_bytes:
    of a draft model in each block, on the GPU.

    Both parts have the same blocks, so that the smaller of both memories decides how many there
    are. Raises OutOfMemoryError; where no division fits, with the numbers of the whole model on the
    GPU.
    """
    if host_layers is not None:
        return _plan(sizes, config, host_layers, on_gpu, on_host, draft_kv_bytes)
    try:
        return on_gpu(sizes, config)
    except OutOfMemoryError as error:
        problem = error
    for count in range(1, len(sizes.layer_weights)):
        try:
            found = _plan(sizes, config, count, on_gpu, on_host, draft_kv_bytes)
        except OutOfMemoryError:
            continue
        return replace(found, undivided_model_len=_undivided_len(sizes, config, on_gpu))
    raise OutOfMemoryError(f"{problem.cause} CPU offload does not make it fit.", problem.remedy)


def _undivided_len(sizes: ModelSizes, config: EngineConfig, on_gpu: PlanPart) -> int:
    """The longest context, a power of two, with which the whole model fits on the GPU; 0 where none
    that is of use does, or a cache of a certain size is wanted."""
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


def _plan(
    sizes: ModelSizes,
    config: EngineConfig,
    host_layers: int,
    on_gpu: PlanPart,
    on_host: PlanPart,
    draft_kv_bytes: int,
) -> MemoryPlan:
    gpu_sizes, host_sizes = sizes.on_gpu(host_layers), sizes.on_host(host_layers)
    gpu_config, host_config = config, for_host(config)
    if config.kv_cache_memory_bytes is not None:  # of both parts together
        parts = [_kv_bytes(part, config) for part in (gpu_sizes, host_sizes)]
        parts[0] += draft_kv_bytes
        blocks = config.kv_cache_memory_bytes // sum(parts)
        if blocks < 1:
            raise less_than_a_block(config.kv_cache_memory_bytes, sum(parts))
        gpu_config, host_config = (
            part.replace(kv_cache_memory_bytes=blocks * size)
            for part, size in zip((gpu_config, host_config), parts, strict=True)
        )
    layers = len(sizes.layer_weights)
    try:
        gpu = on_gpu(gpu_sizes, gpu_config)
    except OutOfMemoryError as error:
        where = f"{layers - host_layers} of {layers} layers on {config.device}"
        raise OutOfMemoryError(
            f"{where}: {error.cause}", f"Choose fewer GPU layers (gpu_layers). {error.remedy}"
        ) from error
    try:
        host = on_host(host_sizes, host_config)
    except OutOfMemoryError as error:
        where = f"{host_layers} of {layers} layers on the CPU"
        raise OutOfMemoryError(
            f"{where}: {error.cause}", f"Choose more GPU layers (gpu_layers). {error.remedy}"
        ) from error
    divided = replace(
        gpu,
        host_layers=host_layers,
        host_free=host.free,
        host_limit=host.limit,
        host_weights=host.weights,
        host_activations=host.activations,
        host_bytes_per_block=host.bytes_per_block,
    )
    return divided.with_blocks(min(gpu.num_blocks, host.num_blocks))


def for_host(config: EngineConfig) -> EngineConfig:
    """With which the CPU's part is planned: how much memory may be used is said of the GPU, which
    has the draft model too."""
    share = SETTINGS["gpu_memory_utilization"].default
    return config.replace(device=CPU, speculative_method="off", gpu_memory_utilization=share)


def less_than_a_block(cache_bytes: int, bytes_per_block: int) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"The KV cache of {cache_bytes:,} bytes is smaller than one block of "
        f"{bytes_per_block:,} bytes.",
        f"Set kv_cache_memory_bytes to at least {bytes_per_block:,}, or choose smaller blocks.",
    )


def _kv_bytes(sizes: ModelSizes, config: EngineConfig) -> int:
    """Of a block in a part of the model."""
    return config.block_size * sizes.kv_bytes_per_token(config.kv_dtype)
