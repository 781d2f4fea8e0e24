"""What is to be loaded, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from engine.hardware.device_map import DeviceMap
from engine.models.checkpoint import Checkpoint
from engine.models.layers.offload import Crossing

if TYPE_CHECKING:
    from engine.parallel.share import Share

Progress = Callable[[str, int, int], None]
Cancelled = Callable[[], bool]


@dataclass(frozen=True)
class LoadRequest:
    """The arguments of `load_model`. share: of the rank that loads, where there are several."""

    checkpoint: Checkpoint
    dtype: torch.dtype
    device_map: DeviceMap
    load_format: str
    seed: int
    max_model_len: int
    progress: Progress
    cancelled: Cancelled
    share: Share | None = None

    @property
    def config(self) -> Any:
        """Of the model that is built: the checkpoint's, or that of a part of it."""
        return self.checkpoint.config if self.share is None else self.share.config

    @property
    def std(self) -> float:
        """Spread of dummy weights, as the model's makers initialise theirs."""
        return float(getattr(self.checkpoint.config, "initializer_range", None) or 0.02)


class Built(NamedTuple):
    """A model with its weights; `kernels`: what computes what, in words. `crossing`: of one that is
    divided."""

    model: nn.Module
    notices: list[str]
    kernels: dict[str, str]
    crossing: Crossing | None = None
