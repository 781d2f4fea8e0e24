"""The precision that a model runs in, in words. No Qt.

bf16                                       plain weights
bf16 · int4 weights (groups of 128)        rounded, or stored so
bf16 · int8 weights · int8 head · KV fp8
"""

from __future__ import annotations

from engine.config import EngineConfig
from engine.snapshot import ModelInfo
from widgets.stat_figures import short_dtype, weights_words


def precision_words(model: ModelInfo, config: EngineConfig) -> str:
    """Everything that decides what comes out: number format, weights, output head, KV cache."""
    parts = [short_dtype(model.dtype), weights_words(model)]
    if config.quantization_head != "none":
        parts.append(f"{config.quantization_head} head")
    if config.kv_dtype.is_quantized:
        keys, values = config.kv_dtype.resolved(short_dtype(model.dtype))
        parts.append(f"KV {keys}" if keys == values else f"K {keys}, V {values}")
    return " · ".join(filter(None, parts))


def change_words(before: str, after: str) -> str:
    """What is new in the precision `after`: int8 weights; plain weights where nothing is added."""
    old = before.split(" · ")
    new = [part for part in after.split(" · ") if part not in old]
    if new:
        return " · ".join(new)
    gone = [part.split()[-1] for part in old if part not in after.split(" · ")]
    return "plain weights" if any("weights" in part for part in old) and gone else after
