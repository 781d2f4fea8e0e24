"""Calibration text: files of every kind, and tokens cut into sequences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.quantize.calibration import MIN_TOKENS, make_sequences, read_texts
from engine.text.tokenizer import ByteTokenizer


class WithStart(ByteTokenizer):
    """Begins every text with token 1."""

    def encode(self, text: str) -> list[int]:
        return [1, *super().encode(text)]

    def apply_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return [1, *(ord(m["role"][0]) for m in messages), *b":"]


def write(folder: Path, name: str, content: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def test_a_text_file_is_one_text(tmp_path: Path) -> None:
    assert read_texts(write(tmp_path, "a.txt", "one\ntwo\n")) == ["one\ntwo\n"]


def test_lines_of_json_give_texts_prompts_and_messages(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    lines: list[Any] = [
        {"text": "a"},
        {"prompt": "b", "completion": "c"},
        {"messages": messages},
        "d",
    ]
    content = "\n\n".join(json.dumps(line) for line in lines)
    assert read_texts(write(tmp_path, "a.jsonl", content)) == ["a", "bc", messages, "d"]
    assert read_texts(write(tmp_path, "a.json", json.dumps(lines))) == ["a", "bc", messages, "d"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"", "is empty"),
        ("a.txt", b" \n\t", "is empty"),
        ("a.txt", b"ab\0c", r"NUL .* 2\."),
        ("a.txt", b"abc\xff\xfe", "byte 3 is 0xff"),
        ("a.jsonl", b'{"text": "a"}\n{"text": ', "Line 2 in .* JSON"),
        ("a.jsonl", b'{"text": "a"}\n' + b"[" * 5000, "Line 2 in .* nested"),
        ("a.json", b"[" * 5000, "a.json has .* nested"),
        ("a.jsonl", b'{"words": "a"}', "Line 1 in .*text"),
        ("a.jsonl", b'{"messages": [{"role": "user"}]}', 'without "role"'),
        ("a.jsonl", b'{"messages": []}', "has no messages"),
        ("a.json", b"[3]", "Entry 1 in"),
    ],
)
def test_what_is_no_text_is_refused_with_the_place(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        read_texts(write(tmp_path, name, content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.txt cannot be read: No such file"):
        read_texts(tmp_path / "absent.txt")


@given(
    sizes=st.lists(st.integers(0, 900), min_size=1, max_size=5),
    length=st.integers(16, 700),
    count=st.integers(1, 40),
    seed=st.integers(0, 3),
)
def test_sequences_are_equal_in_length_and_parts_of_the_text(
    sizes: list[int], length: int, count: int, seed: int
) -> None:
    texts = ["".join(chr(33 + (i * 7 + n) % 90) for i in range(n)) for n in sizes]
    whole = "".join(texts).encode()
    make = lambda: make_sequences(texts, ByteTokenizer(), length=length, count=count, seed=seed)
    if len(whole) < MIN_TOKENS:
        with pytest.raises(ConfigError, match=f"has {len(whole):,} tokens; at least {MIN_TOKENS}"):
            make()
        return
    sequences = make()
    size = min(length, len(whole))
    assert 1 <= len(sequences) <= count
    assert len(sequences) == min(count, len(whole) // size)
    starts = set()
    for sequence in sequences:
        assert len(sequence) == size
        starts.add(bytes(sequence))
        assert bytes(sequence) in whole
    assert sequences == make()


def test_every_sequence_begins_as_the_tokenizer_begins_a_text() -> None:
    sequences = make_sequences(["x" * 400, "y" * 400], WithStart(), length=100, count=5)
    assert [s[0] for s in sequences] == [1] * 5
    assert all(1 not in s[1:] for s in sequences)
    assert {len(s) for s in sequences} == {100}


def test_a_conversation_is_its_prompt_and_its_last_answer() -> None:
    conversation = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "A" * 300}]
    (sequence,) = make_sequences([conversation], WithStart(), length=303, count=9)
    assert sequence == [1, ord("u"), ord(":"), *[65] * 300]
