"""What config.json may say: types and bounds of its fields, checked before any of it is used.

transformers builds lists as long as `num_hidden_layers` while it reads a config, and modules of any
size after that. Whether the numbers fit the weights, the shapes of the tensors tell later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine.errors import CheckpointError
from engine.json_file import checked, shown

REMEDY = "Download config.json again, or choose another model."
MAX_LAYERS = 1024
_MOST = (
    (re.compile(r"layers?$|layers_|^depth$|num_blocks"), MAX_LAYERS),
    (re.compile(r"experts?($|_)|heads?$"), 2**16),
    (re.compile(r"size|dim$|dim_|rank|embd|d_model|n_inner|channels|groups?$"), 2**25),
    (re.compile(r"position|length|window|ctx"), 2**31),
)
"""The greatest values by what a field's name says; the first that matches. Models in use have up to
160 layers, 16,384 experts, 20,000,000 rows in a table and 10,485,760 positions."""
_TEXT_PARTS = (
    "text_config", "decoder", "generator", "thinker_config", "transformer_layer_config",
    "rope_scaling", "rope_parameters",
)  # fmt: skip

_CHOSEN = ("num_experts_per_tok", "moe_topk", "moe_top_k", "top_k_experts", "moe_k")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")

_Count = Annotated[int, Meta(ge=1)]
_Natural = Annotated[int, Meta(ge=0)]
_Counts = _Count | list[_Count]  # some models have one per layer
_Naturals = _Natural | list[_Natural]
_Finite = Annotated[float, Meta(ge=-1e38, le=1e38)]
_Positive = Annotated[float, Meta(gt=0, le=1e38)]
_Share = Annotated[float, Meta(gt=0, le=1)]
_NotNegative = Annotated[float, Meta(ge=0, le=1e38)]
_Object = dict[str, Any]

_FIELDS: dict[Any, str] = {
    str: "model_type hidden_act hidden_activation activation_function rope_type",
    list[str]: "architectures layer_types mlp_layer_types",
    bool: "is_encoder_decoder tie_word_embeddings use_sliding_window",
    int | list[int]: "bos_token_id eos_token_id pad_token_id",
    _Count: "num_hidden_layers n_layer n_layers num_layers hidden_size n_embd d_model vocab_size "
    "n_positions",
    _Counts: "num_attention_heads n_head n_heads num_key_value_heads head_dim intermediate_size",
    _Natural: "max_position_embeddings max_seq_len seq_length num_local_experts "
    "n_routed_experts num_experts_per_tok kv_lora_rank q_lora_rank qk_nope_head_dim "
    "qk_rope_head_dim v_head_dim",
    _Naturals: "sliding_window attention_chunk_size n_shared_experts num_experts "
    "moe_intermediate_size",
    _NotNegative: "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps initializer_range",
    _Finite: "attention_multiplier embedding_multiplier residual_multiplier logits_scaling "
    "attn_logit_softcapping final_logit_softcapping routed_scaling_factor",
    _Positive: "rope_theta query_pre_attn_scalar factor",
    _Share: "partial_rotary_factor rotary_pct",
    list[_Positive]: "short_factor long_factor",
    _Object: "text_config rope_scaling rope_parameters transformer_layer_config "
    "quantization_config",
}  # fmt: skip
_Known = msgspec.defstruct(
    "_Known",
    [(name, kind | None, None) for kind, names in _FIELDS.items() for name in names.split()],
)


def check_fields(raw: Mapping[str, Any], file: Path) -> None:
    """Raise CheckpointError for the first field of config.json with another type than it has, or
    out of bounds. Fields of the vision and audio parts have upper bounds only."""
    checked(dict(raw), _Known, file)
    for path, part in _parts(raw, ""):
        if any(name in _TEXT_PARTS for name in path.split(".")):
            checked(dict(part), _Known, f"{path} in {file}")
        for name, value in part.items():
            limit = next((most for words, most in _MOST if words.search(name)), None)
            numbers = [n for n in (value if isinstance(value, list) else [value]) if type(n) is int]
            if limit is not None and max(numbers, default=0) > limit:
                field = f"{path}.{name}".removeprefix(".")
                raise CheckpointError(
                    f"{file} has {field} = {shown(value)}; the limit is {limit:,}.", REMEDY
                )


def _parts(part: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """An object with its path, and those in it; their depth is bounded."""
    yield path, part
    for name, value in part.items():
        if isinstance(value, Mapping):
            yield from _parts(value, f"{path}.{name}".removeprefix("."))


def check_built(config: Any, file: Path) -> None:
    """Raise CheckpointError for unknown activations and RoPE types, and for numbers of heads,
    experts or layer types that do not fit each other. `config`: of transformers, which gives each
    field its usual name."""
    from engine.lazy_transformers import ACT2FN, ROPE_INIT_FUNCTIONS

    for name in ("hidden_act", "hidden_activation", "activation_function"):
        value = of_all_layers(config, name)
        if isinstance(value, str) and value not in ACT2FN:
            raise CheckpointError(
                f"{file} has {name} = {shown(value)}, which transformers does not support.", REMEDY
            )
    for part in rope_parts(config):
        if part.get("rope_theta", 1) is None:
            raise CheckpointError(
                f"{file} has rope_parameters with rope_theta = null; expected a number.", REMEDY
            )
        kind = part.get("rope_type")
        if kind not in (None, "default", *ROPE_INIT_FUNCTIONS):
            raise CheckpointError(
                f"{file} has rope_parameters with rope_type = {shown(kind)}, which transformers "
                "does not support.",
                REMEDY,
            )
    heads, kv_heads = (
        of_all_layers(config, name) for name in ("num_attention_heads", "num_key_value_heads")
    )
    if isinstance(heads, int) and isinstance(kv_heads, int) and (kv_heads < 1 or heads % kv_heads):
        raise CheckpointError(
            f"{file} has num_attention_heads = {heads}, not a multiple of num_key_value_heads = "
            f"{kv_heads}.",
            REMEDY,
        )
    _check_experts(config, file)
    layers, types = (of_all_layers(config, n) for n in ("num_hidden_layers", "layer_types"))
    if isinstance(layers, int) and isinstance(types, list) and len(types) < layers:
        raise CheckpointError(
            f"{file} has num_hidden_layers = {layers}, but {len(types)} layer_types.", REMEDY
        )


def rope_parts(config: Any) -> list[Mapping[str, Any]]:
    """The RoPE parameters of all layers, or those of each kind of layer."""
    rope = of_all_layers(config, "rope_parameters") or {}
    return [rope, *(one for one in rope.values() if isinstance(one, dict))]


def _check_experts(config: Any, file: Path) -> None:
    """A token has at least one expert, and no more than there are. Dense models have 0 of both."""
    chosen, count = (
        next((name for name in names if isinstance(of_all_layers(config, name), int)), None)
        for names in (_CHOSEN, _EXPERTS)
    )
    if chosen is None or count is None:
        return
    most, number = getattr(config, count), getattr(config, chosen)
    if most > 1 and not 1 <= number <= most:
        raise CheckpointError(
            f"{file} has {chosen} = {number} and {count} = {most}; expected 1 to {most} experts "
            "per token.",
            REMEDY,
        )


def check_layers(config: Any, num_tensors: int, folder: Path) -> None:
    """Raise CheckpointError for more layers than tensors, before the layers are built."""
    layers = of_all_layers(config, "num_hidden_layers")
    if isinstance(layers, int) and layers > num_tensors:
        raise CheckpointError(
            f"{folder / 'config.json'} has num_hidden_layers = {layers}; number of tensors in the "
            f"weight files: {num_tensors}.",
            "Download the model again: config.json does not match its weights.",
        )


def of_all_layers(config: Any, name: str, differing: Any = None) -> Any:
    """A setting of a config, None where it has none; `differing` where each layer has its own:
    transformers then refuses to say one for all."""
    try:
        return getattr(config, name, None)
    except RuntimeError:
        return differing
