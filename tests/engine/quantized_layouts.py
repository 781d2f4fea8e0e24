"""The published layouts of quantized weights in plain numpy, written apart from the engine's.

Every function takes a float32 matrix [N, K], rounds it, and returns (the tensors on disk by the
end of their names, the matrix that they stand for by the format's published formula, float32).
"""

from __future__ import annotations

import json

import numpy as np
import torch
from torch import Tensor

Layout = tuple[dict[str, Tensor], Tensor]

# appendix E of the QLoRA paper, to the digits that float32 keeps
NF4 = (-1.0, -0.69619280, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
       0.07958030, 0.16093020, 0.24611230, 0.33791524, 0.44070983, 0.56261700, 0.72295684,
       1.0)  # fmt: skip
# sign, exponent, mantissa: 0, 1/192, 2/3, 1, 1/3, 1/2, 1/6, 1/4, and their negatives
FP4 = (0.0, 0.0052083333, 0.6666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25,
       -0.0, -0.0052083333, -0.6666667, -1.0, -0.33333333, -0.5, -0.16666667, -0.25)  # fmt: skip


def awq(weight: Tensor, *, group_size: int) -> Layout:
    groups = np.arange(weight.shape[1]) // group_size
    codes, zeros, scales = by_groups(weight.numpy(), 4, groups, symmetric=False)
    members = {
        "qweight": awq_words(codes.T),
        "qzeros": awq_words(zeros.T),
        "scales": scales.t().contiguous(),
    }
    return members, _dense(codes, zeros, scales, groups)


def gptq(
    weight: Tensor,
    *,
    bits: int,
    group_size: int,
    symmetric: bool,
    g_idx: np.ndarray | None = None,
    version: int = 1,
) -> Layout:
    """`g_idx` [K]: the group of each column (None: neighbours)."""
    groups = np.arange(weight.shape[1]) // group_size if g_idx is None else g_idx
    codes, zeros, scales = by_groups(weight.numpy(), bits, groups, symmetric)
    members = {
        "qweight": words(codes, bits, axis=1).t(),
        "qzeros": words(zeros.T - (1 if version == 1 else 0), bits, axis=1),
        "scales": scales.t().contiguous(),
        "g_idx": torch.from_numpy(groups.astype(np.int32)),
    }
    return members, _dense(codes, zeros, scales, groups)


