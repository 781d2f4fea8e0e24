r"""Fills linear layers whose weights are held in few bits, one layer after the other.

    on disk                       one after the other         together       what stays
    q_proj.weight   [Q, H] bf16   plain -> codes  \
    k_proj.weight   [K, H] bf16   plain -> codes   >  codes [Q + K + V, H]  ->  packed
    v_proj.weight   [V, H] bf16   plain -> codes  /
                                  (or read as codes)

So memory rises by less than the plain form of one decoder layer.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.errors import CheckpointError, LoadCancelled
from engine.formats.safetensors_file import TensorInfo
from engine.hardware.device_map import DeviceMap
from engine.hardware.devices import make_current
from engine.kernels import int8
from engine.kernels.cpu.library import library
from engine.kernels.cpu.weights import NativeWeights
from engine.kernels.held import hold, hold_expert
from engine.kernels.int8_rows import (
    CHUNK_ROWS,
    HeldEmbedding,
    Int8Head,
    Int8Table,
    RowsAndProduct,
    is_plain_embedding,
)
from engine.kernels.linear import Linear
from engine.kernels.registry import uses_triton
from engine.kernels.rows8 import Int8Rows
from engine.models.layers.experts import HeldExperts
from engine.models.materialise import Slots
from engine.models.prepare import Prepared
from engine.numerics.codes import Codes
from engine.numerics.scheme import Scheme

Values = Callable[[str, int | None], Iterable[Codes | Tensor]]
"""name (and expert) of a weight -> its parts, row after row: codes as the checkpoint has them, or
plain tensors [n, in]."""


@dataclass(frozen=True)
class Target:
    """A layer to fill: a Linear (of several names, where it is packed), or the weights of one name
    of a mixture's experts."""

    module: Linear | HeldExperts
    names: tuple[str, ...]


def targets(prepared: Prepared, to_hold: Mapping[str, tuple[int, ...]]) -> list[Target]:
    """The layers that hold any of the weights `to_hold`, with the names of all that they hold."""
    held_experts = {
        id(swap.original): swap.replacement  # type: ignore[attr-defined]
        for swap in prepared.swaps
        if isinstance(getattr(swap, "replacement", None), HeldExperts)
    }
    linears: dict[int, list[tuple[int, str]]] = defaultdict(list)
    modules: dict[int, Linear] = {}
    found: list[Target] = []
    for name, slot in prepared.slots.items():
        if isinstance(slot.module, Linear) and slot.attribute == "weight":
            start = slot.rows.start if slot.rows else 0
            linears[id(slot.module)].append((start, name))
            modules[id(slot.module)] = slot.module
        elif name in to_hold and id(slot.module) in held_experts:
            found.append(Target(held_experts[id(slot.module)], (name,)))
    for key, starts in linears.items():
        names = tuple(name for _, name in sorted(starts))
        if any(name in to_hold for name in names):
            found.append(Target(modules[key], names))
    return found


def plain_slots(prepared: Prepared, filled: Iterable[Target]) -> Slots:
    """The slots that get memory of their own: all but those that targets fill."""
    taken = {name for target in filled for name in target.names}
    return {name: slot for name, slot in prepared.slots.items() if name not in taken}


def fill(
    target: Target, values: Values, scheme: Scheme, dtype: torch.dtype, device: torch.device
) -> None:
    """Read, round where a part is plain (on the device, as what is rounded goes there), and
    pack."""
    module = target.module
    if isinstance(module, Linear):
        found = itertools.chain.from_iterable(values(name, None) for name in target.names)
        parts = _rounded(found, scheme, device)
        _check_shape(target, sum(part.shape[0] for part in parts), module.out_features)
        module.hold(hold(parts, dtype, device))
        return
    (name,) = target.names
    held = [
        hold_expert(_rounded(values(name, expert), scheme, device), dtype, device)
        for expert in range(module.num_experts)
    ]
    module.hold(name.rpartition(".")[2], held)


def fill_all(
    wanted: list[Target],
    values: Values,
    scheme: Scheme,
    dtype: torch.dtype,
    device_map: DeviceMap,
    cancelled: Callable[[], bool],
) -> None:
    """Raises LoadCancelled between two layers."""
    for target in wanted:
        if cancelled():
            raise LoadCancelled("Loading was cancelled.")
        name = device_map.of(target.names[0])
        make_current(name)  # kernels are measured there
        fill(target, values, scheme, dtype, torch.device(name))


