"""Quantization scheme: which weights of a model are quantized, and how.

All linear layers are, but for the output head and the embeddings (a separate setting) and the
routers of mixtures of experts, which are small and sensitive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from engine.errors import ConfigError
from engine.numerics.codes import Codes, grouped_title, stack
from engine.numerics.experts import is_experts
from engine.numerics.rounding import round_asymmetric, round_fp8, round_int8, round_nf4

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.formats import CheckpointFormat

METHODS = ("int8", "int4", "nf4", "fp8")
"""What a model can be rounded to while it is loaded, without calibration."""

_ROUTERS = ("gate", "router", "shared_expert_gate")
_EXPERTS = ("gate_up_proj", "up_proj", "down_proj")
_LEAST_GROUP = 32
_TILE, _TILE_ROWS = 2**16, 64  # elements that are rounded at a time; rows come in such multiples


class Scheme(NamedTuple):
    """How weights are quantized. `method`: "none" or one of METHODS; `group_size`: for int4.
    `head`: "none" or "int8", for output head and embeddings."""

    method: str = "none"
    group_size: int = 128
    head: str = "none"

    @property
    def title(self) -> str:
        """Format of linear weights: "int4, groups of 128"; "" for plain ones."""
        if self.method == "int4":
            return grouped_title(4, self.group_size)
        return "" if self.method == "none" else self.method

    @property
    def is_plain(self) -> bool:
        return self.method == "none" and self.head == "none"

    def rounded(self, weight: Tensor) -> Codes:
        """The nearest codes of weight [N, K], rounded tile by tile to limit peak memory."""
        rows = _TILE_ROWS * max(1, _TILE // (_TILE_ROWS * weight.shape[1]))
        codes = stack([self._rounded(tile) for tile in weight.split(rows)])
        assert codes is not None  # blocks of NF4 end where a tile does
        return codes

    def _rounded(self, weight: Tensor) -> Codes:
        if self.method == "int4":
            size = fitting_group(weight.shape[1], self.group_size)
            return round_asymmetric(weight, bits=4, group_size=size)
        if self.method == "nf4":
            return round_nf4(weight)
        return round_int8(weight) if self.method == "int8" else round_fp8(weight)

    def bytes_of(self, outputs: int, inputs: int, dtype: torch.dtype) -> int:
        """Memory of one weight [outputs, inputs] for activations in `dtype`."""
        count = outputs * inputs
        if self.method == "none":
            return count * dtype.itemsize
        if self.method == "int4":
            groups = outputs * -(-inputs // fitting_group(inputs, self.group_size))
            return count // 2 + groups * 3  # scale (2) and zero (1)
        if self.method == "nf4":
            return count // 2 + count // 64 * 4
        return count + 4 * outputs


PLAIN = Scheme()
"""As the checkpoint stores it."""


def scheme_like(stored: CheckpointFormat) -> Scheme:
    """The rounding whose weights take as much memory and time as those of a checkpoint."""
    if stored.method == "bitsandbytes" and stored.bits == 4:
        return Scheme("nf4")
    if stored.bits == 4:
        return Scheme("int4", stored.group_size if stored.group_size > 0 else 128)
    return Scheme("fp8" if "fp8" in stored.title.lower() else "int8")


def scheme_of(config: EngineConfig, stored: CheckpointFormat | None, name: str) -> Scheme:
    """What the settings ask for, of a checkpoint called `name`.

    Raises ConfigError where the checkpoint does not allow it.
    """
    method, head = config.quantization, config.quantization_head
    if stored is not None:
        if method in ("auto", stored.method):
            return Scheme(head=head)
        way = (
            "has no 16-bit weights"
            if method == "none"
            else f"would lose more quality if requantized to {method}"
        )
        raise ConfigError(
            f"{name} is quantized ({stored.title}) and {way}.",
            'Set quantization to "auto", or open the original model.',
        )
    if method in ("auto", "none"):
        return Scheme(head=head)
    if method in METHODS:
        return Scheme(method, config.quantization_group_size, head)
    raise ConfigError(
        f"{name} is not quantized, and {method} requires calibration.",
        f"Run `inferdeck quantize --method {method}`, or choose one of "
        f"{', '.join(METHODS)}.",
    )


def fitting_group(inputs: int, wanted: int) -> int:
    """The largest group size up to `wanted` that divides `inputs`; `wanted` itself if none does."""
    size = wanted
    while size >= _LEAST_GROUP:
        if inputs % size == 0:
            return size
        size //= 2
    return min(wanted, inputs)


def weights_to_hold(reference: nn.Module) -> dict[str, tuple[int, ...]]:
    """Names of the linear weights of an unmodified class and their shapes: [out, in], or [experts,
    out, in] where experts are one tensor."""
    from engine.lazy_transformers import Conv1D

    head = reference.get_output_embeddings()  # type: ignore[operator]
    found: dict[str, tuple[int, ...]] = {}
    for path, module in reference.named_modules():
        if module is head or path.rpartition(".")[2] in _ROUTERS:
            continue
        if isinstance(module, nn.Linear):
            found[f"{path}.weight"] = (module.out_features, module.in_features)
        elif isinstance(module, Conv1D):
            found[f"{path}.weight"] = (module.nf, module.nx)
        elif is_experts(module):
            for name in _EXPERTS:
                weight = getattr(module, name, None)
                if weight is not None:
                    count, outputs, inputs = weight.shape
                    if module.is_transposed:
                        outputs, inputs = inputs, outputs
                    found[f"{path}.{name}"] = (count, outputs, inputs)
    return found
