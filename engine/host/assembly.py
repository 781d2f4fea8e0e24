"""`Assembly`: a loaded model with its KV cache, runner and speculation."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import nn

from engine.attention.interface import AttentionBackend, LayerSpec
from engine.attention.offload import OffloadedAttention
from engine.config import EngineConfig
from engine.hardware.devices import CPU
from engine.host.kv_cache import make_cache
from engine.host.offload_runner import OffloadRunner
from engine.models.checkpoint import Checkpoint
from engine.models.loader import LoadedModel
from engine.runner.model_runner import ModelRunner
from engine.snapshot import MemoryPlan, ModelInfo
from engine.speculation.draft_loading import Draft
from engine.speculation.proposer import Proposer
from engine.text.tokenizer import Tokenizer


def make_runner(loaded: LoadedModel, backend: AttentionBackend, device: str) -> ModelRunner:
    """What runs a model that has this cache, on `device` (beside the CPU with CPU offload)."""
    if loaded.crossing is not None:
        return OffloadRunner(loaded.model, backend, loaded.crossing, device)
    return ModelRunner(loaded.model, backend, device)


def measuring_runner(
    config: EngineConfig, loaded: LoadedModel, layers: dict[int, LayerSpec], num_blocks: int
) -> ModelRunner:
    """A runner with a KV cache of its own, for a measurement."""
    cache = make_cache(config, layers, num_blocks, loaded.device_map.host_layers)
    return make_runner(loaded, cache, config.device)


class Held(NamedTuple):
    """Measured bytes on the device, of the model and of what drafts beside it; and in RAM, of the
    layers that the CPU computes beside a GPU."""

    weights: int
    cache: int
    host_weights: int
    host_cache: int


@dataclass(slots=True)
class Assembly:
    """A model that is ready to run. `config`: with all that it left open resolved.
    `step_bytes`: measured memory of its largest step on a GPU."""

    config: EngineConfig
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    loaded: LoadedModel
    layers: dict[int, LayerSpec]
    plan: MemoryPlan
    runner: ModelRunner
    info: ModelInfo
    draft: Draft | None = None
    proposer: Proposer | None = None
    step_bytes: int | None = None
    held: Held = field(init=False)

    def __post_init__(self) -> None:
        self.measure()

    @property
    def host_layers(self) -> int:
        """That the CPU computes beside a GPU."""
        return self.loaded.device_map.host_layers

    def measure(self) -> None:
        """Set `held`: the cache or what drafts has been replaced."""
        backend = self.runner.backend
        self.held = Held(
            weights=self.loaded.bytes_on[self.config.device]
            + (self.draft.weights_bytes if self.draft else 0),
            cache=backend.nbytes + (self.proposer.cache_bytes if self.proposer else 0),
            host_weights=self.loaded.bytes_on[CPU] if self.host_layers else 0,
            host_cache=backend.host_nbytes if isinstance(backend, OffloadedAttention) else 0,
        )

    @property
    def resident_cache(self) -> int | None:
        """Bytes of `held.cache` that take memory; None where the system does not tell."""
        own = self.runner.backend.resident
        of_drafts = self.proposer.resident_cache if self.proposer else 0
        return None if own is None or of_drafts is None else own + of_drafts

    @property
    def taken(self) -> dict[str, int]:
        """Bytes of weights and caches on each device; of the CPU's memory also where there are
        none."""
        found = {CPU: self.held.host_weights + self.held.host_cache}
        found[self.config.device] = self.held.weights + self.held.cache
        return found

    def drop(self) -> None:
        """Free weights and cache; the descriptions stay."""
        self.loaded = dataclasses.replace(self.loaded, model=nn.Module(), crossing=None)
        self.drop_drafting()
        self.draft = None
        self.runner.drop()

    def drop_drafting(self) -> None:
        """Free the draft model's cache and its captured graphs."""
        if self.proposer is not None and self.proposer.runner is not None:
            self.proposer.runner.drop_cache()
        self.proposer = None
