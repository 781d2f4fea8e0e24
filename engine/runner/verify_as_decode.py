"""Verifies drafts as decode rows, so that captured graphs apply.

    three requests, two with drafts          rows of a decoding step
    t7 d8 d9 | t4 | t2 d3            ->      t7 | d8 | d9 | t4 | t2 | d3

Each token becomes a row of its own, over the blocks of its sequence and as long as the sequence is
up to there. Keys and values of all rows are stored before any is read, layer by layer, so that what
a row computes stays what it was, and is computed as a decoded token is. Such a step can be replayed
from a captured graph for as many rows.

What it costs: the keys and values of a request are read for each of its rows, not once. What it
saves: launching kernel by kernel. Both are measured on the device with the graphs themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.batch.batch import Batch


def can_unroll(batch: Batch) -> bool:
    """Whether every token of a batch is sampled, which excludes prompts."""
    return not batch.fixed_shape and len(batch.logits_indices) == batch.num_tokens


def unroll(batch: Batch) -> Batch:
    """The same tokens, one row each."""
    seq_lens: list[int] = []
    tables: list[list[int]] = []
    for request, end in enumerate(batch.seq_lens):
        table = batch.block_tables[request]
        lens = range(end - batch.query_len(request) + 1, end + 1)
        seq_lens += lens
        tables += [table[: -(-length // batch.block_size)] for length in lens]
    return replace(
        batch,
        query_start_loc=list(range(batch.num_tokens + 1)),
        seq_lens=seq_lens,
        block_tables=tables,
    )


def extra_reads(batch: Batch) -> int:
    """Tokens whose keys and values are read by the rows but would not be by the requests. (An upper
    bound: a layer with a window reads fewer.)"""
    extra = 0
    for request, end in enumerate(batch.seq_lens):
        rows = batch.query_len(request) - 1  # the last reads what the request would
        extra += rows * end - rows * (rows + 1) // 2
    return extra


@dataclass(frozen=True, slots=True)
class Worth:
    """Measured cost and gain of verifying drafts as rows. saved_s: by graph size, seconds that a
    replay saves compared to launching the same step kernel by kernel. token_s: seconds for a row to
    read one token of a sequence."""

    saved_s: dict[int, float]
    token_s: float

    def pays(self, batch: Batch, size: int) -> bool:
        """Whether the graph for `size` rows is faster than launching the batch."""
        return self.pays_for(extra_reads(batch), size)

    def pays_for(self, extra: int, size: int) -> bool:
        """`pays` of a batch whose rows read `extra` tokens more than its requests would."""
        return extra * self.token_s < self.saved_s.get(size, 0.0)
