"""One layer while it is quantized: its module, its groups and its matrices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from engine.numerics.codes import Codes
from engine.quantize.decoder import Decoder
from engine.quantize.grid import Grid
from engine.quantize.groups import Group, Product, find_groups, matrix
from engine.quantize.recipe import LinearResult, Recipe
from engine.quantize.statistics import Inputs
from engine.quantize.targets import LayerTargets, Piece

STORED = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
_ERROR_ROWS = 256  # rows of an input for the error of an output

Store = Callable[[Piece, Codes], None]

NO_TOKENS = "received no calibration tokens: rounded to nearest"
"""The note of a matrix without calibration."""


@dataclass
class LayerWork:
    """The work on one layer. `check` raises if the user cancelled. `changed`: parameters that were
    scaled; their unquantized parts must be written again."""

    decoder: Decoder
    targets: LayerTargets
    recipe: Recipe
    grid: Grid
    check: Callable[[], None]
    stage: Callable[[str], None]
    results: list[LinearResult] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)

    @cached_property
    def layer(self) -> nn.Module:
        return self.decoder.layers[self.targets.index]

    @cached_property
    def groups(self) -> list[Group]:
        return find_groups(self.layer, lambda: self.run(0))

    @cached_property
    def pieces_of(self) -> dict[str, list[Piece]]:
        """By the parameter's name within the layer."""
        found: dict[str, list[Piece]] = defaultdict(list)
        for piece in self.targets.pieces:
            found[self.local(piece.parameter)].append(piece)
        return found

    @cached_property
    def frozen(self) -> frozenset[str]:
        """Parameters without a tensor of their own on disk (tied, converted): not written back."""
        placed = {self.local(p.name) for p in self.targets.placements}
        return frozenset(name for name, _ in self.layer.named_parameters() if name not in placed)

    @property
    def num_sequences(self) -> int:
        return len(self.decoder.states)

    @property
    def search_sequences(self) -> range:
        return range(min(self.num_sequences, self.recipe.num_search_sequences))

    def local(self, name: str) -> str:
        """A parameter's name within the layer."""
        return name.removeprefix(self.targets.path + ".")

    def run(self, sequence: int) -> Tensor:
        return self.decoder.run(self.targets.index, sequence)

    def runs(self, sequences: Sequence[int] | None = None) -> Iterator[Callable[[], Tensor]]:
        """One run of the layer for each sequence of the text, or for some of them."""
        for sequence in range(self.num_sequences) if sequences is None else sequences:
            self.check()
            yield partial(self.run, sequence)

    def group_pieces(self, group: Group) -> list[Piece]:
        return [piece for name in group.names for piece in self.pieces_of.get(name, ())]

    def matrix(self, piece: Piece) -> Tensor:
        """The piece's weight [N, K] as a view."""
        product = Product(self.local(piece.parameter), piece.expert)
        return matrix(self.layer, product, piece.is_transposed)[piece.rows]

    def shared_input(self, group: Group) -> Product | None:
        """The first product that sees the whole input of a group; None if only experts read it, a
        part each."""
        return next((Product(r.parameter) for r in group.readers if not r.num_experts), None)

    def input_of(self, group: Group, piece: Piece) -> Product:
        """The product that sees the piece's input."""
        shared = self.shared_input(group)
        if piece.expert is not None or shared is None:
            return Product(self.local(piece.parameter), piece.expert)
        return shared

    def inputs(self, group: Group, *, block: int, rows: int = _ERROR_ROWS) -> dict[Product, Inputs]:
        """Empty statistics for all pieces of a group."""
        wanted = {
            self.input_of(group, piece): Inputs(group.width, block=block, rows=rows)
            for piece in self.group_pieces(group)
        }
        shared = self.shared_input(group)
        if shared is not None and wanted and shared not in wanted:
            wanted[shared] = Inputs(group.width)
        return wanted

    def finish(
        self, piece: Piece, codes: Codes, inputs: Inputs | None, store: Store, **details: object
    ) -> None:
        """Put rounded values in the piece's place, hand its codes on, and note its errors. They are
        made twice, so that one copy of the matrix is there at a time."""
        weight = self.matrix(piece)
        difference = codes.dequantize().sub_(weight)
        size = float(weight.norm())
        error = None if inputs is None else inputs.output_error(difference, weight)
        self.results.append(
            LinearResult(
                name=piece.module,
                shape=piece.shape,
                weight_error=float(difference.norm()) / size if size else 0.0,
                output_error=error,
                **details,  # type: ignore[arg-type]
            )
        )
        del difference
        weight.copy_(codes.dequantize())
        store(piece, codes)
