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
    seed: int = 0, model: dict[str, Any] | None = None, **options: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """A tiny model saved into `folder` with the linear layers of its blocks quantized.

    method and options:
        awq                 group_size
        gptq                bits, group_size (-1: whole rows), symmetric, desc_act, version
        compressed-tensors  layout "pack" (bits, group_size, symmetric, actorder), "int"
                            (strategy, symmetric) or "float" (strategy)
        fp8                 strategy "block", "channel" or "tensor"; block
        bitsandbytes        kind "nf4", "fp4" (blocksize, double) or "int8"

    Modules whose name contains one of `exclude` stay plain. `model`: changes of its config (its
    hidden size is 64 and its intermediate size 96). Returns every tensor of the model by its dense
    name as the format's published formula gives it, float32.
    """
    make, config = METHODS[method](**options)
    save(make_model(family, seed=seed, **(model or {})), folder)
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
    change_config(folder, quantization_config=config)
    return dense


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


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
        size = weight.shape[1] if group_size == -1 else group_size
        g_idx = _g_idx(weight, size) if desc_act else None
        return layouts.gptq(
            weight, bits=bits, group_size=size, symmetric=symmetric, g_idx=g_idx, version=version
        )

    config = {
        "quant_method": "gptq", "bits": bits, "group_size": group_size, "sym": symmetric,
        "desc_act": desc_act, "checkpoint_format": "gptq" if version == 1 else "gptq_v2",
    }  # fmt: skip
    return make, config


def _compressed(
    layout: str = "pack", bits: int = 4, group_size: int = 32, symmetric: bool = True,
    actorder: str | None = None, strategy: str = "channel", **options: Any,
) -> tuple[Maker, dict[str, Any]]:  # fmt: skip
    weights: dict[str, Any] = {
        "num_bits": 8, "type": "int", "symmetric": symmetric, "strategy": strategy,
        "group_size": None, "dynamic": False, "actorder": actorder,
    }  # fmt: skip
    if layout == "pack":
        weights["num_bits"] = bits
        if group_size != -1:
            weights |= {"strategy": "group", "group_size": group_size}
    elif layout == "float":
        weights |= {"type": "float", "block_structure": [32, 32]}
        if strategy == "group":
            weights["group_size"] = group_size

    def make(weight: Tensor) -> layouts.Layout:
        if layout == "int":
            return layouts.int8(weight, strategy=strategy, symmetric=symmetric)
        if layout == "float":
            block = {**_blocks(weight), "block": (32, 32), "group": (1, group_size)}[strategy]
            return layouts.fp8(weight, block=block, scale_name="weight_scale", **options)
        size = weight.shape[1] if group_size == -1 else group_size
        g_idx = _g_idx(weight, size) if actorder == "group" else None
        return layouts.packed(
            weight, bits=bits, group_size=size, symmetric=symmetric, g_idx=g_idx, **options
        )

    config = {
        "quant_method": "compressed-tensors", "format": f"{layout}-quantized",
        "ignore": ["lm_head"], "quantization_status": "compressed", "kv_cache_scheme": None,
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}
        },
    }  # fmt: skip
    return make, config


def _fp8(
    strategy: str = "block", block: tuple[int, int] = (128, 128), flat: bool = False,
    scale_name: str = "",
) -> tuple[Maker, dict[str, Any]]:  # fmt: skip
    name = scale_name or ("weight_scale_inv" if strategy == "block" else "weight_scale")

    def make(weight: Tensor) -> layouts.Layout:
        own = {**_blocks(weight), "block": block}[strategy]
        return layouts.fp8(weight, block=own, scale_name=name, flat=flat)

    size = list(block) if strategy == "block" else None
    config = {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": size,
    }  # fmt: skip
    return make, config


def _bitsandbytes(
    kind: str = "nf4", blocksize: int = 64, double: bool = False
) -> tuple[Maker, dict[str, Any]]:
    in_8 = kind == "int8"

    def make(weight: Tensor) -> layouts.Layout:
        if in_8:
            return layouts.llm_int8(weight)
        return layouts.four_bit(weight, kind=kind, blocksize=blocksize, double=double)

    config = {
        "quant_method": "bitsandbytes", "load_in_4bit": not in_8, "load_in_8bit": in_8,
        "bnb_4bit_quant_type": "fp4" if in_8 else kind, "bnb_4bit_use_double_quant": double,
        "llm_int8_skip_modules": ["lm_head"],
    }  # fmt: skip
    return make, config


def _g_idx(weight: Tensor, group_size: int) -> np.ndarray:
    """Groups in an order as desc_act leaves them."""
    width = weight.shape[1]
    return np.random.default_rng(width).permutation(np.arange(width) // group_size)


def _blocks(weight: Tensor) -> dict[str, tuple[int, int]]:
    rows, columns = weight.shape
    return {"tensor": (rows, columns), "channel": (1, columns)}


METHODS: dict[str, Callable[..., tuple[Maker, dict[str, Any]]]] = {
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "bitsandbytes": _bitsandbytes,
}
