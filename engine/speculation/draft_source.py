"""Which model drafts, and whether it can: before a byte of its weights is read."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.errors import (
    CheckpointError,
    DraftModelError,
    InferdeckError,
    UnsupportedModelError,
)
from engine.loading.checkpoint import Checkpoint
from engine.machine import default_dtype
from engine.tokenization import Tokenizer

_MOST_DIFFERENT = 0.01
"""Of the token ids: special tokens that a fine-tune renamed do no harm, for what stands is decided
by ids; another vocabulary would have next to no draft accepted."""


def open_draft(config: EngineConfig) -> Checkpoint:
    """The folder of `config.speculative_model`, checked for itself. Raises DraftModelError where
    none is named or it cannot be opened."""
    if not config.speculative_model:
        raise DraftModelError(
            "Speculative decoding with a draft model needs a draft model.",
            "Name its folder (speculative_model), or choose the method ngram or off.",
        )
    try:
        return Checkpoint.open(config.speculative_model, dummy=config.load_format == "dummy")
    except (CheckpointError, UnsupportedModelError) as error:
        raise unusable(error) from error


def draft_dtype(config: EngineConfig, draft: Checkpoint) -> str:
    """float32 beside a float32 model; else what the machine computes fast at the draft's size."""
    if config.dtype == "float32":
        return "float32"
    return default_dtype(draft.dtype, draft.num_parameters)


def check_draft(config: EngineConfig, target: Checkpoint, tokenizer: Tokenizer) -> Checkpoint:
    """`open_draft`, checked against the model that it is to draft for. Reads no weights.

    Raises DraftModelError where it is larger than that model or has another vocabulary.
    """
    draft = open_draft(config)
    if draft.num_parameters > target.num_parameters:
        raise DraftModelError(
            f"The draft model {draft.name} has {draft.num_parameters:,} parameters, more than the "
            f"{target.num_parameters:,} of {target.name}: it could only slow it down.",
            "Choose a smaller draft model, or exchange the two.",
        )
    try:
        own = Tokenizer.from_folder(draft.path, allow_missing=config.load_format == "dummy")
    except CheckpointError as error:
        raise unusable(error) from error
    _check_vocabulary(draft, own, target, tokenizer)
    return draft


def unusable(error: InferdeckError) -> DraftModelError:
    """What is wrong with the draft model itself, said of the draft model."""
    return DraftModelError(f"The draft model cannot be used. {error.cause}", error.remedy)


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
