"""Prompt lookup proposes what followed the longest repeated suffix."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.sampling_params import SamplingParams
from engine.scheduling.request import Grant, Request
from engine.speculation.ngram import NgramProposer, continuation

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def plainly(tokens: list[int], count: int, shortest: int, longest: int) -> list[int]:
    """The definition, by trying everything; drafts continue into themselves."""
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        suffix = tokens[-length:]
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == suffix:
                grown = list(tokens)
                for i in range(count):
                    grown.append(grown[start + length + i])
                return grown[len(tokens) :]
    return []


@given(tokens=texts, count=st.integers(0, 8), shortest=st.integers(1, 4), more=st.integers(0, 4))
def test_it_is_what_the_definition_says(
    tokens: list[int], count: int, shortest: int, more: int
) -> None:
    found = continuation(np.array(tokens, dtype=np.int32), count, shortest, shortest + more)
    assert found == (plainly(tokens, count, shortest, shortest + more) if count else [])


def test_a_period_is_continued_however_short_it_is() -> None:
    tokens = np.array([7, 1, 2, 1, 2], dtype=np.int32)
    assert continuation(tokens, 5, 2, 4) == [1, 2, 1, 2, 1]


def test_the_text_of_a_request_is_followed_as_it_grows() -> None:
    proposer = NgramProposer(EngineConfig())
    request = Request("a", [4, 5, 6, 4, 5], SamplingParams(), 0, 0.0, 1000)
    grant = Grant(request, 4, 1, num_draft_places=2)
    assert proposer.propose([grant], 0)[0].token_ids == (6, 4)
    request.token_ids += list(range(10, 500))
    assert proposer.propose([grant], 0)[0].token_ids == ()
    request.token_ids += [20, 21]
    assert proposer.propose([grant], 0)[0].token_ids == (22, 23)
    proposer.forget("a")
    proposer.forget("never seen")
