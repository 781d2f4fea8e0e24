"""Broken quantized checkpoints: settings of every wrong type, and tensors that do not fit them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.corpus.case import Case, Expected
from tests.corpus.commands import generate
from tests.corpus.configs import FILE, MISSING, rewrite
from tests.corpus.controls import QUANTIZED
from tests.corpus.weights import Weights

Json = dict[str, Any]
Q = "model.layers.0.self_attn.q_proj"
TYPES: dict[str, Any] = {
    "null": None, "text": "text", "fraction": 3.5, "list": [], "object": {}, "missing": MISSING,
    "0": 0, "-1": -1, "7": 7, "10**30": 10**30,
}  # fmt: skip
FIELDS: dict[str, tuple[str, ...]] = {
    "awq": ("bits", "group_size", "zero_point", "version", "modules_to_not_convert"),
    "gptq": ("bits", "group_size", "sym", "desc_act", "checkpoint_format"),
    "fp8-block": ("weight_block_size", "activation_scheme", "fmt"),
    "fp8-channel": ("weight_block_size",),
    "bnb-nf4": ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "llm_int8_skip_modules"),
    "bnb-int8": ("load_in_8bit", "llm_int8_skip_modules"),
    "ct-pack": ("format", "config_groups", "ignore", "kv_cache_scheme", "quantization_status"),
    "ct-int": ("format", "config_groups"),
    "ct-float": ("format", "config_groups"),
}
"""Fields at the top of quantization_config. A wrong value may be harmless: the tensors decide."""
WEIGHT_FIELDS = ("num_bits", "type", "symmetric", "strategy", "group_size", "actorder", "dynamic")
GROUP_VALUES: dict[str, tuple[Any, Expected]] = {
    "null": (None, "refused"),
    "text": ("Linear", "refused"),
    "5": (5, "refused"),
    "list": ([], "refused"),
    "empty": ({}, "refused"),
    "weights_null": ({"targets": ["Linear"], "weights": None}, "refused"),
    "weights_5": ({"targets": ["Linear"], "weights": 5}, "refused"),
    "weights_list": ({"targets": ["Linear"], "weights": [4]}, "refused"),
    "weights_empty": ({"targets": ["Linear"], "weights": {}}, "refused"),
}
"""A whole config group."""
TARGETS: dict[str, tuple[Any, Expected]] = {
    "null": (None, "sound"),
    "text": ("Linear", "refused"),
    "5": (5, "refused"),
    "numbers": ([5], "refused"),
    "object": ({}, "refused"),
    "empty_text": ([""], "sound"),
    "bad_pattern": (["re:(["], "refused"),
    "backtracks": (["re:(\\w+\\.?)+!$"], "sound"),
    "backtracks_stars": (["re:(.*)*(.*)*(.*)*(.*)*!"], "sound"),
    "backtracks_nested": (["re:((([a-z_.0-9]+)+)+)+!"], "sound"),
    "huge_repeat": (["re:(.{1,9999}){1,9999}!"], "sound"),
    "long_pattern": (["re:" + "a?" * 50_000], "sound"),
    "deep_pattern": (["re:" + "(" * 5_000 + ")" * 5_000], "sound"),
    "many": ([f"re:.*x{i}" for i in range(20_000)], "sound"),
}
"""Targets of a config group, and the list of modules to ignore."""
WHOLE: dict[str, Any] = {
    "empty": {}, "list": [], "text": "awq", "5": 5, "true": True,
    "method_null": {"quant_method": None},
    "method_5": {"quant_method": 5}, "method_list": {"quant_method": ["awq"]},
    "method_unknown": {"quant_method": "nope"}, "method_empty": {"quant_method": ""},
    "method_alone": {"quant_method": "awq"}, "hqq": {"quant_method": "hqq", "bits": 4},
    "exl2": {"quant_method": "exl2"}, "aqlm": {"quant_method": "aqlm"},
}  # fmt: skip
METHODS = ("awq", "gptq", "compressed-tensors", "fp8", "bitsandbytes")
OF_METHOD = {"awq": "awq", "gptq": "gptq", "compressed-tensors": "ct-pack", "fp8": "fp8-block",
             "bitsandbytes": "bnb-nf4"}  # fmt: skip


def cases() -> Iterator[Case]:
    for control in QUANTIZED:
        yield Case("quantized", f"{control}/unchanged", generate, control=control, expected="same")
        yield from _tensor_cases(control)
    for control, fields in FIELDS.items():
        for field in fields:
            for name, value in TYPES.items():
                change = partial(_in_settings, {field: value})
                yield _case(control, f"{field}={name}", change, "sound")
    for field in WEIGHT_FIELDS:
        for name, value in TYPES.items():
            change = partial(_in_weights, {field: value})
            yield _case("ct-pack", f"weights/{field}={name}", change, "sound")
    for name, (value, expected) in GROUP_VALUES.items():
        change = partial(_in_settings, {"config_groups": {"group_0": value}})
        yield _case("ct-pack", f"group/{name}", change, expected)
    for name, (value, expected) in TARGETS.items():
        yield _case("ct-pack", f"targets/{name}", partial(_targets, value), expected)
        change = partial(_in_settings, {"ignore": value})
        yield _case("ct-pack", f"ignored/{name}", change, "sound")
    for name, value in WHOLE.items():
        change = partial(_whole, value)
        yield _case("awq", f"settings/{name}", change, "refused", "quantization_config")
    for told in METHODS:
        for method in METHODS:
            if told != method:
                change = partial(_in_settings, {"quant_method": told})
                yield _case(OF_METHOD[method], f"called_{told}", change, "refused")
    for name, content in STATES.items():
        yield Case("quantized", f"bnb-nf4/state/{name}", generate, partial(_state, content),
                   "bnb-nf4", "sound" if name in HARMLESS_STATES else "refused")  # fmt: skip


def _case(
    control: str, key: str, change: Callable[[Json], Json], expected: Expected, *names: str
) -> Case:
    def make(folder: Path) -> None:
        rewrite(folder / FILE, change)

    wanted = names if names or expected != "refused" else (FILE,)
    return Case("quantized", f"{control}/{key}", generate, make, control, expected, wanted)


def _in_settings(change: Json, values: Json) -> Json:
    settings = {**values["quantization_config"], **change}
    kept = {key: value for key, value in settings.items() if value is not MISSING}
    return {**values, "quantization_config": kept}


def _in_weights(change: Json, values: Json) -> Json:
    group = values["quantization_config"]["config_groups"]["group_0"]
    weights = {**group["weights"], **change}
    group["weights"] = {key: value for key, value in weights.items() if value is not MISSING}
    return values


def _targets(value: Any, values: Json) -> Json:
    values["quantization_config"]["config_groups"]["group_0"]["targets"] = value
    return values


def _whole(value: Any, values: Json) -> Json:
    return {**values, "quantization_config": value}


DTYPES = {"I32": 4, "F16": 2, "BF16": 2, "F32": 4, "I64": 8, "U8": 1, "I8": 1, "F8_E4M3": 1,
          "F8_E5M2": 1, "BOOL": 1, "U32": 4, "F64": 8}  # fmt: skip
MEMBERS = {
    "awq": ("qweight", "qzeros", "scales"),
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "gptq-desc_act": ("g_idx",),
    "ct-pack": ("weight_packed", "weight_scale", "weight_shape"),
    "ct-int": ("weight", "weight_scale"),
    "ct-float": ("weight", "weight_scale"),
    "fp8-block": ("weight", "weight_scale_inv"),
    "fp8-channel": ("weight", "weight_scale"),
    "bnb-nf4": ("weight", "weight.absmax", "weight.quant_map",
                "weight.quant_state.bitsandbytes__nf4"),
    "bnb-double": ("weight.nested_absmax", "weight.nested_quant_map"),
    "bnb-int8": ("weight", "SCB", "weight_format"),
}  # fmt: skip
"""Tensors of one quantized linear."""
UNUSED = ("g_idx", "weight_shape", "weight_format")
"""What these say may be known from elsewhere."""


def _tensor_cases(control: str) -> Iterator[Case]:
    for member in MEMBERS[control]:
        name = f"{Q}.{member}"
        expected: Expected = "sound" if member in UNUSED else "refused"
        changes: dict[str, Callable[[Weights], object]] = {
            "missing": lambda w, n=name: w.remove(n),  # type: ignore[misc]
            "empty": lambda w, n=name: w.put(n, w.header[n]["dtype"], [0], b""),  # type: ignore[misc]
            "shorter": partial(_shorter, name),
            "flat": partial(_flat, name),
            "dtype": partial(_other_dtype, name),
        }
        for key, change in changes.items():
            # one dimension is flat already
            wanted: Expected = "sound" if key == "flat" else expected
            yield Case(
                "quantized", f"{control}/{member}/{key}", generate, partial(_changed, change),
                control, wanted, (Q,) if wanted == "refused" else (),
            )  # fmt: skip
        if any(part in member for part in ("scale", "absmax", "SCB", "quant_map")):
            change = partial(_filled, name, b"\xff")
            yield Case("quantized", f"{control}/{member}/nan", generate,
                       partial(_changed, change), control, "refused")  # fmt: skip
        if member == "g_idx":
            for key, fill in (("beyond", b"\x7f"), ("negative", b"\xff")):
                change = partial(_filled, name, fill)
                yield Case("quantized", f"{control}/g_idx/{key}", generate,
                           partial(_changed, change), control, "refused", (Q,))  # fmt: skip


def _changed(change: Callable[[Weights], object], folder: Path) -> None:
    weights = Weights(folder)
    change(weights)
    weights.save()


def _shorter(name: str, weights: Weights) -> None:
    entry = weights.header[name]
    rows, *rest = entry["shape"] or [1]
    kept = len(weights.bytes_of(name)) // rows * (rows - 1)
    weights.put(name, entry["dtype"], [rows - 1, *rest], bytes(weights.bytes_of(name)[:kept]))


def _flat(name: str, weights: Weights) -> None:
    entry = weights.header[name]
    content = bytes(weights.bytes_of(name))
    weights.put(name, entry["dtype"], [len(content) // DTYPES[entry["dtype"]]], content)


def _other_dtype(name: str, weights: Weights) -> None:
    """The same bytes, called something else of the same size."""
    entry = weights.header[name]
    same = {"I32": "F32", "F32": "I32", "F16": "I16", "BF16": "I16", "I64": "F64", "U8": "BOOL",
            "I8": "BOOL", "F8_E4M3": "I8"}  # fmt: skip
    entry["dtype"] = same[entry["dtype"]]


def _filled(name: str, fill: bytes, weights: Weights) -> None:
    begin, end = weights.header[name]["data_offsets"]
    weights.data[begin:end] = fill * (end - begin)


STATES: dict[str, bytes] = {
    "empty": b"",
    "rubbish": b"\xff\xfe\x00",
    "list": b"[]",
    "null": b"null",
    "number": b"5",
    "text": b'"nf4"',
    "cut": b'{"quant_type": "nf4", "blocksize": 6',
    "deep": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "huge_number": b'{"quant_type": "nf4", "blocksize": ' + b"9" * 5000 + b"}",
    **{
        f"{field}={name}": json.dumps({
            key: value for key, value in {
                "quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [64, 64],
                field: wrong,
            }.items() if value is not MISSING
        }).encode()
        for field in ("quant_type", "blocksize", "dtype", "shape")
        for name, wrong in TYPES.items()
    },
    "shape=swapped": b'{"quant_type": "nf4", "blocksize": 64, "shape": [32, 128]}',
    "shape=huge": b'{"quant_type": "nf4", "blocksize": 64, "shape": [1048576, 1048576]}',
    "type=fp4": b'{"quant_type": "fp4", "blocksize": 64, "dtype": "float16", "shape": [64, 64]}',
}  # fmt: skip
"""JSON in a tensor of bytes."""
HARMLESS_STATES = {key for key in STATES if key.startswith("dtype=")} | {
    "blocksize=missing", "blocksize=null", "shape=missing", "shape=null", "quant_type=missing",
    "quant_type=null",
}  # fmt: skip


def _state(content: bytes, folder: Path) -> None:
    weights = Weights(folder)
    name = f"{Q}.weight.quant_state.bitsandbytes__nf4"
    weights.put(name, "U8", [len(content)], content)
    weights.save()
