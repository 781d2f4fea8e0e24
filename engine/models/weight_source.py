"""What to load, and where the values come from: a checkpoint, or random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from engine.errors import LoadCancelled
from engine.hardware.device_map import DeviceMap
from engine.kernels.embedding import CHUNK_ROWS
from engine.models.architecture import build_on_meta
from engine.models.checkpoint import Checkpoint
from engine.models.dummy import POOL, DummyFiller
from engine.models.materialise import Slots
from engine.models.targets import Target
from engine.numerics.codes import Codes
from engine.numerics.scheme import Scheme, scheme_like, weights_to_hold

if TYPE_CHECKING:
    from engine.parallel.share import Share

Progress = Callable[[str, int, int], None]
Cancelled = Callable[[], bool]


@dataclass(frozen=True)
class LoadRequest:
    """The arguments of `load_model`. share: of a tensor parallel rank."""

    checkpoint: Checkpoint
    dtype: torch.dtype
    device_map: DeviceMap
    seed: int
    max_model_len: int
    scheme: Scheme
    progress: Progress
    cancelled: Cancelled
    share: Share | None = None

    @property
    def config(self) -> Any:
        """Of the model that is built: the checkpoint's, or that of a rank's shard."""
        return self.checkpoint.config if self.share is None else self.share.config

    @property
    def is_quantized(self) -> bool:
        return self.checkpoint.quantization is not None or not self.scheme.is_plain


class WeightSource(Protocol):
    """A checkpoint on disk, or random numbers.

    scheme: how plain values of `quantized` are rounded. quantized: weights that are stored
    quantized, and their shapes: [out, in], or [experts, out, in]. tied: name -> the name whose
    tensor it shares, complete once the source is open.
    """

    scheme: Scheme
    notices: list[str]

    @property
    def quantized(self) -> Mapping[str, tuple[int, ...]]: ...

    @property
    def tied(self) -> Mapping[str, str]: ...

    def open(self, targets: Sequence[Target]) -> AbstractContextManager[object]:
        """Ready to read, for as long as the context lasts."""

    def fill(self, slots: Slots) -> None:
        """Write every weight that has a slot, but for tied names."""

    def in_order(self, targets: Sequence[Target]) -> Iterable[Target]:
        """As they lie on disk: one pass over each file."""

    def values(self, name: str, expert: int | None) -> Iterable[Codes | Tensor]:
        """The parts of a weight (of one expert), row after row: codes as the checkpoint has them,
        or plain tensors [n, in]."""

    def rows(self, name: str) -> Iterator[Tensor]:
        """Plain rows of a weight, CHUNK_ROWS at a time."""


class DummyWeights:
    """Random values at the shape of a checkpoint; quantized where the checkpoint is."""

    def __init__(self, request: LoadRequest) -> None:
        self._request = request
        stored = request.checkpoint.quantization
        self.scheme = request.scheme if stored is None else scheme_like(stored)
        self._reference = build_on_meta(request.config)
        has_quantized = stored is not None or self.scheme.method != "none"
        self.quantized = weights_to_hold(self._reference) if has_quantized else {}
        self.tied: dict[str, str] = dict(getattr(self._reference, "all_tied_weights_keys", {}))
        self.notices: list[str] = []
        # as the model's makers initialise theirs
        self._std = float(getattr(request.checkpoint.config, "initializer_range", None) or 0.02)

    @cached_property
    def _filler(self) -> DummyFiller:
        return self._new_filler(POOL)

    def _new_filler(self, num_elements: int) -> DummyFiller:
        return DummyFiller(self._request.seed, self._std, self._request.dtype, num_elements)

    def open(self, targets: Sequence[Target]) -> nullcontext[None]:
        return nullcontext()

    def fill(self, slots: Slots) -> None:
        views = {name: slot.view() for name, slot in slots.items() if name not in self.tied}
        total = sum(view.nbytes for view in views.values())
        filler = self._new_filler(sum(v.numel() for v in views.values()))
        done = 0
        for name, view in views.items():
            if self._request.cancelled():
                raise LoadCancelled("Loading was cancelled.")
            filler.fill(name, view, self._request.share)
            done += view.nbytes
            self._request.progress("Filling with random weights", done, total)

    def in_order(self, targets: Sequence[Target]) -> Iterator[Target]:
        for done, target in enumerate(targets):
            self._request.progress("Filling with random weights", done, len(targets))
            yield target

    def values(self, name: str, expert: int | None) -> list[Tensor]:
        return [self._random(name, self.quantized[name][-2:], expert or 0)]

    def rows(self, name: str) -> Iterator[Tensor]:
        count, width = self._reference.get_parameter(name).shape
        for start in range(0, count, CHUNK_ROWS):
            yield self._random(name, (min(CHUNK_ROWS, count - start), width), start)

    def _random(self, name: str, shape: tuple[int, ...], piece: int) -> Tensor:
        request = self._request
        tensor = torch.empty(shape, dtype=request.dtype, device=request.device_map.of(name))
        self._filler.fill(name, tensor, request.share, piece)
        return tensor
