"""Incremental detokenization: token ids to text, cut at stop strings.

Tokens cannot be decoded one by one: a character's bytes may be spread over tokens, and some
tokenizers include the space before a word in its token, except at the beginning. So a small window
of the last tokens is decoded, and what is new in its text is the new text:

    window   | tokens whose text went out |  new tokens  |
    text     | ......... done chars ..... |  goes out    | U+FFFD: an unfinished character waits

The window advances whenever its text is complete, so the cost per token does not grow with the
output. (The idea is text-generation-inference's prefix offset.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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


class TokenWindow:
    """Turns tokens into pieces of text; the pieces together are the decoded whole."""

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


class IncrementalDetokenizer:
    """Text of one request's output, token by token, until a stop string.

    Stop strings are searched in the output only, after the first min_tokens tokens. The first
    complete stop string ends the text, the longest if several end at the same character. How the
    text is split into tokens does not matter. Tokens that themselves end the request (EOS, a stop
    token) are not passed here.
    """

    def __init__(
        self, tokenizer: Decoder, params: SamplingParams, prompt_token_ids: Sequence[int]
    ) -> None:
        self.stopped_by: str | None = None
        self._window = TokenWindow(tokenizer, prompt_token_ids)
        self._params = params
        self._num_tokens = 0
        self._held = ""  # may be the beginning of a stop string

    def push(self, token_id: int) -> str:
        """The text that can go out with a token; the last once `stopped_by` is set."""
        self._num_tokens += 1
        return self._admit(self._window.push(token_id))

    def flush(self) -> str:
        """The text that was held back, at the end of the output."""
        if self.stopped_by is not None:
            return ""
        text = self._admit(self._window.flush()) + self._held
        self._held = ""
        return text

    def _admit(self, new: str) -> str:
        """The part of the held-back and new text that can go out."""
        if not self._params.stop:
            return new
        text = self._held + new
        for end in range(len(self._held) + 1, len(text) + 1):
            found = [stop for stop in self._params.stop if text.endswith(stop, 0, end)]
            if found and self._num_tokens > self._params.min_tokens:
                self.stopped_by = max(found, key=len)
                self._held = ""
                is_kept = self._params.include_stop_str_in_output
                return text[: end if is_kept else end - len(self.stopped_by)]
        cut = len(text) - self._num_undecided(text)
        self._held = text[cut:]
        return text[:cut]

    def _num_undecided(self, text: str) -> int:
        """Characters at the end of the text that may be the beginning of a stop string."""
        stops = self._params.stop
        for count in range(min(len(text), max(map(len, stops)) - 1), 0, -1):
            if any(len(stop) > count and stop.startswith(text[-count:]) for stop in stops):
                return count
        return 0
