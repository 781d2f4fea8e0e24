"""The published layouts of quantized weights in plain numpy, written apart from the engine's.

Every function takes a float32 matrix [N, K], rounds it, and returns (the tensors on disk by the
end of their names, the matrix that they stand for by the format's published formula, float32).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

Layout = tuple[dict[str, Tensor], Tensor]


def awq(weight: Tensor, *, group_size: int) -> Layout:
    codes, zeros, scales = _asymmetric(weight.numpy(), 4, group_size)
    members = {
        "qweight": _awq_words(codes.T),
        "qzeros": _awq_words(zeros.T),
        "scales": torch.from_numpy(np.ascontiguousarray(scales.T)),
    }
    return members, _dense(codes, zeros, scales, np.arange(weight.shape[1]) // group_size)


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
    width = weight.shape[1]
    groups = np.arange(width) // group_size if g_idx is None else g_idx
    codes, zeros, scales = _by_groups(weight.numpy(), bits, groups, symmetric)
    stored = zeros.T.astype(np.int64) - (1 if version == 1 else 0)
    members = {
        "qweight": _words(codes.T, bits, axis=0),
        "qzeros": _words(stored, bits, axis=1),
        "scales": torch.from_numpy(np.ascontiguousarray(scales.T)),
        "g_idx": torch.from_numpy(groups.astype(np.int32)),
    }
    return members, _dense(codes, zeros, scales, groups)


def _dense(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, groups: np.ndarray) -> Tensor:
    """w[n, k] = (code[n, k] - zero[n, g]) * scale[n, g], g = groups[k]."""
    steps = codes.astype(np.float32) - zeros.astype(np.float32)[:, groups]
    return torch.from_numpy(steps * scales.astype(np.float32)[:, groups])


def _asymmetric(weight: np.ndarray, bits: int, group_size: int) -> tuple[np.ndarray, ...]:
    groups = np.arange(weight.shape[1]) // group_size
    return _by_groups(weight, bits, groups, symmetric=False)


def _by_groups(
    weight: np.ndarray, bits: int, groups: np.ndarray, symmetric: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """codes [N, K], zero points [N, G], float16 scales [N, G]."""
    top, count = 2**bits - 1, int(groups.max()) + 1
    codes = np.zeros(weight.shape, np.int64)
    zeros = np.zeros((len(weight), count), np.int64)
    scales = np.zeros((len(weight), count), np.float16)
    for group in range(count):
        part = weight[:, groups == group]
        if symmetric:
            scale = np.abs(part).max(1) / (2 ** (bits - 1) - 1)
            zero = np.full(len(weight), 2 ** (bits - 1))
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scale = (high - low) / top
            zero = np.clip(np.round(-low / scale.clip(1e-6)), 0, top)
        scales[:, group] = scale.clip(1e-6)
        zeros[:, group] = zero
        steps = part / scales[:, group, None].astype(np.float32) + zero[:, None]
        codes[:, groups == group] = np.clip(np.round(steps), 0, top)
    return codes, zeros, scales


def _words(numbers: np.ndarray, bits: int, axis: int) -> Tensor:
    """Packed along `axis`, first number in the lowest bits. A number that borrows (-1) does so
    from its neighbours, as in a subtraction of whole words."""
    rows = np.moveaxis(numbers, axis, -1).astype(np.int64)
    per_word = 32 // bits
    words = np.zeros((len(rows), rows.shape[1] // per_word), np.int64)
    for place in range(per_word):
        words += rows[:, place::per_word] << (bits * place)
    return torch.from_numpy(_int32(np.moveaxis(words, -1, axis)))


def _awq_words(numbers: np.ndarray) -> Tensor:
    """[R, N] packed along N: nibbles from below hold the outputs 0, 2, 4, 6, 1, 3, 5, 7."""
    words = np.zeros((len(numbers), numbers.shape[1] // 8), np.int64)
    for place, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        words |= numbers[:, output::8].astype(np.int64) << (4 * place)
    return torch.from_numpy(_int32(words))


def _int32(words: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(words & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
