"""Tile sizes of paged attention by device, head size and dtype; launches the kernels.

The sizes are estimates from other engines' choices for each GPU generation, still to be measured.
Nothing is benchmarked while the engine runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import triton.language as tl
from torch import Tensor

from engine.kernels.paged_kv import AttentionOptions, PageTensors
from engine.kernels.triton.attention_kernels import attend_pages
from engine.kernels.triton.attention_parts import Constants, join_splits
from engine.kernels.triton.support import (
    Device,
    device_of,
    is_interpreted,
    next_power_of_2,
)


class Tiles(NamedTuple):
    """Tile sizes. rows, keys: of a tile of scores, for requests of many tokens and of few. warps:
    per program, the same for both, since the order of sums over a tile depends on it. stages: of
    the loop over tiles; a tile's keys wait for its part of the block table, so two stages mean one
    tile in flight. few_stages: where all requests have few tokens; in mixed batches there are not
    enough registers for more."""

    rows: int
    keys: int
    few_rows: int
    few_keys: int
    warps: int
    stages: int
    few_stages: int


# by the width of a head, padded; few_rows and stages at most
_HOPPER = {
    64: Tiles(128, 64, 64, 64, 8, 3, 5),
    128: Tiles(128, 64, 64, 64, 8, 3, 5),
    256: Tiles(64, 64, 64, 32, 8, 3, 3),
}
_AMPERE = {
    64: Tiles(128, 64, 64, 64, 8, 3, 5),
    128: Tiles(128, 32, 64, 64, 8, 3, 5),
    256: Tiles(64, 32, 32, 32, 8, 3, 3),
}
_FLOAT32 = Tiles(32, 32, 32, 32, 8, 1, 1)  # not in matrix units: to be right, not fast
_FEWEST_ROWS = 16  # of a product in matrix units
_OTHER_SHARED = 3 * 1024  # shared memory for something else than tiles


def tiles_for(device: Device, key_width: int, value_width: int, itemsize: int, rows: int) -> Tiles:
    """Widths: of padded heads, up to 256; itemsize: bytes of an element of q; rows: of the request
    of few tokens that has the most."""
    widths = key_width + value_width
    if itemsize > 2:
        tiles = _FLOAT32
    else:
        table = _HOPPER if device.capability[0] in (9, 10) else _AMPERE
        tiles = table[max(64, key_width, value_width)]
    few_rows = min(max(_FEWEST_ROWS, next_power_of_2(rows)), tiles.few_rows)
    queries = max(tiles.rows, few_rows) * key_width * itemsize
    stage = max(tiles.keys, tiles.few_keys) * widths * itemsize
    held = (device.shared_memory - queries - _OTHER_SHARED) // stage
    most = max(1, 2 * held - 1)
    return tiles._replace(
        few_rows=few_rows, stages=min(tiles.stages, most), few_stages=min(tiles.few_stages, most)
    )


FEW_TOKENS = 32
"""Requests that compute so many tokens or fewer are split along their keys."""

SPLIT = 256
"""Keys of a split, a multiple of every tile. Longer sequences have MAX_SPLITS longer ones."""

MAX_SPLITS = 64
_PROGRAMS_PER_SM = 4  # fewer leave memory idle at the end of a launch
_LOG2_E = 1.4426950408889634
_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class StepTables(Protocol):
    """A step's tables as the kernels read them, int32 on the device: query_start_loc[B + 1],
    seq_lens[B] and block_tables, where the row of request b starts at b * stride[0]. `capacity`:
    most requests in a step."""

    query_start_loc: Tensor
    seq_lens: Tensor
    block_tables: Tensor
    stride: Tensor
    capacity: int


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of one layer's attention. itemsize: bytes per element of q."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    itemsize: int

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    def tiles(self, device: Device, few_tokens: int) -> Tiles:
        key_width, value_width = padded(self.key_dim), padded(self.value_dim)
        return tiles_for(device, key_width, value_width, self.itemsize, few_tokens * self.group)


class Launch(NamedTuple):
    """The launch of a step. items: size of the grid. few_tokens: tokens of requests with few
    tokens, 0 without such requests. lanes: programs that share the splits of a block of rows.
    num_splits: maximum over the sequences. one_block: every request has few tokens, in one block of
    rows."""

    num_requests: int
    items: int
    few_tokens: int
    has_many: bool
    one_block: bool
    one_token: bool
    lanes: int
    num_splits: int
    tiles: Tiles

    def floats(self, shape: Shape) -> int:
        """Numbers of float32 in which sums of splits are kept until they are joined."""
        if self.lanes == 1:
            return 0
        rows = self.few_tokens * shape.num_heads * self.num_splits
        return 2 * _aligned(rows) + rows * shape.value_dim


def padded(dim: int) -> int:
    """How wide the tiles of heads of `dim` elements are."""
    return max(16, next_power_of_2(dim))


def plan_launch(
    shape: Shape,
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    most_keys: int | None,
    device: Device,
    most_floats: int,
) -> Launch:
    """For requests of `query_lens` tokens each, of sequences of `seq_lens`. most_keys: that a token
    sees (None: all). most_floats: room for sums of splits."""
    few = [tokens for tokens in query_lens if tokens <= FEW_TOKENS]
    has_many = len(few) < len(query_lens)
    lens = zip(query_lens, seq_lens, strict=True)
    longest = max((length for tokens, length in lens if tokens <= FEW_TOKENS), default=0)
    # beside prompts the tiles of few tokens are those of one: the last tokens of another prompt
    # change nothing for those who decode, nor is the kernel compiled anew for them
    tiles = shape.tiles(device, 1 if has_many else max(few, default=0))
    group = shape.group
    few_blocks = sum(-(-tokens * group // tiles.few_rows) for tokens in few)
    many_blocks = sum(
        -(-tokens * group // tiles.rows) for tokens in query_lens if tokens > FEW_TOKENS
    )
    plan = Launch(
        num_requests=len(query_lens),
        items=many_blocks,
        few_tokens=sum(few),
        has_many=has_many,
        one_block=few_blocks == len(few) == len(query_lens),
        one_token=max(query_lens) == 1,
        lanes=1,
        num_splits=1,
        tiles=tiles,
    )
    return _with_lanes(plan, shape, few_blocks, longest, most_keys, device, most_floats)


def plan_fixed(
    shape: Shape,
    num_requests: int,
    num_tokens: int,
    max_model_len: int,
    most_keys: int | None,
    device: Device,
    most_floats: int,
) -> Launch:
    """For any step of so many requests and tokens: to be replayed with other lengths."""
    if num_tokens == num_requests:  # every request computes at least one
        lens = [max_model_len] * num_requests
        return plan_launch(shape, [1] * num_requests, lens, most_keys, device, most_floats)
    longest_query = num_tokens - num_requests + 1
    has_many = longest_query > FEW_TOKENS
    tiles = shape.tiles(device, 1 if has_many else longest_query)
    plan = Launch(
        num_requests=num_requests,
        # a request of many tokens fills its blocks but for the last
        items=num_tokens * shape.group // tiles.rows + num_requests if has_many else 0,
        few_tokens=num_tokens,
        has_many=has_many,
        one_block=False,
        one_token=False,
        lanes=1,
        num_splits=1,
        tiles=tiles,
    )
    few_blocks = num_tokens * shape.group // tiles.few_rows + num_requests
    return _with_lanes(plan, shape, few_blocks, max_model_len, most_keys, device, most_floats)


def floats_of_decoding(shape: Shape, most_requests: int, max_model_len: int, device: Device) -> int:
    """Room for the sums of every step in which up to so many requests compute a token each. More
    requests than leave multiprocessors idle are not split, and need none."""
    most = 0
    for count in range(1, most_requests + 1):
        step = plan_fixed(shape, count, count, max_model_len, None, device, sys.maxsize)
        if step.lanes == 1:
            break
        most = max(most, step.floats(shape))
    return most


def _with_lanes(
    plan: Launch,
    shape: Shape,
    few_blocks: int,
    longest: int,
    most_keys: int | None,
    device: Device,
    most_floats: int,
) -> Launch:
    """As many lanes as keep the device busy, if there is room for their sums."""
    num_splits = max(1, min(MAX_SPLITS, -(-longest // SPLIT)))
    # a window of shorter sequences has no more splits than that of the longest has of SPLIT keys
    seen = num_splits
    if most_keys is not None:
        seen = min(num_splits, (most_keys + FEW_TOKENS) // SPLIT + 2)
    programs = max(1, few_blocks * shape.num_kv_heads)
    lanes = min(seen, -(-_PROGRAMS_PER_SM * device.num_sms // programs))
    if few_blocks == 0:
        lanes = 1
    split = plan._replace(lanes=lanes, num_splits=num_splits)
    if split.floats(shape) > most_floats:
        split = plan
    return split._replace(items=plan.items + few_blocks * split.lanes)


def paged_attention(
    q: Tensor,
    keys: PageTensors,
    values: PageTensors,
    tables: StepTables,
    launch: Launch,
    options: AttentionOptions,
    out: Tensor,
    workspace: Tensor,
) -> Tensor:
    """Causal attention of q[T, Hq, Dk] over the pages of each token's own sequence: out[T, Hq, Dv].

    q may have any strides but that of its last dimension, which is 1; out is contiguous.
    workspace: float32, at least `launch.floats` of them. Deterministic.
    """
    key_dim, value_dim = keys.elements.shape[3], values.elements.shape[3]
    _, num_kv_heads, block_size, _ = keys.elements.shape
    num_heads = q.shape[1]
    group = num_heads // num_kv_heads
    tiles, joined = launch.tiles, launch.lanes > 1
    rows = launch.few_tokens * num_heads * launch.num_splits if joined else 0
    apart = _aligned(rows)
    tops, totals = workspace[:rows], workspace[apart : apart + rows]
    sums = workspace[2 * apart : 2 * apart + value_dim * rows]
    constants = Constants(
        has_window=options.window is not None, has_chunks=options.chunk is not None,
        has_softcap=bool(options.softcap), has_sinks=options.sinks is not None,
        key_form=_form(keys, q.device), value_form=_form(values, q.device),
        key_dtype=_product_dtype(q.dtype), value_dtype=_value_dtype(values, q.dtype),
        precision="ieee" if q.dtype is torch.float32 else "tf32",
        num_kv_heads=num_kv_heads, group=group, block_size=block_size,
        wide=max(keys.elements.numel(), values.elements.numel()) >= 2**31,
        key_dim=key_dim, value_dim=value_dim,
        key_width=padded(key_dim), value_width=padded(value_dim),
        few_tokens=FEW_TOKENS, split=SPLIT, max_splits=MAX_SPLITS,
        requests=1 if launch.one_block and launch.one_token else next_power_of_2(tables.capacity),
    )  # fmt: skip
    attend_pages[(launch.items, num_kv_heads)](
        q, out, sums, tops, totals,
        keys.elements, values.elements, keys.scales, values.scales, options.sinks,
        tables.query_start_loc, tables.seq_lens, tables.block_tables, tables.stride,
        q.stride(0), q.stride(1), launch.num_requests, launch.lanes, launch.num_splits,
        options.scaling * (1.0 if options.softcap else _LOG2_E),
        float(options.softcap or 0.0), options.most_keys or 0,
        constants, HAS_FEW=launch.few_tokens > 0, HAS_MANY=launch.has_many,
        ONE_BLOCK=launch.one_block, JOINED=joined, BLOCK_M=tiles.rows,
        BLOCK_M_FEW=tiles.few_rows, BLOCK_N=tiles.keys, BLOCK_N_FEW=tiles.few_keys,
        num_warps=tiles.warps, num_stages=tiles.stages if launch.has_many else tiles.few_stages,
    )  # fmt: skip
    if joined:
        join_splits[(launch.few_tokens, num_kv_heads)](
            out, sums, tops, totals, options.sinks, tables.query_start_loc, tables.seq_lens,
            launch.num_requests, launch.num_splits, options.most_keys or 0,
            constants, ONE_TOKEN=launch.one_token, GROUP_WIDTH=next_power_of_2(group), num_warps=4,
        )  # fmt: skip
    return out


def _aligned(rows: int) -> int:
    """Floats that fill whole 16 bytes: where memory lies otherwise, Triton compiles kernels anew,
    and somebody waits for that in mid-reply."""
    return -(-rows // 4) * 4


def _form(stored: PageTensors, device: torch.device) -> str:
    if stored.form == "fp8" and device_of(device).capability < (8, 9):
        return "fp8_shift"
    return stored.form


def _product_dtype(dtype: torch.dtype) -> Any:
    return tl.float32 if is_interpreted() else _DTYPES[dtype]


def _value_dtype(values: PageTensors, dtype: torch.dtype) -> Any:
    """What weights and values are multiplied in. Weights times scales may be far below float16's
    smallest numbers; codes of 8 bits are exact in bfloat16."""
    is_half = dtype is torch.float16 and values.form != "plain"
    return _product_dtype(torch.bfloat16 if is_half else dtype)
