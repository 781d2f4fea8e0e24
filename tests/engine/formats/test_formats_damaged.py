"""Quantized checkpoints that are not whole: what is wrong is named, before or while it is read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.errors import CheckpointError, LoadCancelled
from engine.formats import open_format
from engine.formats.checkpoint_format import Misfit, check_values
from engine.formats.safetensors_file import TensorInfo
from engine.formats.tensor_reader import TensorReader, torch_dtype
from engine.memory.model_sizes import describe_model
from engine.models.checkpoint import Checkpoint
from engine.name_patterns import first_matches
from engine.numerics.codes import IntCodes, TableCodes
from tests.engine.formats.test_formats_reading import open_quantized, read_all
from tests.engine.quantized_checkpoints import change_config, make_quantized
from tests.tiers import tiered

MODULE = "model.layers.0.mlp.up_proj"
Change = Callable[[dict[str, Tensor]], Any]


def edit(folder: Path, change: Change) -> None:
    """`change` the tensors of MODULE, given by the end of their names."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    own = {n.removeprefix(f"{MODULE}."): tensors.pop(n) for n in list(tensors) if MODULE in n}
    change(own)
    tensors |= {f"{MODULE}.{end}": tensor.contiguous() for end, tensor in own.items()}
    save_file(tensors, file)


def put(name: str, value: Callable[[Tensor], Tensor]) -> Change:
    def change(own: dict[str, Tensor]) -> None:
        own[name] = value(own[name])

    return change


def drop(name: str) -> Change:
    return lambda own: own.pop(name)


def add(name: str, value: Tensor) -> Change:
    return lambda own: own.__setitem__(name, value)


def poke(name: str, value: float) -> Change:
    """Set the first number of a tensor."""

    def change(own: dict[str, Tensor]) -> None:
        own[name][(0,) * own[name].ndim] = value

    return change


STATE = "weight.quant_state.bitsandbytes__nf4"


def state(**changes: Any) -> Change:
    """Replace fields of a quant_state."""

    def change(own: dict[str, Tensor]) -> None:
        fields = {**json.loads(bytes(own[STATE].tolist())), **changes}
        own[STATE] = torch.tensor(list(json.dumps(fields).encode()), dtype=torch.uint8)

    return change


