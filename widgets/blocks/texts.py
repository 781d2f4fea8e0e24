"""Blocks, ranges of them and rows as text. No Qt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.snapshot import BLOCK_CACHED, BLOCK_FREE, BlockDetails, BlockSnapshot, Counters
from engine.units import rough_duration, whole_percent
from widgets.blocks.scales import Row, Use

Name = Callable[[str], str]
"""Request id to display name."""

_SHOWN_TEXT = 160


def summary(blocks: BlockSnapshot, precision: str = "") -> str:
    """ "used 62 % · cached 24 % · free 14 % · 1,152 blocks × 16 tokens · KV int8"."""
    count = blocks.num_blocks
    shares = (
        ("used", blocks.num_used), ("cached", blocks.num_cached), ("free", blocks.num_free),
    )  # fmt: skip
    parts = [f"{word} {_share(number, count)}" for word, number in shares]
    named = [precision] if precision else []
    return " · ".join([*parts, f"{count:,} blocks × {blocks.block_size} tokens", *named])


def stored_summary(blocks: BlockSnapshot) -> str:
    """Of a server that publishes its prefix cache alone: "prefix cache 24 % · 2,048 blocks × 32
    tokens"."""
    count = blocks.num_blocks
    stored = _share(blocks.num_cached, count)
    return f"prefix cache {stored} · {count:,} blocks × {blocks.block_size} tokens"


def _share(number: int, count: int) -> str:
    """ "0 %" of no block and "100 %" of all only: the map shows a single one."""
    nearly = {0: "<1 %", 100: ">99 %"} if 0 < number < count else {}
    return nearly.get(round(100 * number / count)) or whole_percent(number / count)


def losses(blocks: BlockSnapshot, counters: Counters) -> str:
    """Unused slots in partly filled blocks, and evictions."""
    slots = blocks.num_used * blocks.block_size
    lost = f"{100 * blocks.num_wasted_tokens / slots:.1f} %" if slots else "0 %"
    return f"unused slots {lost} · evictions {counters.evictions:,}"


def describe(blocks: BlockSnapshot, block: int, owners: Sequence[str], name: Name) -> str:
    """A block in one line: state, tokens, requests."""
    owner, size = int(blocks.owner[block]), blocks.block_size
    if owner == BLOCK_FREE:
        return f"Block {block:,} · free"
    if owner == BLOCK_CACHED:
        return f"Block {block:,} · cached prefix, evictable"
    tokens = f"{int(blocks.fill[block])} of {size} tokens"
    holders = int(blocks.ref_count[block])
    names = [f"“{name(o)}”" for o in owners[:2]] or [f"“{name(blocks.owners[owner])}”"]
    more = holders - len(names)
    held = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    shared = f"shared by {holders} requests: " if holders > 1 else ""
    return f"Block {block:,} · {tokens} · {shared}{held}"


def describe_range(blocks: BlockSnapshot, range_: NDArray[np.int64], name: Name) -> str:
    """The blocks of a cell in one line: states, tokens, requests."""
    owner = blocks.owner[range_]
    where = f"Blocks {range_[0]:,}–{range_[-1]:,}"
    counts = Counter(owner[owner >= 0].tolist())
    parts = [f"{n:,} in use" for n in [sum(counts.values())] if n]
    if counts:
        named = [f"“{name(blocks.owners[one])}” {count:,}" for one, count in counts.most_common(3)]
        more = f", {len(counts) - 3:,} more" if len(counts) > 3 else ""
        parts[0] += f" ({', '.join(named)}{more})"
    parts += [
        f"{count:,} {word}"
        for word, state in (("cached", BLOCK_CACHED), ("free", BLOCK_FREE))
        if (count := int((owner == state).sum()))
    ]
    return " · ".join([where, *parts])


def describe_row(blocks: BlockSnapshot, row: Row, name: str) -> str:
    """A row of the bars in one line."""
    count = f"{row.num_blocks:,} block{'s' * (row.num_blocks != 1)}"
    if row.use is Use.FREE:
        return f"Free · {count}"
    if row.use is Use.CACHED:
        return f"Cached prefixes, evictable · {count}"
    tokens = int(blocks.fill[np.isin(blocks.owner, row.owners)].sum())
    title = f"“{name}”" if row.use is Use.REQUEST else f"{len(row.owners):,} more requests"
    return f"{title} · {count} · {tokens:,} of {row.num_blocks * blocks.block_size:,} tokens"


def contents(details: BlockDetails, now: float) -> str:
    """A block's text, hash, parent hash and age."""
    text = details.text.replace("\n", "⏎")
    if len(text) > _SHOWN_TEXT:
        text = text[:_SHOWN_TEXT] + "…"
    parts = [f"“{text}”" if text else f"{len(details.token_ids)} tokens, no text"]
    if not details.token_ids:
        parts = []
    if details.block_hash:
        parent = details.parent_hash[:8]
        parts.append(f"hash {details.block_hash[:8]}")
        parts.append(f"parent hash {parent}" if parent else "first block of its sequence")
    if details.published is not None:
        parts.append(f"cached {rough_duration(max(0.0, now - details.published))} ago")
    return " · ".join(parts)
