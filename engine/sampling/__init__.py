"""The stages of the sampler, one file each, in the order in which a row of logits passes them:
`logits_processors` (edits, penalties), `filters`, `draw` (with random numbers and the report).

`work` is a float32 tensor [R, padded_vocab] that the stages change in place. Its columns beyond
the vocabulary hold -inf, so that every row divides into blocks of `BLOCK` columns.

Every stage treats a row by operations whose result depends on that row alone (element-wise in
padded rows, or reductions that start at the row's first column), so that what else runs in the
batch never changes a token.
"""

BLOCK = 256
"""Columns per block. Reductions over blocks, then inside one block, are many times faster on a
CPU than torch's arg-reductions over a row of 150,000."""


def padded_vocab(vocab_size: int) -> int:
    return -(-vocab_size // BLOCK) * BLOCK