CT, BNB = "compressed-tensors", "bitsandbytes"
INT, FLOAT = {"layout": "int"}, {"layout": "float"}
ASYMMETRIC: dict[str, Any] = {"symmetric": False}
# method, options, what is done to it, what is said
SPLITTING: list[tuple[str, dict[str, Any], Change, str]] = [
    ("awq", {}, drop("scales"), "qweight, qzeros; no scales"),
    ("awq", {}, drop("qweight"), "no qweight"),
    ("awq", {}, put("scales", lambda t: t[:1]), "scales; [1, 96]; [2, 96]"),
    ("awq", {}, put("qzeros", lambda t: t[:, :4]), "qzeros; [2, 4]; [2, 12]"),
    ("awq", {}, put("qweight", lambda t: t.long()), "qweight; I64; I32"),
    ("awq", {}, put("qweight", lambda t: t[:40]), "40; 32"),
    ("awq", {}, put("qweight", lambda t: t.flatten()), "two dimensions"),
    ("awq", {}, put("qweight", lambda t: t.expand(3, 64, 12)), "experts"),
    ("awq", {}, add("weight", torch.zeros(96, 64)), "unquantized"),
    ("awq", {}, add("codes", torch.zeros(4, 4).to(torch.int8)), "has dtype I8"),
    ("awq", {}, add("codes", torch.zeros(4, 4).to(torch.float8_e5m2)), "has dtype F8_E5M2"),
    ("awq", {}, add("gate_up_blocks", torch.zeros(2, 4, 4).byte()), "experts"),
    ("gptq", {}, drop("qzeros"), "no qzeros"),
    ("gptq", {}, put("scales", lambda t: t.double()), "scales; F64; F16"),
    ("gptq", {}, put("g_idx", lambda t: t[:8]), "g_idx; [8]; [64]"),
    ("gptq", {}, put("g_idx", lambda t: t.float()), "g_idx; F32; I32 or I64"),
    ("gptq", {}, put("qweight", lambda t: t[:, :90]), "90; 8"),
    ("gptq", {}, put("qzeros", lambda t: t[:, :4]), "qzeros; [2, 4]; [2, 12]"),
    (CT, {}, drop("weight_scale"), "no weight_scale"),
    (CT, {}, drop("weight_packed"), "no weight"),
    (CT, {}, put("weight_scale", lambda t: t[:, :1]), "[96, 2]"),
    (CT, {}, put("weight_packed", lambda t: t.long()), "weight_packed; I64"),
    (CT, {"group_size": -1}, put("weight_shape", lambda t: t + 8), "[104, 72]"),
    (CT, {"group_size": -1}, put("weight_shape", lambda t: t[:1]), "[2]"),
    (CT, ASYMMETRIC, drop("weight_zero_point"), "no weight_zero_point"),
    (CT, ASYMMETRIC, put("weight_zero_point", lambda t: t[:4]), "[12, 2]"),
    (CT, {"actorder": "group"}, put("weight_g_idx", lambda t: t[:4]), "[64]"),
    (CT, INT, put("weight", lambda t: t.short()), "weight; I16; I8"),
    (CT, INT, put("weight_scale", lambda t: t[:4]), "[96, 1]"),
    (CT, FLOAT, drop("weight"), "no weight"),
    (CT, FLOAT, put("weight", lambda t: t.half()), "weight; F16; F8_E4M3"),
    ("fp8", {}, drop("weight_scale_inv"), "no weight_scale_inv or weight_scale"),
    ("fp8", {}, put("weight_scale_inv", lambda t: t.expand(5, 7)), "[1, 1] or [1] or [96, 1]"),
    ("fp8", {}, put("weight", lambda t: t.float().to(torch.float8_e5m2)), "F8_E5M2"),
    ("fp8", {}, put("weight", lambda t: t.expand(2, 96, 64)), "experts"),
    (BNB, {}, drop("weight"), "no weight"),
    (BNB, {}, put("weight", lambda t: t.bool()), "weight; BOOL; U8"),
    (BNB, {}, drop(STATE), "SCB; quant_state"),
    (BNB, {}, drop("weight.absmax"), "no weight.absmax"),
    (BNB, {}, put("weight", lambda t: t[:5]), "5 bytes; 96 x 64"),
    (BNB, {}, put("weight.quant_map", lambda t: t[:5]), "[16]"),
    (BNB, {}, put("weight.absmax", lambda t: t[:5]), "absmax; [5]; [96]"),
    (BNB, {}, put("weight.absmax", lambda t: t.byte()), "absmax; U8; F32"),
    (BNB, {}, put(STATE, lambda t: t[:-3]), "quant_state"),
    (BNB, {}, add(STATE, torch.tensor(list(b'{"shape": [2, 3, 4], "blocksize": 64}'),
                                      dtype=torch.uint8)), "experts"),
    (BNB, {}, add(STATE, torch.tensor(list(b'{"shape": [2, 0], "blocksize": 64}'),
                                      dtype=torch.uint8)), "[2, 0]; 64"),
    (BNB, {}, state(shape=[96.0, 64]), "quant_state; shape[0]; 96.0"),
    (BNB, {}, state(shape="96x64"), "quant_state; shape"),
    (BNB, {}, state(shape=[-96, 64]), "quant_state; shape[0]; -96"),
    (BNB, {}, state(shape=[1] * 5000), "quant_state; [1, 1"),
    (BNB, {}, state(blocksize=0), "quant_state; blocksize; 0"),
    (BNB, {}, state(blocksize=10**30), "quant_state; blocksize"),
    (BNB, {}, state(nested_offset=None), "quant_state; nested_offset; null"),
    (BNB, {}, add(STATE, torch.tensor(list(b'{"x":' * 9000), dtype=torch.uint8)), "levels"),
    (BNB, {}, add(STATE, torch.zeros(70_000, dtype=torch.uint8)), "quant_state; 70,000"),
    (BNB, {"double": True}, put("weight.nested_absmax", lambda t: t.int()), "I32; F32"),
    (BNB, {"double": True}, put("weight.nested_quant_map", lambda t: t.byte()), "U8; F32"),
    (BNB, {"kind": "int8"}, add("weight_format", torch.zeros(0, dtype=torch.uint8)), "[0]"),
    (BNB, {"double": True}, drop("weight.nested_quant_map"), "no weight.nested_quant_map"),
    (BNB, {"double": True}, put("weight.nested_absmax", lambda t: t.repeat(2)), "[1]"),
    (BNB, {"kind": "int8"}, drop("SCB"), "SCB; quant_state"),
    (BNB, {"kind": "int8"}, put("SCB", lambda t: t[:5]), "SCB; [5]; [96]"),
]  # fmt: skip
READING: list[tuple[str, dict[str, Any], Change, str]] = [
    ("awq", {}, poke("scales", float("nan")), "1 of 192 scales"),
    ("gptq", {}, poke("scales", float("inf")), "1 of 192 scales"),
    ("gptq", {}, poke("g_idx", 2), "g_idx; 0 to 2; 2"),
    ("gptq", {}, poke("g_idx", -1), "g_idx; -1 to 1"),
    ("gptq", {}, poke("g_idx", 1), "g_idx; 2 of 2; 32"),
    (CT, {}, put("weight_shape", lambda t: t + 8), "weight_shape is [104, 72]"),
    (CT, {"symmetric": False, "zeros_in_words": False},
     poke("weight_zero_point", 9), "4-bit"),
    (CT, FLOAT, poke("weight_scale", float("nan")), "scales"),
    ("fp8", {}, poke("weight", float("nan")), "1 of 6144"),
    (BNB, {}, poke("weight.absmax", float("inf")), "scales"),
    (BNB, {}, poke("weight.quant_map", float("nan")), "16"),
    (BNB, {"kind": "int8"}, poke("SCB", float("nan")), "scales"),
    (BNB, {"kind": "int8"}, add("weight_format", torch.tensor(2, dtype=torch.uint8)),
     "weight_format 2"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "options", "change", "words"), SPLITTING)
