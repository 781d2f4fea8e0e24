"""A request for a reply as a path and a body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from app.connections.target import Dialect
from app.dialects.errors import TargetError
from app.dialects.sampling import remark, sampling_fields
from engine.messages import ChatMessages, Prompt
from engine.sampling_params import SamplingParams

TAKES_IDS = frozenset(
    (Dialect.INFERDECK, Dialect.VLLM, Dialect.SGLANG, Dialect.TENSORRT_LLM, Dialect.LLAMA_CPP)
)
"""Who takes token ids as a prompt of /v1/completions."""

COUNTS_ALWAYS = frozenset((Dialect.INFERDECK, Dialect.VLLM, Dialect.SGLANG, Dialect.TENSORRT_LLM))
"""Who reports the number of tokens with every piece (continuous_usage_stats)."""

TELLS_IDS = frozenset((Dialect.INFERDECK, Dialect.VLLM))
"""Who reports token ids when asked to (return_token_ids)."""

UNBOUNDED = 2048
"""Tokens of a completion whose limit is the context, where that is not known: servers write 16
where nothing is said."""


@dataclass(frozen=True, slots=True)
class Call:
    """`path` below /v1. remark: what the server was not told, in words."""

    path: str
    body: dict[str, Any]
    remark: str = ""

    @property
    def is_chat(self) -> bool:
        return self.path == "chat/completions"


def make_call(
    dialect: Dialect,
    model: str,
    prompt: Prompt,
    params: SamplingParams,
    max_model_len: int | None = None,
) -> Call:
    """Raises TargetError for a prompt that the dialect does not take."""
    is_chat = not isinstance(prompt, str) and not (prompt and isinstance(prompt[0], int))
    fields = sampling_fields(params, dialect, is_chat=is_chat)
    body: dict[str, Any] = {"model": model, "stream": True, "stream_options": _usage(dialect)}
    body |= fields.body
    if dialect in TELLS_IDS:
        body["return_token_ids"] = True
    if is_chat:
        messages = cast(ChatMessages, prompt)
        body["messages"] = [dict(message) for message in messages]
        return Call("chat/completions", body, remark(dialect, fields.not_taken))
    if not isinstance(prompt, str) and dialect not in TAKES_IDS:
        raise TargetError(f"{dialect} does not take token ids as a prompt.", "Send it as text.")
    body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
    if "max_tokens" not in body:
        known = len(prompt) if not isinstance(prompt, str) else 0
        body["max_tokens"] = max((max_model_len or 0) - known, 1) if known else UNBOUNDED
        if max_model_len is None:
            body["max_tokens"] = UNBOUNDED
    return Call("completions", body, remark(dialect, fields.not_taken))


def _usage(dialect: Dialect) -> dict[str, bool]:
    options = {"include_usage": True}
    if dialect in COUNTS_ALWAYS:
        options["continuous_usage_stats"] = True
    return options
