"""bitsandbytes in 4 bits (NF4, FP4) and 8 (LLM.int8()), as transformers saves it
(bitsandbytes-foundation/bitsandbytes, functional.py: QuantState, and nn/modules.py).

    4 bits   weight                  uint8 [N * K / 2, 1], the first of two codes in the high half
             weight.quant_map        float32 [16], what the codes stand for
             weight.absmax           float32 [N * K / 64], a scale per block
                                     or, quantized again, uint8: scale = nested_quant_map[absmax]
                                     * nested_absmax (a block of 256) + nested_offset
             weight.quant_state.bitsandbytes__nf4   uint8, a JSON text: shape, blocksize, ...
    8 bits   weight int8 [N, K]; SCB float32 [N]    w = code * SCB / 127
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta
from torch import Tensor

from engine.errors import CheckpointError, UnsupportedModelError
from engine.formats.checkpoint_format import (
    CheckpointFormat,
    Members,
    Misfit,
    QuantizedTensor,
    need,
    need_dtype,
    need_matrix,
    need_shape,
)
from engine.formats.safetensors_file import TensorInfo
from engine.formats.settings import CHECK_SETTINGS, MAX_NUMBER, Settings
from engine.formats.tensor_reader import TensorReader
from engine.formats.writing import Made, Writer
from engine.json_file import decode_json, shown
from engine.numerics.codes import NF4_TABLE, Codes, IntCodes, TableCodes

_STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
_NESTED = ("weight.nested_absmax", "weight.nested_quant_map")
_INT8 = ("SCB", "weight_format")
_MAX_STATE = 65_536
_ROW = 0  # the number of the only order of int8 weights that is still in use


class BitsAndBytesFormat(CheckpointFormat):
    method = "bitsandbytes"
    suffixes = ("weight", "weight.absmax", "weight.quant_map", *_NESTED, *_STATES, *_INT8)

    def __init__(self, settings: Settings) -> None:
        kind = settings.text("bnb_4bit_quant_type", default="fp4").lower()
        is_double = settings.flag("bnb_4bit_use_double_quant", default=False)
        left = settings.names("llm_int8_skip_modules")
        in_4 = settings.flag("load_in_4bit", "_load_in_4bit", default=False)
        if not in_4 and not settings.flag("load_in_8bit", "_load_in_8bit", default=False):
            raise CheckpointError(
                f"{settings.source} sets neither load_in_4bit nor load_in_8bit.", CHECK_SETTINGS
            )
        if in_4 and kind not in ("nf4", "fp4"):
            raise UnsupportedModelError(
                f"{settings.source} specifies 4-bit type {kind!r}; Inferdeck supports nf4 and fp4.",
                "Choose another checkpoint for this model.",
            )
        # the size of blocks is not in the config; what each matrix says is what counts
        double = ", double quantization" if is_double else ""
        title = f"{kind.upper()}{double}" if in_4 else "8-bit, per-channel scales"
        super().__init__(
            settings.source, f"bitsandbytes, {title}", 4 if in_4 else 8, 64 if in_4 else -1,
            type=kind if in_4 else "int8", double_quantization=is_double and in_4,
            left_unquantized=left,
        )  # fmt: skip

    def _is_quantized(self, module: str, members: Members) -> bool:
        return (
            len(members) > 1 or "weight" not in members or members["weight"].dtype in ("U8", "I8")
        )

    def _matrix(
        self, module: str, members: Members, reader: TensorReader, match: int | None
    ) -> QuantizedTensor:
        need(members, "weight")
        if "SCB" in members:
            return _int8(module, members)
        return _four_bit(module, members, reader)


# of bnb_4bit_quant_storage
_STORAGE = ("U8", "I8", "BF16", "F16", "F32", "F64")


def _int8(module: str, members: Members) -> QuantizedTensor:
    need_dtype(members, "weight", "I8")
    need_dtype(members, "SCB", "F32")
    rows, width = need_matrix(members, "weight")
    need_shape(members, "SCB", (rows,))
    if "weight_format" in members and members["weight_format"].num_elements != 1:
        shape = list(members["weight_format"].shape)
        raise Misfit(f"has weight_format with shape {shape}; expected 1 value")

    def decode(parts: Mapping[str, Tensor]) -> IntCodes:
        order = parts.get("weight_format")
        if order is not None and int(order.flatten()[0]) != _ROW:
            raise Misfit(
                f"weight_format {int(order.flatten()[0])} is a GPU-specific layout; "
                f"only row-major ({_ROW}) is supported"
            )
        codes = parts["weight"].view(torch.uint8) ^ 128  # -128 becomes 0
        scales = (parts["SCB"] / 127).unsqueeze(1)
        return IntCodes(8, codes, scales, None, width)

    return QuantizedTensor(f"{module}.weight", (rows, width), members, "weight", decode)


def _four_bit(module: str, members: Members, reader: TensorReader) -> QuantizedTensor:
    state_name = next((s for s in _STATES if s in members), None)
    if state_name is None:
        raise Misfit(f"has {', '.join(sorted(members))} but neither SCB nor quant_state")
    need(members, "weight.absmax", "weight.quant_map")
    need_dtype(members, "weight", *_STORAGE)
    need_dtype(members, state_name, "U8")
    need_dtype(members, "weight.quant_map", "F32")
    need_shape(members, "weight.quant_map", (16,))
    state = _read_state(state_name, members[state_name], reader)
    rows, width = state.shape
    size = rows * width
    if members["weight"].nbytes != -(-size // 2):
        raise Misfit(
            f"has a weight of {members['weight'].nbytes} bytes for {rows} x {width} 4-bit values"
        )
    count = -(-size // state.blocksize)
    need_shape(members, "weight.absmax", (count,))
    nested = _NESTED[0] in members
    if nested:
        need(members, *_NESTED)
        need_dtype(members, "weight.absmax", "U8")
        for suffix in _NESTED:
            need_dtype(members, suffix, "F32")
        need_shape(members, _NESTED[1], (256,))
        need_shape(members, _NESTED[0], (-(-count // state.nested_blocksize),))
    else:
        need_dtype(members, "weight.absmax", "F32")

    def decode(parts: Mapping[str, Tensor]) -> TableCodes:
        # the storage may be declared in another number format (bnb_4bit_quant_storage)
        pairs = parts["weight"].contiguous().reshape(-1).view(torch.uint8)
        codes = torch.stack((pairs >> 4, pairs & 15), dim=-1).flatten()[:size]
        scales = _unnest(parts, state) if nested else parts["weight.absmax"]
        table = parts["weight.quant_map"]
        return TableCodes(codes.view(rows, width), scales, state.blocksize, table)

    return QuantizedTensor(f"{module}.weight", (rows, width), members, "weight", decode)


def _unnest(parts: Mapping[str, Tensor], state: _State) -> Tensor:
    """float32 scales out of their own quantization ("double quantization")."""
    values = parts["weight.nested_quant_map"].float()[parts["weight.absmax"].long()]
    per_value = parts["weight.nested_absmax"].float().repeat_interleave(
        min(state.nested_blocksize, values.numel())
    )
    return values * per_value[: values.numel()] + state.nested_offset


class _State(msgspec.Struct):
    """The JSON text in a quant_state tensor."""

    shape: list[Annotated[int, Meta(ge=0)]]
    blocksize: Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
    nested_blocksize: Annotated[int, Meta(ge=1, le=MAX_NUMBER)] = 256
    nested_offset: Annotated[float, Meta(ge=-1e38, le=1e38)] = 0.0
    quant_type: Literal["nf4", "fp4"] | None = None


def _read_state(name: str, info: TensorInfo, reader: TensorReader) -> _State:
    if info.nbytes > _MAX_STATE:
        raise Misfit(f"has a quant_state of {info.nbytes:,} bytes; the limit is {_MAX_STATE:,}")
    try:
        state = decode_json(bytes(reader.read(info).flatten().tolist()), _State, "quant_state")
    except CheckpointError as error:
        raise Misfit(f"is invalid: {error.cause.rstrip('.')}") from None
    if state.quant_type and not name.endswith(state.quant_type):
        raise Misfit(f"has quant_type {state.quant_type} in {name}")
    if len(state.shape) == 3:
        raise Misfit(
            f"has shape {state.shape}: quantized checkpoints with fused experts are not supported"
        )
    if len(state.shape) != 2 or min(state.shape) == 0:
        raise Misfit(
            f"has an invalid quant_state: shape {shown(state.shape)}, block size {state.blocksize}"
        )
    return state


class BitsAndBytesWriter(Writer):
    """Writes NF4, without double quantization."""

    method = "bitsandbytes"

    def refusal(self, codes: Codes) -> str:
        if not isinstance(codes, TableCodes) or codes.table.tolist() != _NF4:
            return "the format supports NF4 only"
        if codes.block_size not in _BLOCKS:
            return f"bitsandbytes supports block sizes {_BLOCKS}, not {codes.block_size}"
        return ""

    def quantization_config(self, made: Made) -> dict[str, Any]:
        return {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": False,
            "bnb_4bit_compute_dtype": "bfloat16",
            "bnb_4bit_quant_storage": "uint8",
            "llm_int8_skip_modules": list(made.left_out) or None,
        }

    def _members(self, codes: Codes) -> dict[str, Tensor]:
        assert isinstance(codes, TableCodes)  # `refusal` has looked
        flat = torch.nn.functional.pad(codes.codes.flatten(), (0, codes.codes.numel() % 2))
        pairs = flat.unflatten(0, (-1, 2))
        state = {
            "quant_type": "nf4", "blocksize": codes.block_size, "dtype": "bfloat16",
            "shape": list(codes.shape),
        }  # fmt: skip
        return {
            "weight": (pairs[:, 0] << 4 | pairs[:, 1]).unsqueeze(1),
            "weight.absmax": codes.scales.float(),
            "weight.quant_map": codes.table.float(),
            "weight.quant_state.bitsandbytes__nf4": torch.tensor(
                list(json.dumps(state).encode()), dtype=torch.uint8
            ),
        }


_NF4 = torch.tensor(NF4_TABLE).tolist()  # as float32 holds them
_BLOCKS = (64, 128, 256, 512, 1024, 2048, 4096)
