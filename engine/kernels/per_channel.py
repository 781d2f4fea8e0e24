"""8-bit weights with per-channel scales, on a GPU: rows [out, in].

Int8PerChannel   quantizes activations to int8 (W8A8), as on the CPU. Integer sums are exact: a
                 row's result does not depend on the batch
Fp8PerChannel    multiplies few rows in bfloat16; quantizes many to float8 too, with a scale each,
                 for torch's float8 matmul
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from engine.kernels.triton.support import device_of
from engine.kernels.weights import Weights
from engine.numerics.codes import Codes, FloatCodes, IntCodes

FEW_ROWS = 64
"""Up to here a product is limited by reading the weight; torch's integer product starts at 17."""

_ALIGNED = 16  # what torch's products of 8 bits want both dimensions to be multiples of
_SUMS_BYTES = 64 * 2**20  # of int32 in memory at a time


class _PerChannel(Weights):
    """`values` int8 [out, in], both padded to multiples of 16, and `scales` float32 [out]."""

    def __init__(self, codes: Codes, values: Tensor, dtype: torch.dtype, device: torch.device):
        count, width = values.shape
        self.values = torch.zeros(_filled(count), _filled(width), dtype=torch.int8, device=device)
        self.values[:count, :width] = values.to(device)
        self.scales = torch.zeros(_filled(count), dtype=torch.float32, device=device)
        self.scales[:count] = codes.scales.float().reshape(-1).expand(count)
        super().__init__(codes.shape, dtype, codes.title, self.values, self.scales)

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self.by_name(self.choose(len(x)), x, bias)

    def choose(self, rows: int) -> str:
        """Name of the implementation for `rows` rows."""
        return "triton" if rows <= FEW_ROWS else "torch"

    @abstractmethod
    def by_name(self, name: str, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, in] by "triton" or "torch": [T, out]."""

    def _splits(self) -> int:
        """Programs along the inputs, where outputs alone do not keep the GPU reading."""
        programs = -(-self.shape[0] // 64)
        sms = device_of(self.values.device).num_sms
        return 1 if programs >= 0.9 * sms else max(1, round(2 * sms / programs))


class Int8PerChannel(_PerChannel):
    def __init__(self, codes: IntCodes, dtype: torch.dtype, device: torch.device) -> None:
        assert codes.is_int8_per_output
        signed = codes.codes.to(device).view(torch.int8) ^ -128  # as a byte less 128
        super().__init__(codes, signed, dtype, device)

    def by_name(self, name: str, x: Tensor, bias: Tensor | None) -> Tensor:
        from engine.kernels.triton import per_channel as kernels

        rows, scales = kernels.quantize_rows(x, self.values.shape[1], torch.int8)
        if name == "triton":
            return kernels.product(
                rows, scales, self.values, self.scales, bias, self.shape[0], self._splits(), x.dtype
            )
        count = self.shape[0]
        result = x.new_empty(len(x), count)
        at_once = max(_ALIGNED, _SUMS_BYTES // (4 * len(x)) // _ALIGNED * _ALIGNED)
        for start in range(0, count, at_once):
            end = min(start + at_once, count)
            sums = torch._int_mm(rows, self.values[start : start + at_once].t())
            part = None if bias is None else bias[start:end]
            kernels.scaled(sums[None], scales, self.scales[start:], part, result[:, start:end])
        return result

    def dense(self) -> Tensor:
        count, width = self.shape
        plain = self.values[:count, :width].float()
        return plain.mul_(self.scales[:count].unsqueeze(1)).to(self.dtype)

    def rows(self, token_ids: Tensor) -> Tensor:
        """Rows [T, in] of token_ids int64 [T], in `dtype`: the lookup of a tied head."""
        codes = self.values.index_select(0, token_ids)[:, : self.shape[1]].float()
        return codes.mul_(self.scales.index_select(0, token_ids).unsqueeze(1)).to(self.dtype)


class Fp8PerChannel(_PerChannel):
    def __init__(self, codes: FloatCodes, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(codes, codes.values.view(torch.int8), dtype, device)

    @staticmethod
    def fits(codes: FloatCodes, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether torch multiplies `codes` here: one scale per output or for all, results in
        bfloat16, whole multiples, and a GPU with float8 products (from 8.9 on)."""
        outputs, inputs = codes.shape
        return (
            dtype is torch.bfloat16
            and codes.block[1] >= inputs
            and (codes.block[0] == 1 or codes.block[0] >= outputs)
            and not (outputs % _ALIGNED or inputs % _ALIGNED)
            and device_of(device).capability >= (8, 9)
        )

    def by_name(self, name: str, x: Tensor, bias: Tensor | None) -> Tensor:
        from engine.kernels.triton import per_channel as kernels

        count = self.shape[0]
        if name == "triton":
            return kernels.product(
                x, None, self.values, self.scales, bias, count, self._splits(), x.dtype
            )
        rows, scales = kernels.quantize_rows(x, self.shape[1], torch.float8_e4m3fn)
        weight = self.values.view(torch.float8_e4m3fn)
        result: Tensor = torch._scaled_mm(
            rows, weight.t(), scale_a=scales, scale_b=self.scales.view(1, -1),
            out_dtype=torch.bfloat16,
        )  # fmt: skip
        return result if bias is None else result.add_(bias)

    def dense(self) -> Tensor:
        plain = self.values.view(torch.float8_e4m3fn).float()
        return plain.mul_(self.scales.unsqueeze(1)).to(self.dtype)


def _filled(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
