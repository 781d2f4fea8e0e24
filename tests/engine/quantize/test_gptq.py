"""GPTQ on one matrix: less error of the output than rounding, in every order of columns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.quantize.gptq import Order, gptq
from engine.quantize.grid import Grid
from tests.engine.models.peak import allocated

ORDERS = [Order(False, False), Order(True, False), Order(True, True)]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """How much is won differs from weight to weight."""
    torch.manual_seed(0)


def correlated(tokens: int, width: int, seed: int = 0) -> Tensor:
    """Inputs with channels of unlike size that go together."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=generator) * width**-0.5
    sizes = torch.exp(torch.randn(width, generator=generator))
    return torch.randn(tokens, width, generator=generator) @ (mixing + torch.eye(width)) * sizes


def output_error(x: Tensor, weight: Tensor, other: Tensor) -> float:
    return float((x @ (weight - other).t()).norm() / (x @ weight.t()).norm())


@pytest.mark.parametrize("order", ORDERS, ids=["in order", "groups by importance", "static"])
@pytest.mark.parametrize("is_symmetric", [False, True])
@pytest.mark.parametrize(("width", "group_size"), [(192, 32), (256, 128), (288, 96)])
def test_the_output_has_less_error_than_by_rounding(
    order: Order, is_symmetric: bool, width: int, group_size: int
) -> None:
    x, weight = correlated(600, width), torch.randn(40, width)
    grid = Grid(4, group_size, is_symmetric)
    found = gptq(weight, x.t() @ x, grid, order, damping=0.01)
    assert found is not None
    codes, damping = found
    assert damping == 0.01
    plain = output_error(x, weight, grid.rounded(weight))
    assert output_error(x, weight, codes.dequantize()) < 0.8 * plain
    assert (codes.groups is not None) == (order.by_importance and not order.static_groups)


def test_channels_that_do_not_go_together_are_simply_rounded() -> None:
    weight = torch.randn(16, 64)
    grid = Grid(4, 32, True)
    found = gptq(weight, torch.eye(64), grid, Order(False, False), damping=0.01)
    assert found is not None
    assert torch.equal(found[0].dequantize(), grid.rounded(weight))


def test_it_is_the_plain_algorithm() -> None:
    """Column by column with the inverse Hessian of what is left, as in the paper's first form."""
    x, weight = correlated(300, 64), torch.randn(8, 64)
    grid = Grid(4, 64, False)
    hessian = (x.t() @ x).double()
    hessian.diagonal().add_(0.01 * hessian.diagonal().mean())
    scales, zeros = (p.double() for p in grid.parameters(*grid.ranges(weight)))
    rest, done = weight.double().clone(), torch.empty(8, 64).double()
    for i in range(64):
        inverse = torch.linalg.inv(hessian[i:, i:])
        codes = (rest[:, i] / scales[:, 0]).round().add(zeros[:, 0]).clamp(0, 15)
        done[:, i] = (codes - zeros[:, 0]) * scales[:, 0]
        error = (rest[:, i] - done[:, i]) / inverse[0, 0]
        rest[:, i:] -= error.unsqueeze(1) * inverse[0]
    found = gptq(weight, x.t() @ x, grid, Order(False, False), damping=0.01)
    assert found is not None
    assert float((found[0].dequantize() - done.float()).abs().max()) < 1e-4


def test_inputs_of_few_tokens_get_more_damping_or_none() -> None:
    x = correlated(4, 64)
    x[:, 7] = 0  # a channel that is always 0
    weight = torch.randn(8, 64)
    grid = Grid(4, 32, True)
    found = gptq(weight, x.t() @ x, grid, Order(True, True), damping=1e-9)
    assert found is not None
    codes, damping = found
    assert damping >= 1e-9
    assert torch.isfinite(codes.dequantize()).all()
    plain = output_error(x, weight, grid.rounded(weight))
    assert output_error(x, weight, codes.dequantize()) <= plain
    broken = torch.full((64, 64), float("nan"))
    assert gptq(weight, broken, grid, Order(True, True), damping=0.01) is None


def test_arguments_stay_and_work_can_be_stopped() -> None:
    x, weight = correlated(100, 256), torch.randn(4, 256)
    hessian = x.t() @ x
    before = weight.clone(), hessian.clone()
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gptq(weight, hessian, Grid(4, 32, True), Order(True, True), damping=0.01, check=check)
    assert torch.equal(weight, before[0]) and torch.equal(hessian, before[1])


def test_two_more_matrices_of_the_hessians_size_are_made_at_most() -> None:
    """At 14,336 inputs, as models of 8 billion parameters have them, each takes 0.8 GB."""
    width = 1024
    inputs = torch.randn(256, width)
    weight, hessian = torch.randn(8, width), inputs.t() @ inputs
    order = Order(by_importance=True, static_groups=True)
    with allocated() as peak:
        found = gptq(weight, hessian, Grid(4, 128, True), order, damping=0.01)
    assert found is not None
    assert hessian.nbytes < peak.bytes < 2.3 * hessian.nbytes
