"""The divergence of two models' probabilities, close together and far apart."""

from __future__ import annotations

import pytest
import torch

from engine.evaluate.scoring import divergence, log_probabilities


@pytest.mark.parametrize("apart", [1e-3, 0.1, 3.0, 60.0, 300.0])
def test_it_is_that_of_float64(apart: float) -> None:
    """Also where one model rules out what the other is sure of."""
    generator = torch.Generator().manual_seed(int(apart * 1e3))
    ours, other = torch.randn(2, 40, 3000, generator=generator, dtype=torch.float64)
    logits = ours * min(apart, 8.0), ours * min(apart, 8.0) + other * apart
    p, q = (torch.log_softmax(one, dim=-1) for one in logits)
    exact = (p.exp() * (p - q)).sum(-1)
    found = divergence(*(log_probabilities(one) for one in logits))
    torch.testing.assert_close(found, exact, rtol=2e-3, atol=1e-9)


def test_what_rounding_leaves_of_equal_models_is_not_seen() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 5 * torch.randn(60, 5000, generator=generator)
    steps = torch.randint(-2, 3, logits.shape, generator=generator)
    rounded = logits * (1 + 2**-22 * steps)  # as sums in another order would be
    first, second = log_probabilities(logits), log_probabilities(rounded)
    assert not torch.equal(first, second)
    assert float(divergence(first, second).max()) < 1e-10
    assert bool((divergence(first, first) == 0).all())
