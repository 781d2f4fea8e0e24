"""Texts and prompts are read whole, or refused with file, place and remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.evaluate import task as texts
from engine.evaluate.task import DEFAULT_MAX_TOKENS, TextError, read_prompts, read_text


def test_a_text_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("Größe\r\nnaïve".encode())
    assert read_text(file) == "Größe\r\nnaïve"
    file.write_bytes(b"\xef\xbb\xbfwith a mark")
    assert read_text(file) == "with a mark"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b" \n\t ", "is empty"),
        (b"abc\0def", "byte 3 of 7 is zero"),
        (b"caf\xe9 noir", "byte 3 of 9 is 0xe9"),
        ("text".encode("utf-16"), "UTF-16"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(data)
    with pytest.raises(TextError, match=words) as error:
        read_text(file)
    assert str(file) in error.value.cause
    assert error.value.remedy


def test_a_missing_and_a_huge_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TextError, match="No such file"):
        read_text(tmp_path / "none.txt")
    monkeypatch.setattr(texts, "LARGEST", 10)
    (tmp_path / "a.txt").write_text("eleven byte")
    with pytest.raises(TextError, match=r"\b10 bytes"):
        read_text(tmp_path / "a.txt")


def test_prompts_are_read_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    file.write_text(
        json.dumps({"prompt": "Once\u2028upon", "max_tokens": 5})
        + "\r\n\n"
        + json.dumps({"messages": messages, "id": 7})
    )
    first, second = read_prompts(file)
    assert first == (1, "Once\u2028upon", 5)
    assert second == (3, tuple(messages), DEFAULT_MAX_TOKENS)
    assert (first.shown, second.shown) == ("Once\u2028upon", "Hi")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 3"),
        ('{"prompt": "a", "x": ' + "[" * 5000, "64"),
        ('{"prompt": "a", "max_tokens": ' + "[" * 500 + "]" * 500 + "}", "64"),
        ("[1]", "not a JSON object"),
        ("{}", 'neither "prompt"'),
        ('{"prompt": "a", "messages": []}', 'both "prompt"'),
        ('{"prompt": ""}', '"prompt"'),
        ('{"prompt": 3}', '"prompt"'),
        ('{"messages": []}', '"messages"'),
        ('{"messages": ["hi"]}', '"messages"'),
        ('{"messages": [{"role": "user"}]}', '"messages"'),
        ('{"prompt": "a", "max_tokens": 0}', '"max_tokens": 0'),
        ('{"prompt": "a", "max_tokens": true}', '"max_tokens": True'),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "fine"}\n\n' + line + "\n")
    with pytest.raises(TextError, match="line 3") as error:
        read_prompts(file)
    assert words in error.value.cause
    assert str(file) in error.value.cause
