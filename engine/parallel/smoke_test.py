"""Smoke test of tensor parallelism: does a transformers class compute the same in shards?

Correct shapes do not guarantee correct results: a norm over all heads needs the sum of all of them,
and some classes store projections in an order of their own. So two layers of the model's shape are
built with random weights, and the sharded logits are compared with the unsharded ones.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from engine.errors import UnsupportedModelError
from engine.models.architecture import VOCAB_SIZE, build_on_meta, class_for
from engine.models.smoke_config import shrunk_config
from engine.models.smoke_run import TOLERANCE, build_random, difference_in
from engine.parallel.ranks import join
from engine.parallel.shape import shape_of
from engine.parallel.share import Share
from engine.parallel.team import Team

TESTED = frozenset(
    (
        "gemma2", "gemma3_text", "gpt_oss", "llama", "mistral", "mixtral", "phi3", "qwen2",
        "qwen3", "qwen3_moe", "starcoder2",
    )
)
"""Model types whose tokens the tests compare with those of one rank."""

_NUM_TOKENS = 12


def check_division(config: Any, size: int) -> None:
    """Raise UnsupportedModelError where the model of `config` cannot be computed by `size` ranks.
    Takes seconds and twice the memory of two layers in float32 for types that no test covers."""
    shape_of(config, size)
    if config.model_type in TESTED:
        return
    reason = _run(shrunk_config(config).to_json_string(use_diff=False), size)
    if reason is not None:
        raise UnsupportedModelError(
            f"{class_for(config).__name__} does not support tensor parallelism: {reason}",
            "Set tensor_parallel_size to 1, or choose another model.",
        )


@functools.cache
def _run(config_json: str, size: int) -> str | None:
    found = difference_in(config_json, functools.partial(_parts_and_whole, size))
    if isinstance(found, str):
        return found
    if found <= TOLERANCE:
        return None
    return (
        "sharded and unsharded logits differ in a smoke test of a few layers: "
        f"{found:.2g} (tolerance {TOLERANCE:g})."
    )


def _parts_and_whole(size: int, config: Any) -> tuple[Tensor, Tensor]:
    whole = _spread(build_random(class_for(config), config))
    tokens = torch.randint(0, VOCAB_SIZE, (1, _NUM_TOKENS))
    return in_parts(whole, tokens, size), whole(tokens, use_cache=False).logits[0]


def _spread(model: nn.Module) -> nn.Module:
    """With norms and biases that differ enough for whatever was exchanged to be seen: attention
    that looks at some tokens, and not at all of them alike."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, mean=float(name.endswith("weight")), std=0.3)
    return model


def in_parts(whole: nn.Module, tokens: Tensor, size: int) -> Tensor:
    """Logits [T, V] of `whole`, a plain model on the CPU, by ranks that each have a part of its
    weights. tokens [1, T]."""
    shape = shape_of(whole.config, size)
    team = Team(("cpu",) * size, torch.get_num_threads())
    try:
        models = [_part(whole, Share(shape, rank), team) for rank in range(size)]

        @torch.inference_mode()
        def logits(rank: int) -> Tensor:
            found: Tensor = models[rank](tokens, use_cache=False).logits[0]
            return found

        parts = team.together(logits)
    finally:
        team.close()
    return torch.cat(parts, -1)[:, : shape.vocab_size] if shape.is_vocab_cut else parts[0]


def _part(whole: nn.Module, share: Share, team: Team) -> nn.Module:
    model = build_on_meta(share.config)
    weights = {name: share.cut(name, tensor) for name, tensor in whole.state_dict().items()}
    model.load_state_dict(weights, assign=True)
    buffers = dict(whole.named_buffers())
    for name, buffer in list(model.named_buffers()):
        if buffer.is_meta:
            path, _, attribute = name.rpartition(".")
            model.get_submodule(path)._buffers[attribute] = buffers[name]
    join(model, share, team.exchange)
    return model
