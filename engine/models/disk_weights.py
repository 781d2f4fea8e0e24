"""Reads a checkpoint's weights, plain or quantized, one tensor at a time."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import Tensor

from engine.errors import CheckpointError, UnsupportedModelError
from engine.formats.safetensors_file import TensorInfo
from engine.formats.tensor_reader import TensorReader
from engine.kernels.embedding import CHUNK_ROWS
from engine.models.architecture import build_on_meta
from engine.models.weight_checks import is_turned
from engine.models.weight_map import Placement, map_weights
from engine.numerics.codes import Codes, in_turns
from engine.numerics.scheme import weights_to_hold

if TYPE_CHECKING:
    from engine.models.loader import LoadRequest
    from engine.models.materialise import Slots
    from engine.models.targets import Target


class DiskWeights:
    """The weights of a checkpoint. Quantized matrices are mapped as if they were dense.

    scheme: how plain values of `quantized` are rounded. quantized: weights that are stored
    quantized, and their shapes: [out, in], or [experts, out, in]. tied: name -> the name whose
    tensor it shares, complete once it is `open`.
    """

    def __init__(self, request: LoadRequest) -> None:
        self._request = request
        self._reference = build_on_meta(request.checkpoint.config)
        checkpoint, stored = request.checkpoint, request.checkpoint.quantization
        self._matrices = {}
        if stored is not None:
            plain, coded = stored.split(checkpoint.tensors)
            self._matrices = {matrix.info: matrix for matrix in coded.values()}
            infos = {name: matrix.info for name, matrix in coded.items()}
            checkpoint = dataclasses.replace(checkpoint, tensors={**plain, **infos})
        self._weights = map_weights(checkpoint, self._reference)
        self._placements: dict[str, list[Placement]] = defaultdict(list)
        for placement in self._weights.placements:
            self._placements[placement.name].append(placement)
        self._conversions = {c.name: c for c in self._weights.conversions}
        self.scheme = request.scheme
        self.notices = self._weights.notices
        self.quantized = self._quantized_weights()

    @property
    def tied(self) -> Mapping[str, str]:
        return self._weights.tied

    def _quantized_weights(self) -> dict[str, tuple[int, ...]]:
        linears = weights_to_hold(self._reference)
        if self._request.checkpoint.quantization is None:
            return linears if self.scheme.method != "none" else {}
        coded = {p.name for p in self._weights.placements if p.info in self._matrices}
        head = self._reference.get_output_embeddings()  # type: ignore[operator]
        known = {*linears, *(n for n, p in self._reference.named_parameters() if p is head.weight)}
        odd = sorted(coded - known)
        odd += [
            c.name
            for c in self._weights.conversions
            if any(info in self._matrices for _, _, info in c.members)
        ]
        if odd:
            raise UnsupportedModelError(
                f"{len(odd)} quantized tensors match no linear layer in "
                f"{type(self._reference).__name__}; the first is {odd[0]}.",
                "Choose another checkpoint for this model, or the original 16-bit model.",
            )
        shapes = self._reference.state_dict()
        found = {name: tuple(shapes[name].shape) for name in coded}
        if any(len(shape) == 3 for shape in found.values()):  # their plain neighbours are too
            found |= {name: shape for name, shape in linears.items() if len(shape) == 3}
        return found

    @contextmanager
    def open(self, in_targets: set[str]) -> Iterator[None]:
        """Ready to read, for as long as the context lasts. in_targets: names of weights that are
        read whole, by `values`."""
        request, total = self._request, self._weights.total_bytes
        with TensorReader(total, request.progress, request.cancelled) as self._reader:
            self._check_spare_biases()
            self._untie_different()
            yield

    def in_order(self, targets: Sequence[Target]) -> list[Target]:
        """In the order of their offsets on disk: one pass over each file."""

        def place(target: Target) -> tuple[str, int]:
            found = self._placements.get(target.names[0])
            return (str(found[0].info.file), found[0].info.offset) if found else ("", 0)

        return sorted(targets, key=place)

    def fill(self, slots: Slots) -> None:
        """Write every weight that has a slot, but for tied names."""
        for info, name, part in sorted(
            self._weights.placements, key=lambda p: (str(p.info.file), p.info.offset)
        ):
            if name in self.tied or name not in slots:
                continue
            view = slots[name].view()
            if part and is_turned(self._reference, name):
                view = view.mT
            self._reader.copy_into(info, view[part] if part else view)
        for conversion in self._weights.conversions:
            if conversion.name not in slots:
                continue
            for name, value in conversion.compute(self._reference, self._reader).items():
                target = slots[name].view()
                if value.shape != target.shape:
                    raise CheckpointError(
                        f"{name} has shape {list(value.shape)}; expected {list(target.shape)}.",
                        "Check that config.json matches these weights.",
                    )
                target.copy_(value)

    def _untie_different(self) -> None:
        """Tied names that are both on disk with different values are not tied, as in
        transformers."""
        for target, source in list(self._weights.tied.items()):
            first, second = self._weights.placement(target), self._weights.placement(source)
            if first and second and not self._reader.equal(first.info, second.info):
                del self._weights.tied[target]
                self.notices.append(
                    f"config.json ties {target} to {source}, but the checkpoint has different "
                    "values for them: both are used."
                )

    def _check_spare_biases(self) -> None:
        for name, info in self._weights.spare_biases.items():
            if bool(self._reader.read(info).any()):
                raise CheckpointError(
                    f"{name} in {info.file} is not zero, but this layer has no bias.",
                    "Check that config.json matches these weights.",
                )

    def values(self, name: str, expert: int | None) -> Iterator[Codes | Tensor]:
        """The parts of a weight (of one expert), row after row: codes as the checkpoint has them,
        or plain tensors [n, in]."""
        turned = is_turned(self._reference, name)
        # experts that are separate on disk are [out, in], whatever the class stores
        is_cut = any(placement.part for placement in self._placements[name])
        infos, is_in_turns = self._infos(name, expert)
        parts = (self._part(info, turned and not is_cut) for info in infos)
        if is_in_turns:
            yield in_turns(list(parts))
        else:
            yield from parts
        if name in self._conversions:
            found = self._conversions[name].compute(self._reference, self._reader)[name]
            plain = found if expert is None else found[expert]
            yield plain.t().contiguous() if turned else plain

    def _part(self, info: TensorInfo, turned: bool) -> Codes | Tensor:
        matrix = self._matrices.get(info)
        if matrix is not None:
            return matrix.read(self._reader)
        plain = self._reader.read(info)
        return plain.t().contiguous() if turned else plain

    def _infos(self, name: str, expert: int | None) -> tuple[list[TensorInfo], bool]:
        """What fills this weight, row after row; or, if the second is true, rows in turns."""
        if expert is None:
            return [placement.info for placement in self._placements[name]], False
        mine: list[tuple[int, TensorInfo]] = []
        is_in_turns = False
        for info, _, part in self._placements[name]:
            if not part:  # all experts in one tensor on disk
                one = info.rows(expert, expert + 1)
                mine.append((0, one._replace(shape=one.shape[1:])))
            elif part[0] == expert:
                rows = part[1] if len(part) > 1 else slice(0)
                assert isinstance(rows, slice)
                is_in_turns = (rows.step or 1) > 1
                mine.append((rows.start or 0, info))
        return [info for _, info in sorted(mine, key=lambda pair: pair[0])], is_in_turns

    def rows(self, name: str) -> Iterator[Tensor]:
        """Plain rows of a weight, CHUNK_ROWS at a time."""
        for info, _, _ in self._placements[name]:
            for start in range(0, info.shape[0], CHUNK_ROWS):
                yield self._reader.read(info.rows(start, min(start + CHUNK_ROWS, info.shape[0])))
