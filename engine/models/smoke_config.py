"""A small model with every kind of layer of a large one, for the smoke test.

Widths of the hidden state and heads stay. Layers, experts, feed-forward widths and vocabulary
become few; windows become so small that the prompts of the test cross them several times.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from engine.models.architecture import shrink_vocabulary

NUM_LAYERS, _MOST_LAYERS = 2, 8
_FEW_EXPERTS = 16
_NARROW = 128
_EXPERTS = ("moe_num_experts", "n_routed_experts", "num_experts", "num_local_experts")
_DENSE_LAYERS = ("first_k_dense_replace", "num_dense_layers")
"""How many layers come before those with experts."""
_SHARING = "num_kv_shared_layers"
"""How many of the last layers attend to the KV of earlier ones."""
_FEED_FORWARD = (
    "expert_intermediate_size", "ffn_dim", "ffn_hidden_size", "intermediate_size",
    "intermediate_size_mlp", "moe_intermediate_size", "n_inner", "shared_expert_intermediate_size",
)  # fmt: skip
WINDOWS = {
    "attention_chunk_size": 7,
    "attention_window_size": 5,
    "keep_window_size": 5,
    "local_attention": 6,  # half of it to each side
    "local_attention_window_len": 5,
    "sliding_window": 5,
    "sliding_window_size": 5,
    "window_size": 5,
    # positions from which something else is computed
    "floor_scale": 3,
    "log_scaling_n_floor": 3,
    "index_topk": 4,
}
"""Settings that count tokens, and their values in the test: they differ, so that one in the place
of another shows."""
_ROPE_LENGTH = "original_max_position_embeddings"


def shrunk_config(config: Any) -> Any:
    """The same shape with a small vocabulary, few experts, small windows, and two layers: or as
    many as there are kinds of layers, up to eight."""
    shrunk = copy.deepcopy(config)
    count = config.num_hidden_layers
    lists = {
        name: value
        for name, value in vars(config).items()
        if isinstance(value, (list, tuple)) and len(value) == count > NUM_LAYERS
    }  # one entry per layer
    single = config.to_dict().get("per_layer_config") or {}
    own = {int(layer): settings for layer, settings in single.items()}
    sharing = range(count - (getattr(config, _SHARING, None) or 0), count)
    kinds = [
        repr(([value[i] for value in lists.values()], own.get(i), i in sharing))
        for i in range(count)
    ]
    chosen = _of_each_kind(kinds, count)
    for name, value in lists.items():
        setattr(shrunk, name, [value[layer] for layer in chosen])
    shrunk.num_hidden_layers = len(chosen)
    if own:
        places = enumerate(chosen)
        shrunk.per_layer_config = {place: own[i] for place, i in places if i in own}
    if sharing:
        setattr(shrunk, _SHARING, sum(layer in sharing for layer in chosen))
    for name in _DENSE_LAYERS:  # the second has experts, where there are some
        if isinstance(first := getattr(config, name, None), int) and 1 < first < count:
            setattr(shrunk, name, 1)
    for name in _EXPERTS:
        if isinstance(number := vars(config).get(name), int) and number > _FEW_EXPERTS:
            setattr(shrunk, name, _fewer(config, number))
    for name, few in {**dict.fromkeys(_FEED_FORWARD, _NARROW), **WINDOWS}.items():
        value = vars(shrunk).get(name)
        if isinstance(value, list):  # one per layer
            setattr(shrunk, name, [n if n is None else min(n, few) for n in value])
        elif isinstance(value, int) and value > few:
            setattr(shrunk, name, few)
    rope = getattr(shrunk, "rope_parameters", None)
    if isinstance(rope, dict) and "llama_4_scaling_beta" in rope:  # scores grow from this position
        rope[_ROPE_LENGTH] = WINDOWS["floor_scale"]
    shrink_vocabulary(shrunk)
    return shrunk


def _of_each_kind(kinds: Sequence[str], count: int) -> list[int]:
    """The first layer of each kind, in order; two at least, where there are as many. kinds: of each
    layer."""
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
