"""Smoke test of an untested architecture: do packed sequences give the same results as single ones?

Most decoder-only transformers classes do. Some keep state across the tokens of a row, build their
own mask, or never call the attention interface: their sequences would leak into each other without
an error. So two layers of the real shape are built with random weights, and a ragged batch in one
row is compared with the sequences one by one under transformers' own eager attention.
"""

from __future__ import annotations

import copy
import functools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engine.attention.cpu import CPUAttention
from engine.attention.interface import NAME, active, register
from engine.batch.batch import Span, pack
from engine.errors import UnsupportedModelError
from engine.models.architecture import VOCAB_SIZE, shrink_vocabulary
from engine.runner.model_runner import forward, probe_kv

TESTED = frozenset(
    (
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "gpt_oss",
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "starcoder2",
    )
)
"""Model types whose tokens the tests compare with transformers' own."""

TOLERANCE = 1e-3  # of logits whose spread is about 1, in float32
NUM_LAYERS, _MOST_LAYERS = 2, 4
_FEW_EXPERTS = 16
_EXPERTS = ("moe_num_experts", "n_routed_experts", "num_experts", "num_local_experts")
_DENSE_LAYERS = ("first_k_dense_replace", "num_dense_layers")
"""How many layers come before those with experts."""

BLOCK_SIZE = 4
LENGTHS = (5, 1, 11)


def check_architecture(config: Any, model_class: type[nn.Module]) -> None:
    """Raise UnsupportedModelError where packed sequences come out otherwise than one by one.

    Nothing is done for a tested model type. Takes seconds and the memory of two layers in float32,
    or of one of each kind.
    """
    if config.model_type in TESTED:
        return
    hashable: Any = model_class  # a class is; its stub in torch says otherwise
    reason = _run(hashable, shrunk_config(config).to_json_string(use_diff=False))
    if reason is not None:
        raise UnsupportedModelError(
            f"{model_class.__name__} is not supported: {reason}",
            "Choose a model with another architecture, for example Llama, Qwen3, Mistral or Gemma.",
        )


@functools.cache
def _run(model_class: Any, config_json: str) -> str | None:
    found = difference_in(config_json, functools.partial(_packed_and_alone, model_class))
    if isinstance(found, str):
        return found
    if found <= TOLERANCE:
        return None
    return (
        f"batched and single-sequence results differ by {found:.2g} "
        f"(tolerance {TOLERANCE:g}) in a smoke test of a few layers."
    )


def _packed_and_alone(model_class: type[nn.Module], config: Any) -> tuple[Tensor, Tensor]:
    register()
    model = build_random(model_class, config)
    sequences = [torch.randint(0, VOCAB_SIZE, (n,)).tolist() for n in LENGTHS]
    alone = [model(torch.tensor([ids]), use_cache=False).logits[0] for ids in sequences]
    return _packed(model, sequences), torch.cat(alone)


def difference_in(config_json: str, compute: Callable[[Any], tuple[Tensor, Tensor]]) -> float | str:
    """The largest difference between both that are computed for a config, from one seed; or why
    they could not be."""
    from engine.lazy_transformers import AutoConfig

    values = json.loads(config_json)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(0)
            found, expected = compute(config)
    except UnsupportedModelError as error:
        return error.cause
    except Exception as error:  # whatever a class of transformers raises is the answer
        return f"a smoke test of a few layers failed with {type(error).__name__}: {error}"
    difference = float((found - expected).abs().max())
    return difference if difference == difference else math.inf


def shrunk_config(config: Any) -> Any:
    """The same shape with a small vocabulary, few experts, and two layers: or as many as there are
    kinds of layers, up to four."""
    shrunk = copy.deepcopy(config)
    count = config.num_hidden_layers
    lists = {
        name: value
        for name, value in vars(config).items()
        if isinstance(value, (list, tuple)) and len(value) == count > NUM_LAYERS
    }  # one entry per layer
    chosen = _of_each_kind(list(map(repr, zip(*lists.values(), strict=True))), count)
    for name, value in lists.items():
        setattr(shrunk, name, [value[layer] for layer in chosen])
    shrunk.num_hidden_layers = len(chosen)
    for name in _DENSE_LAYERS:  # the second has experts, where there are some
        if isinstance(first := getattr(config, name, None), int) and 1 < first < count:
            setattr(shrunk, name, 1)
    for name in _EXPERTS:
        if isinstance(number := vars(config).get(name), int) and number > _FEW_EXPERTS:
            setattr(shrunk, name, _fewer(config, number))
    shrink_vocabulary(shrunk)
    return shrunk


def _of_each_kind(kinds: Sequence[str], count: int) -> list[int]:
    """The first layer of each kind, in order; two at least, where there are as many. kinds: of each
    layer, or none where nobody tells."""
    firsts = sorted({kind: layer for layer, kind in reversed(list(enumerate(kinds)))}.values())
    chosen = firsts[:_MOST_LAYERS]
    missing = min(NUM_LAYERS, count) - len(chosen)
    if missing > 0:
        chosen += [layer for layer in range(count) if layer not in chosen][:missing]
    return sorted(chosen)


def _fewer(config: Any, number: int) -> int:
    """So many experts that each group has some, and that a token does not have all."""
    groups = getattr(config, "n_group", None) or 1
    few = max(_FEW_EXPERTS, 2 * (getattr(config, "num_experts_per_tok", None) or 1))
    return min(number, -(-few // groups) * groups)


def build_random(model_class: type[nn.Module], config: Any) -> nn.Module:
    make = model_class._from_config  # type: ignore[attr-defined]
    model: nn.Module = make(config, attn_implementation="eager", dtype=torch.float32).eval()
    for parameter in model.parameters():
        # Widths differ: this keeps activations, and so the logits, near 1.
        std = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.1
        nn.init.normal_(parameter, std=std)
    return model


def _packed(model: nn.Module, sequences: Sequence[list[int]]) -> torch.Tensor:
    """Logits of all tokens, computed in two ragged steps over a paged cache."""
    model.set_attn_implementation(NAME)  # type: ignore[operator]
    layers = probe_kv(model)
    if len(layers) != model.config.num_hidden_layers:  # type: ignore[union-attr]
        raise UnsupportedModelError(
            f"only {len(layers)} of {model.config.num_hidden_layers} layers "  # type: ignore[union-attr]
            "call the engine's attention.",
        )
    tables, first_block = [], 0
    for ids in sequences:
        count = -(-len(ids) // BLOCK_SIZE)
        tables.append(list(range(first_block, first_block + count))[::-1])
        first_block += count
    backend = CPUAttention(layers, first_block, BLOCK_SIZE, torch.float32)
    rows: list[list[torch.Tensor]] = [[] for _ in sequences]
    for half in (0, 1):
        taking_part = [
            (index, start, end)
            for index, ids in enumerate(sequences)
            for start, end in [((0, len(ids) // 2), (len(ids) // 2, len(ids)))[half]]
            if end > start
        ]
        batch = pack(
            [Span(sequences[i][start:end], start, tables[i], 0) for i, start, end in taking_part],
            BLOCK_SIZE,
        )
        backend.begin_step(batch)
        with active(backend):
            everything = torch.arange(batch.num_tokens)
            logits = forward(model, batch.input_ids, batch.positions, everything)
        for place, (index, _, _) in enumerate(taking_part):
            part = logits[batch.query_start_loc[place] : batch.query_start_loc[place + 1]]
            rows[index].append(part)
    return torch.cat([part for parts in rows for part in parts])
