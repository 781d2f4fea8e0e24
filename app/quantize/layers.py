"""What a quantization did to every layer, as bars and as a table. No Qt.

live           LayerResult, as the layers are done
afterwards     the same as JSON: beside the weights, and beside a report that is kept
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from app.quantize.tiles import percent
from engine.quantization.results import RESULT_FILE, LayerResult
from widgets.quality.layer_chart import LayerBar


class LayerRow(NamedTuple):
    """Shares; `rounding` and `is_output` say what the error is of: the layer's output on a text,
    with plain rounding's beside it, or else its matrices themselves."""

    label: str
    error: float
    rounding: float | None
    is_output: bool
    worst: str
    worst_error: float
    seconds: float
    notes: str

    @property
    def bar(self) -> LayerBar:
        tip = f"{self.worst} {percent(self.worst_error, 2)}" if self.worst else ""
        return LayerBar(
            self.label, self.error, self.rounding, f"Worst matrix: {tip}" if tip else ""
        )


def rows_of(layers: Sequence[LayerResult | Mapping[str, Any]]) -> list[LayerRow]:
    """Raises KeyError, TypeError or ValueError for JSON that is not what was written."""
    return [_row(asdict(x) if isinstance(x, LayerResult) else x) for x in layers]


def _row(layer: Mapping[str, Any]) -> LayerRow:
    linears: Sequence[Mapping[str, Any]] = layer["linears"]
    is_output = layer["output_error"] is not None
    errors = [(_error_of(linear, is_output), str(linear["name"])) for linear in linears]
    worst_error, worst = max(errors, default=(0.0, ""))
    error = layer["output_error"] if is_output else _mean(linears)
    notes = [*layer["notes"], *(str(x["note"]) for x in linears if x.get("note"))]
    return LayerRow(
        label=str(layer["index"]),
        error=float(error),
        rounding=None if layer["rounding_error"] is None else float(layer["rounding_error"]),
        is_output=is_output,
        worst=worst.removeprefix(f"{layer['name']}."),
        worst_error=worst_error,
        seconds=float(layer["seconds"]),
        notes="; ".join(dict.fromkeys(map(str, notes))),
    )


def _error_of(linear: Mapping[str, Any], is_output: bool) -> float:
    found = linear["output_error"] if is_output else linear["weight_error"]
    return float(found) if found is not None else 0.0


def _mean(linears: Sequence[Mapping[str, Any]]) -> float:
    """Over all weights of the layer: squares, weighted by their number."""
    sizes = [math.prod(linear["shape"]) for linear in linears]
    squares = [
        size * linear["weight_error"] ** 2 for size, linear in zip(sizes, linears, strict=True)
    ]
    return math.sqrt(sum(squares) / sum(sizes)) if sum(sizes) else 0.0


def caption(rows: Sequence[LayerRow]) -> str:
    """What the bars are of; empty before the first."""
    if not rows:
        return ""
    if rows[0].is_output:
        return "Error of what each layer adds, % of its norm. Line: plain rounding"
    return "Error of each layer's weights, % of their norm"


def in_words(rows: Sequence[LayerRow]) -> str:
    """The sum in a sentence; empty without rows."""
    if not rows:
        return ""
    worst = max(rows, key=lambda row: row.error)
    mean = sum(row.error for row in rows) / len(rows)
    words = f"mean {percent(mean, 2)}, most in layer {worst.label}: {percent(worst.error, 2)}"
    rounded = [row.rounding for row in rows if row.rounding is not None]
    if len(rounded) == len(rows) and sum(rounded) > 0:
        share = 1 - mean * len(rows) / sum(rounded)
        words += f"; {percent(abs(share))} {'less' if share >= 0 else 'more'} than plain rounding"
    return words


def read_result(folder: Path) -> dict[str, Any] | None:
    """What is stored of the quantization that made the model in `folder`; None where there is
    nothing, or nothing that can be read."""
    try:
        found = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
        rows_of(found["layers"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(found)
