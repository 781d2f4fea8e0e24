"""The quantization settings of a checkpoint, from any of the files that may contain them.

config.json             quantization_config (older compressed-tensors: compression_config),
                        at the top or under text_config
quant_config.json       older AWQ: w_bit, q_group_size, version
quantize_config.json    older GPTQ: bits, group_size, desc_act, sym
hf_quant_config.json    ModelOpt: quantization (which config.json may nest as well): quant_algo
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from engine.errors import CheckpointError, UnsupportedModelError
from engine.json_file import read_json, shown

if TYPE_CHECKING:
    from engine.models.checkpoint import Checkpoint

CHECK_SETTINGS = "Download the model again, or fix the settings if you created the model folder."
_SIDE_FILES = (
    ("quant_config.json", "awq", "w_bit"), ("quantize_config.json", "gptq", "bits"),
    ("hf_quant_config.json", "modelopt", "quant_algo"),
)  # fmt: skip
_REQUIRED = object()
MAX_NUMBER = 2**24
"""More than any size of a group or block."""
_MAX_TEXT = 100
"""Characters; texts here are names of methods and layouts."""
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """The settings and the file that they are from. Each reader accepts all names that a key has
    had, and raises CheckpointError where a value is missing or of the wrong type."""

    values: Mapping[str, Any]
    source: str

    @property
    def method(self) -> str:
        # transformers before 4.34 wrote bitsandbytes' settings without a name
        by_bits = any(self.values.get(key) for key in ("load_in_4bit", "load_in_8bit"))
        named = self.text("quant_method", default="bitsandbytes") if by_bits else ""
        return (named or self.text("quant_method", "method")).lower()

    def integer(self, *names: str, default: Any = _REQUIRED) -> int:
        value = self._typed(names, default, int, "an integer")
        if abs(value) > MAX_NUMBER:
            raise self._wrong(names[0], value, f"an integer up to {MAX_NUMBER:,}")
        return value

    def text(self, *names: str, default: Any = _REQUIRED) -> str:
        value = self._typed(names, default, str, "a string")
        if len(value) > _MAX_TEXT:
            raise self._wrong(names[0], value, f"up to {_MAX_TEXT} characters")
        return value

    def flag(self, *names: str, default: Any = _REQUIRED) -> bool:
        return self._typed(names, default, bool, "true or false")

    def names(self, *keys: str) -> list[str]:
        """A list of strings; empty if the key is absent."""
        value = self._find(keys, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self._wrong(keys[0], value, "a list of strings")
        return value

    def table(self, *keys: str) -> dict[str, Any]:
        """An object; empty if the key is absent."""
        return self._typed(keys, {}, dict, "an object")

    def _typed(self, names: tuple[str, ...], default: Any, kind: type[T], wanted: str) -> T:
        value = self._find(names, default)
        if type(value) is not kind:  # a bool is no number
            raise self._wrong(names[0], value, wanted)
        return value

    def _find(self, names: tuple[str, ...], default: Any) -> Any:
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        if default is _REQUIRED:
            raise CheckpointError(f"{self.source} does not specify {names[0]}.", CHECK_SETTINGS)
        return default

    def _wrong(self, name: str, value: Any, wanted: str) -> CheckpointError:
        return CheckpointError(
            f"{self.source} has {name} = {shown(value)}; expected {wanted}.",
            CHECK_SETTINGS,
        )


def find_settings(checkpoint: Checkpoint) -> Settings | None:
    """The settings of a quantized checkpoint; None if it is not quantized."""
    raw = checkpoint.raw_config
    for part in (raw, raw.get("text_config") or {}):
        for key in ("quantization_config", "compression_config"):
            found = part.get(key) if isinstance(part, Mapping) else None
            if found is not None:
                values = _flat(_as_object(found, key, checkpoint.path))
                return Settings(values, f"{key} in config.json")
    for name, method, telling in _SIDE_FILES:
        values = _flat(_read(checkpoint.path / name))
        if telling in values:
            return Settings({"quant_method": method, **values}, name)
    return None


def _flat(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """ModelOpt puts its settings into an object of their own, beside the name of the program."""
    own = values.get("quantization")
    return {**values, **own} if isinstance(own, Mapping) else values


def _as_object(found: Any, key: str, folder: Path) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise CheckpointError(
            f"{key} in {folder / 'config.json'} is not a JSON object.", CHECK_SETTINGS
        )
    return found


def _read(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    values: Any = read_json(file, dict[str, Any] | list[Any])  # type: ignore[arg-type]
    return values if isinstance(values, dict) else {}


LAYOUTS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
STRATEGIES = ("tensor", "channel", "group", "block")
_OTHER = "Choose another checkpoint (AWQ, GPTQ, W4A16, W8A16, FP8), or the original 16-bit model."


@dataclass(frozen=True)
class Scheme:
    """Storage of the weights of one config group. `kind`: "int" or "float". `block`: rows and
    columns per scale, for the strategy "block" only."""

    targets: tuple[str, ...]
    bits: int
    kind: str
    strategy: str
    symmetric: bool
    group_size: int
    block: tuple[int, int]


def read_schemes(settings: Settings) -> tuple[Scheme, ...]:
    """Every group that quantizes weights. Raises UnsupportedModelError, CheckpointError."""
    _refuse_extras(settings)
    layout = settings.text("format")
    found = []
    for name, group in settings.table("config_groups").items():
        source = f"config group {name[:_MAX_TEXT]} ({settings.source})"
        if not isinstance(group, dict):
            raise CheckpointError(f"{source} is not a JSON object.", CHECK_SETTINGS)
        own = Settings(group, source)
        if group.get("weights") is None:
            continue  # activations alone, which are not quantized here
        _check_layout(own.text("format", default=layout), source)
        found.append(_scheme(own.names("targets"), Settings(own.table("weights"), source)))
    if not found:
        raise CheckpointError(f"{settings.source} has no weights in config_groups.", CHECK_SETTINGS)
    return tuple(found)


def is_cache_alone(settings: Settings) -> bool:
    """Whether only the KV cache has scales, and the weights are not quantized."""
    if settings.method != "compressed-tensors" or not settings.table("kv_cache_scheme"):
        return False
    groups = settings.table("config_groups").values()
    return not any(isinstance(group, dict) and group.get("weights") for group in groups)


def patterns_of(schemes: tuple[Scheme, ...]) -> dict[str, Scheme]:
    """The regular expressions among the targets, and the schemes that they choose."""
    found: dict[str, Scheme] = {}
    for scheme in schemes:
        for target in scheme.targets:
            if target.startswith("re:"):
                found.setdefault(target.removeprefix("re:"), scheme)
    return found


def scheme_of(
    module: str, schemes: tuple[Scheme, ...], by_pattern: Scheme | None
) -> Scheme | None:
    """The scheme of a module: by its name, else by a pattern, else by the class of a linear."""
    # classes are not known from the disk; what a checkpoint quantizes is linear, or embeds
    kind = "Embedding" if "embed" in module.rsplit(".", 1)[-1] else "Linear"
    by_name, by_kind = (
        next((scheme for scheme in schemes if target in scheme.targets), None)
        for target in (module, kind)
    )
    if found := by_name or by_pattern or by_kind:
        return found
    # quantized on disk, and with only one group there is only one way to read it
    return schemes[0] if len(schemes) == 1 else None


def _check_layout(layout: str, source: str) -> None:
    if layout not in LAYOUTS:
        raise UnsupportedModelError(
            f"{source} uses format {layout!r}; supported: {', '.join(LAYOUTS)}.",
            _OTHER,
        )


def _scheme(targets: list[str], weights: Settings) -> Scheme:
    bits, kind = weights.integer("num_bits", default=8), weights.text("type", default="int")
    if (kind, bits) not in (("int", 4), ("int", 8), ("float", 8)):
        raise UnsupportedModelError(
            f"{weights.source} specifies {bits}-bit {kind} weights; Inferdeck supports int4, "
            "int8 and fp8.",
            _OTHER,
        )
    group_size = weights.integer("group_size", default=-1)
    strategy = weights.text("strategy", default="tensor" if group_size == -1 else "group")
    if strategy not in STRATEGIES or (kind == "int" and strategy == "block"):
        raise UnsupportedModelError(
            f"{weights.source} specifies strategy {strategy!r} for {kind} weights, which is "
            "not supported.",
            _OTHER,
        )
    if strategy == "group" and group_size <= 0:
        raise CheckpointError(f"{weights.source} has group_size {group_size}.", CHECK_SETTINGS)
    symmetric = weights.flag("symmetric", default=True)
    if kind == "float" and not symmetric:
        raise UnsupportedModelError(
            f"{weights.source} specifies asymmetric float weights, which are not supported.",
            _OTHER,
        )
    block = block_of(weights, "block_structure") if strategy == "block" else (0, 0)
    own_size = group_size if strategy == "group" else -1
    return Scheme(tuple(targets), bits, kind, strategy, symmetric, own_size, block)


def block_of(settings: Settings, key: str) -> tuple[int, int]:
    """[rows, columns] of the blocks that share a scale, or as older ones say it, "128x128"."""
    value: Any = settings.values.get(key)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}x[0-9]{1,9}", value):
        value = [int(number) for number in value.split("x")]
    is_pair = isinstance(value, list) and [type(n) for n in value] == [int, int]
    if is_pair and min(value) > 0 and max(value) <= MAX_NUMBER:
        return value[0], value[1]
    raise CheckpointError(
        f"{settings.source} has {key} = {shown(value)}; expected [rows, columns].", CHECK_SETTINGS
    )


def _refuse_extras(settings: Settings) -> None:
    sparse = Settings(settings.table("sparsity_config"), f"sparsity_config ({settings.source})")
    sparsity = sparse.text("format", default="dense")
    if sparsity != "dense":
        raise UnsupportedModelError(
            f"{settings.source} specifies sparse weights ({sparsity}), which are not supported.",
            _OTHER,
        )
    if settings.table("transform_config").get("config_groups"):
        raise UnsupportedModelError(
            f"{settings.source} specifies a transform_config: Inferdeck does not support rotated "
            "activations.",
            _OTHER,
        )
