"""Weights of 4 bits in groups of 32 to 256 inputs, multiplied from their packed form.

torch's packed layout (aten/native/cpu/int4mm_kernel.cpp): outputs in panels of P (64 with AVX-512,
else 32), a panel input by input, two outputs a byte:

    byte [panel, k, j] = code[panel * P + j, k]  |  code[panel * P + P/2 + j, k] << 4

For a few rows `_weight_int4pack_mm_for_cpu` reads it as it is. For many, panels are made plain in
float32, as [k, P], which a product takes without turning them round.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from engine.kernels.registry import choose_int4
from engine.kernels.tiles import TILE_BYTES, WIDE_TILE_BYTES, scratch, widened
from engine.kernels.weights import Weights
from engine.numerics.codes import IntCodes
from engine.numerics.scheme import grouped_title

GROUP_SIZES = (32, 64, 128, 256)
_MANY_ROWS = 256  # as a prompt has
_PACKED_ROWS = 512  # outputs packed at a time: the operation wants int32


class Int4Weights(Weights):
    """4-bit codes in panels. Columns must be in the order of their groups.

    `_pairs` bfloat16 [G, N, 2] is what torch's kernel reads: scale, and (8 - zero) * scale.
    `_scales` and `_zeros` [panels, G, P] are the exact ones, which the plain form is made of.
    """

    def __init__(self, codes: IntCodes, dtype: torch.dtype) -> None:
        assert fits(codes)
        self.shape, self.dtype = codes.shape, dtype
        self.group_size = codes.group_size
        self._panel = panel_size()
        self._packed, self._scales, self._zeros = _packed(codes, self._panel)
        self._pairs = _pairs(codes) if dtype is torch.bfloat16 else None

    @property
    def title(self) -> str:
        return grouped_title(4, self.group_size)

    @property
    def nbytes(self) -> int:
        held = (self._packed, self._scales, self._zeros, self._pairs)
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        outputs, inputs = self.shape
        flat = x.reshape(-1, inputs)
        # torch's kernel is fast in bfloat16 alone (50 times slower in float16)
        name = "tiled" if self._pairs is None else choose_int4(flat.shape[0])
        result = self.by_name(name, flat)
        if bias is not None:
            result = result + bias
        return result.reshape(*x.shape[:-1], outputs)

    def by_name(self, name: str, x: Tensor) -> Tensor:
        """x [T, in] by the implementation "packed" or "tiled": [T, out] in x's dtype."""
        if name == "tiled":
            return self._tiled(x)
        found = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.contiguous(), self._packed, self.group_size, self._pairs
        )
        return found[:, : self.shape[0]]

    def _tiled(self, x: Tensor) -> Tensor:
        if len(x) >= _MANY_ROWS and self._pairs is not None:
            return self._in_wide_tiles(x)
        rows, width = x.shape
        wide = widened(x.float())
        panels, panel = len(self._scales), self._panel
        at_once = max(1, TILE_BYTES // (4 * width * panel))
        result = torch.empty(rows, panels, panel, dtype=x.dtype)
        for start in range(0, panels, at_once):
            tile = self._plain(start, min(at_once, panels - start))
            product = torch.matmul(wide, tile)  # [panels, T, P]
            result[:, start : start + len(tile)].copy_(product[:, :rows].transpose(0, 1))
        return result.view(rows, -1)[:, : self.shape[0]]

    def _in_wide_tiles(self, x: Tensor) -> Tensor:
        """One product for all panels of a tile, which lie beside each other as [in, outputs]: of
        1,024 rows by 1024 x 3072 on two cores 18.5 ms in place of 26 panel by panel."""
        wide = x.float()
        rows, width = wide.shape
        panels, panel = len(self._scales), self._panel
        at_once = max(1, WIDE_TILE_BYTES // (4 * width * panel))
        product = scratch("product", rows * at_once * panel)
        result = torch.empty(rows, panels * panel, dtype=x.dtype)
        for start in range(0, panels, at_once):
            count = min(at_once, panels - start)
            columns = count * panel
            tile = scratch("tile", width * columns).view(width, columns)
            self._make_plain(tile.view(width, count, panel).transpose(0, 1), start)
            part = product[: rows * columns].view(rows, columns)
            torch.mm(wide, tile, out=part)
            result[:, start * panel : start * panel + columns].copy_(part)
        return result[:, : self.shape[0]]

    @classmethod
    def random(cls, outputs: int, inputs: int, group_size: int) -> Int4Weights:
        """Of seeded random codes, to measure with."""
        generator = torch.Generator().manual_seed(0)
        codes = torch.randint(0, 16, (outputs, inputs), generator=generator, dtype=torch.uint8)
        scales = torch.full((outputs, inputs // group_size), 0.01)
        return cls(IntCodes(4, codes, scales, None, group_size), torch.bfloat16)

    def dense(self) -> Tensor:
        panels, panel = len(self._scales), self._panel
        result = torch.empty(panels * panel, self.shape[1], dtype=self.dtype)
        for start in range(panels):
            plain = self._plain(start, 1)[0]
            result[start * panel : (start + 1) * panel].copy_(plain.t())
        return result[: self.shape[0]]

    def _plain(self, start: int, count: int) -> Tensor:
        """Panels start, ... as float32 [count, in, P], exact where scales have 16 bits."""
        width = self.shape[1]
        tile = scratch("tile", count * width * self._panel).view(count, width, self._panel)
        self._make_plain(tile, start)
        return tile

    def _make_plain(self, tile: Tensor, start: int) -> None:
        """Write panels start, ... into tile float32 [count, in, P], of any strides."""
        count, width, panel = tile.shape
        half = panel // 2
        source = self._packed.view(-1, width, half)[start : start + count]
        codes = scratch("int4 codes", tile.numel(), torch.uint8).view(tile.shape)
        torch.bitwise_and(source, 15, out=codes[..., :half])
        torch.bitwise_right_shift(source, 4, out=codes[..., half:])
        grouped = tile.unflatten(1, (-1, self.group_size))
        grouped.copy_(codes.view(grouped.shape))
        scales = self._scales[start : start + count].float().unsqueeze(2)
        zeros = self._zeros[start : start + count].float().unsqueeze(2)
        # both products and their difference are exact: 4 bits by 11
        torch.addcmul(zeros.mul_(scales).neg_(), grouped, scales, out=grouped)


def fits(codes: IntCodes) -> bool:
    """Whether the packed form holds `codes` as they are."""
    return (
        codes.bits == 4
        and codes.groups is None
        and codes.group_size in GROUP_SIZES
        and codes.shape[1] % codes.group_size == 0
    )


def _packed(codes: IntCodes, panel: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [panels * P, in / 2], scales and zeros [panels, G, P]; outputs filled up to panels."""
    count, width = codes.shape
    filled = -(-count // panel) * panel
    packed = torch.empty(filled, width // 2, dtype=torch.uint8)
    for start in range(0, filled, _PACKED_ROWS):
        part = codes.codes[start : min(start + _PACKED_ROWS, count)].to(torch.int32)
        end = min(start + _PACKED_ROWS, filled)
        part = torch.nn.functional.pad(part, (0, 0, 0, end - start - len(part)))
        packed[start:end] = torch._convert_weight_to_int4pack_for_cpu(part, 1)
    scales = codes.scales if codes.scales.dtype.itemsize == 2 else codes.scales.float()
    zeros = torch.full(scales.shape, 8, dtype=torch.uint8) if codes.zeros is None else codes.zeros
    return packed, _in_panels(scales, panel), _in_panels(zeros, panel)


def _in_panels(values: Tensor, panel: int) -> Tensor:
    """[N, G] as [panels, G, P]."""
    filled = torch.nn.functional.pad(values, (0, 0, 0, -len(values) % panel))
    return filled.view(-1, panel, values.shape[1]).transpose(1, 2).contiguous()


def _pairs(codes: IntCodes) -> Tensor:
    panel = panel_size()
    scales = codes.scales.float()
    zeros: Tensor | int = 8 if codes.zeros is None else codes.zeros.float()
    pairs = torch.stack([scales, (8 - zeros) * scales], dim=-1).transpose(0, 1)
    filling = -len(scales) % panel
    return torch.nn.functional.pad(pairs, (0, 0, 0, filling)).to(torch.bfloat16).contiguous()


@cache
def panel_size() -> int:
    """Outputs of a panel on this CPU; 0 where torch packs in none of the known ways."""
    count, width = 128, 64
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (count, width), dtype=torch.int32, generator=generator)
    try:
        packed = torch._convert_weight_to_int4pack_for_cpu(codes, 1)
        for panel in (64, 32):
            seen = packed.view(count // panel, width, panel // 2)
            plain = torch.cat([seen & 15, seen >> 4], dim=-1).transpose(1, 2)
            if torch.equal(plain.reshape(count, width).int(), codes):
                return panel
    except (AttributeError, RuntimeError):
        pass
    return 0
