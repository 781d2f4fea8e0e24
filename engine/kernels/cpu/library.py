"""Loads the compiled functions. `check` decides whether they are used."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.kernels.cpu.build import compiled
from engine.kernels.cpu.library_cache import UnavailableError
from engine.kernels.cpu.workspace import LINE, Workspace, workspace

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
FORMATS = (torch.bfloat16, torch.float16)
"""Of plain weights, and of the operations between products."""

_heard = threading.local()

LANES = 16
"""Outputs of a panel."""

APART = 64  # activations.h
_ROWS = 32  # plain.c
_TILE = 16  # rows: tiles.h
_COPIES, _OWN = 4, 256  # of so many rows: tiled.c
_REGISTERS, _FLOAT_VECTORS = 2, 3  # what tiles are made of: tiles.h
_CHUNK_BYTES = 786_432  # of weights that a thread of tiled.c holds, or 32 outputs


class Packed(ctypes.Structure):
    """The struct `packed` of numbers.h. The owner keeps the tensors that it points to alive."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("outputs", "inputs", "group")),
        *((name, ctypes.c_int32) for name in ("bits", "parts", "kind", "shared", "scale_type")),
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "zeros", "table")),
    )

    def prepare(
        self,
        function: Callable[..., None],
        row_bytes: int,
        most_rows: int = sys.maxsize,
        thread_bytes: int = 0,
    ) -> None:
        """`function` multiplies, with `row_bytes` of scratch for each row of activations, or for
        `most_rows`, and `thread_bytes` for each thread. What every product needs is read once: a
        structure's fields are slow."""
        self.function, self.row_bytes, self.most_rows = function, row_bytes, most_rows
        self.thread_bytes = thread_bytes
        self.address, self.num_outputs = ctypes.addressof(self), self.outputs

class Compressed(ctypes.Structure):
    """The struct `compressed` of compressed.h. The owner keeps what it points to alive."""

    _fields_ = (
        ("outputs", ctypes.c_int64), ("inputs", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("runs", "lowest", "starts", "others")),
    )  # fmt: skip


class Rows(ctypes.c_int64):
    """Rows of activations, or numbers in them: a multiple of a step's tokens, or of those that are
    sampled."""


_TYPES: dict[str, Any] = {
    "p": ctypes.c_void_p, "n": ctypes.c_int64, "r": Rows, "i": ctypes.c_int32, "f": ctypes.c_float,
}  # fmt: skip
_FUNCTIONS = {
    "integer_product": "pppripi", "dequantized_product": "pppripi",
    "plain_product": "pnnnpppripi", "tiled_product": "pnnnppprpi",
    "tiled_codes_product": "ppprpi", "compressed_product": "pppprpi",
    "choose_exponents": "pnnnppi", "compress": "pnpppi", "compressed_rows": "pppri",
    "decompress": "ppi",
    "rms_norm": "ppppprnffii",
    "rotate_heads": "pnnppnppnffprnnii", "silu_and_mul": "pprnii",
    "attention": "pppnnnnffpnpipi", "attention_scratch": "pnnni",
    "prompt_attention": "pppnnnnffpnpipi",
    "cache_write": "pprpnnpnnii", "add": "ppprii", "replay": "pnpinn", "barrier": "pnnnn",
}  # fmt: skip
"""Each with the types of its arguments."""
_RESULTS = {"barrier": ctypes.c_int32, "attention_scratch": ctypes.c_int64}


