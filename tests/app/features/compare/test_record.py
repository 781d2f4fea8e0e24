"""Where two answers part, and a comparison as text and as JSON. No Qt."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from app.features.compare.export import as_json, as_markdown, pair_text, verdict
from app.features.compare.record import LEFT, RIGHT, Comparison, PromptReplies, Side
from app.features.compare.replies import Reply, Stage
from engine.errors import ErrorInfo
from engine.evaluate.task import PromptLine
from widgets.tokens.record import TokenRecord

WORDS = st.lists(st.sampled_from(["a ", "b ", "c "]), max_size=8)


def reply(words: list[str]) -> Reply:
    tokens = [TokenRecord(ord(word[0]), word, 0.0, 1) for word in words]
    return Reply(
        stage=Stage.DONE, text="".join(words), tokens=tokens, ttft_s=0.1, tokens_per_s=20.0
    )


def pair(left: list[str], right: list[str], number: int = 1) -> PromptReplies:
    return PromptReplies(PromptLine(number, f"Prompt {number}"), [reply(left), reply(right)])


def compared(*pairs: PromptReplies) -> Comparison:
    sides = [Side("bf16", {"quantization": "auto"}, 2**31), Side("bf16 · int8 weights")]
    return Comparison("Tiny", "2026-11-21 12:00 UTC", sides, list(pairs))


@given(WORDS, WORDS)
def test_both_answers_are_whole_and_begin_the_same(left: list[str], right: list[str]) -> None:
    made = pair(left, right)
    parts = [made.parts(side) for side in (LEFT, RIGHT)]
    assert ["".join(part) for part in parts] == ["".join(left), "".join(right)]
    assert made.is_identical == (left == right)
    if not made.is_identical:
        assert parts[LEFT][0] == parts[RIGHT][0] and parts[LEFT][1] != parts[RIGHT][1]
    share = made.equal_share
    assert share is not None and 0 <= share <= 1 and (share == 1.0 or not made.is_identical)


def test_shares_count_what_both_answered() -> None:
    half = PromptReplies(PromptLine(3, "half"), [reply(["a "]), None])
    failed = PromptReplies(PromptLine(4, "bad"), [Reply(), reply(["a "])])
    failed.replies[LEFT].fail(ErrorInfo("too long"))  # type: ignore[union-attr]
    made = compared(pair(["a "], ["a "]), pair(["a ", "b "], ["a ", "c "], 2), half, failed)
    assert made.identical_share == 0.5 and made.mean_equal_share == 0.75
    assert "1 of 2" in verdict(made) and "50 %" in verdict(made) and "75 %" in verdict(made)
    assert "1 of 2 (50 %)" in pair_text(made.pairs[1])
    assert half.equal_share is None and pair_text(failed) == ""
    assert verdict(compared(half)) == ""


def test_exports_have_everything() -> None:
    made = compared(pair(["a ", "b "], ["a ", "c "]))
    written = json.loads(as_json(made))
    assert written["model"] == "Tiny" and written["identical_share"] == 0.0
    (entry,) = written["prompts"]
    assert entry["num_equal_tokens"] == 1 and entry["answers"][1]["text"] == "a c "
    text = as_markdown(made)
    for part in ("# Tiny: bf16 and bf16 · int8 weights", "2.00 GiB", "## 1. Prompt 1", "a c"):
        assert part in text
