"""The transformers class of a checkpoint, and whether the engine supports it."""

from __future__ import annotations

import copy
import math
import sys
import threading
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn

from engine.errors import CheckpointError, UnsupportedModelError, in_one_line
from engine.models.checkpoint import Checkpoint
from engine.models.config_bounds import of_all_layers
from engine.numerics.kv_dtype import KVWidths

# Families whose state is not a key and a value per token, so that pages of K and V cannot hold
# it (or whose state would leak from one packed sequence into the next).
_STATE_SPACE = (
    "bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba",
    "kimi_linear", "lfm2", "lfm2_moe", "lfm3", "mamba", "mamba2", "minimax", "nemotron_h",
    "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
    "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2",
)  # fmt: skip
_OTHER_REASONS = {
    "blt": "uses byte patches instead of tokens",
    "gemma4_assistant": "reads the KV cache of another model",
    "gemma4_unified_assistant": "reads the KV cache of another model",
}
_OTHER_LAYER_WORDS = ("linear", "mamba", "conv", "recurrent", "ssm", "kda", "lightning")
# no_init_weights swaps functions of torch for the time being: two threads in it at once could
# leave them swapped.
_BUILD_LOCK = threading.Lock()


class LayerKV(NamedTuple):
    """The KV of one attention layer per token: heads, and head sizes of keys and values; all 0
    where the layer attends to the KV of an earlier one. `window`: most tokens that it attends to,
    or None."""

    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None

    @property
    def widths(self) -> KVWidths:
        heads = self.num_kv_heads
        return KVWidths(heads * self.key_dim, heads * self.value_dim, heads)


def _unsupported(reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        reason,
        "Choose a decoder-only model with standard attention (Llama, Qwen3, Mistral, Gemma...).",
    )


def resolve_class(checkpoint: Checkpoint) -> type[nn.Module]:
    """The transformers class that computes this checkpoint's language model.

    Raises UnsupportedModelError with the reason, if this engine cannot run it; CheckpointError for
    a quantized checkpoint whose settings make no sense.
    """
    checkpoint.quantization  # noqa: B018 - which raises
    with config_named(checkpoint):
        check_family(checkpoint.raw_config.get("model_type"), checkpoint.raw_config)
        return class_for(checkpoint.config)


@contextmanager
def config_named(checkpoint: Checkpoint) -> Iterator[None]:
    """Add the name of the config file to an UnsupportedModelError, which is of its content."""
    try:
        yield
    except UnsupportedModelError as error:
        if str(checkpoint.path) in error.cause:
            raise
        file = checkpoint.path / "config.json"
        raise UnsupportedModelError(f"{file}: {error.cause}", error.remedy) from error


def class_for(config: Any) -> type[nn.Module]:
    """The decoder-only ...ForCausalLM class of a text config; raises UnsupportedModelError."""
    from engine.lazy_transformers import MODEL_FOR_CAUSAL_LM_MAPPING, __version__

    check_family(config.model_type, vars(config))
    resolved: Any
    try:
        resolved = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        raise _unsupported(
            f"transformers {__version__} has no decoder-only class for {config.model_type!r}."
        ) from None
    # A config may map to several classes; the first is the default, as in AutoModelForCausalLM.
    resolved = resolved[0] if isinstance(resolved, (list, tuple)) else resolved
    if not resolved.__name__.endswith(("CausalLM", "LMHeadModel")):
        raise _unsupported(
            f"{config.model_type!r} maps to {resolved.__name__}, which is not a decoder-only "
            "language model."
        )
    # bloom, mpt, falcon and other old classes never call the interface: their module lacks it
    if not hasattr(sys.modules[resolved.__module__], "ALL_ATTENTION_FUNCTIONS"):
        raise _unsupported(
            f"{config.model_type!r} does not use the transformers attention interface, which "
            "the engine requires."
        )
    model_class: type[nn.Module] = resolved
    return model_class


def check_family(model_type: str | None, settings: Any) -> None:
    """Raise UnsupportedModelError for families that cannot run on a paged KV cache."""
    if model_type in _STATE_SPACE:
        raise _unsupported(
            f"{model_type!r} has linear-attention or state-space layers, which the engine does "
            "not support."
        )
    if model_type in _OTHER_REASONS:
        raise _unsupported(f"{model_type!r} {_OTHER_REASONS[model_type]}: not supported.")
    if topk := settings.get("index_topk"):
        raise _unsupported(
            f"{model_type!r} has sparse attention (index_topk {topk}), which the engine does not "
            "support."
        )
    if settings.get("is_encoder_decoder"):
        raise _unsupported(
            f"{model_type!r} is an encoder-decoder model; the engine supports decoder-only models."
        )
    layer_types: Iterable[Any] = settings.get("layer_types") or ()
    other = sorted(
        {str(t) for t in layer_types if any(word in str(t) for word in _OTHER_LAYER_WORDS)}
    )
    if other:
        raise _unsupported(
            f"{model_type!r} has layers of type {', '.join(other)}; the engine supports attention "
            "layers only."
        )


