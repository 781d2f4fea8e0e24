"""Texts and prompts are read whole, or refused with file, place and remedy."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    assert "line 1" not in error.value.cause  # of the text that is parsed


WORDS = st.text("abc ,;\"\té\n", min_size=1, max_size=12).filter(str.strip)
LINES = st.lists(st.text("abc ,é", min_size=1, max_size=12).filter(str.strip), min_size=1)


@given(LINES)
def test_a_text_file_has_a_prompt_a_line_or_a_block(lines: list[str]) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder, "prompts.txt")
        file.write_text("\n".join(lines), encoding="utf-8")
        assert [p.prompt for p in read_prompts(file)] == [line.strip() for line in lines]
        file.write_text("\n\n\n".join(f"{line}\nmore" for line in [*lines, "x"]), encoding="utf-8")
        blocks = [f"{line.rstrip()}\nmore" for line in [*lines, "x"]]
        assert [p.prompt for p in read_prompts(file)] == blocks


@given(st.lists(WORDS, min_size=1), st.integers(0, 2), st.sampled_from(",;\t"))
def test_a_csv_file_gives_the_column_that_is_named_prompt(
    prompts: list[str], column: int, delimiter: str
) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder, "prompts.csv")
        head = ["id", "answer"]
        rows = [["1", "x"] for _ in prompts]
        for row, cell in zip([head, *rows], ["Prompt", *prompts], strict=True):
            row.insert(column, cell)
        with file.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, delimiter=delimiter).writerows([head, *rows])
        assert [p.prompt for p in read_prompts(file)] == [one.strip() for one in prompts]
        with file.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([["one, with a comma"], ["two"]])  # no header
        assert [p.prompt for p in read_prompts(file)] == ["one, with a comma", "two"]


@pytest.mark.parametrize(("name", "text"), [("a.csv", "prompt\n"), ("a.csv", 'prompt\n"open')])
def test_a_csv_file_without_prompts_or_with_an_open_quote_is_refused(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TextError, match=name):
        read_prompts(tmp_path / name)
