"""The computation of the smoke test: random weights, ragged steps over a paged cache, and the same
sequences by transformers alone.

sequence   computed tokens by step              block tables
A          3   1   .   1   1                    [1 0]
B          13  1   19  1   1                    [10 ...  2]
C          21  1   1   17  1                    [21 ... 11]
D          .   17  1   1   1                    [21 20 28 ... 22]   the first 8 tokens are C's
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engine.attention.cpu import CPUAttention
from engine.attention.interface import NAME, active, register
from engine.attention.masks import bind_masks, copy_masks
from engine.batch.batch import Batch, Span, pack
from engine.errors import UnsupportedModelError, is_out_of_memory
from engine.models.architecture import VOCAB_SIZE, build_on_meta, shares_kv
from engine.models.layers.attention import attention_swaps
from engine.models.layers.positions import give_positions
from engine.models.layers.replacement import apply_all, restore_all
from engine.models.materialise import freeze_rotary
from engine.runner.model_runner import forward, probe_kv, without_padding_check

TOLERANCE = 1e-3  # of log probabilities, in float32
BLOCK_SIZE = 4
MAX_MODEL_LEN = 64
_SHARED = 2 * BLOCK_SIZE  # tokens of D that C has computed before
_STEPS = ((3, 13, 21, 0), (1, 1, 1, 17), (0, 19, 1, 1), (1, 1, 17, 1), (1, 1, 1, 1))
_MOST_WORDS = 160


class _Sequence(NamedTuple):
    token_ids: list[int]
    blocks: list[int]
    num_cached: int


def judge(class_path: str, config_json: str) -> str | None:
    """Why the engine does not compute what a class of transformers ("module:name") computes, or
    None where it does."""
    module, _, name = class_path.partition(":")
    try:
        model_class = getattr(importlib.import_module(module), name)
    except Exception as error:  # of a module of transformers, at its import
        return failure(error)
    found = largest_difference(model_class, config_json)
    if isinstance(found, str):
        return found
    if found <= TOLERANCE:
        return None
    return (
        f"log probabilities differ from those of transformers by {found:.2g} "
        f"(tolerance {TOLERANCE:g}) in a smoke test of a few layers."
    )


def failure(error: Exception) -> str:
    """An exception of a class of transformers, in words."""
    text = " ".join(str(error).split()).rstrip(".")[:_MOST_WORDS]
    return f"a smoke test of a few layers failed with {type(error).__name__} ({text})."


def largest_difference(model_class: type[nn.Module], config_json: str) -> float | str:
    """Between log probabilities of the engine and of transformers, with random weights; or why they
    could not be compared."""

    def both(config: Any) -> tuple[Tensor, Tensor]:
        found, expected = packed_and_alone(model_class, config)
        return found.log_softmax(-1), expected.log_softmax(-1)

    return difference_in(config_json, both)


def difference_in(config_json: str, compute: Callable[[Any], tuple[Tensor, Tensor]]) -> float | str:
    """The largest difference between both that are computed for a config, from one seed; or why
    they could not be."""
    from engine.lazy_transformers import AutoConfig

    values = json.loads(config_json)
    try:
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(0)
            found, expected = compute(config)
    except UnsupportedModelError as error:
        return error.cause
    except Exception as error:  # whatever a class of transformers raises is the answer
        if is_out_of_memory(error) or isinstance(error, OSError):
            raise  # of this machine now
        return failure(error)
    difference = float((found - expected).abs().max())
    return difference if difference == difference else math.inf


def build_random(model_class: type[nn.Module], config: Any) -> nn.Module:
    """In float32, with transformers' own attention and activations near 1."""
    make = model_class._from_config  # type: ignore[attr-defined]
    model: nn.Module = make(config, attn_implementation="eager", dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        else:  # norms near 1: with small ones attention would look at all tokens alike
            nn.init.normal_(parameter, mean=float(name.endswith("weight")), std=0.3)
    return model


def packed_and_alone(model_class: type[nn.Module], config: Any) -> tuple[Tensor, Tensor]:
    """Logits [tokens, V] of all sequences by the engine, and one by one by transformers' own eager
    attention with its own masks."""
    register()
    structure = build_on_meta(config, model_class)
    bind_masks(structure, MAX_MODEL_LEN)
    model = build_random(model_class, config)
    copy_masks(structure, model)
    freeze_rotary(model, MAX_MODEL_LEN)  # of both: they depend on the length otherwise
    sequences = _sequences()
    alone = [_eagerly(model, one)[one.num_cached :] for one in sequences]
    return _packed(model, sequences), torch.cat(alone)


def _sequences() -> list[_Sequence]:
    sequences: list[_Sequence] = []
    free = 0
    for index, lengths in enumerate(zip(*_STEPS, strict=True)):
        num_cached = _SHARED if index == len(_STEPS[0]) - 1 else 0
        token_ids = torch.randint(0, VOCAB_SIZE, (sum(lengths),)).tolist()
        blocks = list(range(free, free - (-len(token_ids) // BLOCK_SIZE)))[::-1]
        free += len(blocks)
        if num_cached:
            before = sequences[-1]
            token_ids = before.token_ids[:num_cached] + token_ids
            blocks = before.blocks[: num_cached // BLOCK_SIZE] + blocks
        sequences.append(_Sequence(token_ids, blocks, num_cached))
    return sequences


def _eagerly(model: nn.Module, sequence: _Sequence) -> Tensor:
    logits: Tensor = model(torch.tensor([sequence.token_ids]), use_cache=False).logits[0]
    return logits


def _batches(sequences: list[_Sequence]) -> Iterator[tuple[list[int], Batch]]:
    """The sequences of each step, and their tokens."""
    ends = [one.num_cached for one in sequences]
    for lengths in _STEPS:
        members = [index for index, length in enumerate(lengths) if length]
        spans = []
        for index in members:
            ids, blocks, _ = sequences[index]
            start, ends[index] = ends[index], ends[index] + lengths[index]
            num_blocks = -(-ends[index] // BLOCK_SIZE)
            spans.append(Span(ids[start : ends[index]], start, blocks[:num_blocks], 0))
        yield members, pack(spans, BLOCK_SIZE)


def _packed(model: nn.Module, sequences: list[_Sequence]) -> Tensor:
    """Logits of the tokens that are not cached, sequence after sequence."""
    config: Any = model.config
    model.set_attn_implementation(NAME)  # type: ignore[operator]
    without_padding_check(model)
    give_positions(model)
    swaps = list(attention_swaps(model))  # they choose their windows themselves
    apply_all(swaps)
    try:
        layers = probe_kv(model)
        sharing = sum(map(shares_kv, model.modules()))
        if len(layers) + sharing != config.num_hidden_layers:
            raise UnsupportedModelError(
                f"expected one attention call per layer; found {len(layers)} in "
                f"{config.num_hidden_layers} layers."
            )
        num_blocks = 1 + max(block for one in sequences for block in one.blocks)
        backend = CPUAttention(layers, num_blocks, BLOCK_SIZE, torch.float32)
        rows: list[list[Tensor]] = [[] for _ in sequences]
        for members, batch in _batches(sequences):
            backend.begin_step(batch)
            with active(backend):
                everything = torch.arange(batch.num_tokens)
                logits = forward(model, batch.input_ids, batch.positions, everything)
            for place, index in enumerate(members):
                start, end = batch.query_start_loc[place : place + 2]
                rows[index].append(logits[start:end])
    finally:
        restore_all(swaps)
    return torch.cat([part for parts in rows for part in parts])
