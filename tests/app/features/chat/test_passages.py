"""From where on a reply was written in which precision. No Qt."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.features.chat.conversation import Passage, Passages, followed, passages_before
from app.features.chat.figures import marks_of, note_of, precisions_of
from app.features.models.precision import precision_change
from tests.figures import numbers

PRECISIONS = ("BF16", "BF16 · INT8 weights", "FP32 · INT8 head")


@given(st.lists(st.tuples(st.sampled_from(PRECISIONS), st.integers(0, 3))))
def test_passages_follow_each_other_and_differ(steps: list[tuple[str, int]]) -> None:
    passages: Passages = ()
    text, written = "", []
    for precision, count in steps:
        if count:  # outputs with tokens alone are followed
            passages = followed(passages, text, len(written), precision)
        text += "word " * count
        written += [precision] * count
    for token, precision in enumerate(written):
        assert [p for p in passages if p.num_tokens <= token][-1].precision == precision
        assert passages[0].start == 0
    starts = [p.start for p in passages]
    assert starts == sorted(set(starts)) and starts == [5 * p.num_tokens for p in passages]
    assert all(a.precision != b.precision for a, b in pairwise(passages))


def test_a_precision_in_which_nothing_was_written_leaves_no_trace() -> None:
    once = followed((), "", 0, "BF16")
    twice = followed(followed(once, "abc", 3, "BF16 · INT8 weights"), "abc", 3, "BF16")
    assert twice == once


def test_a_switch_is_told_in_the_text_and_in_copies() -> None:
    passages = (Passage(0, 0, "BF16"), Passage(40, 9, "BF16 · INT8 weights"))
    ((start, label, tip),) = marks_of(passages)
    assert start == 40 and label.startswith("INT8 weights") and "after 9 tokens" in tip
    note = note_of(passages)
    assert numbers(note) == [16, 10, 16, 8]
    first, _, later = note.partition("10")
    assert passages[0].precision in first and passages[1].precision in later
    assert precisions_of(passages).split(" → ") == [p.precision for p in passages]
    assert marks_of(passages[:1]) == () and note_of(passages[:1]) == ""


def test_a_branch_keeps_the_passages_of_the_tokens_that_it_keeps() -> None:
    passages = (Passage(0, 0, "BF16"), Passage(40, 9, "BF16 · INT8 weights"))
    assert passages_before(passages, 9) == passages[:1]
    assert passages_before(passages, 10) == passages
    assert passages_before(passages, 0) == ()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("BF16", "BF16 · INT8 weights", "INT8 weights"),
        ("BF16 · INT8 weights", "BF16", "unquantized weights"),
        ("BF16 · INT8 weights", "FP32 · INT4 weights (64)", "FP32 · INT4 weights (64)"),
        ("BF16", "FP32", "FP32"),
        ("BF16 · INT8 head", "BF16", "BF16"),
    ],
)
def test_what_is_new_is_named(before: str, after: str, words: str) -> None:
    assert precision_change(before, after) == words


def test_what_is_no_passage_is_refused() -> None:
    for stored in ({}, {"start": -1, "num_tokens": 0, "precision": "x"},
                   {"start": 0, "num_tokens": 0, "precision": 3}):  # fmt: skip
        with pytest.raises((KeyError, ValueError, TypeError)):
            Passage.of(stored)
