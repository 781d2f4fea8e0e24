"""The settings of an EAGLE-3 head, and whether it fits a model. Reads no weights.

Two styles of config.json are in use:

    SafeAILab, SGLang, SpecForge    a llama config, and draft_vocab_size in it
      eagle_config.eagle_aux_hidden_state_layer_ids    the head reads the OUTPUTS of these layers
    speculators (vLLM)              transformer_layer_config: a llama config; draft_vocab_size
      eagle_aux_hidden_state_layer_ids                 the head reads the INPUTS of these layers

Without layer ids the head reads the inputs of layers 2, n / 2 and n - 3 of n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import CheckpointError, DraftModelError, UnsupportedModelError
from engine.models.architecture import resolve_class
from engine.models.checkpoint import Checkpoint

FEWEST_LAYERS = 8
"""Of a model whose head names no layers: below it the three would not be three."""

_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_TRAINED_FOR = "Choose a head trained for this model; check the head's model card."


@dataclass(frozen=True, slots=True)
class HeadShape:
    """A head's sizes. `target_hidden_size`: the target model's, which may differ from the head's
    own `hidden_size`. `layer_ids`: the target model's layers whose inputs it reads, in the head's
    order.

    `norm_before_residual`, `norm_before_fc`, `has_qk_norm`: variants of the layer (speculators).
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    norm_eps: float
    activation: str
    layer_ids: tuple[int, ...]
    has_attention_bias: bool
    has_qk_norm: bool
    norm_before_residual: bool
    norm_before_fc: bool
    owns_embeddings: bool

    @property
    def kv_width(self) -> int:
        """Elements of a token's key, or of its value."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        h, q = self.hidden_size, self.num_heads * self.head_dim
        tapped = len(self.layer_ids) * self.target_hidden_size
        count = tapped * h + 2 * h * (q + 2 * self.kv_width) + q * h
        count += 3 * h * self.intermediate_size + self.draft_vocab_size * h + 4 * h
        count += self.vocab_size * h if self.owns_embeddings else 0
        count += tapped if self.norm_before_fc else 0
        count += 2 * self.head_dim if self.has_qk_norm else 0
        return count + (q + 2 * self.kv_width + h if self.has_attention_bias else 0)


def read_shape(head: Checkpoint, target: Checkpoint) -> HeadShape:
    """The shape of `head`, checked against the model that it is to draft for.

    Raises DraftModelError where it is no EAGLE-3 head or was made for another model.
    """
    _check_kind(head)
    raw, layer, model = head.raw_config, head.config, target.config
    hidden = int(layer.hidden_size)
    shape = HeadShape(
        hidden_size=hidden,
        target_hidden_size=int(raw.get("target_hidden_size") or hidden),
        intermediate_size=int(layer.intermediate_size),
        num_heads=int(layer.num_attention_heads),
        num_kv_heads=int(layer.num_key_value_heads or layer.num_attention_heads),
        head_dim=int(getattr(layer, "head_dim", None) or hidden // layer.num_attention_heads),
        vocab_size=int(layer.vocab_size),
        draft_vocab_size=int(raw.get("draft_vocab_size") or layer.vocab_size),
        norm_eps=float(layer.rms_norm_eps),
        activation=str(layer.hidden_act),
        layer_ids=_layer_ids(head, target),
        has_attention_bias=bool(getattr(layer, "attention_bias", False)),
        has_qk_norm=layer.model_type == "qwen3",
        norm_before_residual=bool(raw.get("norm_before_residual")),
        norm_before_fc=bool(raw.get("norm_before_fc")),
        owns_embeddings=any(name.endswith("embed_tokens.weight") for name in head.tensors),
    )
    _check_fit(head.name, shape, target.name, int(model.hidden_size), int(model.vocab_size))
    return shape


def _check_kind(head: Checkpoint) -> None:
    named = [str(name) for name in head.raw_config.get("architectures") or []]
    says_so = any("eagle3" in name.lower() for name in named) or (
        head.raw_config.get("speculators_model_type") == "eagle3"
    )
    has_fc = any(name.removeprefix("model.") == "fc.weight" for name in head.tensors)
    if not (has_fc if head.tensors else says_so):
        raise DraftModelError(
            f"{head.name} is not an EAGLE-3 head: its architecture is {head.architecture}."
            + (" The tensor fc.weight is missing." if head.tensors else ""),
            "Choose an EAGLE-3 head folder, or set speculative_method to draft_model for a "
            "regular model.",
        )
    remedy = "Choose a 16-bit or 32-bit head."
    try:
        stored = head.quantization
        resolve_class(head)  # layers that are no attention
    except (UnsupportedModelError, CheckpointError) as error:
        raise DraftModelError(
            f"Cannot use the EAGLE-3 head. {error.cause}", remedy
        ) from error
    if stored is not None:
        raise DraftModelError(
            f"EAGLE-3 head {head.name} is quantized ({stored.title}).", remedy
        )
    count = int(head.config.num_hidden_layers)
    if count != 1:
        raise DraftModelError(
            f"EAGLE-3 head {head.name} has {count} layers; Inferdeck supports one.",
            "Choose a head with num_hidden_layers = 1.",
        )


def _layer_ids(head: Checkpoint, target: Checkpoint) -> tuple[int, ...]:
    """The layers of the model whose inputs the head reads."""
    num_layers = int(target.config.num_hidden_layers)
    raw = head.raw_config
    nested = raw.get("eagle_config")
    if raw.get(_LAYER_IDS):
        ids = _numbers(head, raw[_LAYER_IDS])
    elif isinstance(nested, Mapping) and nested.get(_LAYER_IDS):
        # the output of a layer is the input of the next
        ids = tuple(i + 1 for i in _numbers(head, nested[_LAYER_IDS]))
    elif num_layers < FEWEST_LAYERS:
        raise DraftModelError(
            f"{target.name} has {num_layers} layers; an EAGLE-3 head without layer ids needs "
            f"a model with at least {FEWEST_LAYERS}.",
            "Set speculative_method to draft_model or ngram.",
        )
    else:
        ids = (2, num_layers // 2, num_layers - 3)
    outside = [i for i in ids if not 0 <= i < num_layers]
    if outside:
        listed = ", ".join(map(str, ids))
        raise DraftModelError(
            f"EAGLE-3 head {head.name} reads the inputs of layers {listed}, but "
            f"{target.name} has layers 0 to {num_layers - 1}.",
            _TRAINED_FOR,
        )
    return ids


def _numbers(head: Checkpoint, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(i) is int for i in value):
        raise DraftModelError(
            f"{_LAYER_IDS} in the config of EAGLE-3 head {head.name} is not a list of layer ids: "
            f"{value!r}.",
            "Download or copy config.json again.",
        )
    return tuple(value)


def _check_fit(head: str, shape: HeadShape, target: str, hidden_size: int, vocab_size: int) -> None:
    for what, own, models in (
        ("hidden size", shape.target_hidden_size, hidden_size),
        ("vocabulary size", shape.vocab_size, vocab_size),
    ):
        if own != models:
            raise DraftModelError(
                f"EAGLE-3 head {head} was trained for {what} {own:,}; {target} has {models:,}.",
                _TRAINED_FOR,
            )
    if shape.draft_vocab_size > shape.vocab_size:
        raise DraftModelError(
            f"EAGLE-3 head {head}: draft vocabulary size {shape.draft_vocab_size:,} exceeds "
            f"vocabulary size {shape.vocab_size:,}.",
            "Download or copy config.json again.",
        )
    if shape.hidden_size != hidden_size and not shape.owns_embeddings:
        raise DraftModelError(
            f"EAGLE-3 head {head} has hidden size {shape.hidden_size:,} and no embeddings; "
            f"{target} has hidden size {hidden_size:,}.",
            _TRAINED_FOR,
        )
