"""The draft model or head: checks its checkpoint, loads it, and makes its proposer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from engine.attention.backends import make_backend
from engine.attention.gpu import WORKSPACE_BYTES
from engine.config import EngineConfig
from engine.errors import (
    CheckpointError,
    DraftModelError,
    InferdeckError,
    UnsupportedModelError,
)
from engine.hardware.device_map import DeviceMap
from engine.hardware.machine import default_dtype
from engine.models.architecture import count_parameters, resolve_class
from engine.models.checkpoint import Checkpoint
from engine.models.loader import LoadRequest, load_model
from engine.models.materialise import weight_bytes
from engine.models.smoke_test import check_architecture
from engine.runner.model_runner import ModelRunner, probe_kv
from engine.speculation.draft_model import DraftModelProposer
from engine.speculation.eagle3.head import Taps
from engine.speculation.eagle3.proposer import Eagle3Proposer
from engine.speculation.eagle3.shape import read_shape
from engine.speculation.eagle3.weights import load_head
from engine.speculation.ngram import NgramProposer
from engine.speculation.proposer import Draft, Proposer
from engine.text.tokenizer import Tokenizer

_MOST_DIFFERENT = 0.01
"""Of the token ids: special tokens that a fine-tune renamed do no harm, for what stands is decided
by ids; another vocabulary would have next to no draft accepted."""


def open_draft(config: EngineConfig) -> Checkpoint:
    """The folder of `config.speculative_model`, checked for itself. Raises DraftModelError where
    none is named or it cannot be opened."""
    what = "an EAGLE-3 head" if config.speculative_method == "eagle3" else "a draft model"
    if not config.speculative_model:
        raise DraftModelError(
            f"Speculative decoding needs {what}.",
            "Set speculative_model to a model folder, or speculative_method to ngram or off.",
        )
    try:
        return Checkpoint.open(config.speculative_model, dummy=config.load_format == "dummy")
    except (CheckpointError, UnsupportedModelError) as error:
        raise unusable(error, what.partition(" ")[2]) from error


def draft_dtype(config: EngineConfig, draft: Checkpoint) -> str:
    """float32 beside a float32 model; else what the machine computes fast at the draft's size."""
    if config.dtype == "float32":
        return "float32"
    return default_dtype(draft.dtype, count_parameters(draft.config))


def check_head(config: EngineConfig, target: Checkpoint) -> Checkpoint:
    """`open_draft` for an EAGLE-3 head, checked against the model that it is to draft for."""
    head = open_draft(config)
    read_shape(head, target)
    return head


def check_draft(config: EngineConfig, target: Checkpoint, tokenizer: Tokenizer) -> Checkpoint:
    """`open_draft`, checked against the model that it is to draft for. Reads no weights.

    Raises DraftModelError where it is larger than that model or has another vocabulary.
    """
    draft = open_draft(config)
    count, most = count_parameters(draft.config), count_parameters(target.config)
    if count > most:
        raise DraftModelError(
            f"Draft model {draft.name} has {count:,} parameters, more than the "
            f"{most:,} of {target.name}.",
            "Choose a smaller draft model, or swap the two models.",
        )
    try:
        own = Tokenizer.from_folder(draft.path, allow_missing=config.load_format == "dummy")
    except CheckpointError as error:
        raise unusable(error) from error
    _check_vocabulary(draft, own, target, tokenizer)
    return draft


def unusable(error: InferdeckError, what: str = "draft model") -> DraftModelError:
    """The error of the draft model's own checkpoint."""
    return DraftModelError(f"Cannot use the {what}. {error.cause}", error.remedy)


def _check_vocabulary(
    draft: Checkpoint, own: Tokenizer, target: Checkpoint, tokenizer: Tokenizer
) -> None:
    """The models' matrices may be padded to different sizes; the tokens must be the same."""
    mine, theirs = own.tokens(), tokenizer.tokens()
    shared = min(len(mine), len(theirs))
    most = max(len(mine), len(theirs))
    different = [i for i in range(shared) if mine[i] != theirs[i]]
    if len(different) + most - shared <= _MOST_DIFFERENT * most:
        return
    example = ""
    if different:
        i = different[0]
        example = f" Token {i}: {mine[i]!r} in the draft model, {theirs[i]!r} in the target model."
    raise DraftModelError(
        f"Draft model {draft.name} and {target.name} have different vocabularies: "
        f"{len(mine):,} and {len(theirs):,} tokens, {len(different):,} mismatched "
        f"ids.{example}",
        "Choose a draft model from the same family, with the same tokenizer.",
    )


