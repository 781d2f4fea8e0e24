"""Tiny random EAGLE-3 heads in the published layouts, and their mathematics written from the paper:
whole sequences, plain torch, no cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

Style = Literal["midlayer", "layers", "speculators"]

DRAFT_VOCAB = 120


@dataclass(frozen=True)
class Head:
    """`tensors`: by the names of SafeAILab's heads; the config as a dict of that style."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def target_ids(self) -> Tensor:
        d2t = self.tensors["d2t"]
        return d2t + torch.arange(len(d2t))

    @property
    def layer_ids(self) -> list[int]:
        return [i + 1 for i in self.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]]


class Reference(NamedTuple):
    """Outputs [T, hidden] before the norm, and logits [T, draft vocabulary]."""

    outputs: Tensor
    logits: Tensor


def make_head(
    model: Any,
    *,
    layer_ids: Sequence[int],
    hidden: int | None = None,
    seed: int = 0,
    draft_vocab: int = DRAFT_VOCAB,
    owns_embeddings: bool = False,
    **changes: Any,
) -> Head:
    """A random float32 head that reads the inputs of `layer_ids` of a transformers `model`.
    `changes` go into its config; `hidden`: its own width, where it is not the model's."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
        "hidden_size": hidden or model.config.hidden_size, "intermediate_size": 96,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 256, "attention_bias": False, "tie_word_embeddings": False,
        "vocab_size": model.config.vocab_size, "draft_vocab_size": draft_vocab,
        "target_hidden_size": model.config.hidden_size,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [i - 1 for i in layer_ids]},
        **changes,
    }  # fmt: skip
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * (shape[-1] ** -0.5)

    def near_one(width: int) -> Tensor:
        return 1.0 + 0.2 * torch.randn(width, generator=generator)

    h, tapped = config["hidden_size"], len(layer_ids) * model.config.hidden_size
    d, q = config["head_dim"], config["num_attention_heads"] * config["head_dim"]
    kv, wide = config["num_key_value_heads"] * d, config["intermediate_size"]
    tensors = {
        "fc.weight": normal(h, tapped),
        "norm.weight": near_one(h),
        "lm_head.weight": normal(draft_vocab, h),
        "midlayer.input_layernorm.weight": near_one(h),
        "midlayer.hidden_norm.weight": near_one(h),
        "midlayer.post_attention_layernorm.weight": near_one(h),
        "midlayer.self_attn.q_proj.weight": normal(q, 2 * h),
        "midlayer.self_attn.k_proj.weight": normal(kv, 2 * h),
        "midlayer.self_attn.v_proj.weight": normal(kv, 2 * h),
        "midlayer.self_attn.o_proj.weight": normal(h, q),
        "midlayer.mlp.gate_proj.weight": normal(wide, h),
        "midlayer.mlp.up_proj.weight": normal(wide, h),
        "midlayer.mlp.down_proj.weight": normal(h, wide),
    }
    if config["attention_bias"]:
        for name, width in (("q", q), ("k", kv), ("v", kv), ("o", h)):
            tensors[f"midlayer.self_attn.{name}_proj.bias"] = normal(width)
    if config["model_type"] == "qwen3":
        tensors["midlayer.self_attn.q_norm.weight"] = near_one(d)
        tensors["midlayer.self_attn.k_norm.weight"] = near_one(d)
    if config.get("norm_before_fc"):
        tensors["input_norm.weight"] = near_one(tapped)
    if owns_embeddings:
        tensors["embed_tokens.weight"] = normal(config["vocab_size"], h)
    chosen = torch.randperm(config["vocab_size"], generator=generator)[:draft_vocab].sort().values
    tensors["d2t"] = chosen - torch.arange(draft_vocab)
    tensors["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool).index_fill(0, chosen, True)
    return Head(config, tensors)


def save(head: Head, folder: Path, style: Style = "midlayer") -> Path:
    """Write a head as SafeAILab does (midlayer), with layers.0 in its place, or as speculators."""
    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = dict(head.config), dict(head.tensors)
    if style != "midlayer":
        tensors = {n.replace("midlayer.", "layers.0."): t for n, t in tensors.items()}
    if style == "speculators":
        own = ("draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc")
        config = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "eagle_aux_hidden_state_layer_ids": head.layer_ids,
            "transformer_layer_config": {k: v for k, v in config.items() if k not in own},
            **{name: config[name] for name in own if name in config},
        }
        del config["transformer_layer_config"]["architectures"]
        del config["transformer_layer_config"]["eagle_config"]
    (folder / "config.json").write_text(json.dumps(config))
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    return folder


@torch.inference_mode()
def features(head: Head, model: Any, token_ids: Sequence[int]) -> Tensor:
    """f[T, hidden] of each token, from the model's hidden states as transformers gives them."""
    output = model.model(torch.tensor([token_ids]), output_hidden_states=True)
    states = torch.cat([output.hidden_states[i][0] for i in head.layer_ids], dim=-1)
    if head.config.get("norm_before_fc"):
        states = _norm(head, "input_norm", states)
    return F.linear(states, head.tensors["fc.weight"])


