"""compressed-tensors, as llm-compressor writes it (vllm-project/compressed-tensors, compressors).

pack-quantized   weight_packed int32 [N, K * bits / 32], code + 2**(bits-1), natural order;
                 weight_zero_point int32 [N * bits / 32, G], packed along the outputs, so too;
                 weight_g_idx int32 [K] (actorder "group"); weight_shape [2]
int-quantized    weight int8 [N, K]; weight_zero_point int8 [N, G]
float-quantized  weight float8_e4m3fn [N, K]
all              weight_scale [1], [N, 1], [N, G] or [rows, columns] of blocks

w = (code - zero) * scale

vLLM reads the packed zero points. transformers does only with CompressedTensorsConfig(
dequantize=True): otherwise compressed-tensors (0.20) prepares the modules on the meta device,
where its pack-quantized compressor leaves the zero points int8 [N, G], so the files' do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from engine.formats.checkpoint_format import (
    FLOATS,
    CheckpointFormat,
    Members,
    Misfit,
    QuantizedTensor,
    group_text,
    need,
    need_dtype,
    need_groups,
    need_matrix,
    need_shape,
    own_order,
)
from engine.formats.settings import Scheme, Settings, patterns_of, read_schemes, scheme_of
from engine.formats.tensor_reader import TensorReader
from engine.formats.writing import Made, Writer, pack, per_word, unpack, words_for
from engine.numerics.codes import Codes, FloatCodes, IntCodes

Parts = Mapping[str, Tensor]


class CompressedTensorsFormat(CheckpointFormat):
    method = "compressed-tensors"
    suffixes = (
        "weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx",
        "weight_shape",
    )  # fmt: skip
    unused = (
        "input_scale", "input_zero_point", "output_scale", "output_zero_point", "q_scale",
        "k_scale", "v_scale", "kv_scale", "k_zero_point", "v_zero_point",
    )  # fmt: skip

    def __init__(self, settings: Settings) -> None:
        self._schemes = read_schemes(settings)
        self._by_pattern = patterns_of(self._schemes)
        first = self._schemes[0]
        kinds = "; ".join(dict.fromkeys(map(_scheme_text, self._schemes)))
        super().__init__(
            settings.source, f"compressed-tensors, {kinds}", first.bits, first.group_size,
            symmetric=all(scheme.symmetric for scheme in self._schemes),
            left_unquantized=settings.names("ignore"),
        )  # fmt: skip

    def _patterns(self) -> tuple[str, ...]:
        return tuple(self._by_pattern)

    def _is_quantized(self, module: str, members: Members) -> bool:
        stored = members.get("weight")
        return len(members) > 1 or stored is None or stored.dtype not in FLOATS

    def _matrix(
        self, module: str, members: Members, reader: TensorReader, match: int | None
    ) -> QuantizedTensor:
        by_pattern = None if match is None else list(self._by_pattern.values())[match]
        scheme = scheme_of(module, self._schemes, by_pattern)
        if scheme is None:
            raise Misfit("matches no target in config_groups")
        need(members, "weight_scale")
        need_dtype(members, "weight_scale", *FLOATS)
        if scheme.kind == "float":
            shape, decode = _float(scheme, members)
            main = "weight"
        else:
            main = "weight_packed" if "weight_packed" in members else "weight"
            shape, decode = _int(scheme, members, main, reader)
        return QuantizedTensor(f"{module}.weight", shape, members, main, decode)


def _scheme_text(scheme: Scheme) -> str:
    kind = "FP8" if scheme.kind == "float" else f"{scheme.bits}-bit"
    by = {"tensor": "per-tensor scales", "block": "scales per {} x {} block"}
    return f"{kind}, {by.get(scheme.strategy, group_text(scheme.group_size)).format(*scheme.block)}"


def _float(scheme: Scheme, members: Members) -> tuple[tuple[int, int], Callable[[Parts], Codes]]:
    need(members, "weight")
    need_dtype(members, "weight", "F8_E4M3")
    rows, width = need_matrix(members, "weight")
    blocks = {
        "tensor": (rows, width),
        "channel": (1, width),
        "group": (1, scheme.group_size),
        "block": scheme.block,
    }
    block = blocks[scheme.strategy]
    scales = need_scales(members, "weight_scale", (-(-rows // block[0]), -(-width // block[1])))

    def decode(parts: Parts) -> FloatCodes:
        return FloatCodes(parts["weight"], parts["weight_scale"].float().reshape(scales), block)

    return (rows, width), decode


def _int(
    scheme: Scheme, members: Members, main: str, reader: TensorReader
) -> tuple[tuple[int, int], Callable[[Parts], Codes]]:
    need(members, main)
    rows, width = _int_shape(scheme, members, main, reader)
    group_size = scheme.group_size if scheme.strategy == "group" else width
    groups = need_groups(width, group_size)
    per_tensor = scheme.strategy == "tensor"
    scales = need_scales(members, "weight_scale", (1 if per_tensor else rows, groups))
    if "weight_g_idx" in members:
        need_dtype(members, "weight_g_idx", "I32", "I64")
        need_shape(members, "weight_g_idx", (width,))
    if not scheme.symmetric:
        need(members, "weight_zero_point")
    zero_shape = _zero_shape(members, scales, scheme.bits)

    def decode(parts: Parts) -> IntCodes:
        if main == "weight_packed":
            stated = parts["weight_shape"].tolist() if "weight_shape" in parts else [rows, width]
            if stated != [rows, width]:
                raise Misfit(f"weight_shape is {stated}; the tensors have shape {[rows, width]}")
            codes = unpack(parts[main], scheme.bits)[:, :width].contiguous()
        else:
            codes = _unsigned(parts[main], scheme.bits)
        return IntCodes(
            scheme.bits,
            codes,
            parts["weight_scale"].reshape(scales).expand(rows, groups).contiguous(),
            _zeros(parts, scheme, zero_shape, (rows, groups)),
            group_size,
            own_order(parts.get("weight_g_idx"), group_size, unfilled=-1),
        )

    return (rows, width), decode


def _int_shape(
    scheme: Scheme, members: Members, main: str, reader: TensorReader
) -> tuple[int, int]:
    """(N, K). The last word of a row may be filled in part: how far, the groups say, or else
    weight_shape."""
    if main == "weight":
        need_dtype(members, main, "I8")
        return need_matrix(members, main)
    need_dtype(members, main, "I32")
    rows, words = need_matrix(members, main)
    groups = members["weight_scale"].shape[-1:]
    if scheme.strategy == "group" and groups:
        width = groups[0] * scheme.group_size
        if words_for(width, scheme.bits) == words:
            return rows, width
    if "weight_shape" not in members:
        return rows, words * per_word(scheme.bits)
    need_dtype(members, "weight_shape", "I64", "I32")
    need_shape(members, "weight_shape", (2,))
    stated = reader.read(members["weight_shape"]).tolist()
    if stated[0] != rows or words_for(stated[1], scheme.bits) != words:
        raise Misfit(f"weight_shape is {stated}; weight_packed has shape {[rows, words]}")
    return rows, stated[1]


def need_scales(members: Members, suffix: str, shape: tuple[int, int]) -> tuple[int, int]:
    """`shape`, if the scales are of it or could be written so ([] or [1] for one, [N] for N)."""
    found = members[suffix].shape
    rows, columns = shape
    flat = [(rows,)] if columns == 1 else []
    alone = [(), (1,)] if shape == (1, 1) else []
    if found not in [shape, *flat, *alone]:
        raise Misfit(f"has {suffix} with shape {list(found)}; expected {list(shape)}")
    return shape


def _zero_shape(members: Members, scales: tuple[int, int], bits: int) -> tuple[int, int]:
    """The shape of the zero points: packed in words, or (older, and int-quantized) a byte each."""
    if "weight_zero_point" not in members:
        return scales
    need_dtype(members, "weight_zero_point", "I32", "I8")
    if members["weight_zero_point"].dtype == "I8":
        return need_scales(members, "weight_zero_point", scales)
    return need_scales(members, "weight_zero_point", (words_for(scales[0], bits), scales[1]))


def _zeros(
    parts: Parts, scheme: Scheme, shape: tuple[int, int], full: tuple[int, int]
) -> Tensor | None:
    """uint8 [N, G]; None where the scheme is symmetric and the file does not say otherwise."""
    stored = parts.get("weight_zero_point")
    if stored is None:
        return None
    stored = stored.reshape(shape)
    if stored.dtype == torch.int8:
        zeros = _unsigned(stored, scheme.bits)
    else:
        count = 1 if scheme.strategy == "tensor" else full[0]
        zeros = unpack(stored.t(), scheme.bits)[:, :count].t()
    if scheme.symmetric and bool((zeros == 2 ** (scheme.bits - 1)).all()):
        return None
    return zeros.expand(full).contiguous()


def _unsigned(numbers: Tensor, bits: int) -> Tensor:
    """int8 around 0 as uint8 around 2**(bits - 1)."""
    middle = 2 ** (bits - 1)
    lowest, highest = int(numbers.min()), int(numbers.max())
    if lowest < -middle or highest >= middle:
        raise Misfit(f"has values ({lowest} to {highest}) outside the {bits}-bit range")
    return numbers.view(torch.uint8) + middle  # which wraps, as it should


# Engines multiply int8 weights of this layout with int8 activations, a scale per token.
_PER_TOKEN = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "strategy": "token",
    "dynamic": True,
}


class CompressedTensorsWriter(Writer):
    """Writes compressed-tensors. `layout` "" chooses by the codes: float-quantized for float8,
    int-quantized for symmetric int8 with per-channel scales, pack-quantized for the others."""

    method = "compressed-tensors"
    layouts = ("pack-quantized", "int-quantized", "float-quantized")

    def refusal(self, codes: Codes) -> str:
        layout = self._layout_of(codes)
        if layout == "float-quantized":
            return _float_refusal(codes)
        if not isinstance(codes, IntCodes) or codes.bits not in (4, 8):
            return f"{layout} supports 4-bit and 8-bit integers only"
        if codes.groups is not None:
            return "the format does not support activation order (desc_act)"
        inputs = codes.shape[1]
        if layout == "int-quantized":
            if codes.bits != 8 or not codes.is_symmetric or codes.group_size != inputs:
                return "int-quantized supports only symmetric int8 with per-channel scales"
        elif inputs % codes.group_size:
            return f"group size {codes.group_size} does not divide input size {inputs}"
        return ""

    def quantization_config(self, made: Made) -> dict[str, Any]:
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
        return f"float-quantized supports per-channel scales, not blocks of {codes.block}"
    return ""
