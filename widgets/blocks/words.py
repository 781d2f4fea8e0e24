"""What the map says in words. No Qt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.snapshot import BLOCK_CACHED, BLOCK_FREE, BlockDetails, BlockSnapshot, Counters

Name = Callable[[str], str]
"""The name of a request, as the user knows it, from its id."""

_SHOWN_TEXT = 160


def summary(blocks: BlockSnapshot, precision: str = "") -> str:
    """ "1,152 blocks of 16 · KV int8 · used 62 % · cached 24 % · free 14 %"."""
    count = blocks.num_blocks
    shares = (
        ("used", blocks.num_used), ("cached", blocks.num_cached), ("free", blocks.num_free),
    )  # fmt: skip
    parts = [f"{word} {100 * number / count:.0f} %" for word, number in shares]
    named = [precision] if precision else []
    return " · ".join([f"{count:,} blocks of {blocks.block_size}", *named, *parts])


def losses(blocks: BlockSnapshot, counters: Counters) -> str:
    """Places lost in partly filled blocks, prefix hits and evictions."""
    places = blocks.num_used * blocks.block_size
    lost = f"{100 * blocks.num_wasted_tokens / places:.1f} %" if places else "0 %"
    hits = f"{100 * counters.prefix_hit_rate:.0f} %" if counters.prefix_queries else "none yet"
    return f"lost {lost} · prefix hits {hits} · evictions {counters.evictions:,}"


def describe(blocks: BlockSnapshot, block: int, owners: Sequence[str], name: Name) -> str:
    """A block in one line: its state, its tokens, who holds it."""
    owner, size = int(blocks.owner[block]), blocks.block_size
    if owner == BLOCK_FREE:
        return f"Block {block:,} · free"
    if owner == BLOCK_CACHED:
        return f"Block {block:,} · cached: a prefix that nobody holds now, evicted when needed"
    tokens = f"{int(blocks.fill[block])} of {size} tokens"
    holders = int(blocks.ref_count[block])
    names = [f"“{name(o)}”" for o in owners[:2]] or [f"“{name(blocks.owners[owner])}”"]
    more = holders - len(names)
    held = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    shared = f"shared by {holders}: " if holders > 1 else ""
    return f"Block {block:,} · {tokens} · {shared}{held}"


def contents(details: BlockDetails, now: float) -> str:
    """What a block holds, in one line: its text, its hash and its parent's, its age."""
    text = details.text.replace("\n", "⏎")
    if len(text) > _SHOWN_TEXT:
        text = text[:_SHOWN_TEXT] + "…"
    parts = [f"“{text}”" if text else f"{len(details.token_ids)} tokens without text"]
    if not details.token_ids:
        parts = []
    if details.block_hash:
        parent = f" after {details.parent_hash[:8]}" if details.parent_hash else ", first block"
        parts.append(f"{details.block_hash[:8]}{parent}")
    if details.published is not None:
        parts.append(f"published {_ago(max(0.0, now - details.published))} ago")
    return " · ".join(parts)


def _ago(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
