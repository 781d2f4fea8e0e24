"""What rounding the matrices of a layer changes in what the layer adds to its input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from engine.quantization.work import LayerWork

_CHECKED_SEQUENCES = 4  # of the text, from which a layer's error is told


def outputs_of(work: LayerWork) -> list[Tensor]:
    """What the layer adds to its input, for a few sequences."""
    count = min(work.num_sequences, _CHECKED_SEQUENCES)
    found = []
    for sequence in range(count):
        work.check()
        found.append(work.run(sequence))
    return found


def error_of(work: LayerWork, wanted: list[Tensor]) -> float:
    error = size = 0.0
    for sequence, output in enumerate(wanted):
        work.check()
        error += float((work.run(sequence) - output).square().sum())
        size += float((output - work.decoder.states[sequence]).square().sum())
    return float((error / size) ** 0.5) if size else 0.0


@contextmanager
def rounded_to_nearest(work: LayerWork) -> Iterator[None]:
    """All matrices as plain rounding makes them, until the block ends: then from disk again."""
    for piece in work.targets.pieces:
        work.check()
        weight = work.matrix(piece)
        weight.copy_(work.grid.rounded(weight.contiguous()))
    yield
    for name in {piece.parameter for piece in work.targets.pieces}:
        work.decoder.reload(name, work.layer.get_parameter(work.local(name)).data)
