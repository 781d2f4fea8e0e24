"""What a compressed-tensors config says of each module (vllm-project/compressed-tensors,
quantization/quant_config.py).

    config_groups: {"group_0": {targets: ["Linear"], weights: {num_bits: 4, type: "int",
                    strategy: "group", group_size: 128, symmetric: true, ...}, ...}}

A target is a module's name, "re:" and a pattern, or the name of its class.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.errors import CheckpointError, UnsupportedModelError
from engine.quantization.formats.settings import CHECK_SETTINGS, Settings

LAYOUTS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
STRATEGIES = ("tensor", "channel", "group", "block")
_OTHER = "Choose another checkpoint of the model (AWQ, GPTQ, W4A16, W8A16, FP8), or its original."


@dataclass(frozen=True)
class Scheme:
    """How the weights of one config group are stored. `kind`: "int" or "float"; `block`: rows and
    columns with one scale, for the strategy "block" alone."""

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
        source = f"config group {name} of {settings.source}"
        if not isinstance(group, dict):
            raise CheckpointError(f"{source} does not say what it is.", CHECK_SETTINGS)
        own = Settings(group, source)
        if group.get("weights") is None:
            continue  # activations alone, which are not quantized here
        _check_layout(own.text("format", default=layout), source)
        found.append(_scheme(own.names("targets"), Settings(own.table("weights"), source)))
    if not found:
        raise CheckpointError(f"{settings.source} quantizes no weights.", CHECK_SETTINGS)
    return tuple(found)


def is_cache_alone(settings: Settings) -> bool:
    """Whether scales for the KV cache are all that was calibrated, and the weights are plain."""
    if settings.method != "compressed-tensors" or not settings.table("kv_cache_scheme"):
        return False
    groups = settings.table("config_groups").values()
    return not any(isinstance(group, dict) and group.get("weights") for group in groups)


def scheme_of(module: str, schemes: tuple[Scheme, ...]) -> Scheme | None:
    """The scheme of a module: by its name, else by a pattern, else by the class of a linear."""
    for fits in (_named, _matched, _classed):
        for scheme in schemes:
            if any(fits(module, target) for target in scheme.targets):
                return scheme
    # what lies quantized on disk is quantized, and with one group there is one way to read it
    return schemes[0] if len(schemes) == 1 else None


def _named(module: str, target: str) -> bool:
    return module == target


def _matched(module: str, target: str) -> bool:
    return target.startswith("re:") and re.match(target.removeprefix("re:"), module) is not None


def _classed(module: str, target: str) -> bool:
    """Classes are not known from the disk; what a checkpoint quantizes is linear, or embeds."""
    return target == ("Embedding" if "embed" in module.rsplit(".", 1)[-1] else "Linear")


def _check_layout(layout: str, source: str) -> None:
    if layout not in LAYOUTS:
        raise UnsupportedModelError(
            f"{source} is in the {layout!r} format; this program reads {', '.join(LAYOUTS)}.",
            _OTHER,
        )


def _scheme(targets: list[str], weights: Settings) -> Scheme:
    bits, kind = weights.integer("num_bits", default=8), weights.text("type", default="int")
    if (kind, bits) not in (("int", 4), ("int", 8), ("float", 8)):
        raise UnsupportedModelError(
            f"{weights.source} has weights of {bits} bits ({kind}); this program reads 4 and 8 "
            "bits (int) and 8 (float).",
            _OTHER,
        )
    group_size = weights.integer("group_size", default=-1)
    strategy = weights.text("strategy", default="tensor" if group_size == -1 else "group")
    if strategy not in STRATEGIES or (kind == "int" and strategy == "block"):
        raise UnsupportedModelError(
            f"{weights.source} has scales by {strategy!r} for {kind} weights, which this program "
            "does not read.",
            _OTHER,
        )
    if strategy == "group" and group_size <= 0:
        raise CheckpointError(f"{weights.source} has a group size of {group_size}.", CHECK_SETTINGS)
    symmetric = weights.flag("symmetric", default=True)
    if kind == "float" and not symmetric:
        raise UnsupportedModelError(
            f"{weights.source} has float weights with zero points, which nothing here reads.",
            _OTHER,
        )
    block = block_of(weights, "block_structure") if strategy == "block" else (0, 0)
    own_size = group_size if strategy == "group" else -1
    return Scheme(tuple(targets), bits, kind, strategy, symmetric, own_size, block)


def block_of(settings: Settings, key: str) -> tuple[int, int]:
    """[rows, columns] of the blocks that share a scale, or as older ones say it, "128x128"."""
    value = settings.values.get(key)
    if isinstance(value, str) and re.fullmatch(r"[0-9]+x[0-9]+", value):
        value = [int(number) for number in value.split("x")]
    if isinstance(value, list) and [type(n) for n in value] == [int, int] and min(value) > 0:
        return value[0], value[1]
    raise CheckpointError(
        f"{settings.source} has {key} = {value}, which should be [rows, columns].", CHECK_SETTINGS
    )


def _refuse_extras(settings: Settings) -> None:
    sparsity = settings.table("sparsity_config").get("format", "dense")
    if sparsity != "dense":
        raise UnsupportedModelError(
            f"{settings.source} leaves out zeros ({sparsity}), which this program does not read.",
            _OTHER,
        )
    if settings.table("transform_config").get("config_groups"):
        raise UnsupportedModelError(
            f"{settings.source} has a transform_config: activations are rotated before they meet "
            "the weights, which this program does not do.",
            _OTHER,
        )
