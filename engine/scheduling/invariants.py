"""Invariants of scheduler and block pool between steps. Pure Python: no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.config import EngineConfig
from engine.scheduling.block_pool import BlockPool, IntegrityError
from engine.scheduling.request import Request


def check_invariants(
    config: EngineConfig,
    pool: BlockPool,
    waiting: Sequence[Request],
    running: Sequence[Request],
    in_flight: Mapping[str, int],
) -> None:
    """Raise IntegrityError, naming what is wrong, unless every invariant holds. in_flight: by
    request, up to which token the next step, launched already, computes."""
    everyone = [*running, *waiting]
    pool.check_integrity(r.block_table for r in everyone)
    _require(
        all(not r.block_table and not r.num_computed_tokens for r in waiting),
        "A waiting request has blocks.",
    )
    order = [r.arrival_index for r in waiting]
    _require(order == sorted(order), "Waiting requests are out of order.")
    _require(len({r.request_id for r in everyone}) == len(everyone), "A request id occurs twice.")
    for request in running:
        _check_length(config, pool, request, in_flight.get(request.request_id, 0))
        _check_blocks(pool, request)


def _check_length(config: EngineConfig, pool: BlockPool, request: Request, in_flight: int) -> None:
    computed, num_blocks = request.num_computed_tokens, len(request.block_table)
    enough = pool.blocks_for(computed) <= num_blocks
    _require(enough, f"{request.request_id} has more computed tokens than block slots.")
    if config.kv_allocation == "paged":
        needed = pool.blocks_for(max(computed, in_flight, 1))
        _require(num_blocks <= needed, f"{request.request_id} has more blocks than it needs.")
    held = pool.blocks_for(in_flight) <= num_blocks
    _require(held, f"{request.request_id} has a step in flight beyond its blocks.")
    drafted = request.num_draft_kv_tokens <= computed
    _require(drafted, f"{request.request_id} has more draft KV than KV.")
    start = request.draft_kv_start
    _require(
        start % pool.block_size == 0 and start <= request.num_draft_kv_tokens,
        f"{request.request_id} has draft KV that begins inside a block or after its end.",
    )


def _check_blocks(pool: BlockPool, request: Request) -> None:
    size, table = pool.block_size, request.block_table
    for index, block in enumerate(table):
        block_hash = pool.block_hash[block]
        if block_hash is None:
            continue
        full = (index + 1) * size <= request.num_computed_tokens
        _require(full, f"Block {block} is published but not full.")
        own = block_hash == request.block_hashes[index]
        _require(own, f"Block {block} is published under another prefix.")
    writable = table[request.num_computed_tokens // size :]
    alone = all(pool.ref_count[block] == 1 for block in writable)
    _require(alone, f"{request.request_id} would write into a shared block.")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise IntegrityError(message)
