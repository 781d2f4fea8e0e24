"""A request, what a step computes of it, and the limits for admission. Pure Python: no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.errors import ConfigError, ContextLengthError, InvalidRequestError
from engine.sampling_params import SamplingParams
from engine.scheduling.block_pool import BlockPool
from engine.snapshot import (
    FinishReason,
    LastBlocks,
    PackedTokens,
    RequestSnapshot,
    RequestState,
    RequestTimes,
    TokenEvent,
)
from engine.text.length import too_long


@dataclass(slots=True, eq=False)
class Request:
    """A request's tokens, how many of them are computed, and its KV blocks.

    There is no prefill and no decode phase: `num_computed_tokens` follows `num_tokens`.

        token_ids      | prompt ................ | output ...... |
        KV is written  |<- num_computed_tokens ->|  the next step computes from here
        block_table      [ b0 ][ b1 ][ b2 ][ b3   ]  ceil(num_computed_tokens / block_size) blocks

    `arrival_index` orders requests by arrival. `seed` and the position of the sampled token key the
    random numbers. `max_num_tokens`: the length at which the request ends at the latest: prompt +
    max_tokens, the context, or the cache, whichever is smallest.

    `draft_limit`: most tokens to draft in the next step. The blocks also hold the draft model's KV
    for the tokens from `draft_kv_start` (the start of a block; not 0 where hidden states of earlier
    tokens were unavailable) to `num_draft_kv_tokens`.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    arrival_index: int
    arrival_time: float
    max_num_tokens: int
    seed: int = 0
    eos_token_ids: frozenset[int] = frozenset()

    state: RequestState = RequestState.WAITING
    token_ids: list[int] = field(init=False)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_published_blocks: int = 0
    draft_limit: int = 0
    draft_kv_start: int = 0
    num_draft_kv_tokens: int = 0
    first_scheduled: float | None = None
    token_events: list[TokenEvent] = field(default_factory=list)
    finished: float | None = None
    finish_reason: FinishReason | None = None
    last_blocks: LastBlocks | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    def stop_reason(self, token_id: int, num_before: int = 0) -> FinishReason | None:
        """Why the request ends with `token_id`, which is sampled but not appended yet, like the
        `num_before` tokens before it; None if it continues."""
        params = self.params
        if self.num_output_tokens + num_before + 1 >= params.min_tokens:
            if token_id in params.stop_token_ids:
                return FinishReason.STOP
            if token_id in self.eos_token_ids and not params.ignore_eos:
                return FinishReason.STOP
        length = self.num_tokens + num_before + 1
        return FinishReason.LENGTH if length >= self.max_num_tokens else None

    def times(self) -> RequestTimes:
        return RequestTimes(
            arrival=self.arrival_time,
            first_scheduled=self.first_scheduled,
            tokens=(tuple if self.finished is None else PackedTokens)(self.token_events),
            finished=self.finished,
        )

    def snapshot(self) -> RequestSnapshot:
        return RequestSnapshot(
            request_id=self.request_id,
            state=self.state,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_computed_tokens=self.num_computed_tokens,
            num_output_tokens=self.num_output_tokens,
            num_blocks=len(self.block_table),
            num_preemptions=self.num_preemptions,
            times=self.times(),
            finish_reason=self.finish_reason,
        )


class Grant(NamedTuple):
    """`num_tokens` tokens of `request`, from position `start`, that are computed in this step.

    Budget and blocks leave room for `num_draft_places` drafts after them; `draft_token_ids` are the
    proposed ones, to be verified in this step. `is_resumed`: the first step after a preemption.
    """

    request: Request
    start: int
    num_tokens: int
    num_cached_tokens: int = 0  # skipped by a prefix hit at admission in this step
    num_draft_places: int = 0
    draft_token_ids: tuple[int, ...] = ()
    is_resumed: bool = False

    @property
    def end(self) -> int:
        """The position after the last one that is computed, drafts included."""
        return self.start + self.num_tokens + len(self.draft_token_ids)

    @property
    def samples(self) -> bool:
        """Whether the step reaches the last token, so that the next one can be sampled."""
        return self.start + self.num_tokens == self.request.num_tokens

    @property
    def is_decode(self) -> bool:
        return self.num_tokens == 1 and self.start >= self.request.num_prompt_tokens


class StepPlan(NamedTuple):
    """The work of a step. `held_back`: requests that wait although a batch slot is free, since
    static batching admits nobody."""

    grants: tuple[Grant, ...]
    preempted: tuple[Request, ...]
    held_back: tuple[Request, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step, drafts included."""
        return sum(g.num_tokens + len(g.draft_token_ids) for g in self.grants)


class Preempted(NamedTuple):
    """Requests sent back to the queue because the cache was replaced, and their computed tokens,
    which the next steps compute again. Running totals."""

    requests: int = 0
    tokens: int = 0

    def and_of(self, running: Sequence[Request]) -> Preempted:
        tokens = sum(request.num_computed_tokens for request in running)
        return Preempted(self.requests + len(running), self.tokens + tokens)

    def since(self, before: Preempted) -> Preempted:
        return Preempted(self.requests - before.requests, self.tokens - before.tokens)


class Outcome(NamedTuple):
    """The result of a step for a request: its new tokens, and the finish reason if it ends. All new
    tokens but the last are accepted drafts, which are computed already."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None

    @property
    def num_accepted(self) -> int:
        return max(0, len(self.token_ids) - 1)


def check_token_ids(prompt: Sequence[int], params: SamplingParams, vocab_size: int) -> None:
    """Raise InvalidRequestError where a request names a token that the model does not have."""
    if not prompt:
        raise InvalidRequestError("The prompt is empty.", "Send at least one token.")
    for name, token_ids in (
        ("The prompt", prompt),
        ("logit_bias", params.logit_bias),
        ("stop_token_ids", params.stop_token_ids),
    ):
        low, high = min(token_ids, default=0), max(token_ids, default=0)
        if low < 0 or high >= vocab_size:
            raise InvalidRequestError(
                f"{name} has token ids from {low} to {high}; valid ids are 0 to "
                f"{vocab_size - 1}.",
                "Use token ids from this model's tokenizer.",
            )


def longest_length(
    num_prompt_tokens: int, params: SamplingParams, context: int, pool: BlockPool
) -> int:
    """Maximum length of a request, in tokens of prompt and reply. Raises ContextLengthError if it
    can never fit the context or the cache."""
    length = num_prompt_tokens
    if length >= context:
        raise too_long(length, context)
    capacity = pool.num_blocks * pool.block_size + 1  # the last token is never stored
    wanted = min(context, length + (params.max_tokens or context))
    if length >= capacity or (params.max_tokens and wanted > capacity):
        asked = f" and max_tokens {params.max_tokens:,}" if params.max_tokens else ""
        raise ContextLengthError(
            f"The request has {length:,} prompt tokens{asked}; the KV cache has room for "
            f"{capacity - 1:,} ({pool.num_blocks:,} blocks of {pool.block_size}).",
            "Increase kv_cache_memory_bytes, reduce max_tokens, or shorten the prompt.",
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