def packed(
    weight: Tensor,
    *,
    bits: int,
    group_size: int,
    symmetric: bool,
    g_idx: np.ndarray | None = None,
    zeros_in_words: bool = True,
    scale_dtype: torch.dtype = torch.bfloat16,
) -> Layout:
    """compressed-tensors, pack-quantized."""
    groups = np.arange(weight.shape[1]) // group_size if g_idx is None else g_idx
    codes, zeros, scales = by_groups(weight.numpy(), bits, groups, symmetric, scale_dtype)
    members = {
        "weight_packed": words(codes, bits, axis=1),
        "weight_scale": scales,
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        signed = torch.from_numpy(zeros - 2 ** (bits - 1)).to(torch.int8)
        members["weight_zero_point"] = words(zeros, bits, axis=0) if zeros_in_words else signed
    if g_idx is not None:
        members["weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
    return members, _dense(codes, zeros, scales, groups)


def int8(weight: Tensor, *, strategy: str = "channel", symmetric: bool = True) -> Layout:
    """compressed-tensors, int-quantized."""
    if strategy == "tensor":
        weight_in = weight.reshape(1, -1)
    else:
        weight_in = weight
    groups = np.zeros(weight_in.shape[1], np.int64)
    codes, zeros, scales = by_groups(weight_in.numpy(), 8, groups, symmetric, torch.float32)
    dense = _dense(codes, zeros, scales, groups).reshape(weight.shape)
    members = {
        "weight": torch.from_numpy(codes - 128).to(torch.int8).reshape(weight.shape),
        "weight_scale": scales.reshape(1) if strategy == "tensor" else scales,
    }
    if not symmetric:
        zero_point = torch.from_numpy(zeros - 128).to(torch.int8)
        members["weight_zero_point"] = zero_point.reshape(members["weight_scale"].shape)
    return members, dense


def fp8(weight: Tensor, *, block: tuple[int, int], scale_name: str, flat: bool = False) -> Layout:
    """One scale per `block` of rows and columns; `flat`: scales [N] or [], as some write them."""
    rows, columns = weight.shape
    counts = (-(-rows // block[0]), -(-columns // block[1]))
    scales = np.zeros(counts, np.float32)
    values = np.zeros(weight.shape, np.uint8)
    dense = np.zeros(weight.shape, np.float32)
    for i, j in np.ndindex(*counts):
        part = np.s_[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
        source = weight.numpy()[part]
        scales[i, j] = max(np.abs(source).max() / 448, 1e-6)
        nearest = torch.from_numpy(source / scales[i, j]).to(torch.float8_e4m3fn)
        values[part] = nearest.view(torch.uint8).numpy()
        dense[part] = e4m3()[values[part]] * scales[i, j]
    stored = torch.from_numpy(scales.squeeze() if flat else scales)
    weights = torch.from_numpy(values).view(torch.float8_e4m3fn)
    return {"weight": weights, scale_name: stored}, torch.from_numpy(dense)


def e4m3() -> np.ndarray:
    """What the 256 bytes of float8 e4m3fn stand for: 1 sign, 4 exponent, 3 mantissa bits."""
    byte = np.arange(256)
    sign, exponent, mantissa = byte >> 7, (byte >> 3) & 15, byte & 7
    normal = (8 + mantissa) * 2.0 ** (exponent - 10.0)
    value = np.where(exponent == 0, mantissa * 2.0**-9, normal)
    value = np.where(byte & 127 == 127, np.nan, value)
    return np.where(sign == 1, -value, value).astype(np.float32)


def four_bit(
    weight: Tensor, *, kind: str = "nf4", blocksize: int = 64, double: bool = False
) -> Layout:
    """bitsandbytes' 4 bits."""
    table = np.array(NF4 if kind == "nf4" else FP4, np.float32)
    flat = weight.numpy().reshape(-1)
    padded = np.pad(flat, (0, -len(flat) % blocksize)).reshape(-1, blocksize)
    scales = np.abs(padded).max(1).astype(np.float32)
    state = {"quant_type": kind, "blocksize": blocksize, "dtype": "float16",
             "shape": list(weight.shape)}  # fmt: skip
    members = {"weight.absmax": torch.from_numpy(scales)}
    if double:
        nested, scales, own = _double(scales)
        members = nested
        state |= own
    steps = padded / np.maximum(scales, 1e-12)[:, None]
    codes = np.abs(steps[..., None] - table).argmin(-1)
    dense = (table[codes] * scales[:, None]).reshape(-1)[: len(flat)].reshape(weight.shape)
    pairs = codes.reshape(-1)[: len(flat)].reshape(-1, 2)
    text = json.dumps(state).encode()
    return {
        **members,
        "weight": torch.from_numpy((pairs[:, :1] * 16 + pairs[:, 1:]).astype(np.uint8)),
        "weight.quant_map": torch.from_numpy(table),
        f"weight.quant_state.bitsandbytes__{kind}": torch.frombuffer(
            bytearray(text), dtype=torch.uint8
        ),
    }, torch.from_numpy(dense)


def _double(scales: np.ndarray) -> tuple[dict[str, Tensor], np.ndarray, dict[str, object]]:
    """Scales less their mean in 8 bits of a table, with a scale per 256 of them."""
    table = np.sort(np.random.default_rng(0).uniform(-1, 1, 256)).astype(np.float32)
    offset = float(scales.mean())
    centred = scales - np.float32(offset)
    padded = np.pad(centred, (0, -len(scales) % 256)).reshape(-1, 256)
    nested = np.maximum(np.abs(padded).max(1), 1e-12).astype(np.float32)
    codes = np.abs((padded / nested[:, None])[..., None] - table).argmin(-1)
    read = (table[codes] * nested[:, None]).reshape(-1)[: len(scales)] + np.float32(offset)
    members = {
        "weight.absmax": torch.from_numpy(codes.reshape(-1)[: len(scales)].astype(np.uint8)),
        "weight.nested_absmax": torch.from_numpy(nested),
        "weight.nested_quant_map": torch.from_numpy(table),
    }
    state = {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
    return members, read, state


def llm_int8(weight: Tensor) -> Layout:
    """bitsandbytes' 8 bits: w = code * (SCB / 127)."""
    largest = np.abs(weight.numpy()).max(1).astype(np.float32)
    scales = largest / np.float32(127)
    codes = np.round(weight.numpy() / scales[:, None]).astype(np.int8)
    members = {
        "weight": torch.from_numpy(codes),
        "SCB": torch.from_numpy(largest),
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return members, torch.from_numpy(codes.astype(np.float32) * scales[:, None])


def _dense(codes: np.ndarray, zeros: np.ndarray, scales: Tensor, groups: np.ndarray) -> Tensor:
    """w[n, k] = (code[n, k] - zero[n, g]) * scale[n, g], g = groups[k]."""
    steps = codes.astype(np.float32) - zeros.astype(np.float32)[:, groups]
    return torch.from_numpy(steps * scales.float().numpy()[:, groups])


def by_groups(
    weight: np.ndarray,
    bits: int,
    groups: np.ndarray,
    symmetric: bool,
    scale_dtype: torch.dtype = torch.float16,
) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """codes [N, K], zero points [N, G], scales [N, G]."""
    top, count = 2**bits - 1, int(groups.max()) + 1
    codes = np.zeros(weight.shape, np.int64)
    zeros = np.zeros((len(weight), count), np.int64)
    scales = torch.zeros(len(weight), count, dtype=scale_dtype)
    for group in range(count):
        part = weight[:, groups == group]
        if symmetric:
            scale = np.abs(part).max(1) / (2 ** (bits - 1) - 1)
            zero = np.full(len(weight), 2 ** (bits - 1))
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scale = (high - low) / top
            zero = np.clip(np.round(-low / scale.clip(1e-6)), 0, top)
        scales[:, group] = torch.from_numpy(scale.clip(1e-6))
        zeros[:, group] = zero
        steps = part / scales[:, group, None].float().numpy() + zero[:, None]
        codes[:, groups == group] = np.clip(np.round(steps), 0, top)
    return codes, zeros, scales


def words(numbers: np.ndarray, bits: int, axis: int) -> Tensor:
    """Packed along `axis`, first number in the lowest bits; a number that is not there is 0, and
    one of -1 borrows from its neighbours, as in a subtraction of whole words."""
    rows = np.moveaxis(numbers, axis, -1).astype(np.int64)
    per_word = 32 // bits
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % per_word)))
    sums = np.zeros((len(rows), rows.shape[1] // per_word), np.int64)
    for place in range(per_word):
        sums += rows[:, place::per_word] << (bits * place)
    return _int32(np.moveaxis(sums, -1, axis))


def awq_words(numbers: np.ndarray) -> Tensor:
    """[R, N] packed along N: nibbles from below hold the outputs 0, 2, 4, 6, 1, 3, 5, 7."""
    sums = np.zeros((len(numbers), numbers.shape[1] // 8), np.int64)
    for place, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        sums |= numbers[:, output::8].astype(np.int64) << (4 * place)
    return _int32(sums)


def _int32(numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(
        np.ascontiguousarray(numbers & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
    )
