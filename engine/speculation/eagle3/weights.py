"""Loads a head by the tensor names of published heads.

    SafeAILab, SGLang      midlayer.self_attn.q_proj.weight ... fc.weight  norm.weight
    speculators (vLLM)     layers.0.self_attn.q_proj.weight ... the same; some with model. before
    both                   lm_head.weight  d2t  t2d             and, in some, embed_tokens.weight

d2t[i] added to the head's token id i gives the target model's. t2d marks the target model's tokens
that the head has; it follows from d2t and is not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from engine.config import EngineConfig
from engine.errors import DraftModelError
from engine.formats.safetensors_file import TensorInfo
from engine.formats.tensor_reader import TensorReader
from engine.kernels.embedding import lookup_of
from engine.models.checkpoint import Checkpoint
from engine.models.dummy import DummyFiller
from engine.models.layers.replacement import apply_all
from engine.models.layers.rotary import table_swaps
from engine.models.materialise import freeze_rotary
from engine.models.plain_weights import arrange_weights
from engine.models.weight_files import few
from engine.speculation.eagle3.head import Eagle3Head
from engine.speculation.eagle3.shape import HeadShape

_LAYER = "layers.0."
_LEFT_OUT = re.compile(r"^(t2d|verifier_.*|.*rotary_emb\.inv_freq)$")
"""What follows from the rest, and copies of the model's own tensors."""

_WRONG_FILES = "Download the head again, or check that config.json matches these weights."

Progress = Callable[[str, int, int], None]


