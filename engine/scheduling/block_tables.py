"""Block tables: the KV blocks of each request. Pure Python: no torch.

A request's table starts with blocks from the prefix cache, if its prefix is cached, and grows with
its tokens. Its own blocks are published to the prefix cache when they are full.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

from engine.config import EngineConfig
from engine.scheduling.block_pool import BlockPool, IntegrityError, Prefix, chain_hash
from engine.scheduling.request import Request
from engine.snapshot import LastBlocks


class BlockTables:
    """The tables of an engine's requests. root: the first hash of every hash chain."""

    def __init__(self, config: EngineConfig, pool: BlockPool, root: bytes) -> None:
        self.config = config
        self.pool = pool
        self.root = root

    # -- length -----------------------------------------------------------------------------

    def missing(self, request: Request, num_tokens: int) -> int:
        """Number of further blocks that the request needs for `num_tokens` tokens."""
        missing = -(-num_tokens // self.pool.block_size) - len(request.block_table)
        return missing if missing > 0 else 0

    def extend(self, request: Request, num_tokens: int) -> int:
        """Allocate the blocks that the request needs for `num_tokens` tokens, which the pool must
        have; returns their number."""
        new = self.pool.allocate(self.missing(request, num_tokens))
        request.block_table += new
        return len(new)

    def fill(self, request: Request, num_tokens: int, now: float) -> None:
        """Give a request without blocks those of its first tokens, as if they had been computed;
        nothing if there is no room."""
        cached = self.find_prefix(request)
        new = self.pool.blocks_for(self.reserved_tokens(request, num_tokens)) - len(cached)
        taken_back = sum(self.pool.ref_count[block] == 0 for block in cached)
        if new + taken_back > self.pool.num_free_blocks:
            return
        self.pool.acquire(cached)
        request.block_table += [*cached, *self.pool.allocate(new)]
        request.num_published_blocks = len(cached)
        request.num_computed_tokens = num_tokens
        if self.config.enable_prefix_caching:
            self.publish(request, now)

    def shorten(self, request: Request, num_tokens: int) -> None:
        """Free the blocks after `num_tokens` tokens."""
        kept = self.pool.blocks_for(self.reserved_tokens(request, num_tokens))
        self.pool.free(request.block_table[kept:])
        del request.block_table[kept:]

    def last_blocks(self, request: Request) -> LastBlocks | None:
        """Before `release` at its end; without blocks for a next step that it does not take."""
        num_tokens = request.num_computed_tokens
        kept = self.pool.blocks_for(self.reserved_tokens(request, num_tokens))
        counts = tuple(map(self.pool.ref_count.__getitem__, request.block_table[:kept]))
        return LastBlocks(self.pool.block_size, num_tokens, counts) if counts else None

    def release(self, request: Request) -> None:
        """Free all blocks; the request counts as not computed."""
        self.pool.free(request.block_table)
        request.block_table.clear()
        request.num_computed_tokens = 0
        request.num_published_blocks = 0
        request.draft_kv_start = request.num_draft_kv_tokens = 0

    def reserved_tokens(self, request: Request, num_tokens: int) -> int:
        """Tokens for which it holds blocks while it has `num_tokens`."""
        # the last token is never stored
        return num_tokens if self.is_paged else max(request.max_num_tokens - 1, num_tokens)

    @property
    def is_paged(self) -> bool:
        return self.config.kv_allocation == "paged"

    def admitted_tokens(self, request: Request) -> int:
        """Tokens whose blocks must be free, or promised, to admit the request."""
        return self.reserved_tokens(request, request.num_tokens)

    def promised(self, running: Iterable[Request]) -> int:
        """Blocks that running requests still need for their own prompts."""
        if not self.is_paged:
            return sum(self.missing(r, self.admitted_tokens(r)) for r in running)
        size = self.pool.block_size  # the same, for a sum in most steps of most loads
        missing = [-(-len(r.token_ids) // size) - len(r.block_table) for r in running]
        return sum(count for count in missing if count > 0)

    def private(self, request: Request) -> list[int]:
        """Blocks that no other request references."""
        return [block for block in request.block_table if self.pool.ref_count[block] == 1]

    # -- prefixes ---------------------------------------------------------------------------

    def find_prefix(self, request: Request) -> list[int]:
        """Published blocks of the request's prefix; at least one token is left to compute."""
        if not self.config.enable_prefix_caching:
            return []
        limit = (request.num_tokens - 1) // self.pool.block_size
        self._hash_blocks(request, limit)
        found = self.pool.lookup(request.block_hashes[:limit])
        if self.config.drafts_from_hidden_states:
            # The head's last entry in a block was made with the token after it, which the hash
            # does not name: computed again, it is made with this request's own.
            del found[-1:]
        return found

    def prefix_numbers(self, request: Request) -> tuple[int, ...]:
        """Of `Arrival`: equal for blocks that the prefix cache would share. From hashes that the
        process keys at random, so that nobody can find the tokens by trying."""
        self._hash_blocks(request, request.num_prompt_tokens // self.pool.block_size)
        return tuple(hash(block_hash) & 0x7FFFFFFF for block_hash in request.block_hashes)

    def publish(self, request: Request, now: float) -> None:
        """Add the blocks that became full to the prefix cache."""
        size = self.pool.block_size
        full = request.num_computed_tokens // size
        if full > request.num_published_blocks:
            self._hash_blocks(request, full)
            for index in range(request.num_published_blocks, full):
                parent = request.block_hashes[index - 1] if index else self.root
                tokens = array("i", request.token_ids[index * size : (index + 1) * size])
                self.pool.publish(
                    request.block_table[index],
                    request.block_hashes[index],
                    Prefix(parent, tokens, now),
                )
            request.num_published_blocks = full

    def _hash_blocks(self, request: Request, count: int) -> None:
        size = self.pool.block_size
        for index in range(len(request.block_hashes), count):
            parent = request.block_hashes[-1] if index else self.root
            tokens = request.token_ids[index * size : (index + 1) * size]
            request.block_hashes.append(chain_hash(parent, tokens))

    # -- keys and values of a draft model ---------------------------------------------------

    def mark_draft_kv(self, request: Request) -> None:
        """Mark the blocks that are full of the draft model's KV too."""
        size = self.pool.block_size
        index = request.num_draft_kv_tokens // size
        while index > request.draft_kv_start // size:
            index -= 1
            block = request.block_table[index]
            if self.pool.has_draft_kv[block]:
                break
            self.pool.has_draft_kv[block] = True

    def reject_drafts(self, request: Request) -> None:
        """Free the blocks behind the last computed token: their drafts were rejected. What the
        draft model computed beyond it counts no longer."""
        self.shorten(request, request.num_computed_tokens)
        valid = min(request.num_draft_kv_tokens, request.num_computed_tokens)
        request.num_draft_kv_tokens = valid

    def cached_draft_kv(self, request: Request) -> tuple[int, int]:
        """The tokens, from and up to, whose blocks from the prefix cache have draft KV: the longest
        run from the beginning, which a draft model continues by itself; the longest up to the end
        where what lies before cannot be had any more."""
        blocks = request.block_table[: request.num_published_blocks]
        has = [bool(self.pool.has_draft_kv[block]) for block in blocks]
        size, count = self.pool.block_size, len(blocks)
        if self.config.drafts_from_hidden_states:
            first = next((i for i in range(count, 0, -1) if not has[i - 1]), 0)
            return first * size, count * size
        return 0, next((i for i in range(count) if not has[i]), count) * size


def check_invariants(
    tables: BlockTables,
    waiting: Sequence[Request],
    running: Sequence[Request],
    in_flight: Mapping[str, int],
) -> None:
    """Raise IntegrityError, naming what is wrong, unless every invariant holds. in_flight: by
    request, up to which token the next step, launched already, computes."""
    pool, everyone = tables.pool, [*running, *waiting]
    pool.check_integrity(r.block_table for r in everyone)
    has_blocks = any(r.block_table or r.num_computed_tokens for r in waiting)
    order = [r.arrival_index for r in waiting]
    broken = {
        "A waiting request has KV blocks.": has_blocks,
        "Waiting requests are out of order.": order != sorted(order),
        "Duplicate request id.": len({r.request_id for r in everyone}) < len(everyone),
    }
    for request in running:
        name, table, computed = request.request_id, request.block_table, request.num_computed_tokens
        start, drafted = request.draft_kv_start, request.num_draft_kv_tokens
        ahead, count, full = in_flight.get(name, 0), len(table), computed // pool.block_size
        hashes = [pool.block_hash[block] for block in table]
        is_larger = count > pool.blocks_for(max(computed, ahead, 1))
        pairs = zip(hashes, request.block_hashes, strict=False)
        is_other = any(published not in (None, own) for published, own in pairs)
        broken |= {
            f"{name} has more computed tokens than KV slots.": pool.blocks_for(computed) > count,
            f"{name} has more blocks than it needs.": is_larger and tables.is_paged,
            f"{name} has an in-flight step beyond its block table.": pool.blocks_for(ahead) > count,
            f"{name} has more draft KV than computed KV.": drafted > computed,
            f"{name} has draft KV that starts mid-block.": start % pool.block_size > 0,
            f"{name} has draft KV that starts after it ends.": start > drafted,
            f"{name} has a partially filled block in the prefix cache.": any(hashes[full:]),
            f"{name} has a block cached under the wrong prefix.": is_other,
            f"{name} would write into a shared block.": any(
                pool.ref_count[block] != 1 for block in table[full:]
            ),
        }
    for message, is_broken in broken.items():
        if is_broken:
            raise IntegrityError(message)
