"""Statistics of the inputs that the matrices of a layer get on the calibration text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import torch
from torch import Tensor, nn

from engine.quantize.groups import Product, Watch


class Inputs:
    """Of one product: how large each channel is, products of channels, and some rows.

    block: channels are multiplied with those of their own block of so many (the whole width for
        a Hessian); 0 keeps none.
    rows: most rows that are kept as they are.
    """

    def __init__(self, width: int, *, block: int = 0, rows: int = 0) -> None:
        self.count = 0
        self.magnitudes = torch.zeros(width)
        self.block = block
        self.gram = torch.zeros(-(-width // block), block, block) if block else None
        self._limit = rows
        self._rows: list[Tensor] = []
        self._num_rows = 0

    @property
    def mean_magnitude(self) -> Tensor:
        """[K]: the mean of |x|."""
        return self.magnitudes / max(1, self.count)

    def rows(self) -> Tensor:
        """[R, K]"""
        return torch.cat(self._rows) if self._rows else torch.zeros(0, len(self.magnitudes))

    def add(self, x: Tensor) -> None:
        x = x.reshape(-1, x.shape[-1]).float()
        self.count += x.shape[0]
        self.magnitudes += x.abs().sum(0)
        if self.gram is not None:
            if self.block == x.shape[1]:
                self.gram[0].addmm_(x.t(), x)
            else:
                blocks = x.view(x.shape[0], -1, self.block).transpose(0, 1)  # [G, T, block]
                self.gram.baddbmm_(blocks.transpose(1, 2), blocks)
        if self._num_rows < self._limit:
            kept = x[: self._limit - self._num_rows].clone()
            self._num_rows += kept.shape[0]
            self._rows.append(kept)

    def scale(self, scales: Tensor) -> None:
        """Update as if the input had been divided by `scales` [K]."""
        self.magnitudes /= scales
        if self.gram is not None:
            blocks = scales.view(-1, self.block)
            self.gram /= blocks.unsqueeze(1) * blocks.unsqueeze(2)
        self._rows = [rows / scales for rows in self._rows]

    def output_error(self, difference: Tensor, weight: Tensor) -> float | None:
        """Norm of the output's change relative to the output; None without inputs. difference,
        weight: [N, K]."""
        if self.gram is not None and self.block == weight.shape[1]:
            hessian = self.gram[0]
            error = float(((difference @ hessian) * difference).sum())
            whole = float(((weight @ hessian) * weight).sum())
        else:
            rows = self.rows()
            error = float((rows @ difference.t()).square().sum())
            whole = float((rows @ weight.t()).square().sum())
        if not self.count or whole <= 0:
            return None
        return float(max(0.0, error / whole) ** 0.5)


def collect(
    layer: nn.Module,
    wanted: dict[Product, Inputs],
    runs: Iterable[Callable[[], object]],
    *,
    is_brief: bool = False,
) -> None:
    """Fill `wanted` from `runs`, each of which runs the layer on one sequence. is_brief: end a run
    as soon as all wanted products were seen (never for experts)."""
    is_brief = is_brief and all(product.expert is None for product in wanted)
    seen: set[Product] = set()

    def on_product(product: Product, x: Tensor, is_transposed: bool) -> None:
        if product in wanted:
            wanted[product].add(x)
            seen.add(product)
        if is_brief and len(seen) == len(wanted):
            raise _Seen

    with Watch(layer, on_product):
        for run in runs:
            seen.clear()
            with suppress(_Seen):
                run()


class _Seen(Exception):  # noqa: N818 - ends a run early
    pass
