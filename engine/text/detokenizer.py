"""Token ids to text while they come, and the place where a stop string cuts it.

Decoding the tokens one by one would be wrong: a character's bytes may be spread over tokens, and
some tokenizers write the space before a word into the token of the word, except at the beginning.
So a small window of the last tokens is decoded, and what is new in its text is the new text:

    window   | tokens whose text went out |  new tokens  |
    text     | ......... done chars ..... |  goes out    | U+FFFD: an unfinished character waits

The window moves on whenever its text is complete, so a token costs the same at any length.
(The idea is text-generation-inference's prefix offset.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from engine.sampling_params import SamplingParams

_REPLACEMENT = "\ufffd"
_MAX_WINDOW = 16
_PATIENCE = 12
"""Tokens to wait for text that does not end in U+FFFD. A character has at most four bytes, but
tokenizers with byte fallback show a whole run of bytes as U+FFFD while its end is unfinished, so
that a U+FFFD that the model really wrote can only be told when the characters after it end."""
_LONGEST_CHARACTER = 4  # bytes, hence tokens


class Decoder(Protocol):
    def decode(self, token_ids: Sequence[int]) -> str: ...
    def is_silent(self, token_id: int) -> bool: ...


class DetokenizerResult(NamedTuple):
    """text: to append now. stopped_by: the stop string that ended the output, or None.
    num_tokens_kept: how many of the tokens given were used, through the one that completed the
    stop string."""

    text: str
    stopped_by: str | None
    num_tokens_kept: int


class TokenWindow:
    """Turns tokens into text piece by piece; all pieces together are the decoded whole."""

    def __init__(self, decoder: Decoder, context: Sequence[int]) -> None:
        """`context`: the tokens before the first one (the prompt); their text is not repeated."""
        self._decoder = decoder
        self._tokens = self._visible_end(context)
        self._done = len(decoder.decode(self._tokens)) if self._tokens else 0
        self._num_clean = len(self._tokens)  # of the tokens, those whose text is out

    def push(self, token_id: int) -> str:
        """The text that this token completes; often none for part of a character."""
        if self._decoder.is_silent(token_id):
            return ""
        self._tokens.append(token_id)
        text = self._decoder.decode(self._tokens)
        unfinished = len(self._tokens) - self._num_clean
        if text.endswith(_REPLACEMENT):
            if unfinished <= _PATIENCE:
                return ""
            # Not a character on its way but broken bytes: only the last may still become one.
            return self._emit(text, len(text) - 1)
        new = self._emit(text, len(text))
        self._move_on(unfinished)
        return new

    def flush(self) -> str:
        """What is left, an unfinished character as U+FFFD."""
        text = self._decoder.decode(self._tokens) if self._tokens else ""
        return self._emit(text, len(text))

    def _emit(self, text: str, end: int) -> str:
        new = text[self._done : end]
        self._done = max(self._done, end)
        if end < len(text) and len(self._tokens) > _MAX_WINDOW:
            # The unfinished character is in the last tokens; what is before them is broken anyway.
            self._restart(self._tokens[-_LONGEST_CHARACTER:], -1)
            self._num_clean = -_PATIENCE  # waiting again would not help
        return new

    def _move_on(self, num_last: int) -> None:
        """All text is out. Keep the tokens of the last piece, as the context of the next one."""
        if len(self._tokens) > _MAX_WINDOW:
            # A lone space alone may decode to nothing: then a few tokens more.
            for kept in (self._tokens[-num_last:], self._tokens[-_MAX_WINDOW // 2 :]):
                if self._decoder.decode(kept):
                    self._restart(kept, 0)
                    break
        self._num_clean = len(self._tokens)

    def _restart(self, tokens: list[int], held: int) -> None:
        self._tokens = tokens
        self._num_clean = 0
        self._done = max(0, len(self._decoder.decode(tokens)) + held)

    def _visible_end(self, context: Sequence[int]) -> list[int]:
        """The last few tokens of the context, enough that they decode to some text: after text,
        a word keeps its leading space."""
        visible: list[int] = []
        for token_id in reversed(context):
            if self._decoder.is_silent(token_id):
                continue
            visible.insert(0, token_id)
            if len(visible) >= 4 and self._decoder.decode(visible).strip(_REPLACEMENT):
                break
        return visible


class StopMatcher:
    """Finds stop strings in text that comes in pieces (Knuth-Morris-Pratt, one state per string).

    The string that is complete first stops the text, the longest of those complete at the same
    character. How the text was cut into pieces changes nothing.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._failure = [_failure_table(s) for s in stop]
        self._matched = [0] * len(stop)

    @property
    def watches(self) -> bool:
        return bool(self._stop)

    @property
    def num_undecided(self) -> int:
        """Characters at the end of the text that may be the beginning of a stop string."""
        return max(self._matched, default=0)

    def push(self, char: str) -> str | None:
        """The stop string that ends with this character, or None."""
        found = None
        for i, stop in enumerate(self._stop):
            failure, length = self._failure[i], self._matched[i]
            while length and stop[length] != char:
                length = failure[length - 1]
            length += stop[length] == char
            if length == len(stop):
                if found is None or len(stop) > len(found):
                    found = stop
                length = failure[length - 1]
            self._matched[i] = length
        return found


class IncrementalDetokenizer:
    """Text of one request's output, token by token, ended by its stop strings.

    Stop strings are looked for in the output alone, after the first min_tokens tokens. A token
    that itself ends the request (EOS, a stop token) is not to be given here.
    """

    def __init__(
        self, tokenizer: Decoder, params: SamplingParams, prompt_token_ids: Sequence[int]
    ) -> None:
        self._window = TokenWindow(tokenizer, prompt_token_ids)
        self._matcher = StopMatcher(params.stop)
        self._min_tokens = params.min_tokens
        self._include_stop = params.include_stop_str_in_output
        self._num_tokens = 0
        self._held = ""  # may be the beginning of a stop string
        self._stopped_by: str | None = None

    def append(self, token_ids: Sequence[int]) -> DetokenizerResult:
        """Add tokens; after a stop string further ones are ignored."""
        pieces: list[str] = []
        for i, token_id in enumerate(token_ids):
            if self._stopped_by is not None:
                return DetokenizerResult("".join(pieces), self._stopped_by, i)
            self._num_tokens += 1
            pieces.append(self._admit(self._window.push(token_id)))
        return DetokenizerResult("".join(pieces), self._stopped_by, len(token_ids))

    def flush(self) -> str:
        """The text that was held back, at the end of the output."""
        if self._stopped_by is not None:
            return ""
        text = self._admit(self._window.flush()) + self._held
        self._held = ""
        return text

    def _admit(self, new: str) -> str:
        """The part of the held-back and new text that can go out."""
        if not self._matcher.watches:
            return new
        text = self._held + new
        for end, char in enumerate(new, start=len(self._held) + 1):
            stop = self._matcher.push(char)
            if stop is not None and self._num_tokens > self._min_tokens:
                self._stopped_by = stop
                self._held = ""
                return text[: end if self._include_stop else end - len(stop)]
        cut = len(text) - self._matcher.num_undecided
        self._held = text[cut:]
        return text[:cut]


def _failure_table(pattern: str) -> list[int]:
    """For every prefix: the length of its longest proper suffix that is also a prefix."""
    table = [0] * len(pattern)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = table[length - 1]
        length += pattern[i] == pattern[length]
        table[i] = length
    return table
