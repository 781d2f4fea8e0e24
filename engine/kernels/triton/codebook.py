"""Codes of 4 bits that are places in a table of 16 numbers (NF4, FP4), looked up by a program.

The table stays in registers, and goes through shared memory for each lookup: its 16 numbers lie in
16 banks, so that the threads of a warp never wait for each other. Four fields of each word are
looked up together, for the program's threads meet before and after. (A table that is read from
memory each time would be fetched ahead like weights, into hundreds of KiB; choosing among 16
constants takes 16 instructions a weight.)
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def looked_up(words, table, FIRST: tl.constexpr):
    """Fields FIRST, ..., FIRST + 3 of int32 words, as the numbers of `table` [16]."""
    one = tl.join((words >> (4 * FIRST)) & 15, (words >> (4 * FIRST + 4)) & 15)
    other = tl.join((words >> (4 * FIRST + 8)) & 15, (words >> (4 * FIRST + 12)) & 15)
    places = tl.join(one, other)
    found = tl.gather(table, tl.reshape(places, [places.numel]), 0)
    first, second = tl.split(tl.reshape(found, places.shape))
    a, b = tl.split(first)
    c, d = tl.split(second)
    return a, b, c, d
