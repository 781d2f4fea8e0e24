"""The base of all quantized checkpoint formats: finds the tensors of a module, checks them, and
returns them as one matrix; other tensors are passed through."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from engine.errors import CheckpointError
from engine.formats.safetensors_file import TensorInfo
from engine.formats.tensor_reader import TensorReader
from engine.name_patterns import first_matches
from engine.numerics.codes import Codes, FloatCodes, IntCodes, TableCodes

DOWNLOAD_AGAIN = "Download the model again: the file is corrupt or malformed."


class Misfit(Exception):  # noqa: N818 - becomes part of a CheckpointError
    """A mismatch in the tensors of one module. The message continues a sentence that starts with
    the module's name."""


@dataclass(frozen=True)
class QuantizedTensor:
    """The stored form of one dense weight.

    name: of the dense tensor ("model.layers.0.mlp.up_proj.weight"); shape: its (N, K). `members`:
    the tensors on disk, by the suffix of their name; `main`: the one with the codes.
    """

    name: str
    shape: tuple[int, int]
    members: Mapping[str, TensorInfo]
    main: str
    decode: Callable[[Mapping[str, Tensor]], Codes] = field(repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        return sum(info.nbytes for info in self.members.values())

    @property
    def info(self) -> TensorInfo:
        """The matrix as one tensor: the offset of its main member, and the bytes of all."""
        main = self.members[self.main]
        return TensorInfo(main.file, "CODES", self.shape, self.nbytes, main.offset)

    def read(self, reader: TensorReader) -> Codes:
        """Read every member and decode them. Raises CheckpointError where a value is impossible
        (a scale that is no number, a group out of range), and what the reader raises."""
        on_disk = sorted(self.members.items(), key=lambda m: (str(m[1].file), m[1].offset))
        parts = {suffix: reader.read(info) for suffix, info in on_disk}
        try:
            codes = self.decode(parts)
            check_values(codes)
        except Misfit as misfit:
            file = self.members[self.main].file
            raise CheckpointError(f"{self.name} in {file}: {misfit}.", DOWNLOAD_AGAIN) from None
        return codes


def check_values(codes: Codes) -> None:
    """Raise Misfit where the numbers of a matrix cannot be right."""
    bad = int((~torch.isfinite(codes.scales)).count_nonzero())
    if bad:
        raise Misfit(f"{bad} of {codes.scales.numel()} scales are not finite")
    if isinstance(codes, IntCodes):
        _check_ints(codes)
    elif isinstance(codes, FloatCodes):
        # a sum of booleans is made of 8 bytes each
        bad = int(codes.values.view(torch.uint8).bitwise_and(0x7F).eq(0x7F).count_nonzero())
        if bad:
            raise Misfit(f"{bad} of {codes.values.numel()} float8 values are NaN")
    elif isinstance(codes, TableCodes) and not bool(torch.isfinite(codes.table).all()):
        raise Misfit("the 16-entry lookup table contains non-finite values")


def _check_ints(codes: IntCodes) -> None:
    top = 2**codes.bits - 1
    if codes.zeros is not None and int(codes.zeros.max()) > top:
        raise Misfit(f"zero point {int(codes.zeros.max())} exceeds the maximum of {top}")
    if codes.groups is None:
        return
    count = codes.scales.shape[1]
    lowest, highest = int(codes.groups.min()), int(codes.groups.max())
    if lowest < 0 or highest >= count:
        raise Misfit(f"g_idx refers to groups {lowest} to {highest}, but there are only {count}")
    sizes = torch.bincount(codes.groups.long(), minlength=count)
    full, last = sizes[:-1], int(sizes[-1])
    if bool((full != codes.group_size).any()) or last > codes.group_size:
        wrong = int((full != codes.group_size).sum()) + int(last > codes.group_size)
        raise Misfit(
            f"{wrong} of {count} groups in g_idx do not have {codes.group_size} columns"
        )


Members = Mapping[str, TensorInfo]
FLOATS = ("F16", "BF16", "F32")
_INTEGERS = ("I8", "U8", "I32")  # what a weight that was left as it is, is not


class CheckpointFormat(ABC):
    """How a checkpoint stores its quantized weights. `bits` and `group_size`: those of most weights
    (group_size -1: per output). title: for people ("AWQ, 4-bit, groups of 128"). facts: what else
    the window shows."""

    method: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]  # ends of the names of the tensors that make a matrix
    unused: ClassVar[tuple[str, ...]] = ()  # ends of names that only other engines need

    def __init__(
        self, source: str, title: str, bits: int, group_size: int, **facts: Any
    ) -> None:
        self._source = source
        self.title, self.bits, self.group_size, self._facts = title, bits, group_size, facts

    def describe(self) -> dict[str, Any]:
        """What the window shows: method, title, bits, group_size, and what the format adds."""
        own = {"title": self.title, "bits": self.bits, "group_size": self.group_size}
        return {"method": self.method, **own, **self._facts}

    def split(
        self, tensors: Mapping[str, TensorInfo]
    ) -> tuple[dict[str, TensorInfo], dict[str, QuantizedTensor]]:
        """(tensors that are as they would be without quantization, matrices by the dense name).

        Reads no weights, at most the few bytes that hold a shape. Raises CheckpointError naming
        the modules whose tensors are not whole or do not fit each other or the settings.
        """
        with TensorReader(0, lambda stage, done, total: None, lambda: False) as reader:
            return self._split(tensors, reader)

    def _split(
        self, tensors: Mapping[str, TensorInfo], reader: TensorReader
    ) -> tuple[dict[str, TensorInfo], dict[str, QuantizedTensor]]:
        unused = tuple(f".{suffix}" for suffix in self.unused)
        plain = {n: info for n, info in tensors.items() if not n.endswith(unused)}
        quantized: dict[str, QuantizedTensor] = {}
        problems: list[str] = []
        modules = self._modules(plain)
        matches = first_matches(self._patterns(), tuple(modules), self._source)
        for module, members in modules.items():
            if not self._is_quantized(module, members):
                continue
            for suffix in members:
                del plain[f"{module}.{suffix}"]
            try:
                if f"{module}.weight" in plain:
                    raise Misfit(f"has {', '.join(sorted(members))} and an unquantized weight")
                quantized[f"{module}.weight"] = self._matrix(
                    module, members, reader, matches.get(module)
                )
            except Misfit as misfit:
                file = next(iter(members.values())).file.name
                problems.append(f"{module} in {file} {misfit}")
        problems += [_unexplained(n, info) for n, info in plain.items() if _is_packed(n, info)]
        if count := len(problems):
            named = "; ".join(problems[:3])
            named += f"; and {count - 3} more" if count > 3 else ""
            raise CheckpointError(
                f"{count} weight{'s' * (count != 1)} cannot be read as {self.title} "
                f"({self._source}): {named}.",
                "Download the model again, or check that its quantization settings match "
                "these weights.",
            )
        return plain, quantized

    @abstractmethod
    def _is_quantized(self, module: str, members: Members) -> bool:
        """Whether these tensors are a quantized matrix, or unquantized tensors with such names."""

    @abstractmethod
    def _matrix(
        self, module: str, members: Members, reader: TensorReader, match: int | None
    ) -> QuantizedTensor:
        """The matrix of one module; raises Misfit. match: the first of the patterns that matches
        its name."""

    def _patterns(self) -> tuple[str, ...]:
        """Regular expressions of modules that have settings of their own."""
        return ()

    def _modules(self, tensors: Mapping[str, TensorInfo]) -> dict[str, dict[str, TensorInfo]]:
        modules: dict[str, dict[str, TensorInfo]] = defaultdict(dict)
        for name, info in tensors.items():
            for suffix in self.suffixes:
                if name.endswith(f".{suffix}"):
                    modules[name.removesuffix(f".{suffix}")][suffix] = info
                    break
        return modules


