"""Resolves a configuration: opens its checkpoint, and fills device, dtype, context and threads."""

from __future__ import annotations

from collections.abc import Mapping

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.hardware.devices import is_cuda, resolve_device
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
