"""Times products with packed weights on a GPU under many plans:

    python -m tests.gpu.bench.plans [OUTPUTS INPUTS]

prints, for a weight of 4 bits in groups of 128, the time and the bytes per second of the fastest
plans, for one row and for a few. `engine.kernels.packed` has what was chosen of them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from functools import partial

import torch

from engine.kernels.packed import FEW_ROWS, PackedWeights, activations, milliseconds
from engine.kernels.packed_codes import Plan
from engine.numerics.codes import IntCodes

_SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  # of Llama 3.1 8B


def plans(weights: PackedWeights, name: str) -> Iterator[tuple[Plan, float]]:
    """(plan, milliseconds) of many plans for "one row" or "few rows"."""
    from engine.kernels.triton import packed as kernels

    held = weights.packed
    x = activations(weights, 1 if name == "one row" else FEW_ROWS)
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
