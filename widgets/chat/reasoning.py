"""Reasoning that a model writes before its answer: found in the text, also while it comes. No Qt.

    <think>              Qwen3, DeepSeek: the reasoning stands between the two marks
    so, 6 times 7 ...
    </think>
    The answer is 42.

Templates that write the first mark themselves (DeepSeek-R1) leave the second one alone: then all
that is before it is reasoning.
"""

from __future__ import annotations

from typing import NamedTuple

BEGIN, END = "<think>", "</think>"


class Reasoning(NamedTuple):
    """`is_open`: the reasoning has begun and not ended. A text without any has "" and itself."""

    thought: str
    answer: str
    is_open: bool


def split_reasoning(text: str) -> Reasoning:
    """The two parts of a reply, without the marks and the space around them."""
    start = len(text) - len(text.lstrip())
    begins = text.startswith(BEGIN, start)
    end = text.find(END)
    if not begins and end < 0:
        return Reasoning("", text, False)
    inside = start + len(BEGIN) if begins else 0
    if end < 0:
        return Reasoning(_without_tail(text[inside:]).strip(), "", True)
    answer = text[end + len(END) :].lstrip()
    return Reasoning(text[inside:end].strip(), answer, False)


def may_become_reasoning(text: str) -> bool:
    """Whether a text that is still being written has only begun the first mark."""
    begun = text.lstrip()
    return 0 < len(begun) < len(BEGIN) and BEGIN.startswith(begun)


def without_reasoning(text: str) -> str:
    """The answer alone; the reasoning where there is no answer."""
    thought, answer, _ = split_reasoning(text)
    return answer if answer.strip() else thought


def _without_tail(text: str) -> str:
    """`text` without an end that may become the closing mark."""
    for length in range(len(END) - 1, 0, -1):
        if text.endswith(END[:length]):
            return text[:-length]
    return text
