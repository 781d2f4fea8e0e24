"""Which runner a model gets: one place."""

from __future__ import annotations

from engine.attention.interface import AttentionBackend
from engine.attention.staged import StagedAttention
from engine.divided_runner import DividedRunner
from engine.loading.loader import LoadedModel
from engine.model_runner import ModelRunner
from engine.parallel.runner import ParallelCache, ParallelRunner
from engine.staged_runner import StagedRunner


def make_runner(loaded: LoadedModel, backend: AttentionBackend, device: str) -> ModelRunner:
    """What runs a model that has this cache, on `device` (beside the CPU, or as the first of
    several, where it is divided)."""
    if loaded.ranks is not None:
        assert isinstance(backend, ParallelCache)
        return ParallelRunner(loaded.ranks, backend)
    if isinstance(backend, StagedAttention):
        return StagedRunner(loaded.model, backend)
    if loaded.crossing is not None:
        return DividedRunner(loaded.model, backend, loaded.crossing, device)
    return ModelRunner(loaded.model, backend, device)
