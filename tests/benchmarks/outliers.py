"""The starter model with a few channels that carry far larger values than the others.

The same function as before: what makes a channel is multiplied by a power of two, and what reads it
is divided by it, so that not a bit of a product changes. That is how large models look to whoever
rounds them: the weights that read such a channel are small, and their errors weigh much.

    norm * 16 ---> x ---> q, k, v / 16         up rows * 16 ---> down columns / 16
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

FACTOR = 16.0
ONE_IN = 64
"""Of the channels, so many stand out."""

_NORMS = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}


def plant_outliers(model: Path, output: Path, seed: int = 0) -> Path:
    """Write `model`, of the Llama family's names, to `output` with outliers planted."""
    tensors = load_file(model / "model.safetensors")
    generator = torch.Generator().manual_seed(seed)
    prefixes = sorted({n.split("input_layernorm")[0] for n in tensors if "input_layernorm" in n})
    for prefix in prefixes:
        for norm, readers in _NORMS.items():
            gain = tensors[f"{prefix}{norm}.weight"]
            chosen = _some(len(gain), generator)
            gain[chosen] *= FACTOR
            for reader in readers:
                tensors[f"{prefix}{reader}.weight"][:, chosen] /= FACTOR
        up, down = (tensors[f"{prefix}mlp.{name}_proj.weight"] for name in ("up", "down"))
        chosen = _some(len(up), generator)
        up[chosen] *= FACTOR
        down[:, chosen] /= FACTOR
    output.mkdir(parents=True, exist_ok=True)
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, output)
    save_file(tensors, output / "model.safetensors", metadata={"format": "pt"})
    return output


def _some(width: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randperm(width, generator=generator)[: max(1, width // ONE_IN)]
