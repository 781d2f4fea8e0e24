"""FP8 weights of quant_method "fp8" (DeepSeek-V3, Qwen3, AutoFP8, Mistral), "fbgemm_fp8" and
"modelopt" (NVIDIA's).

    weight             float8_e4m3fn [N, K]
    weight_scale_inv   [ceil(N / 128), ceil(K / 128)]: a scale per block (weight_block_size)
    weight_scale       [] or [1]: per tensor; [N] or [N, 1]: per output
                       ModelOpt's by blocks: [ceil(N / 128), 1, ceil(K / 128), 1]
                       w = value * scale, "inv" or not (it is the inverse of what weights were
                       multiplied by)

Scales of activations are left aside: activations stay at 16 bits here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.formats.checkpoint_format import (
    FLOATS,
    CheckpointFormat,
    Members,
    Misfit,
    QuantizedTensor,
    need,
    need_dtype,
    need_matrix,
)
from engine.formats.settings import Settings, block_of
from engine.formats.tensor_reader import TensorReader
from engine.numerics.codes import FloatCodes

_SCALES = ("weight_scale_inv", "weight_scale")
_MODELOPT_BLOCKS = {"FP8": None, "FP8_PER_CHANNEL_PER_TOKEN": None, "FP8_PB_WO": [128, 128]}
"""weight_block_size by quant_algo, of those that keep weights in float8."""


class FP8Format(CheckpointFormat):
    method = "fp8"
    suffixes = ("weight", *_SCALES)
    unused = (
        "input_scale", "activation_scale", "input_scale_ub", "output_scale", "q_scale", "k_scale",
        "v_scale", "kv_scale",
    )  # fmt: skip

    def __init__(self, settings: Settings) -> None:
        number = settings.text("fmt", default="e4m3").lower()
        if number not in ("e4m3", "float8_e4m3fn"):
            raise UnsupportedModelError(
                f"{settings.source} specifies fmt {number!r}; Inferdeck supports e4m3.",
                "Choose another checkpoint for this model.",
            )
        self.block: tuple[int, int] | None = None
        if settings.values.get("weight_block_size") is not None:
            self.block = block_of(settings, "weight_block_size")
        left = settings.names(
            "modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"
        )
        by = ", scales per {} x {} block".format(*self.block) if self.block else ""
        block = list(self.block) if self.block else None
        title = f"FP8 (e4m3){by}"
        super().__init__(settings.source, title, 8, -1, block=block, left_unquantized=left)

    def _is_quantized(self, module: str, members: Members) -> bool:
        return len(members) > 1 or "weight" not in members or members["weight"].dtype[:2] == "F8"

    def _matrix(
        self, module: str, members: Members, reader: TensorReader, match: int | None
    ) -> QuantizedTensor:
        need(members, "weight")
        need_dtype(members, "weight", "F8_E4M3")
        rows, width = need_matrix(members, "weight")
        scale = next((s for s in _SCALES if s in members), None)
        if scale is None:
            raise Misfit(f"has an F8_E4M3 weight but no {' or '.join(_SCALES)}")
        need_dtype(members, scale, *FLOATS)
        shape, block = self._scales(members, scale, rows, width)

        def decode(parts: Mapping[str, Tensor]) -> FloatCodes:
            return FloatCodes(parts["weight"], parts[scale].float().reshape(shape), block)

        return QuantizedTensor(f"{module}.weight", (rows, width), members, "weight", decode)

    def _scales(
        self, members: Members, scale: str, rows: int, width: int
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """(shape of the scales, block per scale), from the shape on disk."""
        found = members[scale].shape
        if self.block is not None:
            blocks = (-(-rows // self.block[0]), -(-width // self.block[1]))
            if found in (blocks, (blocks[0], 1, blocks[1], 1)):
                return blocks, self.block
        if found in ((), (1,), (1, 1)):
            return (1, 1), (rows, width)
        if found in ((rows,), (rows, 1)):
            return (rows, 1), (1, width)
        shapes = [[1], [rows, 1]] if self.block is None else [[*blocks], [1], [rows, 1]]
        expected = " or ".join(map(str, shapes))
        raise Misfit(f"has {scale} with shape {list(found)}; expected {expected}")


def modelopt_format(settings: Settings) -> FP8Format:
    """The float8 format of NVIDIA's ModelOpt."""
    algorithm = settings.text("quant_algo").upper()
    if algorithm not in _MODELOPT_BLOCKS:
        raise UnsupportedModelError(
            f"{settings.source} specifies ModelOpt {algorithm}; Inferdeck supports "
            f"{', '.join(_MODELOPT_BLOCKS)}.",
            "Choose an FP8, AWQ or GPTQ checkpoint for this model, or the original 16-bit "
            "model.",
        )
    values = {**settings.values, "weight_block_size": _MODELOPT_BLOCKS[algorithm]}
    return FP8Format(dataclasses.replace(settings, values=values))
