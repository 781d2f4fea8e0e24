"""The inference engine. Usable as a library; imports no Qt.

The names below are resolved when first used (PEP 562), so that importing `engine.config` or
`engine.scheduling.scheduler` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.errors import InferdeckError
    from engine.llm_engine import LLMEngine, RequestOutput
    from engine.sampling_params import SamplingParams

_HOME = {
    "EngineConfig": "engine.config",
    "InferdeckError": "engine.errors",
    "LLMEngine": "engine.llm_engine",
    "RequestOutput": "engine.llm_engine",
    "SamplingParams": "engine.sampling_params",
}

__all__ = ["EngineConfig", "InferdeckError", "LLMEngine", "RequestOutput", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
