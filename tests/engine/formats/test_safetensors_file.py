"""Headers of safetensors files: what the library refuses is refused, the rest is read equal."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from engine.errors import CheckpointError
from engine.formats.safetensors_file import BITS, read_header
from tests.tiers import examples

U8: dict[str, Any] = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
NESTED = b"[" * 200 + b"]" * 200


def write(file: Path, header: bytes | dict[str, Any], data: bytes = b"00") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return file


def of_library(file: Path) -> dict[str, tuple[str, list[int]]] | None:
    """dtype and shape by name, None where the library refuses the file."""
    try:
        with safe_open(file, "numpy") as found:
            slices = {name: found.get_slice(name) for name in found.keys()}  # noqa: SIM118
            return {name: (part.get_dtype(), part.get_shape()) for name, part in slices.items()}
    except (SafetensorError, UnicodeDecodeError):
        return None


def of_ours(file: Path) -> dict[str, tuple[str, list[int]]] | None:
    try:
        found = read_header(file)
    except CheckpointError as error:
        assert str(file) in error.cause and error.remedy
        return None
    assert all(info.offset + info.nbytes <= file.stat().st_size for info in found.values())
    return {name: (info.dtype, list(info.shape)) for name, info in found.items()}


def test_whole_headers_are_read_with_their_offsets(tmp_path: Path) -> None:
    whole = {
        "b": {**U8, "data_offsets": [2, 4]}, "a": U8, "empty": {**U8, "shape": [0, 7],
        "data_offsets": [4, 4]}, "half": {"dtype": "F4", "shape": [3, 2], "data_offsets": [4, 7]},
        "__metadata__": {"format": "pt"},
    }  # fmt: skip
    file = write(tmp_path / "x.safetensors", whole, b"0" * 7)
    found, start = read_header(file), file.stat().st_size - 7
    assert {n: (t.offset - start, t.nbytes) for n, t in found.items()} == {
        "b": (2, 2), "a": (0, 2), "empty": (4, 0), "half": (4, 3),
    }  # fmt: skip
    assert of_ours(file) == of_library(file)


# header, data, what the error names
DAMAGED: dict[str, tuple[bytes | dict[str, Any], bytes, str]] = {
    "overlap": ({"a": U8, "b": U8}, b"00", "b; overlaps a"),
    "partial overlap": ({"a": U8, "b": {**U8, "data_offsets": [1, 3]}}, b"000", "b; overlaps a"),
    "gap": ({"a": U8, "b": {**U8, "data_offsets": [3, 5]}}, b"0" * 5, "b; a gap"),
    "gap at the start": ({"a": {**U8, "data_offsets": [1, 3]}}, b"000", "a; gap"),
    "too long": ({"a": U8}, b"000", "expected; found"),
    "too short": ({"a": U8}, b"0", "truncated"),
    "reversed": ({"a": {**U8, "data_offsets": [2, 0]}}, b"00", "a; [2, 0]"),
    "negative": ({"a": {**U8, "data_offsets": [-2, 0]}}, b"00", "-2"),
    "minus zero": (b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[-0,2]}}', b"00", "-0"),
    "fraction": ({"a": {**U8, "data_offsets": [0, 2.5]}}, b"00", "a; data_offsets[1]; 2.5"),
    "whole fraction": ({"a": {**U8, "data_offsets": [0, 2.0]}}, b"00", "data_offsets[1]; 2.0"),
    "flag": ({"a": {**U8, "data_offsets": [False, 2]}}, b"00", "a; data_offsets[0]; false"),
    "text": ({"a": {**U8, "data_offsets": ["0", 2]}}, b"00", 'a; data_offsets[0]; "0"'),
    "three offsets": ({"a": {**U8, "data_offsets": [0, 2, 3]}}, b"00", "a; [0, 2, 3]"),
    "negative shape": ({"a": {**U8, "shape": [-2]}}, b"00", "-2"),
    "text shape": ({"a": {**U8, "shape": "2"}}, b"00", 'a; shape; "2"'),
    "another size": ({"a": {**U8, "shape": [3]}}, b"00", "a; [3]; 3 bytes"),
    "half a byte": ({"a": {**U8, "dtype": "F4", "shape": [3]}}, b"00", "a; [3]; F4"),
    "overflow": ({"a": {**U8, "shape": [2**32, 2**32, 0]}}, b"00", "a; 4294967296"),
    "unknown dtype": ({"a": {**U8, "dtype": "U9"}}, b"00", "a; U9"),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 2]}}, b"00", "a; dtype"),
    "unknown field": ({"a": {**U8, "order": 1}}, b"00", "a; order"),
    "list": ({"a": ["U8", [2], [0, 2]]}, b"00", "a; expected an object"),
    "null": ({"a": None}, b"", "a; null; expected an object"),
    "array header": (b"[]", b"", "starts with"),
    "blank": (b" {}", b"", "starts with"),
    "empty header": (b"", b"", "starts with"),
    "not UTF-8": (b'{"\xff":1}', b"", "0xff; UTF-8"),
    "half a surrogate pair": (b'{"\\ud800":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
                              b"00", "surrogate"),
    "duplicate tensor": (b'{"a":%(a)s,"a":%(a)s}' % {b"a": json.dumps(U8).encode()}, b"00",
                         '"a"; duplicate'),
    "duplicate field": (b'{"a":{"dtype":"U8","dtype":"I8","shape":[2],"data_offsets":[0,2]}}',
                        b"00", '"dtype"; duplicate'),
    "escaped duplicate": (b'{"a":{"dtype":"U8","d\\u0074ype":"I8","shape":[2],'
                          b'"data_offsets":[0,2]}}', b"00", '"dtype"; duplicate'),
    "metadata of numbers": ({"__metadata__": {"x": 1}, "a": U8}, b"00", "__metadata__"),
    "metadata of lists": ({"__metadata__": [], "a": U8}, b"00", "__metadata__; an object"),
    "trailing text": (b"{} x", b"", "trailing"),
    "long name": ({"x" * 3000: U8}, b"00", "3,000"),
    "many dimensions": ({"a": {**U8, "shape": [2, *[1] * 100]}}, b"00", "a; 101; dimensions"),
    "nested": (b'{"a":' + NESTED + b"}", b"", "a; expected an object"),
    "deeply nested": (b'{"a":' + b"[" * 10**6 + b"]" * 10**6 + b"}", b"", "levels"),
    "nested metadata": (b'{"__metadata__":' + NESTED + b"}", b"", "__metadata__"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_headers_are_refused_by_name(case: str, tmp_path: Path) -> None:
    header, data, names = DAMAGED[case]
    file = write(tmp_path / "x.safetensors", header, data)
    with pytest.raises(CheckpointError) as caught:
        read_header(file)
    assert str(file) in caught.value.cause and caught.value.remedy
    assert all(name in caught.value.cause for name in names.split("; ")), caught.value.cause
    assert len(caught.value.cause) < 1000


def test_a_header_longer_than_any_model_needs_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", 90 * 10**6) + b"{")
        stream.truncate(200 * 10**6)
    with pytest.raises(CheckpointError, match="90000000"):
        read_header(file)


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "loop"])
def test_only_regular_files_are_opened(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    make = {
        "fifo": os.mkfifo,
        "folder": os.mkdir,
        "device": lambda f: f.symlink_to("/dev/null"),
        "loop": lambda f: f.symlink_to(f),
    }
    make[kind](file)
    with pytest.raises(CheckpointError) as caught:
        read_header(file)
    assert str(file) in caught.value.cause


NUMBERS: Any = st.one_of(
    st.integers(0, 9),
    st.sampled_from([-1, 2**31, 2**63, 2**64 - 1, 2**64, 0.0, 2.5, True, None, "1"]),
)
ENTRIES: Any = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*BITS, "U9", 1]),
        "shape": st.lists(NUMBERS, max_size=3),
        "data_offsets": st.lists(NUMBERS, min_size=2, max_size=2),
    }
)


@st.composite
def headers(draw: Any) -> tuple[bytes, bytes]:
    """A header of neighbouring tensors, often with one entry replaced; and its data."""
    entries: dict[str, Any] = {}
    position = 0
    for name in draw(st.lists(st.text(max_size=3), unique=True, max_size=4)):
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        dtype = draw(st.sampled_from(list(BITS)))
        bits = BITS[dtype]
        for length in shape:
            bits *= length
        if bits % 8 or name == "__metadata__":
            continue
        entries[name] = {
            "dtype": dtype, "shape": shape, "data_offsets": [position, position + bits // 8]
        }  # fmt: skip
        position += bits // 8
    if draw(st.booleans()) and entries:
        name = draw(st.sampled_from(list(entries)))
        field = draw(st.sampled_from(["all", "dtype", "shape", "data_offsets"]))
        other = draw(ENTRIES)
        entries[name] = other if field == "all" else {**entries[name], field: other[field]}
    if draw(st.booleans()):
        entries["__metadata__"] = draw(
            st.dictionaries(st.text(max_size=3), st.one_of(st.text(max_size=3), NUMBERS))
        )
    data = b"\0" * max(0, position + draw(st.sampled_from([0, 0, 0, 0, 1, -1])))
    return json.dumps(entries, ensure_ascii=draw(st.booleans())).encode(), data


@settings(max_examples=examples(300), deadline=None)
@given(headers())
def test_verdicts_are_those_of_the_library(
    tmp_path_factory: pytest.TempPathFactory, given: tuple[bytes, bytes]
) -> None:
    file = write(tmp_path_factory.getbasetemp() / "verdict.safetensors", *given)
    assert of_ours(file) == of_library(file)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
@example(None)
def test_nothing_that_the_library_refuses_is_read(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    """Bytes of a whole file are replaced: our verdict may be stricter, and never laxer."""
    file = tmp_path_factory.getbasetemp() / "bytes.safetensors"
    content = bytearray(write(file, {"a": U8, "b": {**U8, "data_offsets": [2, 4]}}, b"0" * 4)
                        .read_bytes())  # fmt: skip
    if data is not None:
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(content) - 1))
            end = at + data.draw(st.integers(0, 2))
            content[at:end] = data.draw(st.binary(max_size=2) | st.sampled_from(
                [b'"', b"{", b"}", b"[", b"]", b",", b" ", b"0", b"-", b"\\", b".0", b"e1"]
            ))  # fmt: skip
    file.write_bytes(content)
    found = of_ours(file)
    assert found is None or found == of_library(file)
    assert data is not None or found is not None
