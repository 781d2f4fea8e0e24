"""Prompts (text, token ids or chat messages) to token ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from engine.errors import InvalidRequestError
from engine.messages import Prompt
from engine.sampling_params import SamplingParams
from engine.text.tokenizer import Tokenizer


class EncodedPrompt(NamedTuple):
    """Token ids, and the parameters with the stop strings that the chat format adds."""

    token_ids: list[int]
    params: SamplingParams
    notice: str | None = None


def encode_prompt(
    prompt: Prompt | Sequence[Any], tokenizer: Tokenizer, params: SamplingParams
) -> EncodedPrompt:
    """Encode a text, token ids, or chat messages (through the checkpoint's chat template)."""
    if isinstance(prompt, str):
        return EncodedPrompt(tokenizer.encode(prompt), params)
    items = list(prompt)
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return EncodedPrompt(items, params)
    if not all(isinstance(item, Mapping) and {"role", "content"} <= set(item) for item in items):
        raise InvalidRequestError(
            "The prompt is not text, token ids or chat messages.",
            'Give chat messages as objects with "role" and "content".',
        )
    chat = tokenizer.apply_chat(items)
    if not tokenizer.has_chat_template:
        # A plain transcript has no token that ends a turn: the next speaker's name does.
        params = dataclasses.replace(params, stop=(*params.stop, *tokenizer.stop_strings))
    return EncodedPrompt(chat.token_ids, params, chat.notice)
