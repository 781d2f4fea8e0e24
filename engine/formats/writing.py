"""The base of all format writers, and the packing of codes into 32-bit words that AWQ, GPTQ and
compressed-tensors share.

    a word of 4-bit numbers:   bits 31..28  ...  7..4  3..0
                               number 7     ...  1     0        ("natural order")
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.numerics.codes import Codes


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


class Made(NamedTuple):
    """The content of a `quantization_config`. group_size -1: per-channel scales. left_out: every
    unquantized linear module, by its dense name."""

    bits: int
    group_size: int
    symmetric: bool
    left_out: Sequence[str] = ()
    desc_act: bool = False


class Writer(ABC):
    """Writes codes as tensors of one format; reading them returns exactly the same codes.

    layout: one of the format's `layouts`, where it has several; "": the default.
    """

    method: ClassVar[str]
    layouts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, layout: str = "") -> None:
        if layout and layout not in self.layouts:
            raise ConfigError(
                f"{self.method} does not support layout {layout!r}.",
                f"Choose one of {', '.join(self.layouts)}."
                if self.layouts
                else "Omit the layout: this format has only one.",
            )
        self.layout = layout

    @abstractmethod
    def refusal(self, codes: Codes) -> str:
        """Why the format cannot hold `codes` without changing them, with numbers; "" if it can."""

    def tensors(self, name: str, codes: Codes) -> dict[str, Tensor]:
        """File names -> tensors of the matrix whose dense name is `name` ("....weight").

        Raises ConfigError where the format cannot hold it.
        """
        reason = self.refusal(codes)
        if reason:
            rows, columns = codes.shape
            raise ConfigError(
                f"{name} ({rows} x {columns}) cannot be stored as {self.method}: {reason}.",
                "Keep this module in 16-bit, or choose another group size or format.",
            )
        module = name.removesuffix(".weight")
        return {f"{module}.{end}": t.contiguous() for end, t in self._members(codes).items()}

    @abstractmethod
    def quantization_config(self, made: Made) -> dict[str, Any]:
        """`quantization_config` of config.json."""

    @abstractmethod
    def _members(self, codes: Codes) -> dict[str, Tensor]: ...


def half_refusal(scales: Tensor) -> str:
    """Why float16 cannot store these scales exactly; "" if it can."""
    if scales.dtype == torch.float16:
        return ""
    changed = int((scales.to(torch.float16).float() != scales.float()).sum())
    if not changed:
        return ""
    return (
        f"storing scales in float16 would change {changed} of {scales.numel()} "
        f"values (largest: {float(scales.abs().max()):.3g}); round the scales before quantizing"
    )
