"""Linear layers by number of rows, in every form in which the engine holds their weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.kernels.linear import linear
from engine.kernels.quantized import make_weights
from engine.numerics.codes import Codes
from engine.numerics.rounding import round_asymmetric, round_fp8, round_int8, round_nf4
from tests.gpu.bench.bench import Bench
from tests.gpu.bench.shapes import BITS, Shape
from tests.gpu.bench.timing import num_sets, time_turns

_DTYPE = torch.bfloat16
_STD = 0.02
_GROUP = 128
Product = Callable[[Tensor], Tensor]


def measure(
    bench: Bench, *, shape: str, matrix: str, precision: str, rows: list[int]
) -> dict[str, Any]:
    """Microseconds of a product by number of rows; `matrix`: a name of Shape.linears, or "head"."""
    found = Shape.named(shape)
    outputs, inputs = {**found.linears, "head": (found.vocab, found.hidden)}[matrix]
    nbytes = outputs * inputs * BITS[precision] / 8
    products, title = _products(bench, outputs, inputs, precision, num_sets(nbytes, bench.device))
    by_rows = {}
    for count in rows:
        x = torch.randn(count, inputs, device=bench.device, dtype=_DTYPE)
        timed = time_turns(lambda turn, x=x: products[turn % len(products)](x), bench.device)
        by_rows[str(count)] = {
            "bytes": nbytes + 2 * count * (inputs + outputs),
            "flops": 2 * count * outputs * inputs,
            "time": timed.as_dict(),
        }
    return {"outputs": outputs, "inputs": inputs, "held_as": title, "rows": by_rows}


def _products(
    bench: Bench, outputs: int, inputs: int, precision: str, count: int
) -> tuple[list[Product], str]:
    """The product with each of `count` weights, and the form that they are held in."""
    products: list[Product] = []
    title = str(_DTYPE)
    for _ in range(count):
        weight = torch.randn(outputs, inputs, device=bench.device, dtype=_DTYPE).mul_(_STD)
        if precision == "bf16":
            products.append(lambda x, weight=weight: linear(x, weight, None))
            continue
        held = make_weights([_round(weight, precision)], _DTYPE, bench.device)
        title = held.title
        products.append(lambda x, held=held: held.product(x, None))
    return products, title


def _round(weight: Tensor, precision: str) -> Codes:
    if precision == "int8":
        return round_int8(weight)
    if precision == "fp8":
        return round_fp8(weight)
    if precision == "nf4":
        return round_nf4(weight)
    return round_asymmetric(weight, bits=4, group_size=min(_GROUP, weight.shape[1]))
