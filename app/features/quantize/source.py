"""Quantizable modules of a model, before its weights are read. Imports no Qt.

`read_source` imports torch and transformers: call it off the GUI thread.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from engine.errors import ErrorInfo
from engine.quantize.recipe import Recipe, matches


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of a decoder layer that can be quantized: [rows, columns], `num_bytes` on disk."""

    module: str
    rows: int
    columns: int
    num_bytes: int

    @property
    def count(self) -> int:
        return self.rows * self.columns

    @property
    def layer(self) -> str:
        """The layer: "layers.3"."""
        before, number, _ = _split(self.module)
        return f"{before.rpartition('.')[2]}.{number}" if number else before

    @property
    def kind(self) -> str:
        """Its name within the layer, the same in every layer; experts are numbered with "*"."""
        inside = _split(self.module)[2]
        return ".".join("*" if part.isdecimal() else part for part in inside.split("."))


def _split(module: str) -> tuple[str, str, str]:
    """ "model.layers", "3", "mlp.down_proj" of "model.layers.3.mlp.down_proj"."""
    parts = module.split(".")
    for place, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[:place]), part, ".".join(parts[place + 1 :])
    return module, "", module


@dataclass(frozen=True, slots=True)
class Kept:
    """A matrix that stays unquantized: embeddings, output head."""

    module: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """The model's matrices. `refusal`: why it cannot be quantized; it has no matrices then.
    `dtype`: of most of its weights."""

    path: str
    dtype: str = ""
    num_bytes: int = 0
    matrices: tuple[Matrix, ...] = ()
    kept: tuple[Kept, ...] = ()
    refusal: ErrorInfo | None = None

    @property
    def layers(self) -> list[str]:
        return list(dict.fromkeys(matrix.layer for matrix in self.matrices))

    def quantized(self, exclude: tuple[str, ...]) -> list[Matrix]:
        """Matrices that remain after an exclusion."""
        return [
            matrix
            for matrix in self.matrices
            if not any(matches(matrix.module, pattern) for pattern in exclude)
        ]

    def unknown(self, exclude: tuple[str, ...]) -> list[str]:
        """Patterns that match no module."""
        names = [*(m.module for m in self.matrices), *(k.module for k in self.kept)]
        return [p for p in exclude if not any(matches(name, p) for name in names)]


@dataclass(frozen=True, slots=True)
class ModuleGroup:
    """Modules of one kind or one layer. `pattern`: for `Recipe.exclude`; None if they are never
    quantized."""

    title: str
    pattern: str | None
    num_matrices: int
    num_bytes: int


def module_groups(facts: SourceFacts) -> list[ModuleGroup]:
    """Every kind of matrix, the first and the last layer, and matrices that are kept."""
    by_kind: dict[str, list[Matrix]] = {}
    for matrix in facts.matrices:
        by_kind.setdefault(matrix.kind, []).append(matrix)
    short = Counter(kind.rpartition(".")[2] for kind in by_kind)
    groups = []
    for kind, found in by_kind.items():
        last = kind.rpartition(".")[2]
        name = last if short[last] == 1 else kind
        groups.append(_group(name, f"*.{name}" if "*" in name else name, found))
    layers = facts.layers
    for title, layer in (("First layer", layers[0]), ("Last layer", layers[-1])):
        if len(layers) > 1:
            found = [m for m in facts.matrices if m.layer == layer]
            groups.append(_group(f"{title} ({layer})", layer, found))
    return groups + [ModuleGroup(k.module, None, 1, k.num_bytes) for k in facts.kept]


def _group(title: str, pattern: str, found: list[Matrix]) -> ModuleGroup:
    return ModuleGroup(title, pattern, len(found), sum(m.num_bytes for m in found))


def read_source(path: str) -> SourceFacts:
    """Read the description of the model at `path` and its quantizable matrices.

    Raises CheckpointError. A model that cannot be quantized has a `refusal`.
    """
    from engine.models.architecture import build_on_meta, resolve_class
    from engine.models.checkpoint import Checkpoint
    from engine.models.weight_map import map_weights
    from engine.quantize.targets import find_targets

    checkpoint = Checkpoint.open(path)
    facts = SourceFacts(str(Path(path)), checkpoint.dtype, checkpoint.disk_bytes)
    if (stored := checkpoint.quantization) is not None:
        refusal = ErrorInfo(
            f"The model is already quantized: {stored.title}.",
            "Choose the original 16-bit model. Quantizing twice adds error.",
        )
        return replace(facts, refusal=refusal)
    resolve_class(checkpoint)
    model = build_on_meta(checkpoint.config)
    recipe = Recipe("int8")  # any method: group sizes are checked with the choice
    targets = find_targets(checkpoint, model, map_weights(checkpoint, model), recipe)
    matrices = tuple(
        Matrix(piece.module, *piece.shape, piece.info.nbytes) for piece in targets.pieces
    )
    quantized = {piece.disk_name for piece in targets.pieces}
    kept = sorted(
        (
            Kept(name.removesuffix(".weight"), info.nbytes)
            for name, info in checkpoint.tensors.items()
            if name not in quantized and len(info.shape) == 2
        ),
        key=lambda found: -found.num_bytes,
    )
    return replace(facts, matrices=matrices, kept=tuple(kept))
