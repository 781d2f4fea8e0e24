"""The pool of KV blocks: reference counts, a free list in LRU order, and the prefix cache.

    free list   least recently used first; blocks without a published prefix before all others

      [ never used | freed, unpublished ] [ cached: tail ... head of old sequences | newer ones ]
        ^ allocate() takes from here                          free() appends its blocks here,
                                                              the sequence's tail first

A block is *free* when it has no references. A free block that holds a published prefix is also
*cached*: a later request can take it back by its hash until it is evicted by being allocated.
Pure Python: no torch.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.errors import InferdeckError


class IntegrityError(InferdeckError):
    """A violated invariant of scheduler or block pool: a bug in the engine."""


class Prefix(NamedTuple):
    """The content of a published block: its tokens, its parent's hash (the root's for a first
    block), and when it was published."""

    parent: bytes
    token_ids: array[int]
    time: float


def root_hash(namespace: Sequence[object]) -> bytes:
    """Start of a chain of block hashes. `namespace`: everything that makes KV incompatible: the
    model's epoch, the KV dtype, an adapter."""
    return hashlib.sha256(repr(tuple(namespace)).encode()).digest()


def chain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash of a full block: identifies its tokens and, through `parent`, everything before them."""
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()


class BlockPool:
    """`num_blocks` physical blocks of `block_size` tokens. Every operation is O(1) per block.

    `has_draft_kv[b]`: all tokens of block b also have the KV of a draft model, whose layers lie
    under the same block ids. A block that was filled while nothing was drafted has none.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens")
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Flat buffers, so that a snapshot copies them at once.
        self.ref_count = array("i", [0]) * num_blocks
        self.is_published = bytearray(num_blocks)
        self.has_draft_kv = bytearray(num_blocks)
        self.block_hash: list[bytes | None] = [None] * num_blocks
        self.num_evictions = 0
        self.num_used = 0  # blocks up to the last one that was ever allocated
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._by_hash: dict[bytes, int] = {}
        self._prefixes: dict[int, Prefix] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks without references, cached ones included."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of all blocks with references."""
        return 1 - self.num_free_blocks / self.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, evicting the least recently used prefixes. The caller has checked
        `num_free_blocks`."""
        if count > len(self._free):
            raise IntegrityError(f"{count} blocks requested, {len(self._free)} free.")
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            if self.block_hash[block] is not None:
                self._unpublish(block)
                self.num_evictions += 1
            self.ref_count[block] = 1
            self.has_draft_kv[block] = False
            blocks.append(block)
        self.num_used = max(self.num_used, 1 + max(blocks, default=-1))
        return blocks

    def acquire(self, blocks: Iterable[int]) -> None:
        """Reference cached or shared blocks once more."""
        for block in blocks:
            if self.ref_count[block] == 0:
                del self._free[block]
            self.ref_count[block] += 1

    def free(self, block_table: Sequence[int]) -> None:
        """Drop one reference of each block of a sequence (given head first)."""
        for block in reversed(block_table):
            self.ref_count[block] -= 1
            if self.ref_count[block] < 0:
                raise IntegrityError(f"Double free of block {block}.")
            if self.ref_count[block] == 0:
                self._free[block] = None
                if self.block_hash[block] is None:
                    self._free.move_to_end(block, last=False)

    def lookup(self, block_hashes: Iterable[bytes]) -> list[int]:
        """Blocks of the longest published run from the beginning of a chain."""
        found = []
        for block_hash in block_hashes:
            block = self._by_hash.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def publish(self, block: int, block_hash: bytes, prefix: Prefix | None = None) -> None:
        """Make a full, computed, referenced block available as a prefix. Of two blocks with the
        same content the first keeps the name. `prefix` is kept to be looked at."""
        if self.ref_count[block] == 0:
            raise IntegrityError(f"Block {block} cannot be cached: its reference count is 0.")
        if self.block_hash[block] is None and block_hash not in self._by_hash:
            self.block_hash[block] = block_hash
            self.is_published[block] = True
            self._by_hash[block_hash] = block
            if prefix is not None:
                self._prefixes[block] = prefix

    def prefix(self, block: int) -> Prefix | None:
        """The content of a published block; None for all others."""
        return self._prefixes.get(block)

    def clear_prefixes(self) -> None:
        """Forget every published prefix; references stay."""
        for block in list(self._by_hash.values()):
            self._unpublish(block)
            if self.ref_count[block] == 0:
                self._free.move_to_end(block, last=False)

    def withdraw(self, blocks: Iterable[int]) -> None:
        """Remove these blocks from the prefix cache: their content is damaged."""
        for block in blocks:
            if self.block_hash[block] is not None:
                self._unpublish(block)

    def _unpublish(self, block: int) -> None:
        block_hash = self.block_hash[block]
        if block_hash is not None:
            del self._by_hash[block_hash]
            self.block_hash[block] = None
            self.is_published[block] = False
            self._prefixes.pop(block, None)

    def check_integrity(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Raise IntegrityError unless the invariants hold for all block tables in use."""
        counts = array("i", [0]) * self.num_blocks
        for table in block_tables:
            if len(set(table)) != len(table):
                raise IntegrityError(f"Duplicate block in a block table: {list(table)}.")
            for block in table:
                counts[block] += 1
        if counts != self.ref_count:
            wrong = [b for b in range(self.num_blocks) if counts[b] != self.ref_count[b]]
            raise IntegrityError(f"Wrong reference counts for blocks {wrong[:8]}.")
        for block in range(self.num_blocks):
            if (self.ref_count[block] == 0) != (block in self._free):
                raise IntegrityError(f"Block {block}: free list and reference count do not match.")
        for block_hash, block in self._by_hash.items():
            if self.block_hash[block] != block_hash:
                raise IntegrityError(f"Prefix cache entry and block {block} do not match.")
        published = bytearray(block_hash is not None for block_hash in self.block_hash)
        if published != self.is_published or len(self._by_hash) != sum(published):
            raise IntegrityError("A hashed block is missing from the prefix cache.")
        if any(self.block_hash[block] is None for block in self._prefixes):
            raise IntegrityError("A block without a hash has a stale prefix entry.")