def draft_source(
    config: EngineConfig, checkpoint: Checkpoint, tokenizer: Tokenizer, host_layers: int
) -> Checkpoint | None:
    """The checkpoint of the draft model or head, checked against the model's; None where there is
    none. host_layers: of the model, beside a GPU."""
    if config.speculative_method == "draft_model":
        return check_draft(config, checkpoint, tokenizer)
    if config.speculative_method == "eagle3":
        if host_layers:
            raise DraftModelError(
                "EAGLE-3 needs all hidden states and embeddings on one device; CPU offload puts "
                f"{host_layers} layers of {checkpoint.name} on the CPU.",
                "Set speculative_method to draft_model or ngram, or fit all layers on the GPU: "
                "quantize the weights, or reduce max_model_len.",
            )
        return check_head(config, checkpoint)
    return None


def load_draft(
    config: EngineConfig,
    draft: Checkpoint,
    target: Checkpoint,
    target_model: nn.Module,
    progress: Callable[[str, int, int], None],
    cancelled: Callable[[], bool],
) -> Draft:
    """Load a draft that was checked. Raises DraftModelError, OutOfMemoryError or LoadCancelled."""

    def own_progress(stage: str, done: int, total: int) -> None:
        progress(f"Draft model: {stage.lower()}", done, total)

    assert config.max_model_len is not None, "resolved before"
    if config.speculative_method == "eagle3":
        shape = read_shape(draft, target)
        head = load_head(config, draft, shape, target_model, own_progress, cancelled)
        return Draft(
            name=draft.name,
            model=head,
            dtype=getattr(torch, config.dtype),
            weights_bytes=sum(weight_bytes(head, DeviceMap(config.device)).values()),
            layers=head.kv_layers,
            vocab_size=shape.vocab_size,
            max_model_len=config.max_model_len,
            taps=Taps(target_model, shape.layer_ids),
        )
    length = min(draft.max_position_embeddings or config.max_model_len, config.max_model_len)
    try:
        dtype = getattr(torch, draft_dtype(config, draft))
        request = LoadRequest(
            draft,
            dtype=dtype,
            device=config.device,
            load_format=config.load_format,
            seed=config.seed,
            max_model_len=length,
            progress=own_progress,
            cancelled=cancelled,
        )
        check_architecture(draft.config, resolve_class(draft), request.check)
        loaded = load_model(request)
        layers = probe_kv(loaded.model)
    except (CheckpointError, UnsupportedModelError) as error:
        raise unusable(error) from error
    return Draft(
        name=draft.name,
        model=loaded.model,
        dtype=dtype,
        weights_bytes=loaded.weights_bytes,
        layers=layers,
        vocab_size=min(draft.config.vocab_size, target.config.vocab_size),
        max_model_len=length,
    )


def make_proposer(config: EngineConfig, draft: Draft | None, num_blocks: int) -> Proposer | None:
    """The proposer of `config.speculative_method`; a draft model's with a cache of its own over as
    many blocks as the model's. Raises MemoryError or RuntimeError where it cannot be allocated."""
    if config.speculative_method == "ngram":
        return NgramProposer(config)
    if config.speculative_method == "off" or draft is None:
        return None
    # as planned: see memory.held_beside_steps
    cache = make_backend(
        config, draft.layers, num_blocks, draft.dtype, most_workspace=WORKSPACE_BYTES
    )
    size, device = config.block_size, config.device
    if isinstance(draft.taps, Taps):
        return Eagle3Proposer(draft, draft.taps, cache, size, device)
    return DraftModelProposer(ModelRunner(draft.model, cache, device), draft, size)
