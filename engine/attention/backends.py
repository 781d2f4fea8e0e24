"""Which attention backend a model gets: one place, by device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine.attention.cpu import CPUAttention
from engine.attention.gpu import MOST_WORKSPACE_BYTES, GPUAttention
from engine.attention.interface import LayerSpec, PagedBackend
from engine.attention.offload import DividedAttention
from engine.config import EngineConfig
from engine.hardware.device_map import DeviceMap
from engine.kernels.attention_choices import FEW_QUERIES, attention_dtype, native_limit
from engine.parallel.pipeline import StagedAttention
from engine.runner.cuda_graphs import SIZES


def make_backend(
    config: EngineConfig,
    layers: dict[int, LayerSpec],
    num_blocks: int,
    dtype: torch.dtype,
    *,
    host_layers: int = 0,
    starts: tuple[tuple[int, str], ...] = (),
    most_workspace: int = MOST_WORKSPACE_BYTES,
) -> PagedBackend:
    """An empty cache of `num_blocks` blocks for a model or a draft model in `dtype`, and the
    attention over it. `config` is resolved; host_layers: the first ones, which the CPU computes
    beside a GPU; starts: layers from which on other GPUs have them; most_workspace: see
    GPUAttention. Raises MemoryError or RuntimeError where it cannot be allocated."""
    device = torch.device(config.device)
    if device.type == "cpu":
        return _on_cpu(config, layers, num_blocks, dtype)
    if starts:
        parts = staged(layers, config.device, starts)
        return StagedAttention(
            {
                name: _on_gpu(config, own, num_blocks, dtype, torch.device(name), most_workspace)
                for name, own in parts.items()
            }
        )
    first, rest = divided(layers, host_layers)
    gpu = _on_gpu(config, rest, num_blocks, dtype, device, most_workspace)
    if not first:
        return gpu
    return DividedAttention(_on_cpu(config, first, num_blocks, dtype), gpu, device)


def divided(
    layers: Mapping[int, LayerSpec], host_layers: int
) -> tuple[dict[int, LayerSpec], dict[int, LayerSpec]]:
    """The first `host_layers`, and the others."""
    first = {layer: spec for layer, spec in layers.items() if layer < host_layers}
    return first, {layer: spec for layer, spec in layers.items() if layer >= host_layers}


def staged(
    layers: Mapping[int, LayerSpec], device: str, starts: tuple[tuple[int, str], ...]
) -> dict[str, dict[int, LayerSpec]]:
    """The layers of each GPU, by their devices in order."""
    where = DeviceMap(device, starts=starts)
    found: dict[str, dict[int, LayerSpec]] = {name: {} for name in where.devices}
    for layer, spec in layers.items():
        found[where.of_layer(layer)][layer] = spec
    return found


def _on_cpu(
    config: EngineConfig, layers: dict[int, LayerSpec], num_blocks: int, dtype: torch.dtype
) -> CPUAttention:
    return CPUAttention(
        layers,
        num_blocks,
        config.block_size,
        dtype,
        attention_dtype(dtype, rows=1),
        config.kv_dtype,
        attention_dtype(dtype, rows=FEW_QUERIES),
        few_tokens=native_limit(dtype),
    )


def _on_gpu(
    config: EngineConfig,
    layers: dict[int, LayerSpec],
    num_blocks: int,
    dtype: torch.dtype,
    device: torch.device,
    most_workspace: int,
) -> GPUAttention:
    assert config.max_model_len is not None, "resolved before"
    return GPUAttention(
        layers,
        num_blocks,
        config.block_size,
        dtype,
        config.kv_dtype,
        device=device,
        # a row for each token of a step that is replayed, whatever is captured later
        max_num_seqs=max(config.max_num_seqs, SIZES[-1]),
        max_model_len=config.max_model_len,
        max_num_batched_tokens=config.max_num_batched_tokens,
        most_workspace=most_workspace,
    )
