"""Matrices as codes, before they are packed."""

from __future__ import annotations

import torch

from engine.numerics.codes import TableCodes, in_turns
from engine.numerics.rounding import round_nf4


def test_rows_in_turns_stay_places_in_a_table() -> None:
    """Gate and up of experts, row by row; blocks that run on from one row into the next cannot."""
    gate, up = (round_nf4(torch.randn(3, 128)) for _ in range(2))
    found = in_turns([gate, up])
    assert isinstance(found, TableCodes)
    assert torch.equal(found.dequantize()[0::2], gate.dequantize())
    assert torch.equal(found.dequantize()[1::2], up.dequantize())
    narrow = [round_nf4(torch.randn(4, 96)) for _ in range(2)]
    plain = in_turns(narrow)
    assert isinstance(plain, torch.Tensor)
    assert torch.equal(plain[1::2], narrow[1].dequantize())
