"""What was written is read back as the same codes, exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from engine.errors import ConfigError
from engine.loading.checkpoint import Checkpoint
from engine.loading.tensor_reader import TensorReader
from engine.quantization.codes import Codes, IntCodes
from engine.quantization.formats import Writer, open_format, writer

NAME = "model.layers.0.mlp.up_proj.weight"
LLAMA = {"model_type": "llama", "num_hidden_layers": 1}
on_disk = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read_back(folder: Path, written_by: Writer, codes: Codes, **config: Any) -> Codes:
    save_file(written_by.tensors(NAME, codes), folder / "model.safetensors")
    quantization = written_by.quantization_config(**config)
    (folder / "config.json").write_text(
        json.dumps({**LLAMA, "quantization_config": json.loads(json.dumps(quantization))})
    )
    checkpoint = Checkpoint.open(folder)
    found = open_format(checkpoint)
    assert found is not None and found.method == written_by.method
    plain, quantized = found.split(checkpoint.tensors)
    assert not plain and list(quantized) == [NAME] and quantized[NAME].shape == codes.shape
    assert quantized[NAME].nbytes == sum(t.nbytes for t in checkpoint.tensors.values())
    with TensorReader(0, lambda stage, done, total: None, lambda: False) as reader:
        return quantized[NAME].read(reader)


def same(a: Codes, b: Codes) -> bool:
    """Every field equal, tensors with their dtype."""
    if type(a) is not type(b):
        return False
    pairs = [(getattr(a, key), getattr(b, key)) for key in a.__dataclass_fields__]
    return all(
        x.dtype == y.dtype and torch.equal(x, y)
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
        else x == y
        for x, y in pairs
    )


@st.composite
def int_codes(
    draw: st.DrawFn,
    *,
    bits: int,
    multiple: tuple[int, int],
    symmetric: bool,
    whole_groups: bool,
    own_order: bool = False,
) -> IntCodes:
    """Random codes whose outputs and inputs are multiples of `multiple`."""
    rows = draw(st.integers(1, 5)) * multiple[0]
    columns = draw(st.integers(1, 9)) * multiple[1]
    sizes = [g for g in range(1, columns + 1) if not columns % g or not whole_groups]
    group_size = draw(st.sampled_from(sizes))
    count = -(-columns // group_size)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    codes = torch.randint(0, 2**bits, (rows, columns), generator=generator, dtype=torch.uint8)
    scales = torch.randn(rows, count, generator=generator).to(torch.float16)
    zeros = torch.randint(0, 2**bits, scales.shape, generator=generator, dtype=torch.uint8)
    groups = None
    usual = torch.arange(columns) // group_size
    if own_order:
        groups = usual[torch.randperm(columns, generator=generator)].to(torch.int32)
        groups = None if torch.equal(groups.long(), usual) else groups
    return IntCodes(bits, codes, scales, None if symmetric else zeros, group_size, groups)


class TestRoundTrips:
    @on_disk
    @given(codes=int_codes(bits=4, multiple=(8, 1), symmetric=False, whole_groups=True))
    def test_awq(self, codes: IntCodes, tmp_path: Path) -> None:
        config = {"bits": 4, "group_size": codes.group_size, "symmetric": False}
        assert same(read_back(tmp_path, writer("awq"), codes, **config), codes)

    @on_disk
    @given(data=st.data(), bits=st.sampled_from([4, 8]), symmetric=st.booleans())
    def test_gptq(self, data: st.DataObject, bits: int, symmetric: bool, tmp_path: Path) -> None:
        codes = data.draw(
            int_codes(
                bits=bits, multiple=(32 // bits, 32 // bits), symmetric=symmetric,
                whole_groups=False, own_order=data.draw(st.booleans()),
            )
        )  # fmt: skip
        config = {"bits": bits, "group_size": codes.group_size, "symmetric": symmetric}
        written = read_back(tmp_path, writer("gptq"), codes, desc_act=True, **config)
        assert same(written, codes)


def test_a_format_that_is_not_written() -> None:
    with pytest.raises(ConfigError, match="awq"):
        writer("gguf")