class Library:
    """The compiled C functions, called with the arguments of the C files."""

    integer_product: Callable[..., None]
    dequantized_product: Callable[..., None]
    plain_product: Callable[..., None]
    tiled_product: Callable[..., None]
    tiled_codes_product: Callable[..., None]
    choose_exponents: Callable[..., None]
    compress: Callable[..., None]
    compressed_product: Callable[..., None]
    compressed_rows: Callable[..., None]
    decompress: Callable[..., None]
    rms_norm: Callable[..., None]
    rotate_heads: Callable[..., None]
    silu_and_mul: Callable[..., None]
    attention: Callable[..., None]
    prompt_attention: Callable[..., None]
    cache_write: Callable[..., None]
    add: Callable[..., None]
    replay: Callable[..., None]
    attention_scratch: Callable[..., int]
    barrier: Callable[..., int]

    def __init__(self, path: Path, origin: str) -> None:
        self.origin = origin
        loaded = ctypes.CDLL(str(path))  # calls leave the interpreter to other threads
        loaded.native_instructions.restype = ctypes.c_char_p
        self.instructions: str = loaded.native_instructions().decode()
        made_of = ctypes.c_int.in_dll(loaded, "tiles_made_of").value
        self.has_tiles, self.has_amx = made_of > 0, made_of == _REGISTERS
        self.element_bytes = 4 if made_of == _FLOAT_VECTORS else 2
        for name, arguments in _FUNCTIONS.items():
            function = loaded[f"native_{name}"]
            function.argtypes = [_TYPES[one] for one in arguments]
            function.restype = result = _RESULTS.get(name)
            setattr(self, name, function if result else heard_by_listeners(function))

    def product(self, weights: Packed, x: Tensor) -> Tensor:
        """x [T, inputs], contiguous, by packed weights: [T, outputs] in x's dtype."""
        rows, dtype = x.shape[0], x.dtype
        result = torch.empty(rows, weights.num_outputs, dtype=dtype)
        size = min(-(-rows // _TILE) * _TILE, weights.most_rows) * weights.row_bytes + LINE
        space = workspace(size, weights.thread_bytes)
        weights.function(
            weights.address, x.data_ptr(), result.data_ptr(), rows, TYPES[dtype], space.address,
            space.threads,
        )  # fmt: skip
        return result

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, inputs], contiguous, by weight [outputs, inputs], whose rows are, plus bias
        [outputs]: [T, outputs]. All of one dtype of 16 bits."""
        (rows, inputs), outputs = x.shape, weight.shape[0]
        space = workspace(0, 4 * min(rows, _ROWS) * (inputs + APART))
        result = torch.empty(rows, outputs, dtype=x.dtype)
        self.plain_product(
            weight.data_ptr(), outputs, inputs, weight.stride(0),
            None if bias is None else bias.data_ptr(), x.data_ptr(), result.data_ptr(), rows,
            TYPES[x.dtype], space.address, space.threads,
        )  # fmt: skip
        return result

    def tiled(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`plain` for several rows of bfloat16, where `has_tiles`: x [T, inputs], a multiple of 32,
        by weight [outputs, inputs]."""
        (rows, inputs), outputs = x.shape, weight.shape[0]
        result = torch.empty(rows, outputs, dtype=x.dtype)
        space = self._tiled_workspace(rows, inputs)
        self.tiled_product(
            weight.data_ptr(), outputs, inputs, weight.stride(0),
            None if bias is None else bias.data_ptr(), x.data_ptr(), result.data_ptr(), rows,
            space.address, space.threads,
        )  # fmt: skip
        return result

    def tiled_codes(self, weights: Packed, x: Tensor) -> Tensor:
        """`product` with codes as dequantized.c has them, for many rows of bfloat16, where
        `has_tiles`: x [T, inputs], a multiple of 32."""
        rows, inputs = x.shape
        result = torch.empty(rows, weights.num_outputs, dtype=x.dtype)
        space = self._tiled_workspace(rows, inputs)
        self.tiled_codes_product(
            weights.address, x.data_ptr(), result.data_ptr(), rows, space.address, space.threads,
        )  # fmt: skip
        return result

    def compressed(self, weights: int, outputs: int, x: Tensor, bias: Tensor | None) -> Tensor:
        """`tiled` with weights as compressed.h has them, at this address, where `has_amx`."""
        rows, inputs = x.shape
        result = torch.empty(rows, outputs, dtype=x.dtype)
        space = self._tiled_workspace(rows, inputs)
        self.compressed_product(
            weights, None if bias is None else bias.data_ptr(), x.data_ptr(), result.data_ptr(),
            rows, space.address, space.threads,
        )  # fmt: skip
        return result

    def _tiled_workspace(self, rows: int, inputs: int) -> Workspace:
        """For the rows as operands, or for fewer of them in a replay, which have several copies;
        and the weights that each thread holds."""
        row_bytes = self.element_bytes * inputs
        whole = -(-rows // _TILE) * _TILE
        most = max(whole, _COPIES * min(whole, _OWN))
        return workspace(most * row_bytes, max(_CHUNK_BYTES, 32 * row_bytes))


def heard_by_listeners(function: Callable[..., None]) -> Callable[..., None]:
    """`function`, told to whom `listen` names after each call, or in place of it."""

    def call(*arguments: Any) -> None:
        if not getattr(_heard, "is_dry", False):
            function(*arguments)
        if (to := getattr(_heard, "to", None)) is not None:
            to(function, arguments)

    return call


@contextmanager
def listen(
    to: Callable[[Callable[..., None], tuple[Any, ...]], None], is_dry: bool = False
) -> Iterator[None]:
    """Call `to` with every compiled function that this thread calls, and its arguments. is_dry:
    the functions themselves are not called."""
    before = getattr(_heard, "to", None), getattr(_heard, "is_dry", False)
    _heard.to, _heard.is_dry = to, is_dry
    try:
        yield
    finally:
        _heard.to, _heard.is_dry = before


def load() -> Library:
    """Compiles at the first call on a machine (half a minute). Raises UnavailableError."""
    path, compiler = compiled()
    try:
        return Library(path, compiler.origin)
    except (OSError, AttributeError) as error:  # the compiler's fault, or no programs here (noexec)
        raise UnavailableError(f"cannot load the compiled kernels: {error}") from error