def load_head(
    config: EngineConfig,
    head: Checkpoint,
    shape: HeadShape,
    model: nn.Module,
    progress: Progress = lambda stage, done, total: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Eagle3Head:
    """The head of `shape` by `config` (resolved), with the embeddings of `model` unless it has its
    own.

    Raises DraftModelError naming tensors that are missing, unexpected or misshapen; LoadCancelled.
    """
    from engine.lazy_transformers import ACT2FN

    lookup = None if shape.owns_embeddings else lookup_of(model)
    dtype = getattr(torch, config.dtype)
    rotary = _rotary(head, config.max_model_len or 0, dtype)
    result = Eagle3Head(shape, dtype, rotary, ACT2FN[shape.activation], lookup)
    if config.load_format == "dummy":
        wanted = places(result)
        filler = DummyFiller(config.seed, 0.02, dtype, sum(t.numel() for t in wanted.values()))
        for name, tensor in wanted.items():
            filler.fill(name, tensor)
    else:
        _read(head, result, progress, cancelled)
    result.to(config.device)
    arrange_weights(result, dtype, progress, cancelled)
    return result.eval().requires_grad_(False)


def places(head: Eagle3Head) -> dict[str, Tensor]:
    """Name in the speculators style -> the memory that the tensor of this name fills."""
    keys, values = (head.kv_proj.rows(part) for part in range(2))
    gate, up = (head.mlp.gate_up_proj.rows(part) for part in range(2))
    gate_up = head.mlp.gate_up_proj.weight
    found: dict[str, Tensor] = {
        "fc.weight": head.fc.weight,
        "norm.weight": head.norm.weight,
        "lm_head.weight": head.lm_head.weight,
        f"{_LAYER}input_layernorm.weight": head.input_layernorm.weight,
        f"{_LAYER}hidden_norm.weight": head.hidden_norm.weight,
        f"{_LAYER}post_attention_layernorm.weight": head.post_attention_layernorm.weight,
        f"{_LAYER}self_attn.q_proj.weight": head.q_proj.weight,
        f"{_LAYER}self_attn.k_proj.weight": head.kv_proj.weight[keys],
        f"{_LAYER}self_attn.v_proj.weight": head.kv_proj.weight[values],
        f"{_LAYER}self_attn.o_proj.weight": head.o_proj.weight,
        f"{_LAYER}mlp.gate_proj.weight": gate_up[gate],
        f"{_LAYER}mlp.up_proj.weight": gate_up[up],
        f"{_LAYER}mlp.down_proj.weight": head.mlp.down_proj.get_parameter("weight"),
    }
    if head.shape.has_attention_bias:
        assert head.q_proj.bias is not None and head.o_proj.bias is not None
        assert head.kv_proj.bias is not None
        found |= {
            f"{_LAYER}self_attn.q_proj.bias": head.q_proj.bias,
            f"{_LAYER}self_attn.k_proj.bias": head.kv_proj.bias[keys],
            f"{_LAYER}self_attn.v_proj.bias": head.kv_proj.bias[values],
            f"{_LAYER}self_attn.o_proj.bias": head.o_proj.bias,
        }
    if head.shape.has_qk_norm:
        found |= {
            f"{_LAYER}self_attn.{name}.weight": head.get_parameter(f"{name}.weight")
            for name in ("q_norm", "k_norm")
        }
    if head.shape.norm_before_fc:
        found["input_norm.weight"] = head.get_parameter("input_norm.weight")
    if head.shape.owns_embeddings:
        found["embed_tokens.weight"] = head.get_buffer("own_embeddings")
    return found


def _read(
    checkpoint: Checkpoint, head: Eagle3Head, progress: Progress, cancelled: Callable[[], bool]
) -> None:
    tensors = {}
    for published, info in checkpoint.tensors.items():
        name = published.removeprefix("model.").replace("midlayer.", _LAYER, 1)
        if not _LEFT_OUT.match(name):
            tensors[name] = info
    offsets = tensors.pop("d2t", None)
    wanted = places(head)
    _check(checkpoint, tensors, wanted)
    total = sum(info.nbytes for info in tensors.values())
    with TensorReader(total, progress, cancelled) as reader:
        for name, info in sorted(tensors.items(), key=lambda item: item[1].offset):
            reader.copy_into(info, wanted[name])
        if offsets is not None:
            own = _target_ids(checkpoint, head.shape, offsets, reader)
            head.target_ids.copy_(own)
        elif head.shape.draft_vocab_size != head.shape.vocab_size:
            raise DraftModelError(
                f"EAGLE-3 head {checkpoint.name} covers {head.shape.draft_vocab_size:,} of "
                f"{head.shape.vocab_size:,} tokens but has no d2t token mapping.",
                _WRONG_FILES,
            )


def _check(
    checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], wanted: Mapping[str, Tensor]
) -> None:
    wrong = {
        "Missing tensors in EAGLE-3 head {} ({}): {}.": sorted(set(wanted) - set(tensors)),
        "Unexpected tensors in EAGLE-3 head {} ({}): {}.": sorted(set(tensors) - set(wanted)),
        "Tensor shapes in EAGLE-3 head {} do not match config.json ({}): {}.": [
            f"{name} is {list(info.shape)}, expected {list(wanted[name].shape)}"
            for name, info in tensors.items()
            if name in wanted and info.shape != tuple(wanted[name].shape)
        ],
    }
    for cause, names in wrong.items():
        if names:
            raise DraftModelError(
                cause.format(checkpoint.path, len(names), few(names)),
                _WRONG_FILES,
            )


def _target_ids(
    checkpoint: Checkpoint, shape: HeadShape, offsets: TensorInfo, reader: TensorReader
) -> Tensor:
    """The model's ids of the head's tokens [draft vocabulary], from d2t."""
    count = shape.draft_vocab_size
    if offsets.shape != (count,):
        raise DraftModelError(
            f"d2t in EAGLE-3 head {checkpoint.path} has shape {list(offsets.shape)}; expected "
            f"[{count}].",
            _WRONG_FILES,
        )
    ids = reader.read(offsets).long() + torch.arange(count)
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0 or highest >= shape.vocab_size:
        raise DraftModelError(
            f"d2t in EAGLE-3 head {checkpoint.path} maps to token ids {lowest:,} to "
            f"{highest:,}; the model has 0 to {shape.vocab_size - 1:,}.",
            _WRONG_FILES,
        )
    return ids


def _rotary(head: Checkpoint, max_model_len: int, dtype: torch.dtype) -> nn.Module:
    """transformers' own rotary embedding of the head's config, in a table where one fits."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parent = nn.Module()
    parent.rotary_emb = LlamaRotaryEmbedding(head.config)
    freeze_rotary(parent, max_model_len)
    apply_all(table_swaps(parent, max_model_len, dtype))
    return parent.rotary_emb
