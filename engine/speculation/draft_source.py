"""Which model drafts, and whether it can: before a byte of its weights is read."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.errors import (
    CheckpointError,
    DraftModelError,
    InferdeckError,
    UnsupportedModelError,
)
from engine.hardware.machine import default_dtype
from engine.models.architecture import count_parameters
from engine.models.checkpoint import Checkpoint
from engine.speculation.eagle3.shape import read_shape
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
            f"Speculative decoding with {what} needs {what}.",
            "Name its folder (speculative_model), or choose the method ngram or off.",
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
            f"The draft model {draft.name} has {count:,} parameters, more than the "
            f"{most:,} of {target.name}: it could only slow it down.",
            "Choose a smaller draft model, or exchange the two.",
        )
    try:
        own = Tokenizer.from_folder(draft.path, allow_missing=config.load_format == "dummy")
    except CheckpointError as error:
        raise unusable(error) from error
    _check_vocabulary(draft, own, target, tokenizer)
    return draft


def unusable(error: InferdeckError, what: str = "draft model") -> DraftModelError:
    """What is wrong with the draft model itself, said of the draft model."""
    return DraftModelError(f"The {what} cannot be used. {error.cause}", error.remedy)


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
        example = f" Token {i} is {mine[i]!r} there and {theirs[i]!r} here."
    raise DraftModelError(
        f"The draft model {draft.name} has another vocabulary than {target.name}: "
        f"{len(mine):,} and {len(theirs):,} tokens, of which {len(different):,} ids mean "
        f"something else.{example}",
        "Choose a draft model of the same family, with the same tokenizer.",
    )


def draft_source(
    config: EngineConfig, checkpoint: Checkpoint, tokenizer: Tokenizer, host_layers: int
) -> Checkpoint | None:
    """The checkpoint of the draft model or head, checked against the model's; None where there is
    none. host_layers: of the model, beside a GPU."""
    if config.speculative_method == "draft_model":
        return check_draft(config, checkpoint, tokenizer)
    if config.speculative_method == "eagle3":
        if config.tensor_parallel_size > 1:
            raise DraftModelError(
                "An EAGLE-3 head drafts from the embeddings of the whole model, and each of "
                f"{config.tensor_parallel_size} ranks has a part of them.",
                "Use the method draft_model or ngram, or set tensor_parallel_size to 1.",
            )
        if config.pipeline_parallel_size > 1:
            raise DraftModelError(
                "An EAGLE-3 head drafts from hidden states of the whole model on one device, and "
                f"its layers are on {config.pipeline_parallel_size} GPUs.",
                "Use the method draft_model or ngram, or set pipeline_parallel_size to 1.",
            )
        if host_layers:
            raise DraftModelError(
                "An EAGLE-3 head drafts from hidden states and embeddings of the whole model on "
                f"one device, and the CPU has {host_layers} layers of {checkpoint.name}.",
                "Use the method draft_model or ngram, or bring all layers to the GPU: fewer bits a "
                "weight, a shorter context.",
            )
        return check_head(config, checkpoint)
    return None
