"""How large the tiles of paged attention are, by device, width of a head and number format.

Guesses of what a device of each generation does well, from what other engines use; to be measured.
Nothing is tried out while the engine runs.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.kernels.triton.support import Device, next_power_of_2


class Tiles(NamedTuple):
    """rows, keys: of a tile of scores, for requests of many tokens and of few. warps: of a program,
    for both alike, since sums over a tile are taken in another order by another number of them.
    stages: of the loop over tiles. A tile's keys wait for its part of the block table: two stages
    are one tile more on its way. few_stages: where all requests are of few tokens; beside others
    these would need registers that are not there."""

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
