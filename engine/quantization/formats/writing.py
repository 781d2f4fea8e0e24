"""What every writer of a quantized format has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.quantization.codes import Codes


class Made(NamedTuple):
    """What `quantization_config` says of the weights; `left_out`: modules that stay plain."""

    bits: int
    group_size: int
    symmetric: bool
    left_out: Sequence[str]
    desc_act: bool


class Writer(ABC):
    """Codes as the tensors of one format, so that reading them gives the same codes exactly.

    layout: which of the format's `layouts`, where it has several; "" is the usual one.
    """

    method: ClassVar[str]
    layouts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, layout: str = "") -> None:
        if layout and layout not in self.layouts:
            raise ConfigError(
                f"{self.method} has no layout {layout!r}.",
                f"Choose one of {', '.join(self.layouts)}." if self.layouts else "It has one only.",
            )
        self.layout = layout

    @abstractmethod
    def refusal(self, codes: Codes) -> str:
        """Why the format cannot hold `codes` without changing them, with numbers; "" if it can."""

    def accepts(self, codes: Codes) -> bool:
        return not self.refusal(codes)

    def tensors(self, name: str, codes: Codes) -> dict[str, Tensor]:
        """File names -> tensors of the matrix whose dense name is `name` ("....weight").

        Raises ConfigError where the format cannot hold it.
        """
        reason = self.refusal(codes)
        if reason:
            rows, columns = codes.shape
            raise ConfigError(
                f"{name} ({rows} x {columns}) cannot be stored as {self.method}: {reason}.",
                "Leave this module at 16 bits, or choose another group size or format.",
            )
        module = name.removesuffix(".weight")
        return {f"{module}.{end}": t.contiguous() for end, t in self._members(codes).items()}

    def quantization_config(
        self,
        *,
        bits: int,
        group_size: int,
        symmetric: bool,
        modules_to_not_convert: Sequence[str] = (),
        desc_act: bool = False,
    ) -> dict[str, Any]:
        """`quantization_config` of config.json. group_size -1: a scale per output.
        modules_to_not_convert: every linear module that stays plain, by its dense name."""
        return self._config(Made(bits, group_size, symmetric, modules_to_not_convert, desc_act))

    @abstractmethod
    def _config(self, made: Made) -> dict[str, Any]: ...

    @abstractmethod
    def _members(self, codes: Codes) -> dict[str, Tensor]: ...


def half_refusal(scales: Tensor) -> str:
    """Why these scales are not exactly what float16 would hold; "" if they are."""
    if scales.dtype == torch.float16:
        return ""
    changed = int((scales.to(torch.float16).float() != scales.float()).sum())
    if not changed:
        return ""
    return (
        f"it keeps scales in float16, which would change {changed} of {scales.numel()} "
        f"(largest {float(scales.abs().max()):.3g}); round the scales before the codes are chosen"
    )
