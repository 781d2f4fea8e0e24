"""A request: its tokens, state and times. Pure Python: no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.sampling_params import SamplingParams
from engine.snapshot import (
    FinishReason,
    PackedTokens,
    RequestSnapshot,
    RequestState,
    RequestTimes,
    TokenEvent,
)


@dataclass(slots=True, eq=False)
class Request:
    """A request's tokens, what is computed of them, and the blocks that hold it.

    There is no prefill and no decode phase: `num_computed_tokens` runs after `num_tokens`.

        token_ids      | prompt ................ | output ...... |
        KV is written  |<- num_computed_tokens ->|  the next step computes from here
        block_table      [ b0 ][ b1 ][ b2 ][ b3   ]  ceil(num_computed_tokens / block_size) blocks

    `arrival_index` orders requests by arrival; `seed` keys the request's random numbers together
    with the position of the token that is sampled. `max_num_tokens` is where the request ends at
    the latest: prompt + max_tokens, the context, or the cache, whichever is shortest.

    `draft_limit`: most tokens to draft for it in the next step. The blocks also hold the draft
    model's KV, of the tokens from `draft_kv_start` (the first of a block; 0 but where hidden states
    of earlier tokens were not to be had) up to `num_draft_kv_tokens`.
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

    @property
    def max_kv_tokens(self) -> int:
        """Most tokens whose KV is ever stored: the last sampled token needs none."""
        return self.max_num_tokens - 1

    def stop_reason(self, token_id: int, num_before: int = 0) -> FinishReason | None:
        """Why the request ends with `token_id`, which is sampled but not appended yet, as are the
        `num_before` tokens before it; None if it goes on."""
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
