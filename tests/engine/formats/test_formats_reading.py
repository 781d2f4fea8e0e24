"""Checkpoints of every format are read as their published formulas say, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.formats import CheckpointFormat, open_format
from engine.formats.tensor_reader import TensorReader
from engine.models.checkpoint import Checkpoint
from engine.numerics.codes import Codes, FloatCodes
from tests.engine.quantized_checkpoints import change_config, make_quantized

GPTQ = [
    {"bits": bits, "symmetric": symmetric, "desc_act": desc_act, "version": version}
    for bits in (4, 8)
    for symmetric in (True, False)
    for desc_act in (True, False)
    for version in (1, 2)
]
ODD = {"intermediate_size": 90}  # inputs that 8 does not divide
CASES: list[tuple[str, dict[str, Any]]] = [
    ("awq", {}),
    ("awq", {"group_size": 16}),
    *[("gptq", options) for options in GPTQ],
    ("gptq", {"group_size": -1}),
    ("gptq", {"group_size": 40, "desc_act": True}),
    *[("compressed-tensors", {"bits": b, "symmetric": s}) for b in (4, 8) for s in (True, False)],
    ("compressed-tensors", {"group_size": -1, "symmetric": False, "model": ODD}),
    ("compressed-tensors", {"group_size": -1, "bits": 8, "model": ODD}),
    ("compressed-tensors", {"actorder": "group", "symmetric": False}),
    ("compressed-tensors", {"actorder": "weight", "scale_dtype": torch.float16}),
    ("compressed-tensors", {"symmetric": False, "zeros_in_words": False}),
    *[
        ("compressed-tensors", {"layout": "int", "strategy": strategy, "symmetric": symmetric})
        for strategy in ("channel", "tensor")
        for symmetric in (True, False)
    ],
    *[
        ("compressed-tensors", {"layout": "float", "strategy": strategy})
        for strategy in ("channel", "tensor", "group", "block")
    ],
    ("compressed-tensors", {"layout": "float", "strategy": "tensor", "flat": True}),
    ("fp8", {}),
    ("fp8", {"block": (32, 32)}),
    ("fp8", {"block": (24, 40)}),
    ("fp8", {"strategy": "channel"}),
    ("fp8", {"strategy": "channel", "flat": True}),
    ("fp8", {"strategy": "tensor", "flat": True, "scale_name": "weight_scale_inv"}),
    *[("bitsandbytes", {"kind": k, "double": d}) for k in ("nf4", "fp4") for d in (True, False)],
    ("bitsandbytes", {"blocksize": 128, "model": ODD}),
    ("bitsandbytes", {"kind": "int8"}),
]


def open_quantized(folder: Path) -> tuple[CheckpointFormat, Checkpoint]:
    checkpoint = Checkpoint.open(folder)
    found = open_format(checkpoint)
    assert found is not None
    return found, checkpoint


def read_all(folder: Path) -> tuple[dict[str, Codes], dict[str, Tensor]]:
    """(codes by dense name, plain tensors)."""
    found, checkpoint = open_quantized(folder)
    plain, quantized = found.split(checkpoint.tensors)
    with TensorReader(0, lambda stage, done, total: None, lambda: False) as reader:
        codes = {name: tensor.read(reader) for name, tensor in quantized.items()}
        return codes, {name: reader.read(info) for name, info in plain.items()}


@pytest.mark.parametrize(("method", "options"), CASES)
def test_what_is_read_is_what_the_formula_gives(
    method: str, options: dict[str, Any], tmp_path: Path
) -> None:
    expected = make_quantized(tmp_path, method, **options)
    codes, plain = read_all(tmp_path)
    assert codes.keys().isdisjoint(plain) and codes.keys() | plain.keys() == expected.keys()
    assert all(name.endswith("_proj.weight") for name in codes) and len(codes) == 14
    for name, value in codes.items():
        assert value.shape == tuple(expected[name].shape)
        assert torch.equal(value.dequantize(), expected[name]), name
    assert all(torch.equal(tensor.float(), expected[name]) for name, tensor in plain.items())


@pytest.mark.parametrize("method", ["awq", "gptq", "compressed-tensors", "fp8", "bitsandbytes"])
def test_what_a_checkpoint_leaves_unquantized_stays_so(method: str, tmp_path: Path) -> None:
    expected = make_quantized(tmp_path, method, exclude=("down_proj", "layers.1."))
    codes, plain = read_all(tmp_path)
    assert len(codes) == 6
    name = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(plain[name], expected[name])


@pytest.mark.parametrize("method", ["awq", "gptq", "compressed-tensors", "fp8", "bitsandbytes"])
def test_each_expert_of_a_mixture_is_a_matrix(method: str, tmp_path: Path) -> None:
    expected = make_quantized(tmp_path, method, family="qwen3_moe")
    codes, plain = read_all(tmp_path)
    experts = [name for name in codes if ".experts." in name]
    assert len(experts) == 2 * 4 * 3 and "model.layers.0.mlp.gate.weight" in plain
    assert all(torch.equal(codes[name].dequantize(), expected[name]) for name in codes)


def test_biases_stay_plain(tmp_path: Path) -> None:
    expected = make_quantized(tmp_path, "gptq", family="qwen2")
    _, plain = read_all(tmp_path)
    name = "model.layers.0.self_attn.q_proj.bias"
    assert torch.equal(plain[name], expected[name])


def test_scales_of_activations_and_of_the_cache_are_left_aside(tmp_path: Path) -> None:
    expected = make_quantized(tmp_path, "fp8", strategy="tensor")
    file = tmp_path / "model.safetensors"
    layer = "model.layers.0.self_attn"
    ends = ("k_scale", "kv_scale", "q_proj.input_scale")
    others = {f"{layer}.{end}": torch.ones(1) for end in ends}
    save_file({**load_file(file), **others}, file)
    codes, plain = read_all(tmp_path)
    assert codes.keys() | plain.keys() == expected.keys()


def test_modelopt_keeps_a_scale_of_each_block_with_four_axes(tmp_path: Path) -> None:
    expected = make_quantized(
        tmp_path, "fp8", scale_name="weight_scale", model={"hidden_size": 192}
    )
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for name in [n for n in tensors if n.endswith("weight_scale")]:
        tensors[name] = tensors[name][:, None, :, None].contiguous()
    save_file(tensors, file)
    change_config(
        tmp_path, quantization_config={"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}
    )
    codes, _ = read_all(tmp_path)
    assert len(codes) == 14
    assert all(torch.equal(codes[name].dequantize(), expected[name]) for name in codes)


def test_groups_of_modules_with_settings_of_their_own(tmp_path: Path) -> None:
    """4 bits for attention, 8 for one module by name, float8 for the other linears."""
    parts = {
        "attention": (make_quantized, {"group_size": 16, "exclude": ("mlp",)}),
        "one": (make_quantized, {"bits": 8, "group_size": -1}),
        "rest": (make_quantized, {"layout": "float"}),
    }
    chosen = {"attention": ".self_attn.", "one": "layers.1.mlp.up_proj", "rest": ""}
    expected: dict[str, Tensor] = {}
    stored: dict[str, Tensor] = {}
    groups: dict[str, Any] = {}
    targets = {"attention": "re:.*self_attn.*", "one": "model.layers.1.mlp.up_proj",
               "rest": "Linear"}  # fmt: skip
    for key, (make, options) in parts.items():
        dense = make(tmp_path / key, "compressed-tensors", **options)
        tensors = load_file(tmp_path / key / "model.safetensors")
        mine = [n for n in dense if chosen[key] in n and n not in expected]
        expected |= {name: dense[name] for name in mine}
        for name in mine:
            module = name.removesuffix(".weight")
            stored |= {n: t for n, t in tensors.items() if n.startswith(f"{module}.")}
        config = json.loads((tmp_path / key / "config.json").read_text())["quantization_config"]
        group = config["config_groups"]["group_0"]
        groups[key] = {**group, "targets": [targets[key]], "format": config["format"]}
    save_file(stored, tmp_path / "rest" / "model.safetensors")
    mixed = {
        "quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups,
    }  # fmt: skip
    change_config(tmp_path / "rest", quantization_config=mixed)
    codes, _ = read_all(tmp_path / "rest")
    assert len(codes) == 14
    assert isinstance(codes["model.layers.0.mlp.up_proj.weight"], FloatCodes)
    assert all(torch.equal(codes[name].dequantize(), expected[name]) for name in codes)


def test_gptq_settings_by_the_name_of_a_module(tmp_path: Path) -> None:
    """GPTQModel's `dynamic`: 8 bits in whole rows for some, the first layer's q_proj left plain."""
    make_quantized(tmp_path / "narrow", "gptq")
    expected = make_quantized(tmp_path / "wide", "gptq", bits=8, group_size=-1)
    narrow = load_file(tmp_path / "narrow" / "model.safetensors")
    wide = load_file(tmp_path / "wide" / "model.safetensors")
    mixed = {n: wide[n] if "down_proj" in n else t for n, t in narrow.items() if "q_proj" not in n}
    mixed |= {f"model.layers.{i}.self_attn.q_proj.weight": torch.ones(64, 64) for i in (0, 1)}
    save_file(mixed, tmp_path / "narrow" / "model.safetensors")
    rules = {"-:.*q_proj": {}, r"+:.*\.down_proj$": {"bits": 8, "group_size": -1}}
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": rules}
    change_config(tmp_path / "narrow", quantization_config=settings)
    codes, _ = read_all(tmp_path / "narrow")
    assert len(codes) == 12
    name = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(codes[name].dequantize(), expected[name])


def test_a_g_idx_that_was_never_filled_in_is_no_order(tmp_path: Path) -> None:
    expected = make_quantized(tmp_path, "gptq")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file({n: t * 0 if n.endswith("g_idx") else t for n, t in tensors.items()}, file)
    codes, _ = read_all(tmp_path)
    assert all(torch.equal(codes[name].dequantize(), expected[name]) for name in codes)
    save_file({n: t for n, t in tensors.items() if not n.endswith("g_idx")}, file)
    codes, _ = read_all(tmp_path)
    assert all(torch.equal(codes[name].dequantize(), expected[name]) for name in codes)


def test_a_matrix_knows_where_it_lies(tmp_path: Path) -> None:
    make_quantized(tmp_path, "awq")
    found, checkpoint = open_quantized(tmp_path)
    _, quantized = found.split(checkpoint.tensors)
    matrix = quantized["model.layers.0.mlp.up_proj.weight"]
    stored = checkpoint.tensors["model.layers.0.mlp.up_proj.qweight"]
    assert matrix.info.dtype == "CODES" and matrix.info.shape == matrix.shape == (96, 64)
    assert (matrix.info.file, matrix.info.offset) == (stored.file, stored.offset)
    assert matrix.info.nbytes == matrix.nbytes == 96 * 64 // 2 + 2 * 96 // 2 + 2 * 96 * 2