@torch.inference_mode()
def reference(head: Head, model: Any, f: Tensor, next_tokens: Sequence[int]) -> Reference:
    """The head over a whole sequence: entry t is made of f[t] and of the token after it."""
    config, weights = head.config, head.tensors
    own = weights.get("embed_tokens.weight")
    table = model.get_input_embeddings().weight if own is None else own
    embedded = table[torch.tensor(next_tokens)]
    normed = _norm(head, "midlayer.hidden_norm", f)
    residual = normed if config.get("norm_before_residual") else f
    x = torch.cat([_norm(head, "midlayer.input_layernorm", embedded), normed], dim=-1)
    hidden = residual + _attention(head, x)
    y = _norm(head, "midlayer.post_attention_layernorm", hidden)
    gate, up = (F.linear(y, weights[f"midlayer.mlp.{n}_proj.weight"]) for n in ("gate", "up"))
    hidden = hidden + F.linear(F.silu(gate) * up, weights["midlayer.mlp.down_proj.weight"])
    return Reference(hidden, F.linear(_norm(head, "norm", hidden), weights["lm_head.weight"]))


def fitted(head: Head, model: Any, texts: Sequence[list[int]]) -> Head:
    """`head` with an lm_head that gives the tokens of `texts`, as far as one matrix can."""
    outputs, wanted = [], []
    place = {int(token): i for i, token in enumerate(head.target_ids)}
    for text in texts:
        f = features(head, model, text)
        found = reference(head, model, f[:-2], text[1:-1]).outputs
        for row, token in zip(_norm(head, "norm", found), text[2:], strict=True):
            if token in place:
                outputs.append(row)
                wanted.append(place[token])
    targets = F.one_hot(torch.tensor(wanted), len(place)).float()
    x = torch.stack(outputs)
    ridge = x.T @ x + 1e-2 * torch.eye(x.shape[1])
    lm_head = 20.0 * torch.linalg.solve(ridge, x.T @ targets).T
    return replace(head, tensors={**head.tensors, "lm_head.weight": lm_head})


def _norm(head: Head, name: str, x: Tensor) -> Tensor:
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + head.config["rms_norm_eps"])
    return x * scale * head.tensors[f"{name}.weight"]


def _attention(head: Head, x: Tensor) -> Tensor:
    config, weights = head.config, head.tensors
    group = config["num_attention_heads"] // config["num_key_value_heads"]

    def project(name: str, y: Tensor) -> Tensor:
        path = f"midlayer.self_attn.{name}_proj"
        return F.linear(y, weights[f"{path}.weight"], weights.get(f"{path}.bias"))

    def by_head(name: str) -> Tensor:
        y = project(name, x).unflatten(-1, (-1, config["head_dim"]))
        if config["model_type"] == "qwen3" and name != "v":
            y = _norm(head, f"midlayer.self_attn.{name}_norm", y)
        return y.transpose(0, 1)

    q, k, v = by_head("q"), by_head("k"), by_head("v")
    q, k = _turned(q, config["rope_theta"]), _turned(k, config["rope_theta"])
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.mT * config["head_dim"] ** -0.5
    later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
    return project("o", mixed.transpose(0, 1).flatten(1))


def _turned(x: Tensor, theta: float) -> Tensor:
    half = x.shape[-1] // 2
    rates = theta ** (-torch.arange(half) / half)
    angles = torch.outer(torch.arange(x.shape[-2]).float(), rates)
    turns = torch.polar(torch.ones_like(angles), angles)
    turned = torch.complex(x[..., :half], x[..., half:]) * turns
    return torch.cat([turned.real, turned.imag], dim=-1)
