"""Loads a draft model and makes its proposer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from engine.attention.backends import make_backend
from engine.attention.gpu import WORKSPACE_BYTES
from engine.attention.interface import LayerSpec
from engine.config import EngineConfig
from engine.errors import CheckpointError, UnsupportedModelError
from engine.hardware.device_map import DeviceMap
from engine.models.architecture import resolve_class
from engine.models.checkpoint import Checkpoint
from engine.models.loader import load_model
from engine.models.materialise import weight_bytes
from engine.models.smoke_test import check_architecture
from engine.runner.model_runner import ModelRunner, probe_kv
from engine.speculation.draft_model import DraftModelProposer
from engine.speculation.draft_source import draft_dtype, unusable
from engine.speculation.eagle3.head import Eagle3Head, Taps
from engine.speculation.eagle3.proposer import Eagle3Proposer
from engine.speculation.eagle3.shape import read_shape
from engine.speculation.eagle3.weights import load_head
from engine.speculation.ngram import NgramProposer
from engine.speculation.proposer import Proposer


@dataclass(frozen=True)
class Draft:
    """A loaded draft model, or an EAGLE-3 head with its `taps` on the large model. `vocab_size`:
    ids that it shares with that model."""

    name: str
    model: nn.Module
    dtype: torch.dtype
    weights_bytes: int
    layers: dict[int, LayerSpec]
    vocab_size: int
    max_model_len: int
    taps: Taps | None = None


def load_draft(
    config: EngineConfig,
    draft: Checkpoint,
    target: Checkpoint,
    target_model: nn.Module,
    progress: Callable[[str, int, int], None],
    cancelled: Callable[[], bool],
) -> Draft:
    """Load a draft that was checked. Raises DraftModelError, OutOfMemoryError or LoadCancelled."""
    own_progress = partial(_of_draft, progress)
    if config.speculative_method == "eagle3":
        return _load_head(config, draft, target, target_model, own_progress, cancelled)
    try:
        return _load(config, draft, target, own_progress, cancelled)
    except (CheckpointError, UnsupportedModelError) as error:
        raise unusable(error) from error


def _load(
    config: EngineConfig,
    draft: Checkpoint,
    target: Checkpoint,
    progress: Callable[[str, int, int], None],
    cancelled: Callable[[], bool],
) -> Draft:
    check_architecture(draft.config, resolve_class(draft))
    dtype = getattr(torch, draft_dtype(config, draft))
    assert config.max_model_len is not None, "resolved before"
    own = draft.max_position_embeddings or config.max_model_len
    loaded = load_model(
        draft,
        dtype=dtype,
        device=config.device,
        load_format=config.load_format,
        seed=config.seed,
        max_model_len=min(own, config.max_model_len),
        progress=progress,
        cancelled=cancelled,
    )
    return Draft(
        name=draft.name,
        model=loaded.model,
        dtype=dtype,
        weights_bytes=loaded.weights_bytes,
        layers=probe_kv(loaded.model),
        vocab_size=min(draft.config.vocab_size, target.config.vocab_size),
        max_model_len=min(own, config.max_model_len),
    )


def _load_head(
    config: EngineConfig,
    source: Checkpoint,
    target: Checkpoint,
    target_model: nn.Module,
    progress: Callable[[str, int, int], None],
    cancelled: Callable[[], bool],
) -> Draft:
    shape = read_shape(source, target)
    dtype = getattr(torch, config.dtype)
    assert config.max_model_len is not None, "resolved before"
    head = load_head(
        source,
        shape,
        target_model,
        dtype=dtype,
        load_format=config.load_format,
        seed=config.seed,
        max_model_len=config.max_model_len,
        device=config.device,
        progress=progress,
        cancelled=cancelled,
    )
    return Draft(
        name=source.name,
        model=head,
        dtype=dtype,
        weights_bytes=sum(weight_bytes(head, DeviceMap(config.device)).values()),
        layers=head.kv_layers,
        vocab_size=shape.vocab_size,
        max_model_len=config.max_model_len,
        taps=Taps(target_model, shape.layer_ids),
    )


def _of_draft(
    progress: Callable[[str, int, int], None], stage: str, done: int, total: int
) -> None:
    progress(f"Draft model: {stage.lower()}", done, total)


def make_proposer(config: EngineConfig, draft: Draft | None, num_blocks: int) -> Proposer | None:
    """The proposer of `config.speculative_method`; a draft model's with a cache of its own over as
    many blocks as the model's. Raises MemoryError or RuntimeError where it cannot be allocated."""
    if config.speculative_method == "ngram":
        return NgramProposer(config.prompt_lookup_min, config.prompt_lookup_max)
    if config.speculative_method == "off" or draft is None:
        return None
    # what is planned for it: see memory.held_beside_steps
    cache = make_backend(
        config, draft.layers, num_blocks, draft.dtype, most_workspace=WORKSPACE_BYTES
    )
    if isinstance(draft.model, Eagle3Head) and draft.taps is not None:
        return Eagle3Proposer(
            draft.model,
            draft.taps,
            cache,
            weights_bytes=draft.weights_bytes,
            block_size=config.block_size,
            device=torch.device(config.device),
        )
    return DraftModelProposer(
        ModelRunner(draft.model, cache, config.device),
        weights_bytes=draft.weights_bytes,
        block_size=config.block_size,
        vocab_size=draft.vocab_size,
        max_model_len=draft.max_model_len,
    )
