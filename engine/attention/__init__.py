"""Paged attention over the KV cache: the backends, and how a model of transformers reaches them.

interface.py   what a backend is; the function registered with transformers
masks.py       which tokens each layer sees, by the masks of its class
backends.py    which backend a model gets; choices.py: which implementation, measured
pages.py       the KV cache of a layer
cpu.py         by torch and by compiled kernels; rows.py: the rows of one sequence
gpu.py         by Triton; varlen.py: by torch, for other GPUs; device_tables.py: a step's tables
offload.py     layers divided between the CPU and a GPU
"""

from engine.attention.interface import (
    NAME,
    AttentionBackend,
    AttentionContext,
    LayerSpec,
    active,
    register,
)

__all__ = ["NAME", "AttentionBackend", "AttentionContext", "LayerSpec", "active", "register"]
