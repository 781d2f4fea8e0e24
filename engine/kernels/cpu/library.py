"""The compiled functions. `check` decides whether they are used."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from engine.kernels.cpu.build import UnavailableError, compiled

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
FORMATS = (torch.bfloat16, torch.float16)
"""Of plain weights, and of the operations between products."""

_scratch = threading.local()

LANES = 16
"""Outputs of a panel."""

APART = 64  # integer.c
_BLOCK = 256  # rows: plain.c


class Arguments(ctypes.Structure):
    """Weights as a C function reads them. The owner keeps the tensors that it points to alive.
    Attributes that every product needs are read once: those of a structure are slow."""

    def prepare(self, num_outputs: int, row_bytes: int, most_rows: int = sys.maxsize) -> None:
        """`row_bytes` of scratch for each row of activations, or for `most_rows`."""
        self.address = ctypes.addressof(self)
        self.num_outputs, self.row_bytes, self.most_rows = num_outputs, row_bytes, most_rows


class Packed(Arguments):
    """`weights` of integer.c."""

    _fields_ = (
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("bits", ctypes.c_int32),
        ("parts", ctypes.c_int32),
        ("scale_type", ctypes.c_int32),
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("zeros", ctypes.c_void_p),
    )


class Coded(Arguments):
    """`codes` of dequantized.c."""

    _fields_ = (
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("kind", ctypes.c_int32),
        ("shared", ctypes.c_int32),
        ("scale_type", ctypes.c_int32),
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("zeros", ctypes.c_void_p),
    )


class Library:
    """The C files, compiled. `rms_norm`, `rotate_heads` and `silu_and_mul` are called as
    elementwise.c has them, `attention` and `cache_write` as attention.c, `barrier` as barrier.c."""

    def __init__(self, path: Path, compiler: str) -> None:
        self.compiler = compiler
        loaded = ctypes.CDLL(str(path))  # calls leave the interpreter to other threads
        loaded.native_instructions.restype = ctypes.c_char_p
        self.instructions: str = loaded.native_instructions().decode()
        address, number, kind = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
        self._product, self._plain = loaded.native_integer_product, loaded.native_plain_product
        self._dequantized = loaded.native_dequantized_product
        for function in (self._product, self._dequantized):
            function.argtypes = (address, address, address, number, kind, address, kind)
        self._plain.argtypes = (
            address, number, number, number, address, address, address, number, kind, address, kind
        )  # fmt: skip
        real = ctypes.c_float
        self.rms_norm, self.rotate_heads = loaded.native_rms_norm, loaded.native_rotate_heads
        self.silu_and_mul = loaded.native_silu_and_mul
        self.rms_norm.argtypes = (
            address, address, address, number, number, real, real, kind, kind
        )  # fmt: skip
        self.rotate_heads.argtypes = (
            address, number, number, address, address, number, address, address, number, real, real,
            address, number, number, number, kind, kind,
        )  # fmt: skip
        self.silu_and_mul.argtypes = (address, address, number, number, kind, kind)
        self.attention, self.cache_write = loaded.native_attention, loaded.native_cache_write
        self.attention.argtypes = (
            address, address, address, number, number, number, number, real, real, address,
            address, kind, kind, address, number, kind,
        )  # fmt: skip
        self.cache_write.argtypes = (
            address, address, number, address, number, number, address, number, number, kind, kind,
        )  # fmt: skip
        for function in (
            self._product, self._dequantized, self._plain, self.rms_norm, self.rotate_heads,
            self.silu_and_mul, self.attention, self.cache_write,
        ):  # fmt: skip
            function.restype = None
        self.barrier = loaded.native_barrier
        self.barrier.argtypes = (address, number, number, number, number)
        self.barrier.restype = kind

    def product(self, weights: Packed, x: Tensor) -> Tensor:
        """x [T, inputs], contiguous, by packed weights: [T, outputs] in x's dtype."""
        return self._called(self._product, weights, x)

    def dequantized(self, codes: Coded, x: Tensor) -> Tensor:
        """The same by codes of numbers."""
        return self._called(self._dequantized, codes, x)

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, inputs], contiguous, by weight [outputs, inputs], whose rows are, plus bias
        [outputs]: [T, outputs]. All of one dtype of 16 bits."""
        (rows, inputs), outputs = x.shape, weight.shape[0]
        space = scratch(4 * min(rows, _BLOCK) * (inputs + APART))
        result = torch.empty(rows, outputs, dtype=x.dtype)
        self._plain(
            weight.data_ptr(), outputs, inputs, weight.stride(0),
            None if bias is None else bias.data_ptr(), x.data_ptr(), result.data_ptr(), rows,
            TYPES[x.dtype], space, torch.get_num_threads(),
        )  # fmt: skip
        return result

    def _called(self, function: Callable[..., None], weights: Packed | Coded, x: Tensor) -> Tensor:
        rows, dtype = x.shape[0], x.dtype
        result = torch.empty(rows, weights.num_outputs, dtype=dtype)
        function(
            weights.address, x.data_ptr(), result.data_ptr(), rows, TYPES[dtype],
            scratch(min(rows, weights.most_rows) * weights.row_bytes), torch.get_num_threads(),
        )  # fmt: skip
        return result


def scratch(size: int) -> int:
    """Address of `size` bytes, until this thread asks again: needed in every product."""
    if getattr(_scratch, "size", -1) < size:
        _scratch.tensor = torch.empty(size, dtype=torch.uint8)
        _scratch.size, _scratch.address = size, _scratch.tensor.data_ptr()
    return int(_scratch.address)


def load() -> Library:
    """Compiles at the first call on a machine (a few seconds). Raises UnavailableError."""
    path, compiler = compiled()
    try:
        return Library(path, compiler.title)
    except OSError as error:  # another machine's, or cut short
        raise UnavailableError(f"cannot load the compiled kernels: {error}") from error
