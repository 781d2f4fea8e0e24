"""Bytes and operations of a call of each operation of a model, for profiles.

Bytes: of the operands and the result, each read or written once. Operations: two for each product
with its sum, and per element of what lies between matmuls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from engine.kernels.linear import Linear
from engine.kernels.registry import choose_linear
from engine.models.layers.experts import QuantizedExperts

QKV, OUTPUT, GATE_UP, DOWN = "qkv projection", "o projection", "gate/up projection", (
    "down projection"
)  # fmt: skip
HEAD, ATTENTION, KV_WRITE, NORM = "LM head", "attention", "KV write", "norm"
ROTARY, ACTIVATION, EMBEDDING, EXPERTS = "rotary", "activation", "embedding", "experts"
SAMPLING, DRAFTING = "sampling", "drafting"

LINEARS = {
    "q_proj": QKV, "k_proj": QKV, "v_proj": QKV, "qkv_proj": QKV, "c_attn": QKV,
    "query_key_value": QKV, "o_proj": OUTPUT, "out_proj": OUTPUT, "gate_up_proj": GATE_UP,
    "gate_proj": GATE_UP, "up_proj": GATE_UP, "down_proj": DOWN, "lm_head": HEAD,
}  # fmt: skip
"""By the last part of the module's name; others keep that name."""

NORM_OPERATIONS, ROTARY_OPERATIONS, SILU_OPERATIONS = 4, 3, 5
"""Per element: square, sum, scale, weight; two products and a sum; negation, exponential, sum,
division, product with the other half."""


class Work(NamedTuple):
    """Bytes read and written, and operations."""

    bytes: float
    operations: float = 0.0


def bytes_per_token(cache: Any, block_size: int) -> float:
    """Of the keys and values of one layer."""
    num_blocks = cache.keys.elements.shape[0]
    return float(cache.nbytes / (num_blocks * block_size))


def linear_work(module: Linear) -> Callable[..., tuple[str, Work]]:
    def work(result: Any, x: Tensor) -> tuple[str, Work]:
        rows = x.numel() // module.in_features
        if module.packed is None:
            weight = module._parameters["weight"]
            assert weight is not None
            weights, kernel = weight.nbytes, choose_linear(weight.dtype, weight.device.type, rows)
        else:
            weights, kernel = module.packed.nbytes, module.packed.title
        outputs = rows * module.out_features
        bias = 0 if module.bias is None else module.bias.nbytes
        nbytes = x.nbytes + weights + bias + outputs * x.element_size()
        return kernel, Work(nbytes, 2.0 * outputs * module.in_features)

    return work


def experts_work(module: nn.Module) -> Callable[..., tuple[str, Work]]:
    """Of the experts that are chosen."""

    def work(result: Tensor, x: Tensor, chosen: Tensor, *_: object) -> tuple[str, Work]:
        if isinstance(module, QuantizedExperts):
            nbytes, weights, kernel = module.packed_bytes, module.num_weights, module.title
        else:
            parameters = list(module.parameters())
            nbytes, kernel = sum(one.nbytes for one in parameters), ""
            weights = sum(one.numel() for one in parameters)
        count = int(getattr(module, "num_experts"))  # noqa: B009
        read = nbytes / count * int(chosen.unique().numel())
        return kernel, Work(x.nbytes + result.nbytes + read, 2.0 * weights / count * chosen.numel())

    return work


def moved(result: Any, *args: Any, **_: Any) -> tuple[str, Work]:
    """Looked up: read and written."""
    tensors = result if isinstance(result, tuple) else (result,)
    return "", Work(2 * sum(one.nbytes for one in tensors))


def looked_up(result: Tensor, token_ids: Tensor) -> tuple[str, Work]:
    return "", Work(token_ids.nbytes + 2 * result.nbytes)


def normed(result: Tensor, x: Tensor, *rest: Any) -> tuple[str, Work]:
    weight = rest[0].nbytes if rest else 0
    return "", Work(x.nbytes + result.nbytes + weight, NORM_OPERATIONS * x.numel())


def added_and_normed(
    result: tuple[Tensor, Tensor], x: Tensor, residual: Tensor, weight: Tensor, *_: Any
) -> tuple[str, Work]:
    nbytes = x.nbytes + residual.nbytes + weight.nbytes + sum(one.nbytes for one in result)
    return "", Work(nbytes, (NORM_OPERATIONS + 1) * x.numel())


def rotated(
    result: Tensor, heads: Tensor, cos: Tensor, sin: Tensor, norms: Any = None
) -> tuple[str, Work]:
    """With the norm of each head, where it is part of it."""
    each = ROTARY_OPERATIONS + (0 if norms is None else NORM_OPERATIONS)
    nbytes = heads.nbytes + result.nbytes + cos.nbytes + sin.nbytes
    return "", Work(nbytes, each * heads.numel())


def silu(result: Tensor, gate_up: Tensor) -> tuple[str, Work]:
    return "", Work(gate_up.nbytes + result.nbytes, SILU_OPERATIONS * result.numel())
