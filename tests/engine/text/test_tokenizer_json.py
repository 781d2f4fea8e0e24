"""tokenizer.json that would take the program's time and memory is refused before it is built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CheckpointError
from engine.text import tokenizer_json
from engine.text.tokenizer_json import check_folder
from engine.text.work import Check
from tests.engine.small_tokenizers import byte_fallback, byte_level, save


def folder_with(folder: Path, **sections: Any) -> Path:
    save(byte_level(), folder)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **sections}))
    return folder


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": list(parts)}


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_tokenizers_in_use_pass(tmp_path: Path, make: Any) -> None:
    check_folder(Check(str(save(make(), tmp_path)), 0))


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        replace({"String": "▁"}, " "),
        replace({"Regex": "▁+"}, " "),
        sequence(replace({"String": "a"}, "bb"), {"type": "Fuse"}),
    ],
    ids=str,
)
def test_decoders_that_pass(tmp_path: Path, decoder: Any) -> None:
    check_folder(Check(str(folder_with(tmp_path, decoder=decoder)), 0))


SINGLE = [{"Sequence": {"id": "A", "type_id": 0}}]
HOSTILE: dict[str, tuple[str, Any]] = {
    "grows": ("decoder", replace({"Regex": ""}, "b" * 5000)),
    "doubles": ("decoder", sequence(*[replace({"String": "a"}, "aa")] * 40)),
    "backtracks": ("decoder", sequence(sequence(replace({"Regex": "(a+)+$"}, "b")))),
    "branches": ("decoder", replace({"Regex": "(a|a)(a|a)"}, "b")),
    "text": ("normalizer", "text"),
    "no type": ("pre_tokenizer", {}),
    "number": ("post_processor", {"type": 5}),
    "prepends": ("normalizer", {"type": "Prepend", "prepend": "b" * 5000}),
    "repeats": ("tokenizer", {"type": "TemplateProcessing", "single": SINGLE * 5000, "pair": [],
                              "special_tokens": {}}),
    "stride": ("truncation", {"direction": "Right", "max_length": 1, "strategy": "LongestFirst",
                              "stride": 5}),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_hostile_is_named(tmp_path: Path, kind: str) -> None:
    name, value = HOSTILE[kind]
    section = "post_processor" if name == "tokenizer" else name
    folder_with(tmp_path, **{section: value})
    with pytest.raises(CheckpointError) as caught:
        check_folder(Check(str(tmp_path), 0))
    assert name in caught.value.cause and str(tmp_path / "tokenizer.json") in caught.value.cause
    assert caught.value.remedy


@pytest.mark.parametrize("limit", ["_MAX_TOKENS", "_MAX_PART"])
def test_limits_of_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(tokenizer_json, limit, 10)
    with pytest.raises(CheckpointError) as caught:
        check_folder(Check(str(folder_with(tmp_path)), 0))
    assert "limit is 10" in caught.value.cause and caught.value.remedy
