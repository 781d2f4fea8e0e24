"""AWQ's search: what it leaves as it was, and how much memory stands beside a layer meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.numerics import codes as codes_module
from engine.quantize import layer_by_layer
from engine.quantize.awq import Scales, search_scales
from engine.quantize.grid import Grid
from engine.quantize.quantize import quantize
from engine.quantize.recipe import Recipe
from tests.engine.models.peak import Peak, allocated
from tests.engine.quantize import quantized_models as models

GRID = Grid(4, 32, is_symmetric=False)


def search(weights: list[Tensor], x: Tensor, dtype: torch.dtype) -> tuple[Scales, list[float]]:
    """The scales that were found, and the loss of each candidate."""
    wanted, losses = [x @ weight.t() for weight in weights], []

    def loss() -> float:
        changes = (x @ w.t() - y for w, y in zip(weights, wanted, strict=True))
        losses.append(sum(float(change.square().sum()) for change in changes))
        return losses[-1]

    found = search_scales(weights, x.abs().mean(0), GRID, loss, dtype, lambda: None)
    return found, losses


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_tiles_do_not_change_what_is_found(
    dtype: torch.dtype, is_transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    plain = [torch.randn(rows, 96, generator=generator).to(dtype).float() for rows in (50, 17)]
    if is_transposed:  # as GPT-2 has them
        plain = [weight.t().contiguous().t() for weight in plain]
    x = torch.randn(40, 96, generator=generator) * torch.linspace(0.1, 5, 96)
    before = [weight.clone() for weight in plain]
    whole = search(plain, x, dtype)
    assert all(torch.equal(*pair) for pair in zip(plain, before, strict=True))
    monkeypatch.setattr(codes_module, "_TILE", 96 * 7)
    tiled = search(plain, x, dtype)
    assert whole[0].ratio == tiled[0].ratio is not None and whole[1] == tiled[1]
    assert torch.equal(whole[0].values, tiled[0].values)


@pytest.mark.slow
def test_a_search_copies_its_matrices_in_16_bits_and_little_else() -> None:
    weights = [torch.randn(2048, 1024).bfloat16().float() for _ in range(2)]
    size = weights[0].nbytes
    x = torch.randn(4, 1024)
    with allocated() as peak:
        search(weights, x, torch.bfloat16)
    # both in 16 bits, and one of them in float32 while its magnitudes are told
    assert size < peak.bytes < 2.8 * size


@pytest.mark.slow
def test_beside_a_layer_less_than_another_one_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that is kept of the text, and the copies of the matrices that are searched."""
    sizes = {"hidden_size": 512, "intermediate_size": 1408}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
    source = models.save(tmp_path / "source", **sizes, **heads, num_hidden_layers=1)
    peaks: list[Peak] = []
    original = layer_by_layer.awq_layer

    def watched(*args: Any) -> None:
        with allocated() as peak:
            original(*args)
        peaks.append(peak)

    monkeypatch.setattr(layer_by_layer, "awq_layer", watched)
    recipe = Recipe(method="awq", group_size=32, num_sequences=2, sequence_length=64,
                    num_search_sequences=2)  # fmt: skip
    quantize(source, recipe, tmp_path / "out", [models.text(400)])
    layer = 4 * (4 * 512 * 512 + 3 * 512 * 1408)
    (peak,) = peaks
    assert layer / 10 < peak.bytes < layer
