"""AWQ in its GEMM layout, as AutoAWQ writes it (casper-hansen/AutoAWQ, modules/linear/gemm.py).

qweight  int32 [K, N / 8]        4-bit codes along the outputs
qzeros   int32 [K / g, N / 8]
scales   float16 [K / g, N]      w = (code - zero) * scale

bits 31..28 27..24 23..20 19..16 15..12 11..8 7..4 3..0
output    7      5      3      1      6     4    2    0      of the 8 in a word
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.errors import CheckpointError, UnsupportedModelError
from engine.formats.checkpoint_format import (
    FLOATS,
    CheckpointFormat,
    Members,
    QuantizedTensor,
    group_text,
    need,
    need_dtype,
    need_groups,
    need_matrix,
    need_shape,
)
from engine.formats.settings import CHECK_SETTINGS, Settings
from engine.formats.tensor_reader import TensorReader
from engine.formats.writing import Made, Writer, half_refusal, pack, unpack
from engine.numerics.codes import Codes, IntCodes

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of 8 outputs the k-th nibble of a word holds
_BACK = (0, 4, 1, 5, 2, 6, 3, 7)  # which nibble holds the k-th output
_BITS = 4


class AWQFormat(CheckpointFormat):
    method = "awq"
    suffixes = ("qweight", "qzeros", "scales")

    def __init__(self, settings: Settings) -> None:
        bits = settings.integer("bits", "w_bit")
        if bits != _BITS:
            raise UnsupportedModelError(
                f"{settings.source} specifies {bits}-bit AWQ; Inferdeck supports 4-bit.",
                "Choose a 4-bit checkpoint, or the original 16-bit model.",
            )
        version = settings.text("version", "format", "checkpoint_format", default="gemm").lower()
        if settings.text("backend", default="") == "llm-awq":  # which says "gemm" as well
            version = "llm-awq"
        if version != "gemm":
            raise UnsupportedModelError(
                f"{settings.source} specifies AWQ layout {version!r}; Inferdeck supports GEMM.",
                "Choose an AWQ checkpoint in GEMM layout (the most common), or quantize the "
                "16-bit model with Inferdeck.",
            )
        group_size = settings.integer("group_size", "q_group_size")
        if group_size != -1 and group_size <= 0:
            raise CheckpointError(
                f"{settings.source} has an invalid group size: {group_size}.", CHECK_SETTINGS
            )
        title = f"AWQ, {bits}-bit, {group_text(group_size)}"
        left = settings.names("modules_to_not_convert")
        super().__init__(
            settings.source, title, bits, group_size, symmetric=False, left_unquantized=left
        )

    def _is_quantized(self, module: str, members: Members) -> bool:
        return True

    def _matrix(
        self, module: str, members: Members, reader: TensorReader, match: int | None
    ) -> QuantizedTensor:
        need(members, *self.suffixes)
        for suffix, dtypes in (("qweight", ("I32",)), ("qzeros", ("I32",)), ("scales", FLOATS)):
            need_dtype(members, suffix, *dtypes)
        width, words = need_matrix(members, "qweight")
        group_size = width if self.group_size == -1 else self.group_size
        groups = need_groups(width, group_size)
        need_shape(members, "qzeros", (groups, words))
        need_shape(members, "scales", (groups, words * 8))

        def decode(parts: Mapping[str, Tensor]) -> IntCodes:
            return IntCodes(
                _BITS,
                _unpack(parts["qweight"]),
                parts["scales"].t().contiguous(),
                _unpack(parts["qzeros"]),
                group_size,
            )

        return QuantizedTensor(f"{module}.weight", (words * 8, width), members, "qweight", decode)


class AWQWriter(Writer):
    method = "awq"

    def refusal(self, codes: Codes) -> str:
        if not isinstance(codes, IntCodes) or codes.bits != _BITS:
            return "the format supports 4-bit integers only"
        if codes.zeros is None:
            return "the format requires zero points; these weights are symmetric"
        if codes.groups is not None:
            return "the format does not support activation order (desc_act)"
        outputs, inputs = codes.shape
        if outputs % 8:
            return f"output size {outputs} is not a multiple of 8"
        if inputs % codes.group_size:
            return f"group size {codes.group_size} does not divide input size {inputs}"
        return half_refusal(codes.scales)

    def quantization_config(self, made: Made) -> dict[str, Any]:
        return {
            "quant_method": "awq",
            "bits": made.bits,
            "group_size": made.group_size,
            "zero_point": not made.symmetric,
            "version": "gemm",
            "modules_to_not_convert": list(made.left_out) or None,
        }

    def _members(self, codes: Codes) -> dict[str, Tensor]:
        assert isinstance(codes, IntCodes) and codes.zeros is not None  # `refusal` has looked
        return {
            "qweight": _pack(codes.codes),
            "qzeros": _pack(codes.zeros),
            "scales": codes.scales.to(torch.float16).t(),
        }


def _unpack(words: Tensor) -> Tensor:
    """int32 [R, N / 8] -> uint8 [N, R]."""
    numbers = unpack(words, _BITS).unflatten(-1, (-1, 8))
    return numbers[..., list(_BACK)].flatten(-2).t().contiguous()


def _pack(numbers: Tensor) -> Tensor:
    """uint8 [N, R] -> int32 [R, N / 8]."""
    words = numbers.t().unflatten(-1, (-1, 8))
    return pack(words[..., list(ORDER)].flatten(-2), _BITS)
