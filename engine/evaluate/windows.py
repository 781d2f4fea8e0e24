"""Which tokens of a text are scored in which window. Pure Python.

text      0 1 2 3 4 5 6 7 8 9 10 11      12 tokens, context 6, stride 3
window 0  c S S S S S                    c: context alone, S: scored
window 1        c c c S S S
window 2              c c c S  S  S      every token is scored once, in the first window
                                         that reaches it
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from engine.errors import ConfigError

DEFAULT_CONTEXT = 2048


class Window(NamedTuple):
    """Tokens start..end-1 of the text, after the tokenizer's prefix; those from `first_scored` on
    are scored."""

    start: int
    end: int
    first_scored: int


class Cut(NamedTuple):
    """How a text is split into windows. `prefix`: number of tokens (BOS) that the tokenizer puts at
    the start of every window."""

    context_length: int
    stride: int
    prefix: int = 0

    @property
    def capacity(self) -> int:
        """Most tokens of the text in one window."""
        return self.context_length - self.prefix

    def windows(self, num_tokens: int) -> Iterator[Window]:
        """Of a text of `num_tokens` tokens. Without a prefix its first token has nothing before
        it, and is not scored."""
        scored = 0 if self.prefix else 1
        for start in range(0, max(num_tokens, 1), self.stride):
            end = min(start + self.capacity, num_tokens)
            if scored < end:
                yield Window(start, end, scored)
                scored = end
            if end == num_tokens:
                return


def choose_cut(
    context_length: int | None, stride: int | None, prefix: int, max_model_len: int
) -> Cut:
    """The cut that was asked for, or by default windows of min(2048, max_model_len) tokens that
    follow each other with one token in common. Raises ConfigError with the bounds."""
    context = min(DEFAULT_CONTEXT, max_model_len) if context_length is None else context_length
    least = prefix + 2
    if not least <= context <= max_model_len:
        raise ConfigError(
            f"Invalid context length: {context:,} tokens.",
            f"Use {least:,} to {max_model_len:,}, the maximum for this model.",
        )
    largest = context - prefix - 1
    if stride is None:
        return Cut(context, largest, prefix)
    if not 1 <= stride <= largest:
        raise ConfigError(
            f"Invalid stride: {stride:,} tokens.",
            f"Use 1 to {largest:,}: each scored token needs at least one token "
            "of context.",
        )
    return Cut(context, stride, prefix)
