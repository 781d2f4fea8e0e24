r"""Fills linear layers that are stored quantized, one layer after the other.

    on disk                       one after the other         together       what stays
    q_proj.weight   [Q, H] bf16   plain -> codes  \
    k_proj.weight   [K, H] bf16   plain -> codes   >  codes [Q + K + V, H]  ->  packed
    v_proj.weight   [V, H] bf16   plain -> codes  /
                                  (or read as codes)

Peak memory is the result plus less than one plain decoder layer.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from engine.errors import CheckpointError
from engine.hardware.device_map import DeviceMap
from engine.hardware.devices import make_current
from engine.kernels.cpu.check import library
from engine.kernels.cpu.integer import IntegerWeights
from engine.kernels.embedding import Int8Rows, PackedEmbedding, is_plain_embedding
from engine.kernels.linear import Linear
from engine.kernels.per_channel import Int8PerChannel
from engine.kernels.quantized import make_expert_weights, make_weights
from engine.kernels.tiled import GroupedWeights
from engine.kernels.triton.support import is_usable
from engine.models.layers.experts import QuantizedExperts
from engine.models.layers.replacement import ModuleSwap
from engine.models.prepare import Prepared
from engine.numerics.codes import Codes, IntCodes, stack
from engine.numerics.rounding import round_int8
from engine.numerics.scheme import Scheme

if TYPE_CHECKING:
    from engine.models.loader import WeightSource


@dataclass(frozen=True)
class Target:
    """A layer to fill: a Linear (with several names, if packed), or one weight of a mixture's
    experts."""

    module: Linear | QuantizedExperts
    names: tuple[str, ...]

    def fill(self, source: WeightSource, dtype: torch.dtype, device: torch.device) -> None:
        """Read, round where a part is plain (on the device, as what is rounded goes there), and
        pack."""
        if isinstance(self.module, Linear):
            found = itertools.chain.from_iterable(source.values(name, None) for name in self.names)
            parts = _rounded(found, source.scheme, device)
            rows = sum(part.shape[0] for part in parts)
            if rows != self.module.out_features:
                raise CheckpointError(
                    f"{', '.join(self.names)} have {rows} rows; expected "
                    f"{self.module.out_features}.",
                    "Check that config.json matches these weights.",
                )
            self.module.pack(make_weights(parts, dtype, device))
            return
        (name,) = self.names
        each = (
            _rounded(source.values(name, expert), source.scheme, device)
            for expert in range(self.module.num_experts)
        )
        weights = [make_expert_weights(parts, dtype, device) for parts in each]
        self.module.pack(name.rpartition(".")[2], weights)


def targets(prepared: Prepared, quantized: Container[str]) -> list[Target]:
    """The layers that store any of the weights `quantized`, with the names of all that they
    store."""
    experts = {
        id(swap.original): swap.replacement
        for swap in prepared.swaps
        if isinstance(swap, ModuleSwap) and isinstance(swap.replacement, QuantizedExperts)
    }
    linears: dict[int, list[tuple[int, str]]] = defaultdict(list)
    modules: dict[int, Linear] = {}
    found: list[Target] = []
    for name, slot in prepared.slots.items():
        if isinstance(slot.module, Linear) and slot.attribute == "weight":
            start = slot.rows.start if slot.rows else 0
            linears[id(slot.module)].append((start, name))
            modules[id(slot.module)] = slot.module
        elif name in quantized and id(slot.module) in experts:
            found.append(Target(experts[id(slot.module)], (name,)))
    for key, starts in linears.items():
        names = tuple(name for _, name in sorted(starts))
        if any(name in quantized for name in names):
            found.append(Target(modules[key], names))
    return found


def outcome(model: nn.Module) -> str:
    """Formats of the quantized layers, and how many layers have each."""
    counts: dict[str, int] = defaultdict(int)
    for module in model.modules():
        if isinstance(module, Linear) and module.packed is not None and module.is_quantized:
            counts[module.packed.title] += 1
        elif isinstance(module, QuantizedExperts):
            counts[f"experts {module.title}"] += 1
    return "; ".join(f"{title} ({count})" for title, count in counts.items())


def _rounded(
    parts: Iterable[Codes | Tensor], scheme: Scheme, device: torch.device
) -> list[Codes | Tensor]:
    """Quantizes unquantized parts if the scheme says so, each before the next is read."""
    if scheme.method == "none":
        return list(parts)

    def rounded(part: Codes | Tensor) -> Codes | Tensor:
        return scheme.rounded(part.to(device)) if isinstance(part, Tensor) else part

    return list(map(rounded, parts))  # a loop's variable would keep a part while the next is read


@dataclass(frozen=True)
class Head:
    """Output head and input embeddings, and the names of their weights."""

    head: Linear
    head_name: str
    embedding: nn.Module
    embedding_name: str

    def quantize(
        self, model: nn.Module, source: WeightSource, dtype: torch.dtype, device_map: DeviceMap
    ) -> None:
        """Store both in int8; as one where they are tied and on one device."""
        device = torch.device(device_map.of(self.head_name))
        make_current(str(device))
        lookup_device = torch.device(device_map.of(self.embedding_name))
        names = self.head_name, self.embedding_name
        is_tied = not source.tied.keys().isdisjoint(names)
        if is_tied:  # one of the two names has the values
            (name,) = set(names) - set(source.tied)
            names = name, name
        weights = _head_weights(self.head, source.rows(names[0]), dtype, device)
        self.head.pack(weights)
        is_shared = is_tied and lookup_device == device
        if not is_shared:
            plain = (chunk.to(lookup_device) for chunk in source.rows(names[1]))
            weights = GroupedWeights(_int8_rows(plain), dtype)
        embedding = PackedEmbedding(self.embedding, weights, lookup_device, is_tied=is_shared)
        model.set_input_embeddings(embedding)  # type: ignore[operator]


def find_head(model: nn.Module, device_map: DeviceMap) -> Head | str:
    """Head and embeddings of a model; or why they are not quantized."""
    device = torch.device(device_map.device)
    if device.type != "cpu" and not is_usable(device):
        return "int8 matmul on a GPU needs Triton"
    head = model.get_output_embeddings()  # type: ignore[operator]
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    paths = {id(module): path for path, module in model.named_modules()}
    if not isinstance(head, Linear) or not is_plain_embedding(embedding):
        return f"unsupported type of LM head or embedding ({type(embedding).__name__})"
    return Head(head, f"{paths[id(head)]}.weight", embedding, f"{paths[id(embedding)]}.weight")


def _head_weights(
    head: Linear, chunks: Iterator[Tensor], dtype: torch.dtype, device: torch.device
) -> Int8Rows:
    if is_usable(device):
        return Int8PerChannel(_int8_rows(chunk.to(device) for chunk in chunks), dtype, device)
    native, shape = library(), (head.out_features, head.in_features)
    if native is not None and shape[1] % 4 == 0:
        return IntegerWeights(shape, map(round_int8, chunks), dtype, native)
    return GroupedWeights(_int8_rows(chunks), dtype)


def _int8_rows(chunks: Iterable[Tensor]) -> IntCodes:
    """int8 per output, of plain rows that are rounded chunk by chunk."""
    codes = stack([round_int8(plain) for plain in chunks])
    assert isinstance(codes, IntCodes)
    return codes
