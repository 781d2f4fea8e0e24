"""Resolves a configuration: opens its checkpoint, and fills device, dtype, context and threads."""

from __future__ import annotations

from collections.abc import Mapping

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.hardware.device_map import CHOICES
from engine.hardware.devices import is_cuda, resolve_device, resolve_ranks
from engine.hardware.machine import default_dtype, machine_info
from engine.host.token_budget import BUDGET_ON_GPU
from engine.memory.plan import NOTHING, automatic_length
from engine.models.architecture import check_size, count_parameters, resolve_class
from engine.models.checkpoint import Checkpoint
from engine.numerics.scheme import scheme_of


def resolve(
    config: EngineConfig, in_use: Mapping[str, int] = NOTHING
) -> tuple[EngineConfig, Checkpoint]:
    """Open the checkpoint and fill in what the configuration leaves open. Reads no weights.

    `in_use`: bytes on each device that are given back before the model is loaded."""
    checkpoint = Checkpoint.open(config.model, dummy=config.load_format == "dummy")
    resolve_class(checkpoint)
    check_size(checkpoint)
    limit = checkpoint.max_position_embeddings
    if limit is not None and (config.max_model_len or 0) > limit:
        raise ConfigError(
            f"max_model_len is {config.max_model_len:,}; {checkpoint.name} supports {limit:,} "
            "tokens.",
            f"Set max_model_len to {limit:,} or less.",
        )
    scheme_of(config, checkpoint.quantization, checkpoint.name)  # refused before anything is loaded
    machine = machine_info()
    device = resolve_device(config.device)
    if max(config.tensor_parallel_size, config.pipeline_parallel_size) > 1:
        _check_ranks(config, device)
    dtype = config.dtype
    if dtype == "auto":
        dtype = default_dtype(checkpoint.dtype, count_parameters(checkpoint.config), device)
    config = config.replace(
        device=device, dtype=dtype, num_threads=config.num_threads or machine.default_threads
    )
    length = config.max_model_len or automatic_length(checkpoint, config, limit or 4096, in_use)
    if is_cuda(device) and config.max_num_batched_tokens is None:  # elsewhere it is measured
        config = config.replace(max_num_batched_tokens=BUDGET_ON_GPU)
    return config.replace(max_model_len=length), checkpoint


def _check_ranks(config: EngineConfig, device: str) -> None:
    """Raise ConfigError for too few GPUs, or settings that exclude several devices."""
    ranks, stages = config.tensor_parallel_size, config.pipeline_parallel_size
    if ranks > 1 and stages > 1:
        raise ConfigError(
            f"tensor_parallel_size {ranks} and pipeline_parallel_size {stages} cannot "
            "be combined.",
            "Set one of them to 1.",
        )
    name = "tensor_parallel_size" if ranks > 1 else "pipeline_parallel_size"
    if stages > 1 and not is_cuda(device):
        raise ConfigError(
            f"pipeline_parallel_size {stages} on {device}: pipeline parallelism requires GPUs.",
            f"Use {stages} NVIDIA GPUs (device cuda:0), or set pipeline_parallel_size to 1.",
        )
    resolve_ranks(device, max(ranks, stages), name)
    if is_cuda(device) and config.gpu_layers not in CHOICES:
        raise ConfigError(
            f"gpu_layers {config.gpu_layers} with {name} {max(ranks, stages)}: CPU offload "
            "requires a single GPU.",
            f'Set gpu_layers to "all", or {name} to 1.',
        )
