"""What a model would need, known before its weights are read. Imports no Qt.

`estimate` imports torch and transformers: call it off the GUI thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.row_names import by_row
from engine.config import EngineConfig
from engine.errors import InferdeckError

if TYPE_CHECKING:
    from engine.loading.architecture import ModelReport

SHORTEST_CONTEXT = 256


@dataclass(frozen=True, slots=True)
class Need:
    """Memory in bytes. `kv_cache`: the least that is useful, one request of `max_model_len`
    tokens. `limit`: what the engine may use of the `free` bytes."""

    max_model_len: int
    dtype: str
    weights: int
    activations: int
    kv_cache: int
    free: int
    total: int
    limit: int

    @property
    def kv_bytes_per_token(self) -> float:
        return self.kv_cache / self.max_model_len

    @property
    def needed(self) -> int:
        return self.weights + self.activations + self.kv_cache

    @property
    def fits(self) -> bool:
        return self.needed <= self.limit


@dataclass(frozen=True, slots=True)
class Estimate:
    """report: what the model is. need: for the configuration that was asked for, None where the
    model is not supported or the configuration is impossible (`problem` says why).
    fitting_len: the longest context that fits, a power of two or the model's own; None if none."""

    report: ModelReport
    need: Need | None = None
    problem: str = ""
    fitting_len: int | None = None

    @property
    def can_open(self) -> bool:
        return self.need is not None and self.need.fits


def estimate(config: EngineConfig, in_use: int = 0) -> Estimate:
    """What `config` would need. `in_use`: bytes that the model loaded now gives back first."""
    from engine.loading.architecture import describe_model

    report = describe_model(config.model, dummy=config.load_format == "dummy")
    if not report.supported:
        return Estimate(report, problem=report.reason)
    try:
        need = _need(config, in_use)
    except InferdeckError as error:
        return Estimate(report, problem=by_row(str(error)))
    return Estimate(report, need, fitting_len=_fitting_len(need))


def _need(config: EngineConfig, in_use: int) -> Need:
    import torch

    from engine.assembly import resolve
    from engine.machine import free_memory
    from engine.memory import activation_bytes, blocks_of, model_sizes, reserve_and_limit
    from engine.quantization.scheme import scheme_of

    resolved, checkpoint = resolve(config)
    assert resolved.max_model_len is not None
    scheme = scheme_of(resolved, checkpoint.quantization, checkpoint.name)
    sizes = model_sizes(checkpoint, getattr(torch, resolved.dtype), scheme)
    free, total = free_memory(resolved.device)
    free = min(free + in_use, total)
    bytes_per_block = resolved.block_size * sizes.kv_bytes_per_token(resolved.kv_dtype)
    return Need(
        max_model_len=resolved.max_model_len,
        dtype=resolved.dtype,
        weights=sizes.loaded_bytes(resolved.max_model_len),
        activations=activation_bytes(sizes, resolved),
        kv_cache=blocks_of(resolved.max_model_len, resolved) * bytes_per_block,
        free=free,
        total=total,
        limit=reserve_and_limit(resolved, free=free, total=total)[1],
    )


def _fitting_len(need: Need) -> int | None:
    """The longest context that fits: the one asked for, or a power of two below it."""
    if need.fits:
        return need.max_model_len
    room = need.limit - need.weights - need.activations
    longest = int(room / need.kv_bytes_per_token) if room > 0 else 0
    return 2 ** (longest.bit_length() - 1) if longest >= SHORTEST_CONTEXT else None
