"""Broken safetensors files: header, dtype, shape, offsets, overlaps, holes, tensors."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.corpus.case import Case, Expected
from tests.corpus.commands import generate
from tests.corpus.weights import FILE, Weights, write

Q = "model.layers.0.self_attn.q_proj.weight"  # [64, 64]
K = "model.layers.0.self_attn.k_proj.weight"  # [32, 64]
LAYER = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
         "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm",
         "post_attention_layernorm")  # fmt: skip
TENSORS = (
    "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
    *(f"model.layers.{layer}.{name}.weight" for layer in (0, 1) for name in LAYER),
)  # fmt: skip
DEPTH = 100_000
HUGE_NUMBER = "9" * 5000

FIELDS: dict[str, dict[str, Any]] = {
    "dtype": {
        **{name: name for name in ("F64", "F16", "BF16", "I64", "I32", "U32", "I16", "U16", "I8",
                                   "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F4", "F33", "f32", "")},
        "null": None, "5": 5, "list": ["F32"], "object": {}, "true": True,
    },
    "shape": {
        "empty": [], "null": None, "text": "64x64", "5": 5, "flat": [4096], "three": [64, 64, 1],
        "wide": [32, 128], "tall": [128, 32], "negative": [-64, -64], "fraction": [64.5, 64],
        "texts": ["64", "64"], "zero": [0, 64], "overflow": [2**62, 4], "wrap": [2**32, 2**32],
        "bool": [True, 4096], "nested": [[64], 64], "object": {"0": 64}, "nulls": [None, 64],
        "long": [1] * 100_000,
    },
    "data_offsets": {
        "null": None, "empty": [], "one": [0], "three": [0, 1, 2], "texts": ["0", "16384"],
        "fraction": [0.5, 16384.5], "negative": [-16384, 0], "reversed": [16384, 0],
        "huge": [2**63, 2**63 + 16384], "beyond": [2**70, 2**70 + 16384], "object": {},
        "bools": [False, True], "first": [0, 16384], "nothing": [0, 0], "5": 5,
    },
}  # fmt: skip
"""Values of one field of one tensor's entry."""

ENTRIES: dict[str, Any] = {
    "null": None, "5": 5, "list": [], "text": "F32", "object": {}, "true": True,
    "without_dtype": {"shape": [64, 64], "data_offsets": [0, 16384]},
    "without_shape": {"dtype": "F32", "data_offsets": [0, 16384]},
    "without_offsets": {"dtype": "F32", "shape": [64, 64]},
}  # fmt: skip
METADATA: dict[str, Any] = {
    "null": None, "5": 5, "list": [], "text": "pt", "number_inside": {"format": 5},
    "object_inside": {"format": {}}, "null_inside": {"format": None},
}  # fmt: skip
LENGTHS = {"0": 0, "1": 1, "7": 7, "one_less": -1, "one_more": -2, "100000001": 100_000_001,
           "2**31": 2**31, "2**63": 2**63, "2**64-1": 2**64 - 1}  # fmt: skip
"""What the file says of its header's length; -1 and -2 beside the true one."""

