"""The small operations between the products, by rows: they should cost what they read and write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.kernels import ops
from tests.gpu.bench.bench import Bench
from tests.gpu.bench.shapes import Shape
from tests.gpu.bench.timing import num_sets, time_turns

_DTYPE = torch.bfloat16
_EPS = 1e-5


class Operation(NamedTuple):
    """`inputs`: shapes of the tensors that rotate; `moved`: how often their bytes are moved,
    counting reads and writes."""

    inputs: Callable[[int], list[tuple[int, ...]]]
    run: Callable[..., object]
    moved: float


def measure(bench: Bench, *, shape: str, rows: list[int]) -> dict[str, Any]:
    """Microseconds of every operation at every number of rows."""
    found = {}
    for name, operation in operations(bench, Shape.named(shape)).items():
        for count in rows:
            shapes = operation.inputs(count)
            nbytes = sum(_size(s) for s in shapes)
            sets = [_random(bench, shapes) for _ in range(num_sets(nbytes, bench.device))]
            timed = time_turns(
                lambda turn, sets=sets, run=operation.run: run(*sets[turn % len(sets)]),
                bench.device,
            )
            found[f"{name} {count}"] = {
                "bytes": operation.moved * nbytes, "time": timed.as_dict()
            }  # fmt: skip
    return {"rows": found}


def operations(bench: Bench, shape: Shape) -> dict[str, Operation]:
    """What a layer does between its products, at the widths of `shape`."""
    weight = torch.randn(shape.hidden, device=bench.device, dtype=_DTYPE)
    heads = shape.num_heads + shape.num_kv_heads

    def rotate(x: Tensor, turn: Tensor) -> Tensor:
        return ops.rotate_heads(x, turn, turn)

    return {
        "norm": Operation(
            lambda n: [(n, shape.hidden)], lambda x: ops.rms_norm(x, weight, _EPS), 2
        ),
        "add and norm": Operation(
            lambda n: [(n, shape.hidden)] * 2,
            lambda x, residual: ops.add_rms_norm(x, residual, weight, _EPS), 2,
        ),
        "rotary": Operation(
            lambda n: [(n, heads, shape.head_dim), (n, shape.head_dim)], rotate, 2
        ),
        "silu and mul": Operation(
            lambda n: [(n, 2 * shape.intermediate)], ops.silu_and_mul, 1.5
        ),
    }  # fmt: skip


def _size(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel() * _DTYPE.itemsize


def _random(bench: Bench, shapes: list[tuple[int, ...]]) -> list[Tensor]:
    return [torch.randn(s, device=bench.device, dtype=_DTYPE) for s in shapes]
