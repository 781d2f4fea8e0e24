"""The settings and the results of a quantization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import ConfigError


class Method(NamedTuple):
    """A quantization method. `format`: name of the output format for `formats.writer`. `bits`:
    supported values, the default first. `is_calibrated`: it needs a calibration text."""

    format: str
    title: str
    bits: tuple[int, ...]
    is_grouped: bool
    is_calibrated: bool
    symmetric: bool
    can_choose_symmetry: bool


METHODS = {
    "awq": Method("awq", "AWQ: activation-aware scales", (4,), True, True, False, False),
    "gptq": Method("gptq", "GPTQ: error-compensated rounding", (4, 8), True, True, True, True),
    "rtn": Method("compressed-tensors", "Round to nearest", (4, 8), True, False, True, True),
    "int8": Method("compressed-tensors", "int8, per-channel scales", (8,), False, False, True, False),  # noqa: E501
    "fp8": Method("compressed-tensors", "float8, per-channel scales", (8,), False, False, True, False),  # noqa: E501
    "nf4": Method("bitsandbytes", "NF4, block size 64", (4,), False, False, True, False),
}  # fmt: skip

# rtn is symmetric by default: transformers cannot load the zero points of compressed-tensors, see
# `engine.formats.compressed_tensors`

GROUP_SIZES = (32, 64, 128, 256)
MIN_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of one quantization. `bits` and `symmetric` are None for the method's own.

    exclude: modules that stay as they are: a name ("model.layers.0.mlp.down_proj"), part of one
        ("down_proj", "layers.0") or a pattern ("*.experts.*"). Embeddings and the head always stay.
    num_sequences, sequence_length: most text that is read, in sequences of so many tokens.
    num_search_sequences: of these, so many for AWQ's search, which runs each block many times.
    desc_act (GPTQ): groups are formed of columns in the order of their importance; readers then
        need an index per column. Otherwise groups lie as the columns do.
    static_groups (GPTQ): columns are rounded in the order of their importance, with the scales of
        groups fixed beforehand; needs no index.
    damping (GPTQ): share of the mean of the Hessian's diagonal that is added to it.
    seed: which parts of a long text are read.
    """

    method: str = "awq"
    bits: int | None = None
    group_size: int = 128
    symmetric: bool | None = None
    exclude: tuple[str, ...] = ()
    num_sequences: int = 64
    sequence_length: int = 512
    num_search_sequences: int = 16
    desc_act: bool = False
    static_groups: bool = True
    damping: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_method()
        least = {"num_sequences": 1, "num_search_sequences": 1, "sequence_length": MIN_LENGTH}
        for name, bound in least.items():
            if (value := getattr(self, name)) < bound:
                raise ConfigError(f"Invalid {name}: {value}.", f"Use at least {bound}.")
        if not 0 < self.damping <= 1:
            raise ConfigError(f"Invalid damping: {self.damping}.", "Use a value above 0, up to 1.")

    @property
    def facts(self) -> Method:
        return METHODS[self.method]

    @property
    def chosen_bits(self) -> int:
        return self.bits if self.bits is not None else self.facts.bits[0]

    @property
    def is_symmetric(self) -> bool:
        return self.facts.symmetric if self.symmetric is None else self.symmetric

    @property
    def uses_desc_act(self) -> bool:
        """Whether columns need an index to find their group."""
        return self.method == "gptq" and self.desc_act and not self.static_groups

    def excludes(self, module: str) -> bool:
        return any(matches(module, pattern) for pattern in self.exclude)

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "exclude": list(self.exclude),
            "bits": self.chosen_bits,
            "symmetric": self.is_symmetric,
        }

    def _check_method(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(
                f"Unknown quantization method: {self.method!r}.",
                f"Choose one of {', '.join(METHODS)}.",
            )
        facts = self.facts
        if self.bits is not None and self.bits not in facts.bits:
            raise ConfigError(
                f"{self.method} does not support {self.bits}-bit quantization.",
                f"Choose {_or(facts.bits)}.",
            )
        if facts.is_grouped and self.group_size not in GROUP_SIZES:
            raise ConfigError(
                f"Invalid group size: {self.group_size}.", f"Choose {_or(GROUP_SIZES)}."
            )
        if not facts.can_choose_symmetry and self.symmetric not in (None, facts.symmetric):
            kind = "symmetric" if facts.symmetric else "asymmetric"
            raise ConfigError(
                f"Inferdeck supports {self.method} as {kind} only.",
                "Omit the symmetry setting, or choose rtn.",
            )
        if self.desc_act and self.method != "gptq":
            raise ConfigError(f"desc_act applies to gptq, not {self.method}.", "Omit desc_act.")


def matches(module: str, pattern: str) -> bool:
    """Whether a pattern of `Recipe.exclude` matches `module`."""
    return fnmatchcase(module, pattern) or f".{pattern}." in f".{module}."


def _or(values: Sequence[int]) -> str:
    *others, last = [str(value) for value in values]
    return f"{', '.join(others)} or {last}" if others else last


RESULT_FILE = "inferdeck_quantization.json"


@dataclass(frozen=True, slots=True)
class LinearResult:
    """The result of one matrix. Errors are norms relative to the norm of the exact value.

    weight_error: of the matrix (after scaling, if scaled). output_error: of its output on the
    calibration text; None without calibration tokens. scaled: scales were folded into the preceding
    operation; ratio: the exponent of the input's magnitude in them. clipped: share of groups with a
    clipped range. damping: GPTQ's, as needed.
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
    """The result of one layer. output_error: norm of the error of the layer's residual output,
    relative to its norm; rounding_error: the same with round to nearest at the same bits. Both None
    without a text."""

    index: int
    name: str
    seconds: float
    linears: tuple[LinearResult, ...]
    output_error: float | None = None
    rounding_error: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuantizeResult:
    """The result of a quantization. Sizes are bytes of the tensors on disk. `kept`: matrices of
    layers that are not quantized, with the reason."""

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
            "layers": [
                {**asdict(layer), "seconds": round(layer.seconds, 3)} for layer in self.layers
            ],
        }
