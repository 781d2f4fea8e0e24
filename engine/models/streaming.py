"""Moves tensors from disk to where they live, one at a time."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from engine.errors import CheckpointError, InferdeckError
from engine.formats.safetensors_file import TensorInfo
from engine.formats.tensor_reader import TensorReader
from engine.models.materialise import Slots
from engine.models.weight_map import Conversion, Index, WeightMap, is_turned

if TYPE_CHECKING:
    from engine.parallel.share import Share

_READ_AT_ONCE = 64 * 2**20
"""Bytes of a tensor of which only some columns are needed."""


def stream(
    weights: WeightMap,
    slots: Slots,
    reference: nn.Module,
    reader: TensorReader,
    elsewhere: Container[str] = (),
    share: Share | None = None,
) -> None:
    """Every tensor on disk into the part of the model that it fills, but for the names that are
    filled elsewhere. share: of a rank, which has only some of each."""
    # in the order in which they lie on disk: one pass over each file
    for info, name, part in sorted(
        weights.placements, key=lambda p: (str(p.info.file), p.info.offset)
    ):
        if name in weights.tied or name in elsewhere:
            continue  # the same bytes as the tensor that it shares
        view = slots[name].view()
        if part and is_turned(reference, name):
            view = view.mT
        if share is not None and share.is_cut(name):
            _stream_share(info, name, part, view, share, reader, is_turned(reference, name))
        elif share is not None and not share.has(name):
            view[part].zero_()
        else:
            reader.copy_into(info, view[part] if part else view)
    for conversion in weights.conversions:
        if conversion.name in elsewhere:
            continue
        for name, value in convert(conversion, reference, reader).items():
            target = slots[name].view()
            value = value if share is None else share.cut(name, value)
            if value.shape != target.shape:
                raise CheckpointError(
                    f"{name} is {list(value.shape)} and should be {list(target.shape)}.",
                    "Check that config.json belongs to these weights.",
                )
            target.copy_(value)


def _stream_share(
    info: TensorInfo,
    name: str,
    part: Index,
    view: torch.Tensor,
    share: Share,
    reader: TensorReader,
    turned: bool,
) -> None:
    """`view`: of the rank's own weight, turned where the part is one of [out, in]."""
    pieces = share.pieces(name, part, info.shape, turned and bool(part))
    if share.is_padded(name):
        view.zero_()
    if not pieces:
        return
    if pieces[0].dim == 0:
        for _, start, end, place in pieces:
            reader.copy_into(info.rows(start, end), view[place])
        return
    for first, rows in _some_rows(info):
        tensor = reader.read(rows)
        for dim, start, end, place in pieces:
            wanted = tensor.narrow(dim, start, end - start)
            view[place][first : first + len(tensor)].copy_(wanted)


def _some_rows(info: TensorInfo) -> Iterator[tuple[int, TensorInfo]]:
    step = max(1, _READ_AT_ONCE * info.shape[0] // max(1, info.nbytes))
    for first in range(0, info.shape[0], step):
        yield first, info.rows(first, min(first + step, info.shape[0]))


def bytes_to_read(
    weights: WeightMap,
    reference: nn.Module,
    share: Share | None,
    read_whole: Container[str] = (),
) -> int:
    """Of the checkpoint, by a rank; all of it where there is one. read_whole: names of weights that
    are cut after they were read."""
    total = weights.total_bytes
    if share is None:
        return total
    for info, name, part in weights.placements:
        if not share.has(name):
            total -= info.nbytes
        elif share.is_cut(name) and name not in read_whole:
            turned = bool(part) and is_turned(reference, name)
            pieces = share.pieces(name, part, info.shape, turned)
            rows = sum(piece.end - piece.start for piece in pieces)
            if not pieces or pieces[0].dim == 0:
                total -= info.nbytes - rows * (info.nbytes // info.shape[0])
    return total


def convert(
    conversion: Conversion, reference: nn.Module, reader: TensorReader
) -> dict[str, torch.Tensor]:
    """Parameters that transformers' converter computes from the tensors of one conversion."""
    converter = copy.deepcopy(conversion.converter)
    for disk_name, pattern, info in conversion.members:
        converter.add_tensor(conversion.name, disk_name, pattern, lambda i=info: reader.read(i))
    try:
        found = converter.convert(conversion.name, model=reference, config=reference.config)
    except InferdeckError:
        raise
    except Exception as error:  # whatever an operation raises, these tensors do not fit it
        raise CheckpointError(
            f"{conversion.name} could not be made from {len(conversion.members)} tensors of the "
            f"checkpoint: {error}",
            "Check that config.json belongs to these weights.",
        ) from error
    return {n: v[0] if isinstance(v, list) else v for n, v in found.items()}


def untie_different(weights: WeightMap, reader: TensorReader) -> list[str]:
    """Tied names that are both on disk with different values are not tied, as in transformers."""
    notices = []
    for target, source in list(weights.tied.items()):
        first, second = weights.placement(target), weights.placement(source)
        if first and second and not reader.equal(first.info, second.info):
            del weights.tied[target]
            notices.append(
                f"config.json ties {target} to {source}, but the checkpoint holds different "
                "values for them: both are used."
            )
    return notices


def check_spare_biases(weights: WeightMap, reader: TensorReader) -> None:
    """Raise CheckpointError where a bias that the model has no place for is not zero."""
    for name, info in weights.spare_biases.items():
        if bool(reader.read(info).any()):
            raise CheckpointError(
                f"{name} in {info.file} is not zero, and this layer of the model has no bias.",
                "Check that config.json belongs to these weights.",
            )


def left_out_notices(weights: WeightMap) -> list[str]:
    if not weights.left_out:
        return []
    return [
        f"The text part of a multimodal checkpoint: {len(weights.left_out)} tensors of other "
        "parts were left out."
    ]
