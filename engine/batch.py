"""Packs a step's plan into ragged, unpadded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.scheduler import StepPlan


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
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    logits_indices: Tensor
    query_start_loc: list[int]
    seq_lens: list[int]
    block_tables: list[list[int]]
    block_size: int

    @property
    def num_tokens(self) -> int:
        return self.query_start_loc[-1]

    @property
    def num_requests(self) -> int:
        return len(self.seq_lens)

    def query_len(self, request: int) -> int:
        return self.query_start_loc[request + 1] - self.query_start_loc[request]


def slots(block_table: Sequence[int], start: int, end: int, block_size: int) -> list[int]:
    """Slots of the positions start..end-1 of a sequence."""
    result: list[int] = []
    for position in range(start, end):
        block, offset = divmod(position, block_size)
        result.append(block_table[block] * block_size + offset)
    return result


def pack(plan: StepPlan, block_size: int) -> Batch:
    """The tensors (int64) of a plan with at least one grant, on the CPU."""
    input_ids: list[int] = []
    positions: list[int] = []
    slot_mapping: list[int] = []
    logits_indices: list[int] = []
    query_start_loc = [0]
    for grant in plan.grants:
        end = grant.start + grant.num_tokens
        input_ids += grant.request.token_ids[grant.start : end]
        positions += range(grant.start, end)
        slot_mapping += slots(grant.request.block_table, grant.start, end, block_size)
        query_start_loc.append(len(input_ids))
        if grant.samples:
            logits_indices.append(len(input_ids) - 1)
    return Batch(
        input_ids=torch.tensor(input_ids),
        positions=torch.tensor(positions),
        slot_mapping=torch.tensor(slot_mapping),
        logits_indices=torch.tensor(logits_indices, dtype=torch.int64),
        query_start_loc=query_start_loc,
        seq_lens=[grant.start + grant.num_tokens for grant in plan.grants],
        block_tables=[
            grant.request.block_table[: -(-(grant.start + grant.num_tokens) // block_size)]
            for grant in plan.grants
        ],
        block_size=block_size,
    )
