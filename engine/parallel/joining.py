"""Puts the exchanges between ranks into a rank's model.

    embeddings of the rank's tokens, zeros for the others' -> sum
    each layer: attention of its heads -> sum; its part of the MLP -> sum
    logits of its tokens                     (all ranks' parts beside each other: the runner)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from engine.parallel.exchange import Exchange
from engine.parallel.share import Share


def join(model: nn.Module, share: Share, exchange: Exchange) -> None:
    """From now on a pass of `model` needs the others' passes beside it."""
    for path in share.shape.sums:
        model.get_submodule(path).register_forward_hook(_Sum(share.rank, exchange))
    if share.shape.is_vocab_cut:
        _Lookup(share, exchange).put_into(model.get_input_embeddings())  # type: ignore[operator]


class _Sum:
    """Adds up what a module returns, or the first of several things that it returns."""

    def __init__(self, rank: int, exchange: Exchange) -> None:
        self._rank, self._exchange = rank, exchange

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (self._exchange.sum(self._rank, output[0]), *output[1:])
        return self._exchange.sum(self._rank, output)


class _Lookup:
    """Embeddings of which each rank has some rows: exactly one has that of a token."""

    def __init__(self, share: Share, exchange: Exchange) -> None:
        self._rank, self._exchange = share.rank, exchange
        self._count = share.shape.vocab_part
        self._is_elsewhere: Tensor | None = None

    def put_into(self, embedding: nn.Module) -> None:
        embedding.register_forward_pre_hook(self._before)
        embedding.register_forward_hook(self._after)

    def _before(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        tokens = args[0] - self._rank * self._count
        self._is_elsewhere = (tokens < 0) | (tokens >= self._count)
        return (tokens.masked_fill(self._is_elsewhere, 0), *args[1:])

    def _after(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        assert self._is_elsewhere is not None
        output = output.masked_fill(self._is_elsewhere.unsqueeze(-1), 0)
        self._is_elsewhere = None
        return self._exchange.sum(self._rank, output)
