"""Packs what a step computes into ragged, unpadded tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from engine.scheduling.request import StepPlan


@dataclass(frozen=True, slots=True)
class Batch:
    """The T tokens of all B requests of a step, one after the other.

        request      |   0   |       1        |2|          3         |
        input_ids    [t t t t t t t t t t t t t t t t t t t t t t t t]    T tokens
        query_start_loc ^     ^                ^ ^                    ^   B + 1 offsets

    positions[T]: place of each token in its sequence. slot_mapping[T]: where its K and V go, as
    block * block_size + offset; no slot appears twice. seq_lens[B]: tokens of the sequence after
    this step. logits_indices[R]: rows of the hidden states from which a token is sampled. The
    lists are the same numbers on the host, for backends that loop over requests.

    fixed_shape: the batch was filled up to a shape that is replayed (a CUDA graph). What a backend
    launches may then depend on num_tokens and num_requests alone, never on lengths. The requests
    that fill it up compute one token each, have seq_len 0, an empty block table and slot -1: their
    K and V are written nowhere, and their attention is zeros.
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    logits_indices: Tensor
    query_start_loc: list[int]
    seq_lens: list[int]
    block_tables: list[list[int]]
    block_size: int
    fixed_shape: bool = False

    @property
    def num_tokens(self) -> int:
        return self.query_start_loc[-1]

    @property
    def num_requests(self) -> int:
        return len(self.seq_lens)

    @property
    def num_padding(self) -> int:
        """Requests at the end that only fill the batch up."""
        return self.seq_lens.count(0) if self.fixed_shape else 0

    @property
    def is_decode(self) -> bool:
        """Whether every request computes one token, and a next one is sampled for each."""
        return self.num_tokens == self.num_requests == len(self.logits_indices)

    def query_len(self, request: int) -> int:
        return self.query_start_loc[request + 1] - self.query_start_loc[request]


def slots(block_table: Sequence[int], start: int, end: int, block_size: int) -> list[int]:
    """Slots of the positions start..end-1 of a sequence."""
    result: list[int] = []
    for position in range(start, end):
        block, offset = divmod(position, block_size)
        result.append(block_table[block] * block_size + offset)
    return result


class Span(NamedTuple):
    """Consecutive tokens of one sequence: token_ids are at positions from `start` on, K and V go to
    the blocks of `block_table`, and the last `num_rows` tokens are sampled."""

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    num_rows: int

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


def spans_of(plan: StepPlan) -> list[Span]:
    """What a plan computes. A request with drafts is sampled after its last token and after every
    draft."""
    return [
        Span(
            token_ids=(
                *grant.request.token_ids[grant.start : grant.start + grant.num_tokens],
                *grant.draft_token_ids,
            ),
            start=grant.start,
            block_table=grant.request.block_table,
            num_rows=1 + len(grant.draft_token_ids) if grant.samples else 0,
        )
        for grant in plan.grants
    ]


def pad(batch: Batch, size: int) -> Batch:
    """A batch, on the host, filled up to `size` tokens. If its requests decode, those that fill it
    up are sampled too."""
    extra = size - batch.num_tokens
    return Batch(
        input_ids=_filled(batch.input_ids, extra, 0),
        positions=_filled(batch.positions, extra, 0),
        slot_mapping=_filled(batch.slot_mapping, extra, -1),
        logits_indices=torch.arange(size) if batch.is_decode else batch.logits_indices,
        query_start_loc=[*batch.query_start_loc, *range(batch.num_tokens + 1, size + 1)],
        seq_lens=[*batch.seq_lens, *[0] * extra],
        block_tables=[*batch.block_tables, *([] for _ in range(extra))],
        block_size=batch.block_size,
        fixed_shape=True,
    )


def with_room(batch: Batch, tokens: int, sampled: int) -> Batch:
    """A batch, on the host, whose tensors have place for so many tokens, and so many that are
    sampled, at least its own."""
    extra, others = tokens - batch.num_tokens, sampled - len(batch.logits_indices)
    if not extra and not others:
        return batch
    return dataclasses.replace(
        batch,
        input_ids=_filled(batch.input_ids, extra, 0),
        positions=_filled(batch.positions, extra, 0),
        slot_mapping=_filled(batch.slot_mapping, extra, -1),
        logits_indices=_filled(batch.logits_indices, others, 0),
    )


def padding(size: int, block_size: int) -> Batch:
    """A batch of `size` requests that only fill it up."""
    none = torch.empty(0, dtype=torch.int64)
    return pad(Batch(none, none, none, none, [0], [], [], block_size), size)


def _filled(values: Tensor, count: int, value: int) -> Tensor:
    return torch.cat([values, values.new_full((count,), value)])


def pack(spans: Sequence[Span], block_size: int) -> Batch:
    """The tensors (int64) of at least one span, on the CPU."""
    input_ids: list[int] = []
    positions: list[int] = []
    slot_mapping: list[int] = []
    logits_indices: list[int] = []
    query_start_loc = [0]
    for span in spans:
        input_ids += span.token_ids
        positions += range(span.start, span.end)
        slot_mapping += slots(span.block_table, span.start, span.end, block_size)
        query_start_loc.append(len(input_ids))
        logits_indices += range(len(input_ids) - span.num_rows, len(input_ids))
    return Batch(
        input_ids=torch.tensor(input_ids),
        positions=torch.tensor(positions),
        slot_mapping=torch.tensor(slot_mapping),
        logits_indices=torch.tensor(logits_indices, dtype=torch.int64),
        query_start_loc=query_start_loc,
        seq_lens=[span.end for span in spans],
        block_tables=[list(span.block_table[: -(-span.end // block_size)]) for span in spans],
        block_size=block_size,
    )
