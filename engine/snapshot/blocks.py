"""KV blocks: owners, fill and content."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK_FREE = -1
BLOCK_CACHED = -2


@dataclass(frozen=True, slots=True)
class BlockSnapshot:
    """State of every physical KV block, indexed by block id.

    owner[b]: index into `owners` (one of them, if shared), BLOCK_FREE, or BLOCK_CACHED (holds a
    published prefix that nobody references: evictable). ref_count[b]: how many requests hold it.
    fill[b]: tokens in it, 0 to block_size. hashed[b]: published in the prefix cache. tables: the
    blocks of each of `owners`, in the order of its tokens.
    """

    block_size: int
    owners: tuple[str, ...]
    owner: NDArray[np.int32]
    ref_count: NDArray[np.int32]
    fill: NDArray[np.int32]
    hashed: NDArray[np.bool_]
    tables: tuple[tuple[int, ...], ...] = ()

    @property
    def num_blocks(self) -> int:
        return len(self.owner)

    @property
    def num_free(self) -> int:
        return int(np.count_nonzero(self.owner == BLOCK_FREE))

    @property
    def num_cached(self) -> int:
        return int(np.count_nonzero(self.owner == BLOCK_CACHED))

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free - self.num_cached

    @property
    def num_shared(self) -> int:
        return int(np.count_nonzero(self.ref_count > 1))

    @property
    def num_wasted_tokens(self) -> int:
        """Token places in referenced blocks that hold no token."""
        return int((self.block_size - self.fill[self.owner >= 0]).sum())


@dataclass(frozen=True, slots=True)
class BlockDetails:
    """What one block holds. owners: the requests that reference it. token_ids and text: what its
    keys and values were computed from. block_hash and parent_hash: hexadecimal, "" where it is not
    published, or is the first of its chain. published: when it was."""

    block: int
    owners: tuple[str, ...]
    token_ids: tuple[int, ...]
    text: str
    block_hash: str = ""
    parent_hash: str = ""
    published: float | None = None
