"""Checkpoints of every format are read as their published formulas say, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.loading.checkpoint import Checkpoint
from engine.loading.tensor_reader import TensorReader
from engine.quantization.codes import Codes
from engine.quantization.formats import CheckpointFormat, open_format
from tests.engine.quantized_checkpoints import make_quantized

GPTQ = [
    {"bits": bits, "symmetric": symmetric, "desc_act": desc_act, "version": version}
    for bits in (4, 8)
    for symmetric in (True, False)
    for desc_act in (True, False)
    for version in (1, 2)
]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("awq", {}),
    ("awq", {"group_size": 16}),
    *[("gptq", options) for options in GPTQ],
    ("gptq", {"group_size": -1}),
    ("gptq", {"group_size": 40, "desc_act": True}),
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
