"""Admission limits: requests that never fit are refused with the numbers. Pure Python: no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.errors import ConfigError, ContextLengthError, InvalidRequestError
from engine.sampling_params import SamplingParams
from engine.scheduling.block_pool import BlockPool
from engine.scheduling.request import Request


def check_token_ids(prompt: Sequence[int], vocab_size: int) -> None:
    if not prompt:
        raise InvalidRequestError("The prompt is empty.", "Give at least one token.")
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= vocab_size:
        raise InvalidRequestError(
            f"The prompt has token ids from {low} to {high}; the vocabulary is 0 to "
            f"{vocab_size - 1}.",
            "Use token ids of this model's tokenizer.",
        )


def longest_length(
    num_prompt_tokens: int, params: SamplingParams, context: int, pool: BlockPool
) -> int:
    """Where a request ends at the latest, in tokens of prompt and reply.

    Raises ContextLengthError where it can never fit the context or the cache.
    """
    length = num_prompt_tokens
    if length >= context:
        raise ContextLengthError(
            f"The prompt has {length:,} tokens; the context holds {context:,}, reply included.",
            "Shorten the prompt, or raise max_model_len if the model allows it.",
        )
    capacity = pool.num_blocks * pool.block_size + 1  # the last token is never stored
    wanted = min(context, length + (params.max_tokens or context))
    if length >= capacity or (params.max_tokens and wanted > capacity):
        asked = f" and asks for {params.max_tokens:,}" if params.max_tokens else ""
        raise ContextLengthError(
            f"The request has {length:,} prompt tokens{asked}; the KV cache holds "
            f"{capacity - 1:,} ({pool.num_blocks:,} blocks of {pool.block_size}).",
            "Raise kv_cache_memory_bytes, lower max_tokens, or shorten the prompt.",
        )
    return min(wanted, capacity)


def refit(requests: Iterable[Request], num_places: int, context: int) -> None:
    """Bring requests in flight under a smaller cache or context.

    Raises ConfigError, and changes nothing, where one holds more than would fit.
    """
    limit = min(num_places + 1, context)
    requests = list(requests)
    for request in requests:
        if request.num_tokens > limit:
            raise ConfigError(
                f"{request.request_id} has {request.num_tokens:,} tokens; the new limit is "
                f"{limit:,}.",
                "Stop the request first, or choose a larger KV cache or context length.",
            )
    for request in requests:
        # A reply that is at the limit already ends with its next token.
        request.max_num_tokens = max(min(request.max_num_tokens, limit), request.num_tokens + 1)
