"""The rules of wording: short sentences in the terms of the field."""

from __future__ import annotations

import ast
import re

import pytest

from tests import ROOT
from tests.structure.sentences import Sentence, avoided, sentences
from tests.structure.source import Source, read
from tests.structure.units import formatted_units

LONGEST = 20
"""Words of a sentence; a value that is put in counts as one."""
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "resources" / "docs").glob("*.md")])


@pytest.fixture(scope="module")
def source() -> Source:
    return read(ROOT)


@pytest.fixture(scope="module")
def found(source: Source) -> list[Sentence]:
    return sentences(source)


def test_no_word_to_avoid_is_used(found: list[Sentence]) -> None:
    assert len(found) > 1000
    hits = {word: used for word, used in avoided(found).items() if used}
    assert hits == {}


def test_sentences_are_short(found: list[Sentence]) -> None:
    prose = [one for one in found if not one.text.startswith("examples:")]  # command lines
    assert [one for one in prose if max(map(words_in, parts(one.text))) > LONGEST] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_keep_the_same_rules(document) -> None:
    lines = document.read_text(encoding="utf-8").splitlines()
    prose = [Sentence(f"{document.name}:{n}", line) for n, line in enumerate(lines, 1)]
    assert {word: used for word, used in avoided(prose).items() if used} == {}


def test_values_with_a_unit_have_one_formatter(source: Source) -> None:
    assert formatted_units(source) == []


@pytest.mark.parametrize(
    ("code", "is_found"),
    [("f'{t:.1f} ms'", True), ("f'{t:,} s'", True), ("f'{a:.2f}×'", True), ("f'{n:,} sets'", False),
     ("f'{t} ms'", False), ("f'{s:>8} s'", False), ("f'{b:.0f} MiB.'", True)],
)  # fmt: skip
def test_a_formatted_unit_is_found(code: str, is_found: bool) -> None:
    source = Source({}, {"app/x.py": ast.parse(code)})
    assert bool(formatted_units(source)) is is_found


def parts(text: str) -> list[str]:
    """The sentences of a text: what ends in a full stop, a question mark, a colon before a list."""
    return re.split(r"(?<=[.!?;:])\s+", text)


def words_in(sentence: str) -> int:
    return len(sentence.split())
