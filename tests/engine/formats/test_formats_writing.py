"""What was written is read back as the same codes, exactly."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from engine.errors import ConfigError
from engine.formats import Writer, open_format, writer
from engine.formats.tensor_reader import TensorReader
from engine.formats.writing import Made
from engine.models.checkpoint import Checkpoint
from engine.numerics.codes import NF4_TABLE, Codes, IntCodes, TableCodes
from engine.numerics.rounding import (
    round_asymmetric,
    round_fp8,
    round_int8,
    round_nf4,
    round_symmetric,
)

NAME = "model.layers.0.mlp.up_proj.weight"
LLAMA = {"model_type": "llama", "num_hidden_layers": 1}
PER_OUTPUT: dict[str, Any] = {"bits": 8, "group_size": -1, "symmetric": True}
on_disk = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def read_back(folder: Path, written_by: Writer, codes: Codes, **config: Any) -> Codes:
    save_file(written_by.tensors(NAME, codes), folder / "model.safetensors")
    quantization = written_by.quantization_config(Made(**config))
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


def random(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


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
        config: dict[str, Any] = {"bits": 4, "group_size": codes.group_size, "symmetric": False}
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

    @on_disk
    @given(data=st.data(), symmetric=st.booleans())
    def test_gptq_v2(self, data: st.DataObject, symmetric: bool, tmp_path: Path) -> None:
        codes = data.draw(
            int_codes(bits=4, multiple=(8, 8), symmetric=symmetric, whole_groups=False)
        )
        config: dict[str, Any] = {"bits": 4, "group_size": codes.group_size, "symmetric": symmetric}
        assert same(read_back(tmp_path, writer("gptq", "gptq_v2"), codes, **config), codes)

    @on_disk
    @given(
        data=st.data(),
        bits=st.sampled_from([4, 8]),
        symmetric=st.booleans(),
        dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    )
    def test_pack_quantized(
        self, data: st.DataObject, bits: int, symmetric: bool, dtype: torch.dtype, tmp_path: Path
    ) -> None:
        codes = data.draw(
            int_codes(bits=bits, multiple=(1, 1), symmetric=symmetric, whole_groups=True)
        )
        codes = replace(codes, scales=codes.scales.to(dtype))
        whole = codes.group_size == codes.shape[1] and data.draw(st.booleans())
        size = -1 if whole else codes.group_size
        made = writer("compressed-tensors", "pack-quantized")
        config = {"bits": bits, "group_size": size, "symmetric": symmetric}
        assert same(read_back(tmp_path, made, codes, **config), codes)

    @on_disk
    @given(rows=st.integers(1, 20), columns=st.integers(1, 40), seed=st.integers(0, 2**31))
    def test_int_quantized(self, rows: int, columns: int, seed: int, tmp_path: Path) -> None:
        codes = round_int8(random(rows, columns, seed))
        made = writer("compressed-tensors")
        assert same(read_back(tmp_path, made, codes, **PER_OUTPUT), codes)
        assert made.quantization_config(Made(**PER_OUTPUT))["format"] == "int-quantized"

    @on_disk
    @given(rows=st.integers(1, 20), columns=st.integers(1, 40), seed=st.integers(0, 2**31))
    def test_float_quantized(self, rows: int, columns: int, seed: int, tmp_path: Path) -> None:
        codes = round_fp8(random(rows, columns, seed))
        made = writer("compressed-tensors", "float-quantized")
        assert same(read_back(tmp_path, made, codes, **PER_OUTPUT), codes)
        assert (
            made.tensors(NAME, codes).keys()
            == writer("compressed-tensors").tensors(NAME, codes).keys()
        )

    @on_disk
    @given(
        rows=st.integers(1, 20), columns=st.integers(1, 40), seed=st.integers(0, 2**31),
        block_size=st.sampled_from([64, 128]),
    )  # fmt: skip
    def test_nf4(self, rows: int, columns: int, seed: int, block_size: int, tmp_path: Path) -> None:
        codes = round_nf4(random(rows, columns, seed), block_size)
        config: dict[str, Any] = {"bits": 4, "group_size": block_size, "symmetric": True}
        assert same(read_back(tmp_path, writer("bitsandbytes"), codes, **config), codes)

    def test_what_rounding_makes_is_what_awq_and_gptq_hold(self, tmp_path: Path) -> None:
        codes = round_asymmetric(random(16, 64, 0), bits=4, group_size=32)
        config: dict[str, Any] = {"bits": 4, "group_size": 32, "symmetric": False}
        for made in (writer("awq"), writer("gptq"), writer("gptq", "gptq_v2")):
            assert same(read_back(tmp_path, made, codes, **config), codes)

    def test_scales_that_float16_holds_exactly_may_be_float32(self, tmp_path: Path) -> None:
        codes = round_asymmetric(random(16, 64, 0), bits=4, group_size=32)
        wide = replace(codes, scales=codes.scales.float())
        config: dict[str, Any] = {"bits": 4, "group_size": 32, "symmetric": False}
        assert same(read_back(tmp_path, writer("awq"), wide, **config), codes)


class TestLiteralBytes:
    """Words that other programs write, known from the formats themselves."""

    COUNTING = torch.arange(8, dtype=torch.uint8)

    def codes(self, codes: torch.Tensor, zero: int = 1) -> IntCodes:
        scales = torch.ones(codes.shape[0], 1, dtype=torch.float16)
        zeros = torch.full((codes.shape[0], 1), zero, dtype=torch.uint8)
        return IntCodes(4, codes, scales, zeros, codes.shape[1])

    def test_awq_packs_outputs_in_its_own_order(self) -> None:
        words = writer("awq").tensors(NAME, self.codes(self.COUNTING.view(8, 1)))
        assert words["model.layers.0.mlp.up_proj.qweight"].tolist() == [[0x75316420]]
        assert words["model.layers.0.mlp.up_proj.qzeros"].tolist() == [[0x11111111]]

    def test_gptq_packs_inputs_in_natural_order_and_zeros_less_one(self) -> None:
        codes = self.codes(self.COUNTING.expand(8, 8), zero=8)
        words = writer("gptq").tensors(NAME, codes)
        assert words["model.layers.0.mlp.up_proj.qweight"].tolist() == [[0x76543210] * 8]
        assert words["model.layers.0.mlp.up_proj.qzeros"].tolist() == [[0x77777777]]
        words = writer("gptq", "gptq_v2").tensors(NAME, codes)
        assert words["model.layers.0.mlp.up_proj.qzeros"].tolist() == [[0x88888888 - 2**32]]

    def test_compressed_tensors_packs_inputs_in_natural_order(self) -> None:
        codes = self.codes(self.COUNTING.expand(1, 8))
        words = writer("compressed-tensors").tensors(NAME, codes)
        assert words["model.layers.0.mlp.up_proj.weight_packed"].tolist() == [[0x76543210]]
        assert words["model.layers.0.mlp.up_proj.weight_zero_point"].tolist() == [[0x1]]
        assert words["model.layers.0.mlp.up_proj.weight_shape"].tolist() == [1, 8]

    def test_bitsandbytes_puts_the_first_of_two_in_the_high_half(self) -> None:
        table = torch.tensor(NF4_TABLE)
        codes = TableCodes(self.COUNTING.view(2, 4), torch.ones(1), 64, table)
        tensors = writer("bitsandbytes").tensors(NAME, codes)
        assert tensors[NAME].tolist() == [[0x01], [0x23], [0x45], [0x67]]
        state = bytes(tensors[f"{NAME}.quant_state.bitsandbytes__nf4"].tolist()).decode()
        assert json.loads(state)["shape"] == [2, 4]


def awq_codes(rows: int = 8, columns: int = 64, group_size: int = 32) -> IntCodes:
    return round_asymmetric(random(rows, columns, 0), bits=4, group_size=group_size)


def ordered(codes: IntCodes) -> IntCodes:
    return replace(codes, groups=torch.tensor([1, 0] * 32, dtype=torch.int32))


INT8 = round_int8(torch.eye(8))
FP8 = round_fp8(torch.eye(8))
NF4 = round_nf4(torch.eye(8))
REFUSED = [
    ("awq", "", INT8, "4-bit"),
    ("awq", "", FP8, "4-bit"),
    ("awq", "", round_symmetric(torch.eye(8), bits=4, group_size=8), "zero points"),
    ("awq", "", ordered(awq_codes()), "desc_act"),
    ("awq", "", awq_codes(rows=12), "12 .* 8"),
    ("awq", "", awq_codes(columns=40), "32 .* 40"),
    ("awq", "", replace(awq_codes(), scales=torch.full((8, 2), 0.1)), "would change 16 of 16"),
    ("gptq", "", NF4, "4-bit and 8-bit"),
    ("gptq", "", awq_codes(rows=12), "12 .* 8"),
    ("gptq", "", awq_codes(columns=36), "36 .* 8"),
    ("gptq", "", replace(INT8, scales=torch.full((8, 1), 1e6)), r"8 .*1e\+06"),
    ("compressed-tensors", "", NF4, "4-bit and 8-bit"),
    ("compressed-tensors", "", ordered(awq_codes()), "desc_act"),
    ("compressed-tensors", "", awq_codes(columns=40), "32 .* 40"),
    ("compressed-tensors", "", round_fp8(torch.eye(8), per_output=False), r"\(8, 8\)"),
    ("compressed-tensors", "int-quantized", awq_codes(), "int8"),
    ("compressed-tensors", "float-quantized", INT8, "float8"),
    ("bitsandbytes", "", INT8, "NF4"),
    ("bitsandbytes", "", replace(NF4, table=torch.arange(16.0)), "NF4"),
    ("bitsandbytes", "", round_nf4(torch.eye(8), 32), "not 32"),
]


@pytest.mark.parametrize(("method", "layout", "codes", "words"), REFUSED)
def test_what_a_format_cannot_hold_is_refused(
    method: str, layout: str, codes: Codes, words: str
) -> None:
    made = writer(method, layout)
    with pytest.raises(ConfigError, match=words) as caught:
        made.tensors(NAME, codes)
    assert NAME in caught.value.cause and caught.value.remedy


def test_what_is_left_at_16_bits_is_named() -> None:
    left = ["lm_head", "model.layers.0.mlp.down_proj"]
    made = Made(bits=4, group_size=128, symmetric=False, left_out=left)
    assert writer("awq").quantization_config(made)["modules_to_not_convert"] == left
    assert writer("compressed-tensors").quantization_config(made)["ignore"] == left
    assert writer("bitsandbytes").quantization_config(made)["llm_int8_skip_modules"] == left
    gptq = writer("gptq").quantization_config(made)
    assert not gptq["lm_head"]
    (pattern,) = gptq["dynamic"]
    assert pattern.startswith("-:") and re.match(pattern[2:], left[1])


@pytest.mark.parametrize(("method", "layout"), [("gguf", ""), ("awq", "gemv"), ("gptq", "marlin")])
def test_a_format_or_layout_that_is_not_written(method: str, layout: str) -> None:
    with pytest.raises(ConfigError) as caught:
        writer(method, layout)
    assert caught.value.remedy


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_lie_as_compressed_tensors_documents_them(bits: int) -> None:
    """int32 [N * bits / 32, G]: words of consecutive outputs, the lowest bits first."""
    codes = round_asymmetric(random(64, 128, 3), bits=bits, group_size=32)
    assert isinstance(codes, IntCodes) and codes.zeros is not None
    made = writer("compressed-tensors", "pack-quantized").tensors(NAME, codes)
    words = made[NAME.removesuffix("weight") + "weight_zero_point"]
    assert words.dtype == torch.int32 and words.shape == (64 * bits // 32, 4)
    for output in (0, 1, 9, 63):
        word, place = divmod(output, 32 // bits)
        expected = codes.zeros[output].to(torch.int32)
        assert torch.equal((words[word] >> (bits * place)) & (2**bits - 1), expected)