def outcome(model: nn.Module) -> str:
    """Number formats of the layers that hold few bits, with how many there are of each."""
    counts: dict[str, int] = defaultdict(int)
    for module in model.modules():
        if isinstance(module, Linear) and module.held is not None and not module.is_blocked:
            counts[module.held.title] += 1
        elif isinstance(module, HeldExperts):
            counts[f"experts {module.title}"] += 1
    return "; ".join(f"{title} ({count})" for title, count in counts.items())


def _rounded(
    parts: Iterable[Codes | Tensor], scheme: Scheme, device: torch.device
) -> list[Codes | Tensor]:
    """Plain parts become codes where the scheme says so, each before the next is read."""
    if scheme.method == "none":
        return list(parts)

    def rounded(part: Codes | Tensor) -> Codes | Tensor:
        return scheme.rounded(part.to(device)) if isinstance(part, Tensor) else part

    return list(map(rounded, parts))  # a loop's variable would keep a part while the next is read


def _check_shape(target: Target, found: int, wanted: int) -> None:
    if found != wanted:
        raise CheckpointError(
            f"{', '.join(target.names)} have {found} rows and should have {wanted}.",
            "Check that config.json belongs to these weights.",
        )


_CPU = DeviceMap("cpu")

Chunks = Callable[[str], Iterator[Tensor]]
"""name -> plain rows of that weight, CHUNK_ROWS at a time."""


@dataclass(frozen=True)
class Head:
    """Names of both weights on disk, and the modules that get them."""

    head: Linear
    head_name: str
    embedding: nn.Module
    embedding_name: str

    def names(self, tied: Mapping[str, str]) -> set[str]:
        """The weights to read: one of the two where they are tied."""
        return {self.head_name, self.embedding_name} - set(tied)


def find_head(model: nn.Module, device_map: DeviceMap = _CPU) -> Head | str:
    """Head and embeddings of a model; or why they cannot be held in int8 where they are."""
    device = torch.device(device_map.last)
    if device.type == "cpu" and library() is None and not int8.is_supported():
        return "this CPU's integer products are not exact"
    if device.type != "cpu" and not uses_triton(device):
        return "without Triton there are no integer products on a GPU"
    head = model.get_output_embeddings()  # type: ignore[operator]
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    paths = {id(module): path for path, module in model.named_modules()}
    if not isinstance(head, Linear) or not is_plain_embedding(embedding):
        return f"{type(embedding).__name__} or its head is more than a lookup and a product"
    return Head(
        head, f"{paths[id(head)]}.weight", embedding, f"{paths[id(embedding)]}.weight"
    )


def hold_head(
    model: nn.Module,
    found: Head,
    tied: Mapping[str, str],
    chunks: Chunks,
    dtype: torch.dtype,
    device_map: DeviceMap = _CPU,
) -> None:
    """Both are one where they are tied, unless they are on two devices."""
    device = torch.device(device_map.of(found.head_name))
    make_current(str(device))
    lookup_device = torch.device(device_map.of(found.embedding_name))
    is_tied = bool({found.head_name, found.embedding_name} & set(tied))
    (head_name,) = found.names(tied) if is_tied else (found.head_name,)
    held = _held(found.head, chunks(head_name), dtype, device)
    found.head.hold(held)
    source: RowsAndProduct | Int8Table = held
    if not is_tied or lookup_device != device:
        rows = chunks(head_name if is_tied else found.embedding_name)
        source = Int8Table((plain.to(lookup_device) for plain in rows), dtype)
    embedding = HeldEmbedding(found.embedding, source, lookup_device)
    model.set_input_embeddings(embedding)  # type: ignore[operator]


def _held(
    head: Linear, chunks: Iterator[Tensor], dtype: torch.dtype, device: torch.device
) -> RowsAndProduct:
    if uses_triton(device):
        return Int8Rows.from_chunks(chunks, dtype, device)
    native, shape = library(), (head.out_features, head.in_features)
    if native is not None and shape[1] % 4 == 0:
        return NativeWeights.int8_rows(shape, chunks, dtype, native)
    return Int8Head(chunks, dtype)


def rows_of(info: TensorInfo) -> Iterator[TensorInfo]:
    """A matrix on disk as pieces of CHUNK_ROWS rows."""
    for start in range(0, info.shape[0], CHUNK_ROWS):
        yield info.rows(start, min(start + CHUNK_ROWS, info.shape[0]))