def build_on_meta(config: Any, model_class: Any = None) -> nn.Module:
    """The model of `config` with its structure and shapes and no memory behind its tensors.
    model_class: another than `class_for` finds."""
    from engine.lazy_transformers import no_init_weights

    model_class = model_class or class_for(config)
    config = copy.deepcopy(config)
    # "eager" is what every class accepts at construction; the loader sets the engine's own name.
    config._attn_implementation = "eager"
    with _BUILD_LOCK, torch.device("meta"), no_init_weights():
        try:
            model: nn.Module = model_class(config)
        except Exception as error:  # whatever a class raises, it is the config's content
            raise UnsupportedModelError(
                f"{model_class.__name__} cannot be built from this config: {in_one_line(error)}.",
                "Check config.json, or update transformers.",
            ) from error
    return model.eval().requires_grad_(False)


VOCAB_SIZE = 128


def shrink_vocabulary(config: Any) -> None:
    """Give `config` a small vocabulary without special tokens."""
    config.vocab_size = VOCAB_SIZE
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        without_token(config, name)


def without_token(config: Any, name: str) -> None:
    """Remove a special token from `config`; token 0 where the class requires one."""
    try:
        setattr(config, name, None)
    except Exception:  # its own kind of validation, in each version of transformers
        setattr(config, name, 0)


@dataclass(frozen=True)
class Keyed:
    """A value as a cache key; equal where `key` is equal."""

    key: Hashable
    value: Any = field(compare=False)


def check_size(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError where config.json describes a model of more than twice the parameters
    in the files, before memory is planned for them."""
    if checkpoint.tensors and checkpoint.quantization is None:
        with config_named(checkpoint):
            wanted = count_parameters(checkpoint.config)
        found = sum(math.prod(info.shape) for info in checkpoint.tensors.values())
        if wanted > 2 * found:
            raise CheckpointError(
                f"{checkpoint.path / 'config.json'} describes a model of {wanted:,} parameters; "
                f"the weight files have {found:,}.",
                "Download the model again: config.json does not match its weights.",
            )


def count_parameters(config: Any) -> int:
    """Number of parameters; tied ones, which share a tensor after loading, count once."""
    return _count_parameters(Keyed(config.to_json_string(use_diff=False), config))


@lru_cache(maxsize=16)
def _count_parameters(keyed: Keyed) -> int:
    model = build_on_meta(keyed.value)
    tied = getattr(model, "all_tied_weights_keys", {})
    return sum(p.numel() for name, p in model.named_parameters() if name not in tied)


def embedding_names(model: nn.Module, with_head: bool = True) -> set[str]:
    """Names of the weights of input embeddings, and of the output head."""
    modules = {id(model.get_input_embeddings())}  # type: ignore[operator]
    if with_head:
        modules.add(id(model.get_output_embeddings()))  # type: ignore[operator]
    return {f"{path}.weight" for path, m in model.named_modules() if id(m) in modules}


def ties_head(model: nn.Module) -> bool:
    """Whether the output head has the parameters of the input embeddings."""
    return bool(embedding_names(model) & set(getattr(model, "all_tied_weights_keys", {})))


def kv_layout(model: nn.Module) -> tuple[LayerKV, ...]:
    """The KV of each attention layer, in order. From the unmodified modules (`layer_idx`, k_proj,
    v_proj) if they have it, as layers may differ, else from the config."""
    config: Any = model.config
    found: dict[int, LayerKV] = {}
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        is_attention = "Attention" in type(module).__name__
        if isinstance(index, int) and is_attention and not isinstance(module, nn.ModuleList):
            found.setdefault(index, _layer_kv(module, config))
    if sorted(found) != list(range(len(found))) or not found:
        raise _unsupported(
            f"{type(model).__name__}: {len(found)} of "
            f"{getattr(config, 'num_hidden_layers', '?')} attention layers recognized."
        )
    return tuple(found[i] for i in range(len(found)))


def shares_kv(module: nn.Module) -> bool:
    """Whether it is an attention module without keys and values of its own."""
    return bool(getattr(module, "is_kv_shared_layer", False))


def _layer_kv(module: nn.Module, config: Any) -> LayerKV:
    if shares_kv(module):
        return LayerKV(0, 0, 0)
    heads = config.num_attention_heads
    kv_heads = of_all_layers(config, "num_key_value_heads") or heads
    head_dim = (
        getattr(module, "head_dim", None)
        or of_all_layers(config, "head_dim")
        or config.hidden_size // heads
    )
    window = getattr(module, "sliding_window", None)
    window = window if isinstance(window, int) and window > 0 else None
    if getattr(config, "kv_lora_rank", None):  # multi-head latent attention, expanded per head
        key_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
        return LayerKV(heads, key_dim, config.v_head_dim, window)
    projection = getattr(module, "k_proj", None)
    width = getattr(projection, "out_features", None)
    if width is not None and width % head_dim == 0:
        kv_heads = width // head_dim
    return LayerKV(int(kv_heads), int(head_dim), int(head_dim), window)
