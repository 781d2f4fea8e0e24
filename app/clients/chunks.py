"""Parses chunks of streamed replies, in each server's form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from app.clients.errors import MOST_WORDS, TargetError, message_in
from engine.messages import TokenLogprob
from engine.snapshot import FinishReason

BEGIN_THOUGHT, END_THOUGHT = "<think>\n", "\n</think>\n\n"
"""Marks of reasoning in a chat, added around reasoning that servers send separately."""

_FINISHES: Mapping[str, FinishReason] = {
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "cancelled": FinishReason.ABORT,
    "error": FinishReason.ERROR,
}
"""All others (stop, tool_calls, content_filter, TGI's eos_token and stop_sequence) count as
stop."""


class Counting(StrEnum):
    """Source of token counts, best first. The values are in reports of `inferdeck bench`."""

    IDS = "token ids"
    LOGPROBS = "logprobs"
    USAGE = "usage in every chunk"
    PIECES = "one per chunk, corrected by the final usage"


@dataclass(frozen=True, slots=True)
class Piece:
    """The content of one stream event, or of several. token_ids: one per token; ids that the server
    does not report are negative, and equal for equal texts. num_late: those of them that arrived
    in earlier pieces and became known now."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    num_late: int = 0

    def __add__(self, later: Piece) -> Piece:
        return Piece(
            self.text + later.text, self.token_ids + later.token_ids,
            self.logprobs + later.logprobs, self.finish_reason or later.finish_reason,
            self.num_late + later.num_late,
        )  # fmt: skip


@dataclass(slots=True)
class ReplyReader:
    """Takes the JSON of each event of one reply, in order. `num_tokens` so far; the other counts
    are None until the server reports them."""

    num_tokens: int = 0
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_reported: int | None = None  # generated tokens, by the usage
    finish_reason: FinishReason | None = None
    counting: Counting = Counting.PIECES
    model: str = ""
    id: str = ""
    _is_thinking: bool = False
    _unknown: dict[str, int] = field(default_factory=dict)

    def read(self, value: Any) -> Piece:
        """Raises TargetError for an error in the stream, or an invalid chunk."""
        if not isinstance(value, dict):
            raise _no_piece(value)
        if value.get("error") or value.get("object") == "error":
            words = message_in(value)[:MOST_WORDS].rstrip(".") or "no details"
            raise TargetError(f"Server error during the reply: {words}.", "See the server log.")
        self._usage(value.get("usage"))
        if isinstance(value.get("model"), str):
            self.model = value["model"]
        if isinstance(value.get("id"), str):
            self.id = value["id"]
        choices = value.get("choices")
        if not choices:
            return self._rest() if isinstance(choices, list) else Piece()
        choice = choices[0]
        if not isinstance(choice, dict):
            raise _no_piece(value)
        text = self._text(choice)
        finish = self._finish(choice.get("finish_reason"))
        if finish is not None:
            text += self._end_thought()
        logprobs = self._logprobs(choice.get("logprobs"))
        ids = self._ids(choice, logprobs, text)
        if len(ids) == len(logprobs):
            pairs = zip(logprobs, ids, strict=True)
            logprobs = tuple(dataclasses.replace(entry, token_id=i) for entry, i in pairs)
        self.num_tokens += len(ids)
        return Piece(text, ids, logprobs, finish)

    def end(self) -> Piece:
        """After the stream: the tokens in the usage that no chunk had."""
        return Piece(self._end_thought()) + self._rest()

    # -- text -------------------------------------------------------------------------------

    def _text(self, choice: Mapping[str, Any]) -> str:
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return _string(choice.get("text"))
        thought = _string(delta.get("reasoning_content")) or _string(delta.get("reasoning"))
        content = _string(delta.get("content")) or _string(delta.get("refusal"))
        text = ""
        if thought:
            text = thought if self._is_thinking else BEGIN_THOUGHT + thought
            self._is_thinking = True
        if content:
            text += self._end_thought() + content
        return text

    def _end_thought(self) -> str:
        was_thinking, self._is_thinking = self._is_thinking, False
        return END_THOUGHT if was_thinking else ""

    def _finish(self, reason: Any) -> FinishReason | None:
        if not isinstance(reason, str) or not reason:
            return None
        self.finish_reason = _FINISHES.get(reason, FinishReason.STOP)
        return self.finish_reason

    # -- numbers ----------------------------------------------------------------------------

    def _usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        self.num_prompt_tokens = _count(usage.get("prompt_tokens"), self.num_prompt_tokens)
        self.num_reported = _count(usage.get("completion_tokens"), self.num_reported)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.num_cached_tokens = _count(details.get("cached_tokens"), self.num_cached_tokens)

    def _ids(
        self, choice: Mapping[str, Any], logprobs: tuple[TokenLogprob, ...], text: str
    ) -> tuple[int, ...]:
        given = choice.get("token_ids")
        if isinstance(given, list) and all(isinstance(i, int) for i in given) and given:
            self.counting = Counting.IDS
            return tuple(given)
        if self.counting is Counting.IDS and given is not None:
            return ()
        if logprobs:
            self.counting = Counting.LOGPROBS
            return tuple(entry.token_id for entry in logprobs)
        if self.num_reported is not None and choice.get("finish_reason") is None:
            self.counting = Counting.USAGE
        if self.counting is Counting.USAGE and self.num_reported is not None:
            return self._made(self.num_reported - self.num_tokens, text)
        return self._made(1, text) if text else ()

    def _rest(self) -> Piece:
        """Tokens beyond one per piece were in earlier pieces."""
        rest = self._made((self.num_reported or 0) - self.num_tokens, "")
        is_late = self.counting is Counting.PIECES and self.num_tokens > 0
        self.num_tokens += len(rest)
        return Piece(token_ids=rest, num_late=len(rest) if is_late else 0)

    def _made(self, count: int, text: str) -> tuple[int, ...]:
        """Placeholders for ids that are not reported; none if `count` is not positive."""
        return (self._unknown_id(text),) * count

    def _unknown_id(self, text: str) -> int:
        return self._unknown.setdefault(text, -1 - len(self._unknown))

    # -- log probabilities ------------------------------------------------------------------

    def _logprobs(self, value: Any) -> tuple[TokenLogprob, ...]:
        if not isinstance(value, dict):
            return ()
        if isinstance(value.get("content"), list):
            return tuple(self._chat_entry(e) for e in value["content"] if isinstance(e, dict))
        tokens, probabilities = value.get("tokens"), value.get("token_logprobs")
        if not isinstance(tokens, list) or not isinstance(probabilities, list):
            return ()
        tops = value.get("top_logprobs") or []
        found = []
        for place, (token, logprob) in enumerate(zip(tokens, probabilities, strict=False)):
            top = tops[place] if place < len(tops) and isinstance(tops[place], dict) else {}
            found.append(self._entry(str(token), logprob, list(top.items())))
        return tuple(found)

    def _chat_entry(self, entry: Mapping[str, Any]) -> TokenLogprob:
        tops = entry.get("top_logprobs")
        pairs = [
            (str(top.get("token", "")), top.get("logprob"))
            for top in (tops if isinstance(tops, list) else [])
            if isinstance(top, dict)
        ]
        return self._entry(str(entry.get("token", "")), entry.get("logprob"), pairs)

    def _entry(self, token: str, logprob: Any, tops: list[tuple[str, Any]]) -> TokenLogprob:
        value = _number(logprob)
        known = [(text, _number(number)) for text, number in tops]
        rank = 1 + sum(number > value for _, number in known)
        others = tuple(
            (self._unknown_id(text), text, number) for text, number in known if text != token
        )
        return TokenLogprob(self._unknown_id(token), token, value, rank, others)


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any, before: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else before


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else -9999.0


def _no_piece(value: Any) -> TargetError:
    return TargetError(
        f"The server sent an invalid chunk: {str(value)[:100]!r}.",
        "Check that the server is OpenAI-compatible.",
    )
