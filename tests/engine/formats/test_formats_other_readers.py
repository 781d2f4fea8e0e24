"""Folders that we write are read by the packages that other engines read them with, where these are
installed: `pip install -e '.[test,readers]'`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.formats import Writer, writer
from engine.formats.writing import Made
from engine.numerics.codes import Codes
from engine.numerics.rounding import (
    round_asymmetric,
    round_fp8,
    round_int8,
    round_nf4,
    round_symmetric,
)
from tests.engine.quantized_checkpoints import change_config
from tests.engine.tiny_models import make_model, make_prompts, save

INT4 = {"bits": 4, "group_size": 32, "symmetric": True}
PER_OUTPUT = {"bits": 8, "group_size": -1, "symmetric": True}


def rounded(weight: torch.Tensor, layout: str, symmetric: bool) -> Codes:
    if layout == "pack-quantized":
        rounding = round_symmetric if symmetric else round_asymmetric
        return rounding(weight, bits=4, group_size=32)
    if layout == "":
        return round_nf4(weight)
    return round_int8(weight) if layout == "int-quantized" else round_fp8(weight)


def write_model(folder: Path, made: Writer, settings: dict[str, Any]) -> Any:
    """A tiny llama with its blocks quantized in `folder`; the same model with the weights that
    they stand for is returned."""
    # 128: where 64 does not divide a row, bitsandbytes 0.50 undoes even its own NF4 wrongly on the
    # CPU (a block of scales does not end with its row)
    model = make_model("llama", intermediate_size=128)
    save(model, folder)
    file = folder / "model.safetensors"
    stored: dict[str, torch.Tensor] = {}
    dense: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(file).items():
        if name.endswith("_proj.weight"):
            codes = rounded(tensor, made.layout, settings["symmetric"])
            stored |= made.tensors(name, codes)
            dense[name] = codes.dequantize()
        else:
            stored[name] = tensor
    save_file(stored, file, {"format": "pt"})
    config = made.quantization_config(Made(left_out=["lm_head"], **settings))
    change_config(folder, quantization_config=config)
    model.load_state_dict(dense, strict=False)
    return model


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor(make_prompts([20]))).logits
    return logits.float()


@pytest.mark.parametrize(
    ("layout", "settings"),
    [("pack-quantized", INT4), ("float-quantized", PER_OUTPUT), ("int-quantized", PER_OUTPUT)],
)
def test_compressed_tensors(layout: str, settings: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    expected = write_model(tmp_path, writer("compressed-tensors", layout), settings)
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    difference, scale = (logits(read) - logits(expected)).abs(), logits(expected).std()
    if layout == "int-quantized":  # its activations are in 8 bits as well
        assert float(difference.mean() / scale) < 0.1
    else:
        assert float(difference.max() / scale) < 1e-4


def test_zero_points_of_compressed_tensors(tmp_path: Path) -> None:
    """transformers decodes them as they are loaded. Once it keeps them packed, rtn can be
    asymmetric by default again."""
    pytest.importorskip("compressed_tensors")
    made = writer("compressed-tensors", "pack-quantized")
    expected = write_model(tmp_path, made, {**INT4, "symmetric": False})
    config = transformers.CompressedTensorsConfig(dequantize=True)
    load = transformers.AutoModelForCausalLM.from_pretrained
    read = load(tmp_path, dtype=torch.float32, quantization_config=config)
    difference, scale = (logits(read) - logits(expected)).abs(), logits(expected).std()
    assert float(difference.max() / scale) < 1e-2  # it decodes in the scales' 16 bits
    with pytest.raises(RuntimeError):
        load(tmp_path, dtype=torch.float32)


def test_bitsandbytes(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    settings = {"bits": 4, "group_size": 64, "symmetric": True}
    expected = write_model(tmp_path, writer("bitsandbytes"), settings)
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    functional = pytest.importorskip("bitsandbytes.functional")
    for name, module in read.named_modules():
        if name.endswith("_proj"):
            module.weight.quant_state.dtype = torch.float32
            weight = functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
            assert torch.equal(weight, expected.get_submodule(name).weight), name
