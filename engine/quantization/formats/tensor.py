"""One quantized matrix in a checkpoint: which tensors on disk make it, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.errors import CheckpointError
from engine.loading.safetensors_file import TensorInfo
from engine.loading.tensor_reader import TensorReader
from engine.quantization.codes import Codes, FloatCodes, IntCodes, TableCodes

DOWNLOAD_AGAIN = "Download the model again: the file is damaged or was written wrongly."


class Misfit(Exception):  # noqa: N818 - becomes part of a CheckpointError
    """What does not fit in the tensors of one module, in words that follow its name."""


@dataclass(frozen=True)
class QuantizedTensor:
    """What stands in a checkpoint for one dense weight.

    name: the dense tensor's ("model.layers.0.mlp.up_proj.weight"), shape: its (N, K). `members`:
    what is on disk, by the end of its name; `main` is the one that holds the numbers.
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
        """As if the matrix were one tensor: where its main member lies, and the bytes of all."""
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
        raise Misfit(f"{bad} of its {codes.scales.numel()} scales are not finite")
    if isinstance(codes, IntCodes):
        _check_ints(codes)
    elif isinstance(codes, FloatCodes):
        # a sum of booleans is made of 8 bytes each
        bad = int(codes.values.view(torch.uint8).bitwise_and(0x7F).eq(0x7F).count_nonzero())
        if bad:
            raise Misfit(f"{bad} of its {codes.values.numel()} float8 values are not numbers")
    elif isinstance(codes, TableCodes) and not bool(torch.isfinite(codes.table).all()):
        raise Misfit("its table of 16 values holds some that are not finite")


def _check_ints(codes: IntCodes) -> None:
    top = 2**codes.bits - 1
    if codes.zeros is not None and int(codes.zeros.max()) > top:
        raise Misfit(f"a zero point is {int(codes.zeros.max())}, above the largest code {top}")
    if codes.groups is None:
        return
    count = codes.scales.shape[1]
    lowest, highest = int(codes.groups.min()), int(codes.groups.max())
    if lowest < 0 or highest >= count:
        raise Misfit(f"g_idx names the groups {lowest} to {highest}, and there are {count}")
    sizes = torch.bincount(codes.groups.long(), minlength=count)
    full, last = sizes[:-1], int(sizes[-1])
    if bool((full != codes.group_size).any()) or last > codes.group_size:
        wrong = int((full != codes.group_size).sum()) + int(last > codes.group_size)
        raise Misfit(
            f"g_idx gives {wrong} of {count} groups another size than {codes.group_size} columns"
        )
