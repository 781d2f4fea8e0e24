"""GPTQ, as AutoGPTQ and GPTQModel write it (ModelCloud/GPTQModel, nn_modules/qlinear).

    qweight  int32 [K * bits / 32, N]     codes along the inputs, natural order
    qzeros   int32 [G, N * bits / 32]     zero points along the outputs; stored minus 1 in v1
    scales   float16 [G, N]               w[n, k] = (code - zero) * scale of group g_idx[k]
    g_idx    int32 [K]                    absent or k // g unless desc_act ordered the columns

"Minus 1" is taken from the whole word, as GPTQModel does: a zero point of 0 borrows from its
neighbour, and adding 1 to every number of the word as one sum gives both back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.errors import CheckpointError, UnsupportedModelError
from engine.formats.checkpoint_format import (
    FLOATS,
    CheckpointFormat,
    Members,
    Misfit,
    QuantizedTensor,
    group_text,
    need,
    need_dtype,
    need_matrix,
    need_shape,
    own_order,
)
from engine.formats.settings import CHECK_SETTINGS, Settings
from engine.formats.tensor_reader import TensorReader
from engine.formats.writing import Made, Writer, half_refusal, pack, per_word, unpack
from engine.json_file import shown
from engine.numerics.codes import Codes, IntCodes

_ONES = {4: 0x11111111, 8: 0x01010101}  # 1 in every number of a word


class GPTQFormat(CheckpointFormat):
    method = "gptq"
    suffixes = ("qweight", "qzeros", "scales", "g_idx")

    def __init__(self, settings: Settings) -> None:
        bits, group_size = settings.integer("bits"), settings.integer("group_size")
        _check(bits, group_size, settings.source)
        layout = settings.text("checkpoint_format", "format", default="gptq").lower()
        if settings.flag("is_marlin_format", default=False):  # AutoGPTQ 0.6 and 0.7
            layout = "marlin"
        if layout not in ("gptq", "gptq_v2"):
            raise UnsupportedModelError(
                f"{settings.source} uses GPTQ checkpoint format {layout!r}; Inferdeck "
                "supports gptq and gptq_v2.",
                "Choose a checkpoint in the standard GPTQ format.",
            )
        self._symmetric = settings.flag("sym", default=True)
        desc_act = settings.flag("desc_act", default=False)
        self._version = 2 if layout == "gptq_v2" else 1
        self._settings = settings
        self._rules = [
            (pattern.removeprefix("+:"), changes)
            for pattern, changes in settings.table("dynamic").items()
            if isinstance(changes, dict) and not pattern.startswith("-:")
        ]
        ordered = ", activation order" if desc_act else ""
        title = f"GPTQ, {bits}-bit, {group_text(group_size)}{ordered}"
        super().__init__(
            settings.source, title, bits, group_size,
            symmetric=self._symmetric, desc_act=desc_act, layout=f"v{self._version}",
        )  # fmt: skip

    def _is_quantized(self, module: str, members: Members) -> bool:
        return True

    def _matrix(
        self, module: str, members: Members, reader: TensorReader, match: int | None
    ) -> QuantizedTensor:
        bits, group_size, symmetric = self._settings_of(match)
        need(members, "qweight", "qzeros", "scales")
        for suffix, dtypes in (("qweight", ("I32",)), ("qzeros", ("I32",)), ("scales", FLOATS)):
            need_dtype(members, suffix, *dtypes)
        words, count = need_matrix(members, "qweight")
        width = words * per_word(bits)
        if count % per_word(bits):
            raise Misfit(f"has output size {count}, not a multiple of {per_word(bits)}")
        group_size = width if group_size == -1 else group_size
        groups = -(-width // group_size)
        need_shape(members, "scales", (groups, count))
        need_shape(members, "qzeros", (groups, count // per_word(bits)))
        if "g_idx" in members:
            need_dtype(members, "g_idx", "I32", "I64")
            need_shape(members, "g_idx", (width,))
        version = self._version

        def decode(parts: Mapping[str, Tensor]) -> IntCodes:
            zeros: Tensor | None = _read_zeros(parts["qzeros"], bits, version)
            if symmetric and bool((zeros == 2 ** (bits - 1)).all()):
                zeros = None
            return IntCodes(
                bits,
                unpack(parts["qweight"].t(), bits),
                parts["scales"].t().contiguous(),
                zeros,
                group_size,
                # all zeros with more than one group: exllamav2 reads it so too
                own_order(parts.get("g_idx"), group_size, unfilled=0),
            )

        return QuantizedTensor(f"{module}.weight", (count, width), members, "qweight", decode)

    def _patterns(self) -> tuple[str, ...]:
        return tuple(pattern for pattern, _ in self._rules)

    def _settings_of(self, match: int | None) -> tuple[int, int, bool]:
        """bits, group size and symmetry of one module: GPTQModel's `dynamic` may set them by a
        pattern of its name ("+:" or nothing in front; "-:" leaves modules plain)."""
        if match is None:
            return self.bits, self.group_size, self._symmetric
        pattern, changes = self._rules[match]
        source = f"{self._settings.source} (dynamic, {shown(pattern)})"
        own = Settings({**self._settings.values, **changes}, source)
        bits, group_size = own.integer("bits"), own.integer("group_size")
        _check(bits, group_size, source)
        return bits, group_size, own.flag("sym", default=True)


class GPTQWriter(Writer):
    """Writes GPTQ. layout: "gptq" (v1, the default) or "gptq_v2". GPTQModel reads asymmetric v1
    codes only if it wrote them itself; use v2 for those."""

    method = "gptq"
    layouts = ("gptq", "gptq_v2")

    def refusal(self, codes: Codes) -> str:
        if not isinstance(codes, IntCodes) or codes.bits not in _ONES:
            return "the format supports 4-bit and 8-bit integers only"
        for count, what in zip(codes.shape, ("output", "input"), strict=True):
            if count % per_word(codes.bits):
                return (
                    f"{what} size {count} is not a multiple of "
                    f"{per_word(codes.bits)}"
                )
        return half_refusal(codes.scales)

    def quantization_config(self, made: Made) -> dict[str, Any]:
        config: dict[str, Any] = {
            "quant_method": "gptq",
            "bits": made.bits,
            "group_size": made.group_size,
            "desc_act": made.desc_act,
            "sym": made.symmetric,
            "static_groups": False,
            "true_sequential": True,
            "lm_head": not any(n.endswith("lm_head") for n in made.left_out),
            "checkpoint_format": self.layout or "gptq",
            "pack_dtype": "int32",
        }
        left = [n for n in made.left_out if not n.endswith("lm_head")]
        if left:
            config["dynamic"] = {f"-:^{re.escape(name)}$": {} for name in left}
        return config

    def _members(self, codes: Codes) -> dict[str, Tensor]:
        assert isinstance(codes, IntCodes)  # `refusal` has looked
        zeros = codes.zeros
        if zeros is None:
            zeros = torch.full(codes.scales.shape, 2 ** (codes.bits - 1), dtype=torch.uint8)
        lowered = 0 if self.layout == "gptq_v2" else _ONES[codes.bits]
        return {
            "qweight": pack(codes.codes, codes.bits).t(),
            "qzeros": pack(zeros.t(), codes.bits) - lowered,
            "scales": codes.scales.to(torch.float16).t(),
            "g_idx": codes.group_of_columns().to(torch.int32),
        }


def _check(bits: int, group_size: int, source: str) -> None:
    if bits not in _ONES:
        raise UnsupportedModelError(
            f"{source} specifies {bits}-bit GPTQ; Inferdeck supports 4-bit and 8-bit.",
            "Choose a 4-bit or 8-bit checkpoint.",
        )
    if group_size != -1 and group_size <= 0:
        raise CheckpointError(f"{source} has an invalid group size: {group_size}.", CHECK_SETTINGS)


def _read_zeros(words: Tensor, bits: int, version: int) -> Tensor:
    """int32 [G, N * bits / 32] -> uint8 [N, G]."""
    if version == 1:
        words = words + _ONES[bits]  # overflow wraps, as it did when they were written
    return unpack(words, bits).t().contiguous()
