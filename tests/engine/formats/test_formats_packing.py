"""Numbers in words come back, whatever their count and however the matrix lies in memory."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.formats.writing import pack, unpack, words_for

sizes = st.integers(1, 40)


@given(rows=sizes, columns=sizes, bits=st.sampled_from([4, 8]), across=st.booleans())
def test_what_was_packed_is_unpacked(rows: int, columns: int, bits: int, across: bool) -> None:
    generator = torch.Generator().manual_seed(rows * 41 + columns)
    shape = (columns, rows) if across else (rows, columns)
    numbers = torch.randint(0, 2**bits, shape, generator=generator, dtype=torch.uint8)
    numbers = numbers.t() if across else numbers
    words = pack(numbers, bits)
    assert words.dtype == torch.int32 and words.shape == (rows, words_for(columns, bits))
    back = unpack(words, bits)
    assert torch.equal(back[:, :columns], numbers) and not back[:, columns:].any()
    assert torch.equal(unpack(words.t().contiguous().t(), bits), back)


def test_the_first_number_is_in_the_lowest_bits() -> None:
    assert unpack(torch.tensor([[0x76543210]], dtype=torch.int32), 4).tolist() == [[*range(8)]]
    assert unpack(torch.tensor([[0x04030201]], dtype=torch.int32), 8).tolist() == [[1, 2, 3, 4]]
    assert unpack(torch.tensor([[-1]], dtype=torch.int32), 4).tolist() == [[15] * 8]
