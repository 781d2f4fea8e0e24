"""JSON that other programs wrote is read within bounds, and refused by file, field and value."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import CheckpointError
from engine.json_file import MAX_BYTES, MAX_DEPTH, checked, decode_json, read_json, read_regular


class Shard(msgspec.Struct):
    weight_map: dict[str, str]
    counts: list[int] = []
    metadata: Any = None


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"{}" + b"}" * depth


# content, type, what the error names
DAMAGED: dict[str, tuple[bytes, Any, str]] = {
    "empty": (b"", dict, "Expecting value"),
    "cut": (b'{"a":', dict, "Expecting value"),
    "trailing": (b"{} {}", dict, "Extra data"),
    "list": (b"[]", dict, "JSON object"),
    "null": (b"null", dict, "JSON object"),
    "not UTF-8": (b'{"a":"\xff"}', dict, "0xff; UTF-8"),
    "UTF-16": ('{"a":1}'.encode("utf-16"), dict, "0xff; UTF-8"),
    "half a surrogate pair": (b'{"a":"\\ud800"}', dict, "surrogate"),
    "leading zero": (b'{"a":{"b":01}}', dict, "line 1, column"),
    "long number": (b'{"a":' + b"9" * 5000 + b"}", dict, "4300"),
    "too deep": (nested(MAX_DEPTH + 1), dict, f"{MAX_DEPTH} nested levels"),
    "far too deep": (nested(100_000), dict, f"{MAX_DEPTH} nested levels"),
    "too deep for a type": (b'{"metadata":' + nested(10_000) + b"}", Shard, "nested levels"),
    "too deep where skipped": (b'{"x":' + nested(10_000) + b"}", Shard, "nested levels"),
    "too long": (b'{"a":"' + b"x" * MAX_BYTES + b'"}', dict, f"{MAX_BYTES:,}"),
    "no field": (b"{}", Shard, "weight_map"),
    "field of another type": (b'{"weight_map":[1]}', Shard, "weight_map; [1]; an object"),
    "value of another type": (b'{"weight_map":{"a":1}}', Shard, "weight_map[...]; a string"),
    "list of another type": (b'{"weight_map":{},"counts":[1,2.5]}', Shard, "counts[1]; 2.5; an"),
    "cut after a misfit": (b'{"weight_map":[1', Shard, "weight_map; a list; an object"),
    "another type": (b"[]", Shard, "[]; an object"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_refused(case: str, tmp_path: Path) -> None:
    content, kind, names = DAMAGED[case]
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_json(file, kind)
    assert str(file) in caught.value.cause and caught.value.remedy
    assert all(name in caught.value.cause for name in names.split("; ")), caught.value.cause
    assert len(caught.value.cause) < 400


def test_whole_files_are_read(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    value = {"a": [1, 2.5, None, True], "b": {"c": "\U0001f600"}}
    for content in (json.dumps(value), "\ufeff" + json.dumps(value, ensure_ascii=False)):
        file.write_text(content, encoding="utf-8")
        assert read_json(file) == value
    file.write_bytes(nested(MAX_DEPTH))
    read_json(file)
    file.write_bytes(b'{"weight_map":{"a":"b"},"other":[{}]}')
    assert read_json(file, Shard).weight_map == {"a": "b"}
    file.write_bytes(b'{"a":Infinity}')
    assert math.isinf(read_json(file)["a"])


def test_the_limit_counts_bytes_and_not_what_the_folder_says(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"12345")
    assert read_regular(file, 5) == b"12345"
    with pytest.raises(CheckpointError, match=r"5 bytes.* 4"):
        read_regular(file, 4)
    with pytest.raises(CheckpointError, match="limit is 4"):
        read_regular(Path("/proc/self/status"), 4)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "folder": os.mkdir,
    "device": lambda file: file.symlink_to("/dev/null"),
    "No such file": lambda file: file.symlink_to(file.with_name("absent")),
    "symbolic links": lambda file: file.symlink_to(file),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_only_regular_files_are_opened(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    SPECIAL[kind](file)
    with pytest.raises(CheckpointError) as caught:
        read_json(file)
    assert str(file) in caught.value.cause and kind in caught.value.cause


def test_links_to_regular_files_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text('{"a": 1}')
    (tmp_path / "x.json").symlink_to(tmp_path / "blob")
    assert read_json(tmp_path / "x.json") == {"a": 1}


def test_values_in_memory_are_checked_alike() -> None:
    assert checked({"weight_map": {}}, Shard, "x").counts == []
    with pytest.raises(CheckpointError, match=r"x has counts\[0\] = \"1\"; expected an integer"):
        checked({"weight_map": {}, "counts": ["1"]}, Shard, "x")


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=40) | st.text(alphabet='{}[]",:1.-eE\\u aNn', max_size=40).map(str.encode)
)
def test_any_bytes_end_as_a_value_or_an_error(data: bytes) -> None:
    for kind in (dict, Shard, list[int]):
        try:
            decode_json(data, kind, "x")
        except CheckpointError as error:
            assert error.cause.startswith("x") and error.remedy


def test_files_are_read_where_the_system_has_no_posix_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import runpy

    from engine import json_file

    file = tmp_path / "config.json"
    file.write_bytes(b'{"a": 1}')
    for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW"):
        monkeypatch.delattr(os, name, raising=False)
    elsewhere = runpy.run_path(json_file.__file__, run_name="elsewhere")
    assert elsewhere["read_json"](file) == {"a": 1}
