"""Writes compressed-tensors; the layouts are drawn in `compressed_tensors`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.formats.writing import Made, Writer, pack
from engine.numerics.codes import Codes, FloatCodes, IntCodes

# Engines multiply int8 weights of this layout with int8 activations, a scale per token.
_PER_TOKEN = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "strategy": "token",
    "dynamic": True,
}


class CompressedTensorsWriter(Writer):
    """`layout` "" chooses by the codes: float-quantized for float8, int-quantized for symmetric
    int8 with a scale per output, pack-quantized for the others."""

    method = "compressed-tensors"
    layouts = ("pack-quantized", "int-quantized", "float-quantized")

    def refusal(self, codes: Codes) -> str:
        layout = self._layout_of(codes)
        if layout == "float-quantized":
            return _float_refusal(codes)
        if not isinstance(codes, IntCodes) or codes.bits not in (4, 8):
            return f"{layout} supports 4-bit and 8-bit integers only"
        if codes.groups is not None:
            return "it groups neighboring columns, and these columns are reordered"
        inputs = codes.shape[1]
        if layout == "int-quantized":
            if codes.bits != 8 or not codes.is_symmetric or codes.group_size != inputs:
                return "int-quantized supports only symmetric 8-bit codes with one scale per output"
        elif inputs % codes.group_size:
            return f"groups of {codes.group_size} do not divide {inputs} inputs"
        return ""

    def _config(self, made: Made) -> dict[str, Any]:
        whole = made.group_size == -1
        layout = self.layout or (
            "int-quantized" if made.bits == 8 and made.symmetric and whole else "pack-quantized"
        )
        weights = {
            "num_bits": made.bits,
            "type": "float" if layout == "float-quantized" else "int",
            "symmetric": made.symmetric,
            "strategy": "channel" if whole else "group",
            "group_size": None if whole else made.group_size,
            "dynamic": False,
        }
        group = {
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": _PER_TOKEN if layout == "int-quantized" else None,
            "output_activations": None,
            "format": layout,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": layout,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": list(made.left_out),
            "kv_cache_scheme": None,
            "global_compression_ratio": None,
        }

    def _layout_of(self, codes: Codes) -> str:
        if self.layout:
            return self.layout
        if isinstance(codes, FloatCodes):
            return "float-quantized"
        whole = isinstance(codes, IntCodes) and codes.group_size == codes.shape[1]
        if isinstance(codes, IntCodes) and whole and codes.bits == 8 and codes.is_symmetric:
            return "int-quantized"
        return "pack-quantized"

    def _members(self, codes: Codes) -> dict[str, Tensor]:
        if isinstance(codes, FloatCodes):
            return {"weight": codes.values, "weight_scale": codes.scales.float()}
        assert isinstance(codes, IntCodes)  # `refusal` has looked
        if self._layout_of(codes) == "int-quantized":
            numbers = (codes.codes.to(torch.int16) - 128).to(torch.int8)
            return {"weight": numbers, "weight_scale": codes.scales}
        members = {
            "weight_packed": pack(codes.codes, codes.bits),
            "weight_scale": codes.scales,
            "weight_shape": torch.tensor(codes.shape, dtype=torch.int64),
        }
        if codes.zeros is not None:
            members["weight_zero_point"] = pack(codes.zeros.t(), codes.bits).t()
        return members


def _float_refusal(codes: Codes) -> str:
    if not isinstance(codes, FloatCodes):
        return "float-quantized supports float8 values only"
    if codes.block != (1, codes.shape[1]):
        return f"it supports one scale per output; these have one per block of {codes.block}"
    return ""
