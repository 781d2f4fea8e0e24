"""Chooses the attention backend by device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine.attention.choices import attention_dtype, in_tiles, native_limit
from engine.attention.cpu import CPUAttention
from engine.attention.gpu import MOST_CAPTURED, MOST_WORKSPACE_BYTES, GPUAttention
from engine.attention.interface import LayerSpec, PagedBackend
from engine.attention.offload import OffloadedAttention
from engine.attention.rows import FEW_QUERIES
from engine.config import EngineConfig


def make_backend(
    config: EngineConfig,
    layers: dict[int, LayerSpec],
    num_blocks: int,
    dtype: torch.dtype,
    *,
    host_layers: int = 0,
    most_workspace: int = MOST_WORKSPACE_BYTES,
) -> PagedBackend:
    """An empty cache of `num_blocks` blocks for a model or a draft model in `dtype`, and the
    attention over it. `config` is resolved; host_layers: the first ones, which the CPU computes
    beside a GPU; most_workspace: see GPUAttention. Raises MemoryError or RuntimeError where memory
    does not suffice."""
    device = torch.device(config.device)
    if device.type == "cpu":
        return _on_cpu(config, layers, num_blocks, dtype)
    first, rest = divided(layers, host_layers)
    gpu = _on_gpu(config, rest, num_blocks, dtype, device, most_workspace)
    if not first:
        return gpu
    return OffloadedAttention(_on_cpu(config, first, num_blocks, dtype), gpu, device)


def divided(
    layers: Mapping[int, LayerSpec], host_layers: int
) -> tuple[dict[int, LayerSpec], dict[int, LayerSpec]]:
    """The first `host_layers`, and the others."""
    first = {layer: spec for layer, spec in layers.items() if layer < host_layers}
    return first, {layer: spec for layer, spec in layers.items() if layer >= host_layers}


def _on_cpu(
    config: EngineConfig, layers: dict[int, LayerSpec], num_blocks: int, dtype: torch.dtype
) -> CPUAttention:
    made = CPUAttention(
        layers,
        num_blocks,
        config.block_size,
        dtype,
        attention_dtype(dtype, rows=1),
        config.kv_dtype,
        attention_dtype(dtype, rows=FEW_QUERIES),
        few_tokens=native_limit(dtype),
        in_tiles=in_tiles(dtype),
    )
    made.use_ahead(0)
    return made


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
        max_num_seqs=max(config.max_num_seqs, MOST_CAPTURED),
        max_model_len=config.max_model_len,
        max_num_batched_tokens=config.token_budget,
        most_workspace=most_workspace,
    )
