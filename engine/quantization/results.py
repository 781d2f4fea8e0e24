"""What a quantization did, layer by layer: for the report, and for the file beside the weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.quantization.recipe import Recipe

RESULT_FILE = "inferdeck_quantization.json"


@dataclass(frozen=True, slots=True)
class LinearResult:
    """One matrix. Errors are norms relative to the norm of what they are errors of.

    weight_error: of the matrix (after scaling, where it was scaled). output_error: of its output on
    the calibration text; None where it saw none.
    scaled: scales were taken from the operation before it; ratio: the exponent of the input's
    magnitude in them. clipped: share of groups whose range was cut. damping: GPTQ's, as needed.
    """

    name: str
    shape: tuple[int, int]
    weight_error: float
    output_error: float | None = None
    scaled: bool = False
    ratio: float | None = None
    clipped: float | None = None
    damping: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class LayerResult:
    """output_error: norm of the error of what the layer adds to its input, relative to that;
    rounding_error: the same with plain rounding at the same bits. Both None without a text."""

    index: int
    name: str
    seconds: float
    linears: tuple[LinearResult, ...]
    output_error: float | None = None
    rounding_error: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuantizeResult:
    """Sizes are bytes of the tensors on disk. `kept`: matrices of layers that stay as they are,
    with the reason."""

    output: Path
    source: str
    recipe: Recipe
    bytes_before: int
    bytes_after: int
    seconds: float
    num_sequences: int
    num_tokens: int
    layers: tuple[LayerResult, ...]
    kept: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "output": str(self.output),
            "recipe": self.recipe.as_json(),
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "seconds": round(self.seconds, 3),
            "calibration": {"num_sequences": self.num_sequences, "num_tokens": self.num_tokens},
            "kept": self.kept,
            "notes": list(self.notes),
            "layers": [_plain(layer) for layer in self.layers],
        }


def _plain(layer: LayerResult) -> dict[str, Any]:
    values = asdict(layer)
    values["seconds"] = round(layer.seconds, 3)
    return values
