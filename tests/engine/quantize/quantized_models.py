"""Small models to quantize, and what a quantized folder says by the published formulas alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from tests.engine import tiny_models

GROUP = 32
SIZES = {"hidden_size": 128, "intermediate_size": 192, "vocab_size": tiny_models.VOCAB_SIZE}
_OUTLIERS = (3, 40, 77, 101)


def save(folder: Path, family: str = "llama", *, outliers: float = 1.0, **changes: Any) -> Path:
    """A random model whose weights and logits are of a sane size. outliers: by how much a few
    channels of the inputs of its layers are larger than the others."""
    changes = {k: v for k, v in {**SIZES, **changes}.items() if family != "gpt2"} or changes
    model = tiny_models.make_model(family, **changes)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        elif "layernorm" in name and name.endswith("weight"):
            parameter.data[list(_OUTLIERS)] *= outliers
    return tiny_models.save(model, folder)


def text(num_tokens: int, seed: int = 0) -> str:
    """Words of the tiny tokenizer, some more frequent than others."""
    generator = torch.Generator().manual_seed(seed)
    weights = 1 / (torch.arange(3, tiny_models.VOCAB_SIZE) - 2.0)
    ids = torch.multinomial(weights, num_tokens, replacement=True, generator=generator) + 3
    return " ".join(f"t{i}" for i in ids.tolist())


def token_ids(num_tokens: int, seed: int = 9) -> Tensor:
    return torch.tensor([[int(word[1:]) for word in text(num_tokens, seed).split()]])


def tensors_of(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as stream:
            found |= {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 - it has no __iter__
    return found


def dense_tensors(folder: Path) -> dict[str, Tensor]:
    """Every weight in float32, by the formula of the format that config.json names."""
    settings = json.loads((folder / "config.json").read_text()).get("quantization_config", {})
    stored = tensors_of(folder)
    read = {"awq": _awq, "gptq": _gptq, "compressed-tensors": _packed}
    method = settings.get("quant_method")
    ends = {"awq": "qweight", "gptq": "qweight", "compressed-tensors": "weight_packed"}
    end = ends.get(method, "-")
    modules = [name.removesuffix(f".{end}") for name in stored if name.endswith(f".{end}")]
    dense = {f"{m}.weight": read[method](stored, m, settings) for m in modules}
    parts = tuple(f"{m}." for m in modules)
    plain = {
        n: t.float() for n, t in stored.items() if not n.startswith(parts) or n.endswith(".bias")
    }
    return {**plain, **dense}


@torch.inference_mode()
def log_probs(folder: Path, ids: Tensor, weights: dict[str, Tensor] | None = None) -> Tensor:
    """[T, V] of the model in `folder`, with its own tensors in float32 or with `weights`."""
    config = AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    state = dense_tensors(folder) if weights is None else weights
    # through from_pretrained, which joins experts as it does for any folder
    model = type(AutoModelForCausalLM.from_config(config)).from_pretrained(
        None, config=config, state_dict=state, dtype=torch.float32, attn_implementation="eager"
    )
    logits: Tensor = model.eval()(ids).logits[0]
    return logits.log_softmax(-1)


def divergence(reference: Tensor, other: Tensor) -> float:
    """Mean KL(reference || other) per token."""
    return float((reference.exp() * (reference - other)).sum(-1).mean())


def _nibbles(words: Tensor, bits: int = 4) -> Tensor:
    """[..., W] -> [..., W * 32 / bits], the lowest bits first."""
    shifts = torch.arange(0, 32, bits)
    return ((words.unsqueeze(-1) >> shifts) & (2**bits - 1)).flatten(-2)


def _awq(stored: dict[str, Tensor], module: str, settings: dict[str, Any]) -> Tensor:
    order = (0, 4, 1, 5, 2, 6, 3, 7)

    def unpack(words: Tensor) -> Tensor:
        return _nibbles(words).unflatten(-1, (-1, 8))[..., order].flatten(-2)

    codes, zeros = unpack(stored[f"{module}.qweight"]), unpack(stored[f"{module}.qzeros"])
    group = torch.arange(codes.shape[0]) // settings["group_size"]
    return ((codes - zeros[group]).float() * stored[f"{module}.scales"].float()[group]).t()


def _gptq(stored: dict[str, Tensor], module: str, settings: dict[str, Any]) -> Tensor:
    bits = settings["bits"]
    codes = _nibbles(stored[f"{module}.qweight"].t(), bits).t()
    zeros = _nibbles(stored[f"{module}.qzeros"], bits) + 1
    group = stored[f"{module}.g_idx"].long()
    return ((codes - zeros[group]).float() * stored[f"{module}.scales"].float()[group]).t()


def _packed(stored: dict[str, Tensor], module: str, settings: dict[str, Any]) -> Tensor:
    (group,) = settings["config_groups"].values()
    bits = group["weights"]["num_bits"]
    middle = 2 ** (bits - 1)
    rows, columns = stored[f"{module}.weight_shape"].tolist()
    codes = _nibbles(stored[f"{module}.weight_packed"], bits)[:, :columns] - middle
    scales = stored[f"{module}.weight_scale"].float()
    which = torch.arange(columns) // (columns // scales.shape[1])
    if f"{module}.weight_zero_point" in stored:
        zeros = _nibbles(stored[f"{module}.weight_zero_point"].t(), bits).t()[:rows] - middle
        codes = codes - zeros[:, which]
    return codes.float() * scales[:, which]


def names_of(folder: Path) -> Sequence[str]:
    return sorted(path.name for path in folder.iterdir())