HEADERS: dict[str, tuple[Callable[[bytes], bytes], Expected]] = {
    "empty": (lambda header: b"", "refused"),
    "blank": (lambda header: b" " * 64, "refused"),
    "no_tensors": (lambda header: b"{}", "refused"),
    "list": (lambda header: b"[" + header + b"]", "refused"),
    "text": (lambda header: b'"weights"', "refused"),
    "number": (lambda header: b"5", "refused"),
    "null": (lambda header: b"null", "refused"),
    "cut": (lambda header: header[:-20], "refused"),
    "rubbish_behind": (lambda header: header + b"}", "refused"),
    "two_objects": (lambda header: header + header, "refused"),
    "blanks_behind": (lambda header: header + b" " * 7, "same"),
    "blanks_before": (lambda header: b"  " + header, "sound"),
    "zeros_behind": (lambda header: header + bytes(8), "refused"),
    "byte_order_mark": (lambda header: b"\xef\xbb\xbf" + header, "sound"),
    "utf-16": (lambda header: header.decode().encode("utf-16"), "refused"),
    "not_utf-8": (lambda header: header.replace(b"model.norm", b"model.n\xff\xferm"), "refused"),
    "deep_list": (lambda header: header[:-1] + b',"x":' + b"[" * DEPTH + b"]" * DEPTH + b"}",
                  "refused"),
    "deep_object": (lambda header: header[:-1] + b',"x":' + b'{"a":' * DEPTH + b"1" + b"}" * DEPTH
                    + b"}", "refused"),
    "deep_metadata": (lambda header: b'{"__metadata__":{"a":' + b"[" * DEPTH + b"]" * DEPTH + b"},"
                      + header[1:], "refused"),
    "huge_number": (lambda header: header.replace(b"[64, 64]", f"[{HUGE_NUMBER}, 64]".encode(), 1),
                    "refused"),
    "nan": (lambda header: header.replace(b"[64, 64]", b"[NaN, 64]", 1), "refused"),
    "infinity": (lambda header: header.replace(b"[64, 64]", b"[1e999, 64]", 1), "refused"),
    "same_name_twice": (lambda header: header[:-1] + b"," + header[1:], "sound"),
    "single_quotes": (lambda header: header.replace(b'"', b"'"), "refused"),
}  # fmt: skip
SIZES: dict[str, tuple[Callable[[bytes], bytes], Expected]] = {
    "0": (lambda raw: b"", "refused"),
    "4": (lambda raw: raw[:4], "refused"),
    "8": (lambda raw: raw[:8], "refused"),
    "header_only": (lambda raw: raw[: 8 + struct.unpack("<Q", raw[:8])[0]], "refused"),
    "half": (lambda raw: raw[: len(raw) // 2], "refused"),
    "one_less": (lambda raw: raw[:-1], "refused"),
    "one_more": (lambda raw: raw + b"\0", "refused"),
    "twice": (lambda raw: raw + raw, "refused"),
    "zeros": (lambda raw: bytes(len(raw)), "refused"),
    "pickle": (lambda raw: b"\x80\x04" + raw, "refused"),
    "zip": (lambda raw: b"PK\x03\x04" + raw, "refused"),
    "gguf": (lambda raw: b"GGUF\x03\0\0\0" + raw, "refused"),
    "lfs": (lambda raw: b"version https://git-lfs.github.com/spec/v1\nsize 1\n", "refused"),
    "html": (lambda raw: b"<!DOCTYPE html><html>404</html>", "refused"),
}


def cases() -> Iterator[Case]:
    for field, values in FIELDS.items():
        for name, value in values.items():
            change = _entry_field(field, value)
            if field == "data_offsets" and name == "first":
                yield _case("overlap/first", _entry_field(field, value), FILE)
                continue
            yield _case(f"{field}/{name}", change, FILE, Q)
    for name, value in ENTRIES.items():
        yield _case(f"entry/{name}", _in_header(Q, value), FILE, Q)
    for name, value in METADATA.items():
        yield _case(f"metadata/{name}", _in_header("__metadata__", value), FILE, expected="sound")
    for name, length in LENGTHS.items():
        yield _case(f"length/{name}", _told_length(length), FILE)
    for name, (change_header, expected) in HEADERS.items():
        yield _case(f"json/{name}", _header_bytes(change_header), FILE, expected=expected)
    for name, (change_file, expected) in SIZES.items():
        yield _case(f"size/{name}", _file_bytes(change_file), FILE, expected=expected)
    for tensor in TENSORS:
        yield _case(f"missing/{tensor}", lambda w, t=tensor: w.remove(t), tensor)
        yield _case(f"shorter/{tensor}", lambda w, t=tensor: _shorter(w, t), tensor)
        yield _case(f"integer/{tensor}", lambda w, t=tensor: _set(w, t, "dtype", "I32"), tensor)
    for name, (change, expected, names) in LAYOUTS.items():
        yield _case(name, change, *names, expected=expected)


def _case(
    key: str, change: Callable[[Weights], object], *names: str, expected: Expected = "refused"
) -> Case:
    def make(folder: Path) -> None:
        weights = Weights(folder)
        if change(weights) is not False:
            weights.save()

    return Case("folder", f"safetensors/{key}", generate, make, "llama", expected, names)


def _set(weights: Weights, tensor: str, field: str, value: Any) -> None:
    weights.header[tensor][field] = value


def _entry_field(field: str, value: Any) -> Callable[[Weights], None]:
    return lambda weights: _set(weights, Q, field, value)


def _in_header(name: str, value: Any) -> Callable[[Weights], None]:
    return lambda weights: weights.header.update({name: value})


def _told_length(length: int) -> Callable[[Weights], bool]:
    def change(weights: Weights) -> bool:
        header = json.dumps(weights.header).encode()
        told = length if length >= 0 else len(header) + (-1 if length == -1 else 1)
        write(weights.file, header, bytes(weights.data), told)
        return False

    return change


def _header_bytes(change_header: Callable[[bytes], bytes]) -> Callable[[Weights], bool]:
    def change(weights: Weights) -> bool:
        header = change_header(json.dumps(weights.header).encode())
        write(weights.file, header, bytes(weights.data))
        return False

    return change


def _file_bytes(change_file: Callable[[bytes], bytes]) -> Callable[[Weights], bool]:
    def change(weights: Weights) -> bool:
        weights.file.write_bytes(change_file(weights.file.read_bytes()))
        return False

    return change


def _shorter(weights: Weights, tensor: str) -> None:
    """One row less, consistently."""
    entry = weights.header[tensor]
    rows, *rest = entry["shape"]
    kept = len(weights.bytes_of(tensor)) // rows * (rows - 1)
    weights.put(tensor, entry["dtype"], [rows - 1, *rest], bytes(weights.bytes_of(tensor)[:kept]))


def _values(weights: Weights, tensor: str, value: float) -> None:
    begin, end = weights.header[tensor]["data_offsets"]
    weights.data[begin:end] = array("f", [value] * ((end - begin) // 4)).tobytes()


def _hole(weights: Weights) -> None:
    """16 bytes of nobody's between two tensors."""
    begin = weights.header[K]["data_offsets"][0]
    for entry in weights.header.values():
        if entry["data_offsets"][0] >= begin:
            entry["data_offsets"] = [offset + 16 for offset in entry["data_offsets"]]
    weights.data[begin:begin] = bytes(16)


def _shared(weights: Weights) -> None:
    """Two tensors on the same bytes; those of the second belong to nobody."""
    _set(weights, TENSORS[-3], "data_offsets", weights.header[TENSORS[-4]]["data_offsets"])


def _partly_shared(weights: Weights) -> None:
    begin, end = weights.header[Q]["data_offsets"]
    _set(weights, Q, "data_offsets", [begin - 64, end - 64])


def _all_at_zero(weights: Weights) -> None:
    for entry in weights.header.values():
        begin, end = entry["data_offsets"]
        entry["data_offsets"] = [0, end - begin]
    weights.data = bytearray(max(e["data_offsets"][1] for e in weights.header.values()))


def _transposed(weights: Weights) -> None:
    shape = weights.header["model.layers.0.mlp.down_proj.weight"]["shape"]
    shape.reverse()


def _as_f64(weights: Weights) -> None:
    values = array("d", array("f", bytes(weights.bytes_of(Q))))
    weights.put(Q, "F64", [64, 64], values.tobytes())


def _as_i64(weights: Weights) -> None:
    values = array("q", map(int, array("f", bytes(weights.bytes_of(Q)))))
    weights.put(Q, "I64", [64, 64], values.tobytes())


def _many(weights: Weights) -> None:
    """300,000 empty tensors of names that nobody uses."""
    end = len(weights.data)
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [end, end]}
    weights.header.update({f"x.{i}": empty for i in range(300_000)})


LAYOUTS: dict[str, tuple[Callable[[Weights], object], Expected, tuple[str, ...]]] = {
    "unchanged": (lambda w: None, "same", ()),
    "hole": (_hole, "refused", (FILE,)),
    "overlap/whole": (_shared, "refused", (FILE,)),
    "overlap/part": (_partly_shared, "refused", (FILE,)),
    "overlap/all": (_all_at_zero, "refused", (FILE,)),
    "transposed": (_transposed, "refused", ("down_proj",)),
    "as_f64": (_as_f64, "same", ()),
    "as_i64": (_as_i64, "refused", (Q,)),
    "many_tensors": (_many, "sound", (FILE,)),
    "extra/inv_freq": (
        lambda w: w.put("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", [8], bytes(32)),
        "same", (),
    ),
    "extra/unknown": (lambda w: w.put("model.extra.weight", "F32", [2], bytes(8)), "sound", ()),
    "extra/bias": (
        lambda w: w.put(Q.replace("weight", "bias"), "F32", [64], bytes(256)), "sound", ()
    ),
    "extra/empty_name": (lambda w: w.put("", "F32", [2], bytes(8)), "sound", ()),
    "renamed": (lambda w: w.rename(Q, Q + "s"), "refused", (Q,)),
    "other_prefix": (lambda w: [w.rename(n, "x." + n) for n in list(w.header)], "refused", ()),
    "values/nan": (lambda w: _values(w, Q, float("nan")), "refused", ()),
    "values/infinity": (lambda w: _values(w, "lm_head.weight", float("inf")), "refused", ()),
    "values/nan_norm": (lambda w: _values(w, "model.norm.weight", float("nan")), "refused", ()),
    "values/nan_embedding": (
        lambda w: _values(w, "model.embed_tokens.weight", float("nan")), "refused", ()
    ),
}  # fmt: skip
