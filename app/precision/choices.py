"""What the loaded checkpoint could be held in, what each choice weighs, and why others cannot be
chosen. Imports no Qt.

`look_at` imports torch and transformers: call it off the GUI thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.units import format_bytes
from engine.config import SETTINGS, EngineConfig

WEIGHTS, GROUP, HEAD, DTYPE = (
    "quantization", "quantization_group_size", "quantization_head", "dtype",
)  # fmt: skip
ROUNDED = ("int8", "int4", "nf4", "fp8")
"""What plain weights can be rounded to while they are loaded."""

SOURCE, QUANTIZE = "source", "quantize"
"""Ways out of a choice that is not possible: open the model that this one was made from, or make a
quantized one."""

_NAMES = {
    "auto": "as stored", "int8": "int8", "int4": "int4", "nf4": "nf4", "fp8": "fp8", "awq": "AWQ",
    "gptq": "GPTQ", "compressed-tensors": "compressed-tensors", "bitsandbytes": "bitsandbytes",
}  # fmt: skip
_TRIAL_ROWS, _TRIAL_INPUTS = 256, 2048


@dataclass(frozen=True, slots=True)
class Choice:
    """A value of a setting. `refusal`: why it cannot be chosen, "" where it can."""

    value: str
    text: str
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is known of the loaded checkpoint, in the shape that was asked for.

    stored: the format of quantized weights in words, method: its name; "" for plain weights.
    weights: predicted bytes by (method, head). disk_bytes: what a load reads. held: how many
    weights are rounded. rounding: seconds that a weight takes, by method, tried on this machine.
    """

    path: str
    dtype: str
    group_size: int
    method: str = ""
    stored: str = ""
    weights: Mapping[tuple[str, str], int] = field(default_factory=dict)
    disk_bytes: int = 0
    held: int = 0
    rounding: Mapping[str, float] = field(default_factory=dict)

    def bytes_of(self, method: str, head: str) -> int | None:
        """Weights held by `method`, predicted; None where that cannot be."""
        plain = "stored" if self.method else "none"
        known = {"auto": plain, "none": "none" if not self.method else "", self.method: plain}
        return self.weights.get((known.get(method, method), head))

    def of_weights(self, head: str, dtype: str) -> list[Choice]:
        """Every value of the weights' setting, with what it weighs."""
        return [self._weights_choice(v, head, dtype) for v in SETTINGS[WEIGHTS].choices]

    def of_head(self, method: str) -> list[Choice]:
        """Every value of the output head's setting."""
        names = {"none": plain_name(self.dtype)}
        return [
            Choice(value, self._sized(names.get(value, value), self.bytes_of(method, value)))
            for value in SETTINGS[HEAD].choices
        ]

    def _weights_choice(self, value: str, head: str, dtype: str) -> Choice:
        name = plain_name(dtype) if value == "none" else _NAMES.get(value, value)
        if value == "auto" and self.stored:
            name = f"as stored: {self.stored}"
        text = self._sized(name, self.bytes_of(value, head))
        refusal = self._refusal(value, plain_name(dtype))
        return Choice(value, text, refusal)

    @staticmethod
    def _sized(name: str, size: int | None) -> str:
        return name if size is None else f"{name} · {format_bytes(size)}"

    def _refusal(self, value: str, plain: str) -> str:
        if self.method:
            if value in ("auto", self.method):
                return ""
            if value == "none":
                return f"The checkpoint is stored as {self.stored}: {plain} are not in it."
            return f"The checkpoint is stored as {self.stored}: rounding it again loses twice."
        if value in ("auto", "none", *ROUNDED):
            return ""
        return (
            f"{_NAMES[value]} is not made while a model is loaded: it needs a checkpoint in that "
            "format."
        )

    @property
    def limits(self) -> str:
        """In a line: what is not possible with this checkpoint, "" where everything is."""
        if self.method:
            return f"stored as {self.stored}: other precisions need the model it was made from"
        return ""

    @property
    def way_out(self) -> str:
        """SOURCE or QUANTIZE: what leads to the choices that are refused."""
        return SOURCE if self.method else QUANTIZE


def plain_name(dtype: str) -> str:
    """Plain numbers by their width: "16 bits" for bfloat16."""
    return "32 bits" if dtype == "float32" else "16 bits"


def look_at(config: EngineConfig) -> Checkpoint:
    """The checkpoint of `config` (its dtype resolved), with what it would weigh at each precision.
    Reads no weights. Raises InferdeckError."""
    import torch

    from engine.layers.rotary import bytes_of_tables, table_rows
    from engine.loading import checkpoint as files
    from engine.loading.architecture import build_on_meta
    from engine.loading.footprint import predicted_bytes
    from engine.quantization.scheme import Scheme, weights_to_hold

    opened = files.Checkpoint.open(config.model, dummy=config.load_format == "dummy")
    reference = build_on_meta(opened.config)
    stored = opened.quantization
    dtype = getattr(torch, config.dtype)
    group = config.quantization_group_size
    weights = {
        ("stored" if stored and method == "none" else method, head): predicted_bytes(
            opened, reference, dtype, Scheme(method, group, head)
        ).total
        for method in (("none",) if stored else ("none", *ROUNDED))
        for head in SETTINGS[HEAD].choices
    }
    length = config.max_model_len or opened.max_position_embeddings
    tables = bytes_of_tables(table_rows(reference, dtype), length) if length else 0
    shapes = weights_to_hold(reference).values()
    return Checkpoint(
        path=config.model,
        dtype=config.dtype,
        group_size=group,
        method=stored.method if stored else "",
        stored=stored.title if stored else "",
        weights={key: size + tables for key, size in weights.items()},
        disk_bytes=opened.disk_bytes,
        held=sum(_product(shape) for shape in shapes),
        rounding={} if stored else {method: _rounding_s(method, group) for method in ROUNDED},
    )


def _rounding_s(method: str, group: int) -> float:
    """Seconds that rounding a weight takes here: of three tries on a small matrix the best."""
    import torch

    from engine.quantization.scheme import Scheme

    weight = torch.randn(_TRIAL_ROWS, _TRIAL_INPUTS)
    scheme, best = Scheme(method, group), float("inf")
    for _ in range(3):
        began = time.perf_counter()
        scheme.rounded(weight)
        best = min(best, time.perf_counter() - began)
    return best / weight.numel()


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
