"""Paged attention: the interface, the function registered with transformers, and the backends."""

from engine.attention.interface import (
    NAME,
    AttentionBackend,
    AttentionContext,
    LayerSpec,
    active,
    register,
)

__all__ = ["NAME", "AttentionBackend", "AttentionContext", "LayerSpec", "active", "register"]
