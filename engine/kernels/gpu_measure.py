"""Measures products with packed weights on a GPU: at load where it is in doubt which is faster, and
by hand over many plans:

    python -m engine.kernels.gpu_measure [OUTPUTS INPUTS]

prints, for a weight of 4 bits in groups of 128, the time and the bytes per second of each plan, for
one row and for a few. `engine.kernels.gpu` has what was chosen of them.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from engine.kernels import gpu as gpu_plans
from engine.kernels.gpu import FEW_ROWS
from engine.kernels.packed import PackedWeights
from engine.kernels.packed_codes import Plan
from engine.numerics.codes import IntCodes

_ROWS = (32, 64, 128)
_WARM_UP, _TURNS = 3, 7
_SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  # of Llama 3.1 8B
_lock = threading.Lock()


def settle(weights: PackedWeights) -> None:
    """Find up to how many rows a tile is faster than stripes made plain, once per shape; nothing
    is measured where there is no GPU, or where its memory does not suffice."""
    held = weights.packed
    if held.words.device.type != "cuda":
        return
    with _lock:
        key = gpu_plans.family(held)
        if key in gpu_plans.measured_tile_rows:
            return
        rows = FEW_ROWS
        try:
            for count in _ROWS:
                x = _activations(weights, count)
                tile = milliseconds([partial(weights.by_name, "tile", x, None)])
                if milliseconds([partial(weights.by_name, "stripes", x, None)]) < tile:
                    break
                rows = count
        except torch.OutOfMemoryError:
            return
        gpu_plans.measured_tile_rows[key] = rows


def milliseconds(calls: Sequence[Callable[[], object]]) -> float:
    """Median time of one call on the current GPU, taking turns among `calls`."""
    for index in range(_WARM_UP):
        calls[index % len(calls)]()
    times = []
    for turn in range(_TURNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        calls[turn % len(calls)]()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def plans(weights: PackedWeights, name: str) -> Iterator[tuple[Plan, float]]:
    """(plan, milliseconds) of many plans for "one row" or "few rows"."""
    from engine.kernels.triton import packed as kernels

    held = weights.packed
    x = _activations(weights, 1 if name == "one row" else FEW_ROWS)
    product = kernels.one_row if name == "one row" else kernels.tiled
    # weights in turn, as the layers of a model are: more of them than the cache holds
    copies = [held._replace(words=held.words.clone()) for _ in range(_num_copies(held.nbytes))]
    for block_n, splits, warps, stages in itertools.product(
        (32, 64, 128), (1, 2, 4, 8), (2, 4, 8), (2, 4, 6)
    ):
        plan = Plan(block_n, splits, warps, stages)
        if splits <= held.num_blocks:
            yield plan, milliseconds([partial(product, x, one, None, plan) for one in copies])


def _num_copies(size: int) -> int:
    return max(2, min(16, 2**28 // size))


def _activations(weights: PackedWeights, rows: int) -> torch.Tensor:
    device = weights.packed.words.device
    return torch.randn(rows, weights.shape[1], dtype=weights.dtype, device=device)


def main(arguments: list[str]) -> int:
    if not torch.cuda.is_available():
        print("No NVIDIA GPU that torch can use.", file=sys.stderr)
        return 1
    device = torch.device("cuda", 0)
    given = [int(argument) for argument in arguments]
    for outputs, inputs in [(given[0], given[1])] if len(given) == 2 else _SHAPES:
        codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
        groups = torch.rand(outputs, inputs // 128)
        zeros = torch.full(groups.shape, 8, dtype=torch.uint8)
        matrix = IntCodes(4, codes, groups.half(), zeros, 128)
        weights = PackedWeights(matrix, torch.bfloat16, device)
        for name in ("one row", "few rows"):
            found = sorted(plans(weights, name), key=lambda pair: pair[1])
            print(f"{outputs} x {inputs}, {name}:")
            for plan, ms in found[:5]:
                print(f"  {ms * 1000:7.1f} us  {weights.nbytes / ms / 1e6:7.0f} GB/s  {plan}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
