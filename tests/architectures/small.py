"""A small random model of any causal-LM class of transformers, from its own default config.

`sizes` shrinks most settings; `OVERRIDES` has what a class needs beside it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from tests.architectures.sizes import SIZES

NUM_LAYERS = 4
_MOST_LAYERS = 8

_LAYERS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers",
    "num_decoder_layers",
)  # fmt: skip
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id")
_KEPT_SMALLER = ("n_group", "topk_group", "num_key_value_heads", "head_dim")
"""A class whose own number is smaller keeps it."""

_GEMMA4 = {
    "per_layer_config": ..., "global_head_dim": 32, "num_global_key_value_heads": 1,
    "num_hidden_layers": 6, "num_kv_shared_layers": 3, "attention_k_eq_v": True,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32,
    "use_double_wide_mlp": True,
}  # fmt: skip
OVERRIDES: dict[str, dict[str, Any]] = {
    "gemma4_text": _GEMMA4,
    "gemma4": {f"text_config.{name}": value for name, value in _GEMMA4.items()},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "ministral": {"head_dim": 16},
    "lfm2_moe": {"layer_types": ["full_attention", "conv", "full_attention", "conv"]},
    "mamba2": {"num_heads": 16, "head_dim": 8},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "nemotron": {"num_key_value_heads": 2},
    "zaya": {"num_experts_per_tok": 1},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "xmod": {"default_language": "en_XX"},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0}
            for kind in ("sliding_attention", "full_attention")
        },
    },
    "emu3": {"vocabulary_map": {"<|extra_200|>": 3, "<image>": 4, "<|visual token 000000|>": 5}},
    "gemma4_unified_text": _GEMMA4,
    "gemma4_unified": {f"text_config.{name}": value for name, value in _GEMMA4.items()},
    "dory": {
        "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp"] * 3,
        "num_hidden_layers": 12, "n_input_layers": 4, "n_recurrent_layers": 4, "n_output_layers": 4,
    },
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
}
"""By path in the config; `...` removes a setting."""

_NEEDED = {
    "gemma4_assistant": {
        "text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    }
}
"""Settings without which a config class does not accept its own defaults."""


def small_config(model_type: str) -> Any:
    """The config of a model type. Raises whatever the class raises."""
    default = default_config(model_type)
    values = shrunk(default.to_dict())
    for path, value in OVERRIDES.get(model_type, {}).items():
        _put(values, path, value)
    return type(default).from_dict(values)


def default_config(model_type: str) -> Any:
    """With the class's own sizes."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type](**_NEEDED.get(model_type, {}))


def class_of(config: Any, class_name: str) -> type[nn.Module]:
    """The class of this name; or, where it takes only the text part of `config`, the multimodal
    class around it."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    named: Any = getattr(transformers, class_name)
    if isinstance(config, named.config_class):
        return named
    for names in (
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    ):  # fmt: skip
        if config.model_type in names:
            return getattr(transformers, names[config.model_type])
    return named


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        values = values[parent]
    if value is ...:
        values.pop(name, None)
    else:
        values[name] = value


def shrunk(values: dict[str, Any]) -> dict[str, Any]:
    """The settings of a config, those inside it too, with few layers of every kind."""
    values = copy.deepcopy(values)
    if "use_sliding_window" in values:
        values["use_sliding_window"] = True
    count = next((values[n] for n in _LAYERS if isinstance(values.get(n), int)), None)
    chosen = _chosen_layers(values, count) if count else []
    for name, value in values.items():
        if name == "per_layer_config" and value:
            values[name] = {
                place: shrunk(own)
                for place, layer in enumerate(chosen)
                if (own := value.get(layer, value.get(str(layer))))
            }
        elif isinstance(value, dict) and ("model_type" in value or name.endswith("_config")):
            values[name] = shrunk(value)
        elif name in _LAYERS and isinstance(value, int):
            values[name] = len(chosen) if value == count else min(value, NUM_LAYERS)
        elif isinstance(value, list) and len(value) == count:
            values[name] = [_small(name, value[layer]) for layer in chosen]
        else:
            values[name] = _small(name, value)
    if "qk_rope_head_dim" in values:  # multi-head latent attention: one key for all heads
        values["num_key_value_heads"] = values.get("num_attention_heads")
        if "head_dim" in values:
            values["head_dim"] = values["qk_rope_head_dim"]
        both = values["qk_rope_head_dim"] + values["qk_nope_head_dim"]
        if "qk_head_dim" in values:
            values["qk_head_dim"] = both
        for own in (values.get("per_layer_config") or {}).values():
            if "head_dim" in own:
                own["head_dim"] = both
    return values


def _small(name: str, value: Any) -> Any:
    if name in _TOKENS and isinstance(value, int):
        return min(value, _TOKENS.index(name))
    if name not in SIZES or isinstance(value, (bool, str, dict)):
        return value
    if isinstance(value, (list, tuple)):
        return [_small(name, each) for each in value]
    if value is None and name != "sliding_window":
        return None
    if value is not None and (value <= 0 or (name in _KEPT_SMALLER and value < SIZES[name])):
        return value
    return SIZES[name]


def _chosen_layers(values: dict[str, Any], count: int) -> list[int]:
    """The first two layers of each kind, NUM_LAYERS at least where there are as many."""
    lists = [v for v in values.values() if isinstance(v, list) and len(v) == count > 1]
    kinds = [repr(kind) for kind in zip(*lists, strict=True)] or ["layer"] * count
    seen: dict[str, int] = {}
    chosen = []
    for layer, kind in enumerate(kinds):
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= 2 and len(chosen) < _MOST_LAYERS:
            chosen.append(layer)
    rest = [layer for layer in range(count) if layer not in chosen]
    return sorted(chosen + rest[: max(0, NUM_LAYERS - len(chosen))])


def random_model(model_class: type[nn.Module], config: Any) -> nn.Module:
    """Float32, eager attention, weights with which logits spread. Raises ValueError if they do not,
    or if earlier tokens do not change them."""
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model: nn.Module = model_class(config).float().eval().requires_grad_(False)
    model.set_attn_implementation("eager")  # type: ignore[operator]
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.ndim > 1:
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
        elif parameter.is_floating_point():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    head = model.get_output_embeddings()  # type: ignore[operator]
    for _ in range(3):
        spread = float(last_logits(model, PROBE).std())
        if 1 < spread < 4 or head is None:
            break
        head.weight.mul_(2 / spread)
    effect = last_logits(model, PROBE) - last_logits(model, CHANGED)
    if not (0.3 < spread < 30 and float(effect.abs().max()) > 0.05):
        raise ValueError(
            f"spread of logits {spread:.2g}, effect of a token {effect.abs().max():.2g}"
        )
    return model


PROBE = list(range(5, 25))
CHANGED = [*PROBE[:-3], 30, *PROBE[-2:]]


def last_logits(model: nn.Module, tokens: list[int]) -> torch.Tensor:
    return all_logits(model, tokens)[-1]


def all_logits(model: nn.Module, tokens: list[int]) -> torch.Tensor:
    """In one pass without a cache: [T, vocab]."""
    # of transformers 5.24 Llama4ForConditionalGeneration fails without an image
    inner = getattr(model, "language_model", None)
    model = inner if hasattr(inner, "lm_head") else model
    found: torch.Tensor = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return found.float()