def need(members: Members, *suffixes: str) -> None:
    missing = [s for s in suffixes if s not in members]
    if missing:
        raise Misfit(f"has {', '.join(sorted(members))} but no {', '.join(missing)}")


def need_shape(members: Members, suffix: str, shape: tuple[int, ...]) -> None:
    found = members[suffix].shape
    if found != shape:
        raise Misfit(f"has {suffix} with shape {list(found)}; expected {list(shape)}")


def need_dtype(members: Members, suffix: str, *dtypes: str) -> None:
    found = members[suffix].dtype
    if found not in dtypes:
        raise Misfit(f"has {suffix} with dtype {found}; expected {' or '.join(dtypes)}")


def need_matrix(members: Members, suffix: str) -> tuple[int, int]:
    """The member's shape, which has to have two axes."""
    shape = members[suffix].shape
    if len(shape) == 3:
        raise Misfit(
            f"has {suffix} with shape {list(shape)}: quantized checkpoints with fused experts are "
            "not supported"
        )
    if len(shape) != 2 or not all(shape):
        raise Misfit(f"has {suffix} with shape {list(shape)}; expected two dimensions")
    return shape[0], shape[1]


def need_groups(width: int, group_size: int) -> int:
    """The number of groups of `group_size` in `width` inputs; raises Misfit if they do not divide.
    """
    if width % group_size:
        raise Misfit(f"has input size {width}, not a multiple of group size {group_size}")
    return width // group_size


def own_order(g_idx: Tensor | None, group_size: int, unfilled: int) -> Tensor | None:
    """int32 [K], or None where columns are in the order of their groups. A g_idx that is `unfilled`
    everywhere was never filled in."""
    if g_idx is None or bool((g_idx == unfilled).all()):
        return None
    usual = torch.arange(g_idx.numel()) // group_size
    return None if torch.equal(g_idx.long(), usual) else g_idx.to(torch.int32)


def group_text(group_size: int) -> str:
    return "per-channel scales" if group_size == -1 else f"groups of {group_size}"


def _is_packed(name: str, info: TensorInfo) -> bool:
    """Numbers that only settings can explain. (Masks that old checkpoints saved as bytes have
    four axes, and are no weights.)"""
    return info.dtype.startswith("F8") or (info.dtype in _INTEGERS and len(info.shape) in (2, 3))


def _unexplained(name: str, info: TensorInfo) -> str:
    if len(info.shape) == 3:
        return (
            f"{name} in {info.file.name} has shape {list(info.shape)} and dtype {info.dtype}: "
            "quantized checkpoints with fused experts are not supported"
        )
    return f"{name} in {info.file.name} has dtype {info.dtype}; this format does not support it"
