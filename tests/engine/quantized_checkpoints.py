"""Tiny models in every quantized format on disk, made without the engine's own writers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine import quantized_layouts as layouts
from tests.engine.tiny_models import make_model, save

Maker = Callable[[Tensor], layouts.Layout]


def make_quantized(
    folder: Path, method: str, *, family: str = "llama", exclude: tuple[str, ...] = (),
    seed: int = 0, **options: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """A tiny model saved into `folder` with the linear layers of its blocks quantized.

    method: awq (group_size), gptq (bits, group_size, symmetric, desc_act, version). Modules whose
    name contains one of `exclude` stay plain. Returns every tensor of the model by its dense name
    as the published formula of the format gives it, float32.
    """
    make, config = METHODS[method](**options)
    save(make_model(family, seed=seed), folder)
    file = folder / "model.safetensors"
    dense: dict[str, Tensor] = {}
    stored: dict[str, Tensor] = {}
    for name, tensor in load_file(file).items():
        if _is_linear(name, tensor) and not any(part in name for part in exclude):
            members, dense[name] = make(tensor.float())
            stored |= {f"{name.removesuffix('.weight')}.{end}": t for end, t in members.items()}
        else:
            dense[name], stored[name] = tensor.float(), tensor
    save_file({n: t.contiguous() for n, t in stored.items()}, file, {"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = config
    (folder / "config.json").write_text(json.dumps(settings))
    return dense


def _is_linear(name: str, tensor: Tensor) -> bool:
    return tensor.ndim == 2 and "layers." in name and name.endswith("_proj.weight")


def _awq(group_size: int = 32) -> tuple[Maker, dict[str, Any]]:
    config = {
        "quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True,
        "version": "gemm", "modules_to_not_convert": None,
    }  # fmt: skip
    return lambda weight: layouts.awq(weight, group_size=group_size), config


def _gptq(
    bits: int = 4, group_size: int = 32, symmetric: bool = True, desc_act: bool = False,
    version: int = 1,
) -> tuple[Maker, dict[str, Any]]:  # fmt: skip
    def make(weight: Tensor) -> layouts.Layout:
        width = weight.shape[1]
        size = width if group_size == -1 else group_size
        g_idx = np.arange(width) // size
        if desc_act:
            g_idx = np.random.default_rng(width).permutation(g_idx)
        return layouts.gptq(
            weight, bits=bits, group_size=size, symmetric=symmetric, g_idx=g_idx, version=version
        )

    config = {
        "quant_method": "gptq", "bits": bits, "group_size": group_size, "sym": symmetric,
        "desc_act": desc_act, "checkpoint_format": "gptq" if version == 1 else "gptq_v2",
    }  # fmt: skip
    return make, config


METHODS: dict[str, Callable[..., tuple[Maker, dict[str, Any]]]] = {"awq": _awq, "gptq": _gptq}
