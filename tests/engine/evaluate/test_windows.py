"""Which tokens are scored where: every one once, with as much before it as was asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.evaluate.windows import Cut, Window, choose_cut


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    prefix = draw(st.integers(0, 2))
    context = draw(st.integers(prefix + 2, 40))
    return Cut(context, draw(st.integers(1, context - prefix - 1)), prefix)


@given(cuts(), st.integers(0, 300))
def test_every_token_is_scored_once_and_in_order(cut: Cut, num_tokens: int) -> None:
    scored = [i for w in cut.windows(num_tokens) for i in range(w.first_scored, w.end)]
    assert scored == list(range(0 if cut.prefix else 1, num_tokens))


@given(cuts(), st.integers(1, 300))
def test_a_window_holds_no_more_than_the_context(cut: Cut, num_tokens: int) -> None:
    for index, window in enumerate(cut.windows(num_tokens)):
        assert window.start == index * cut.stride
        assert cut.prefix + window.end - window.start <= cut.context_length
        # a scored token has a token before it, or the tokenizer's own beginning
        assert window.first_scored > window.start or (index == 0 and cut.prefix)


@given(cuts(), st.integers(1, 300))
def test_later_windows_score_at_most_a_stride_with_all_that_came_before(
    cut: Cut, num_tokens: int
) -> None:
    for window in list(cut.windows(num_tokens))[1:]:
        assert window.end - window.first_scored <= cut.stride
        assert window.first_scored - window.start == cut.capacity - cut.stride


def test_the_picture_in_the_module() -> None:
    assert list(Cut(6, 3).windows(12)) == [
        Window(0, 6, 1), Window(3, 9, 6), Window(6, 12, 9)
    ]  # fmt: skip


def test_defaults() -> None:
    assert choose_cut(None, None, 0, 131072) == Cut(2048, 2047, 0)
    assert choose_cut(None, None, 1, 512) == Cut(512, 510, 1)
    assert choose_cut(100, 50, 0, 512) == Cut(100, 50, 0)


@pytest.mark.parametrize(
    ("context", "stride", "words"),
    [
        (513, None, ("513", "2 to 512")),
        (1, None, ("length: 1 ",)),
        (100, 100, ("stride: 100", "1 to 99")),
        (100, 0, ("stride: 0",)),
    ],
)
def test_what_cannot_be_cut_is_refused(
    context: int, stride: int | None, words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as error:
        choose_cut(context, stride, 0, 512)
    for word in words:
        assert word in str(error.value)