def test_tensors_that_do_not_fit(
    method: str, options: dict[str, Any], change: Change, words: str, tmp_path: Path
) -> None:
    make_quantized(tmp_path, method, **options)
    edit(tmp_path, change)
    found, checkpoint = open_quantized(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        found.split(checkpoint.tensors)
    assert MODULE in caught.value.cause and "model.safetensors" in caught.value.cause
    assert len(caught.value.cause) < 600
    assert all(word in caught.value.cause for word in words.split("; "))
    assert "1 weight " in caught.value.cause and caught.value.remedy


@pytest.mark.parametrize(("method", "options", "change", "words"), READING)
def test_values_that_cannot_be(
    method: str, options: dict[str, Any], change: Change, words: str, tmp_path: Path
) -> None:
    make_quantized(tmp_path, method, **options)
    edit(tmp_path, change)
    with pytest.raises(CheckpointError) as caught:
        read_all(tmp_path)
    assert f"{MODULE}.weight" in caught.value.cause
    assert all(word in caught.value.cause for word in words.split("; "))
    assert str(tmp_path) in caught.value.cause and caught.value.remedy


def test_many_weights_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    make_quantized(tmp_path, "gptq", group_size=16)
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    change_config(tmp_path, quantization_config=settings)
    found, checkpoint = open_quantized(tmp_path)
    with pytest.raises(CheckpointError, match=r"14 weights .* GPTQ, 4-bit") as caught:
        found.split(checkpoint.tensors)
    assert "and 11 more" in caught.value.cause


def test_a_folder_that_was_damaged_since_it_was_described_is_described_anew(
    tmp_path: Path,
) -> None:
    make_quantized(tmp_path, "awq")
    assert describe_model(tmp_path).supported
    edit(tmp_path, drop("scales"))
    report = describe_model(tmp_path)
    assert not report.supported and MODULE in report.reason
    assert describe_model(tmp_path, dummy=True).supported  # whose files are not looked at
    assert not describe_model(tmp_path).supported


def test_settings_of_a_group_that_names_no_module(tmp_path: Path) -> None:
    make_quantized(tmp_path, CT)
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    groups = {
        "a": {"targets": ["re:.*self_attn.*"], "weights": weights},
        "b": {"targets": ["model.layers.0.mlp.up_proj"], "weights": weights},
    }
    settings = {"quant_method": CT, "format": "pack-quantized", "config_groups": groups}
    change_config(tmp_path, quantization_config=settings)
    found, checkpoint = open_quantized(tmp_path)
    with pytest.raises(CheckpointError, match=r"5 weights .* config_groups"):
        found.split(checkpoint.tensors)


BACKTRACKING = r"((.+)+.?)+!$"
"""Three times as long with every character: weeks for a module's name."""


@pytest.mark.parametrize(
    ("method", "pattern", "words"),
    tiered(
        [*(fast := [(CT, BACKTRACKING, "2 s"), (CT, "([", "invalid"), ("gptq", "+:([", "invalid"),
                    (CT, "(" * 5000 + ")" * 5000, "pattern")]),
         ("gptq", BACKTRACKING, "2 s"), (CT, "(.{0,9}){200}!", "pattern")],
        fast,
    ),
)  # fmt: skip
def test_patterns_that_never_end(
    method: str, pattern: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pattern == BACKTRACKING or "{200}" in pattern:
        monkeypatch.setattr("engine.name_patterns._SECONDS", 2.0)
    make_quantized(tmp_path, method)
    settings = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    if method == CT:
        settings["config_groups"]["group_0"]["targets"] = [f"re:{pattern}"]
    else:
        settings["dynamic"] = {pattern: {"bits": 8}}
    change_config(tmp_path, quantization_config=settings)
    found, checkpoint = open_quantized(tmp_path)
    start = time.monotonic()
    with pytest.raises(CheckpointError) as caught:
        found.split(checkpoint.tensors)
    assert time.monotonic() - start < 60
    assert "config.json" in caught.value.cause and words in caught.value.cause


def test_patterns_choose_the_settings_of_modules(tmp_path: Path) -> None:
    names = ("model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj", "lm_head")
    patterns = (r".*layers\.1\.", r".*mlp.*")
    assert first_matches(patterns, names, "x") == {names[0]: 1, names[1]: 0}
    assert first_matches((), names, "x") == {}


def test_zero_points_and_tables_out_of_range() -> None:
    codes = torch.zeros(2, 4, dtype=torch.uint8)
    with pytest.raises(Misfit, match=r"16 .*15"):
        check_values(IntCodes(4, codes, torch.ones(2, 1), torch.full((2, 1), 16).byte(), 4))
    with pytest.raises(Misfit, match="table"):
        check_values(TableCodes(codes, torch.ones(1), 64, torch.full((16,), float("inf"))))


def test_a_number_format_that_is_not_read() -> None:
    info = TensorInfo(Path("x.safetensors"), "F8_E5M2", (2, 2), 4, 0)
    with pytest.raises(CheckpointError, match=r"\[2, 2\] .*F8_E5M2"):
        torch_dtype(info)


def test_reading_can_be_cancelled(tmp_path: Path) -> None:
    make_quantized(tmp_path, "awq")
    checkpoint = Checkpoint.open(tmp_path)
    found = open_format(checkpoint)
    assert found is not None
    _, quantized = found.split(checkpoint.tensors)
    with TensorReader(0, lambda stage, done, total: None, lambda: True) as reader, \
            pytest.raises(LoadCancelled):  # fmt: skip
        quantized[f"{MODULE}.weight"].read(reader)
