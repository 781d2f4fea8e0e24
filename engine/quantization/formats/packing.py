"""Small numbers in 32-bit words, as AWQ, GPTQ and compressed-tensors keep them on disk.

a word of 4-bit numbers:   bits 31..28  ...  7..4  3..0
                           number 7     ...  1     0        ("natural order")
"""

from __future__ import annotations

import torch
from torch import Tensor


def per_word(bits: int) -> int:
    """Numbers of `bits` bits (4 or 8) in a word."""
    return 32 // bits


def words_for(count: int, bits: int) -> int:
    """Words that hold `count` numbers; the last may be filled in part."""
    return -(-count // per_word(bits))


def unpack(words: Tensor, bits: int) -> Tensor:
    """int32 [R, C] -> uint8 [R, C * 32 / bits], numbers in natural order along the last axis."""
    # safetensors is little endian, and so is every machine that this runs on: the first byte of a
    # word holds its lowest bits
    numbers = _reinterpret(words, torch.uint8)
    if bits == 8:
        return numbers.clone()
    halves = torch.empty((*numbers.shape, 2), dtype=torch.uint8)
    torch.bitwise_and(numbers, 15, out=halves[..., 0])
    torch.bitwise_right_shift(numbers, 4, out=halves[..., 1])
    return halves.flatten(-2)


def pack(numbers: Tensor, bits: int) -> Tensor:
    """The inverse: uint8 [R, C] -> int32 [R, words_for(C)]; what is missing in a last word is 0."""
    padding = -numbers.shape[-1] % per_word(bits)
    if padding:
        numbers = torch.nn.functional.pad(numbers, (0, padding))
    if bits == 4:
        pairs = numbers.unflatten(-1, (-1, 2))
        numbers = pairs[..., 0] | (pairs[..., 1] << 4)
    return _reinterpret(numbers, torch.int32)


def _reinterpret(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """The same bytes, row after row, as another number format."""
    # flattened first: a transposed matrix of one row passes as contiguous with any stride, which
    # `view` does not accept
    return matrix.contiguous().reshape(-1).view(dtype).view(*matrix.shape[:-1], -1)
