"""Builds a model whose linear weights are held in few bits: stored so, or rounded while loading."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from engine.errors import UnsupportedModelError
from engine.formats import CheckpointFormat
from engine.formats.checkpoint_format import QuantizedTensor
from engine.formats.safetensors_file import TensorInfo
from engine.formats.tensor_reader import TensorReader, torch_dtype
from engine.hardware.device_map import DeviceMap
from engine.hardware.devices import CPU, make_current
from engine.kernels import int4
from engine.kernels.cpu.library import library, remedy
from engine.kernels.int8_rows import CHUNK_ROWS
from engine.models.architecture import build_on_meta
from engine.models.checkpoint import Checkpoint
from engine.models.dummy import DummyFiller, fill_dummy
from engine.models.layers.experts import EXPERTS
from engine.models.layers.offload import carry_between_gpus, crossing_of
from engine.models.layers.rotary import TABLE, table_swaps
from engine.models.load_request import Built, LoadRequest
from engine.models.materialise import (
    DtypePlan,
    Slots,
    allocate,
    compute_buffers,
    copy_tied,
    freeze_rotary,
)
from engine.models.prepare import Prepared, kinds_that_agree, prepare
from engine.models.quantized_weights import (
    Head,
    Target,
    fill_all,
    find_head,
    hold_head,
    plain_slots,
    rows_of,
    targets,
)
from engine.models.streaming import (
    bytes_to_read,
    check_spare_biases,
    convert,
    left_out_notices,
    stream,
    untie_different,
)
from engine.models.weight_map import Placement, WeightMap, map_weights
from engine.numerics.codes import Codes, in_turns
from engine.numerics.scheme import Scheme, scheme_like, weights_to_hold

if TYPE_CHECKING:
    from engine.parallel.share import Share

Shapes = Mapping[str, tuple[int, ...]]


def build_few_bits(
    request: LoadRequest, scheme: Scheme, stored: CheckpointFormat | None
) -> Built:
    """Raises as `load_model`."""
    reference = build_on_meta(request.config)
    on_cpu = CPU in request.device_map.devices
    if on_cpu:
        request.progress("Compiling", 0, 0)  # a few seconds, once on a machine
        library()
    request.progress("Checking", 0, 0)
    agreed, kernels = _agreed(request)
    shapes = weights_to_hold(reference)
    if scheme.method == "none" and stored is None:  # the head alone
        shapes = {}
    if request.load_format == "dummy":
        scheme = scheme_like(stored) if stored else scheme
        prepared, notices = _fill_dummy(request, scheme, reference, shapes, agreed)
    else:
        prepared, notices = _read(request, scheme, stored, shapes, agreed)
    if stored is None:
        notices += _slow_groups(scheme, request.device_map.devices)
    if on_cpu:
        notices += _without_compiler()
    model = prepared.model
    compute_buffers(model, request.device_map)
    notices += freeze_rotary(model, request.max_model_len)
    crossing = crossing_of(model, request.device_map)
    carry_between_gpus(model, request.device_map)
    if TABLE in agreed:
        for swap in list(table_swaps(model, request.max_model_len, request.dtype)):
            swap.apply()
    return Built(model, notices, kernels, crossing)


def _agreed(request: LoadRequest) -> tuple[frozenset[str], dict[str, str]]:
    """`kinds_that_agree`, of every device: those that one has, and none refuses."""
    config, dtype = request.config, request.dtype
    devices = request.device_map.devices
    found = []
    for name in devices:
        make_current(name)
        found.append(kinds_that_agree(config, request.max_model_len, dtype, name))
    refused = {k: text for stay, told in found for k, text in told.items() if k not in stay}
    outcomes = {kind: outcome for _, told in found for kind, outcome in told.items()} | refused
    return frozenset().union(*(stay for stay, _ in found)) - refused.keys(), outcomes


def _slow_groups(scheme: Scheme, devices: Sequence[str]) -> list[str]:
    size = scheme.group_size
    if scheme.method != "int4" or size in int4.GROUP_SIZES:
        return []
    on_cpu, on_gpu = library() and size % 2 == 0, size % min(int4.GROUP_SIZES) == 0
    if all(on_cpu if name == CPU else on_gpu for name in devices):
        return []
    *sizes, last = map(str, int4.GROUP_SIZES)
    return [
        f"Groups of {size} are made plain in each product, which is slow: the kernels "
        f"for 4 bits know groups of {', '.join(sizes)} and {last}."
    ]


def _without_compiler() -> list[str]:
    why = remedy()
    left = f"Products with few bits are left to PyTorch, which takes longer: {why}."
    return [left] if why else []


def _read(
    request: LoadRequest,
    scheme: Scheme,
    stored: CheckpointFormat | None,
    shapes: Shapes,
    agreed: frozenset[str],
) -> tuple[Prepared, list[str]]:
    reference, share = build_on_meta(request.checkpoint.config), request.share  # as on disk
    checkpoint, matrices = _as_dense(request, stored)
    weights = map_weights(checkpoint, reference)
    to_hold = shapes
    if stored is not None:
        coded = {p.name for p in weights.placements if p.info in matrices}
        _check_places(coded, shapes, reference, weights, matrices)
        to_hold = {name: tuple(reference.state_dict()[name].shape) for name in coded}
        if any(len(shape) == 3 for shape in to_hold.values()):  # what is plain of them is held too
            to_hold |= {name: shape for name, shape in shapes.items() if len(shape) == 3}
    prepared = _prepared(request, agreed, to_hold)
    wanted = targets(prepared, to_hold)
    notices = left_out_notices(weights)
    filled = {name for target in wanted for name in target.names}
    total = bytes_to_read(weights, reference, share, filled)
    with TensorReader(total, request.progress, request.cancelled) as reader:
        check_spare_biases(weights, reader)
        notices += untie_different(weights, reader)
        values = DiskValues(weights, matrices, prepared, reference, reader, share)
        head = _head(prepared, scheme, to_hold, notices, request.device_map)
        slots = _plain_slots(prepared, wanted, head)
        tied = {n: source for n, source in weights.tied.items() if n in slots}
        allocate(slots, tied, request.dtype, request.device_map, DtypePlan.of(reference))
        elsewhere = set(prepared.slots) - set(slots)
        stream(weights, slots, reference, reader, elsewhere, share)
        copy_tied(slots, tied, request.device_map)
        if head is not None:
            hold_head(
                prepared.model, head, weights.tied, values.chunks, request.dtype, request.device_map
            )
        fill_all(
            values.in_order(wanted), values, scheme, request.dtype, request.device_map,
            request.cancelled,
        )  # fmt: skip
    return prepared, notices


def _head(
    prepared: Prepared,
    scheme: Scheme,
    to_hold: Shapes,
    notices: list[str],
    device_map: DeviceMap,
) -> Head | None:
    """Head and embeddings, where the scheme asks for them in int8 and they can be."""
    if scheme.head == "none":
        return None
    found = find_head(prepared.model, device_map)
    if isinstance(found, Head):
        return None if found.head_name in to_hold else found
    notices.append(f"Output head and embeddings stay plain: {found}.")
    return None


def _plain_slots(prepared: Prepared, wanted: list[Target], head: Head | None) -> Slots:
    """What gets memory of its own."""
    slots = plain_slots(prepared, wanted)
    for name in (head.head_name, head.embedding_name) if head else ():
        del slots[name]
    return slots


def _fill_dummy(
    request: LoadRequest,
    scheme: Scheme,
    reference: nn.Module,
    shapes: Shapes,
    agreed: frozenset[str],
) -> tuple[Prepared, list[str]]:
    """Random weights at the model's shape, rounded as real ones would be."""
    prepared = _prepared(request, agreed, shapes)
    wanted = targets(prepared, shapes)
    notices: list[str] = []
    head = _head(prepared, scheme, shapes, notices, request.device_map)
    slots = _plain_slots(prepared, wanted, head)
    all_tied: Mapping[str, str] = getattr(reference, "all_tied_weights_keys", {})
    tied = {name: source for name, source in all_tied.items() if name in slots}
    allocate(slots, tied, request.dtype, request.device_map, DtypePlan.of(reference))
    fill_dummy(
        slots, frozenset(tied), seed=request.seed, std=request.std, dtype=request.dtype,
        progress=request.progress, cancelled=request.cancelled, share=request.share,
    )  # fmt: skip
    copy_tied(slots, tied, request.device_map)
    filler = DummyFiller(request.seed, request.std, request.dtype, 1 << 22)
    progress, total = request.progress, len(wanted)

    def values(name: str, expert: int | None) -> list[Tensor]:
        device = request.device_map.of(name)
        tensor = torch.empty(shapes[name][-2:], dtype=request.dtype, device=device)
        filler.fill(name, tensor, request.share, expert or 0)
        return [tensor]

    def chunks(name: str) -> Iterator[Tensor]:
        count, width = reference.get_parameter(name).shape
        for start in range(0, count, CHUNK_ROWS):
            rows = min(CHUNK_ROWS, count - start)
            device = request.device_map.of(name)
            tensor = torch.empty(rows, width, dtype=request.dtype, device=device)
            filler.fill(name, tensor, request.share, start)
            yield tensor

    if head is not None:
        hold_head(prepared.model, head, all_tied, chunks, request.dtype, request.device_map)
    for done, target in enumerate(wanted):
        progress("Filling with random weights", done, total)
        fill_all(
            [target], values, scheme, request.dtype, request.device_map, request.cancelled
        )
    return prepared, notices


def _prepared(request: LoadRequest, agreed: frozenset[str], to_hold: Shapes) -> Prepared:
    """Experts stay as they are where none of their weights is held in few bits."""
    with_experts = any(len(shape) == 3 for shape in to_hold.values())
    prepared = prepare(
        build_on_meta(request.config),
        lambda kind: kind in agreed and (kind != EXPERTS or with_experts),
        request.device_map,
    )
    if with_experts and EXPERTS not in agreed:
        raise UnsupportedModelError(
            f"{type(prepared.model).__name__} computes its experts in a way that weights in few "
            "bits cannot follow.",
            "Open it in 16 bits, or choose another model.",
        )
    return prepared


def _as_dense(
    request: LoadRequest, stored: CheckpointFormat | None
) -> tuple[Checkpoint, dict[TensorInfo, QuantizedTensor]]:
    """The checkpoint as if its matrices were dense tensors, and what they really are."""
    checkpoint = request.checkpoint
    if stored is None:
        return checkpoint, {}
    plain, quantized = stored.split(checkpoint.tensors)
    matrices = {matrix.info: matrix for matrix in quantized.values()}
    infos = {name: matrix.info for name, matrix in quantized.items()}
    return dataclasses.replace(checkpoint, tensors={**plain, **infos}), matrices


def _check_places(
    coded: set[str],
    shapes: Shapes,
    reference: nn.Module,
    weights: WeightMap,
    matrices: Mapping[TensorInfo, QuantizedTensor],
) -> None:
    head = reference.get_output_embeddings()  # type: ignore[operator]
    known = {*shapes, *(n for n, p in reference.named_parameters() if p is head.weight)}
    odd = sorted(coded - known)
    odd += [c.name for c in weights.conversions if any(i in matrices for _, _, i in c.members)]
    if odd:
        raise UnsupportedModelError(
            f"{odd[0]} is quantized, and {len(odd) - 1} more: no linear layer of this class reads "
            "them as they are stored.",
            "Choose another checkpoint of the model, or the one that it was quantized from.",
        )


class DiskValues:
    """Parts of weights as the checkpoint has them: codes, or plain tensors [n, in]."""

    def __init__(
        self,
        weights: WeightMap,
        matrices: Mapping[TensorInfo, QuantizedTensor],
        prepared: Prepared,
        reference: nn.Module,
        reader: TensorReader,
        share: Share | None = None,
    ) -> None:
        self._share = share
        self._matrices, self._reader, self._reference = matrices, reader, reference
        self._slots = prepared.homes
        self._placements: dict[str, list[Placement]] = defaultdict(list)
        for placement in weights.placements:
            self._placements[placement.name].append(placement)
        self._conversions = {c.name: c for c in weights.conversions}

    def in_order(self, wanted: list[Target]) -> list[Target]:
        """As they lie on disk: one pass over each file."""

        def place(target: Target) -> tuple[str, int]:
            found = self._placements.get(target.names[0])
            return (str(found[0].info.file), found[0].info.offset) if found else ("", 0)

        return sorted(wanted, key=place)

    def __call__(self, name: str, expert: int | None) -> Iterator[Codes | Tensor]:
        if self._share is None:
            return self._whole(name, expert)
        return self._share.matrix(
            name, expert is not None, self._is_turned(name), self._whole(name, expert)
        )

    def _whole(self, name: str, expert: int | None) -> Iterator[Codes | Tensor]:
        is_turned = self._is_turned(name)
        infos, is_in_turns = self._infos(name, expert)
        parts = (self._part(info, is_turned and not self._is_cut(name)) for info in infos)
        if is_in_turns:
            yield in_turns(list(parts))
        else:
            yield from parts
        if name in self._conversions:
            found = convert(self._conversions[name], self._reference, self._reader)[name]
            plain = found if expert is None else found[expert]
            yield plain.t().contiguous() if is_turned else plain

    def chunks(self, name: str) -> Iterator[Tensor]:
        """Plain rows of a weight, some at a time."""
        for placement in self._placements[name]:
            if self._share is None:
                yield from map(self._reader.read, rows_of(placement.info))
                continue
            nothing = torch.empty(0, *placement.info.shape[1:], dtype=torch_dtype(placement.info))
            for info, missing in self._share.rows(name, placement.info, CHUNK_ROWS):
                read = nothing if info is None else self._reader.read(info)
                zeros = nothing.new_zeros(missing, *nothing.shape[1:])
                yield torch.cat((read, zeros)) if missing else read

    def _part(self, info: TensorInfo, is_turned: bool) -> Codes | Tensor:
        matrix = self._matrices.get(info)
        if matrix is not None:
            return matrix.read(self._reader)
        plain = self._reader.read(info)
        return plain.t().contiguous() if is_turned else plain

    def _is_cut(self, name: str) -> bool:
        """Whether experts lie on disk one by one, and so as [out, in] whatever the class keeps."""
        return any(placement.part for placement in self._placements[name])

    def _infos(self, name: str, expert: int | None) -> tuple[list[TensorInfo], bool]:
        """What fills this weight, row after row; or, if the second is true, rows in turns."""
        if expert is None:
            return [placement.info for placement in self._placements[name]], False
        mine: list[tuple[int, TensorInfo]] = []
        is_in_turns = False
        for info, _, part in self._placements[name]:
            if not part:  # all experts in one tensor on disk
                size = info.nbytes // info.shape[0]
                mine.append(
                    (0, info._replace(shape=info.shape[1:], nbytes=size,
                                      offset=info.offset + expert * size))
                )  # fmt: skip
            elif part[0] == expert:
                rows = part[1] if len(part) > 1 else slice(0)
                assert isinstance(rows, slice)
                is_in_turns = (rows.step or 1) > 1
                mine.append((rows.start or 0, info))
        return [info for _, info in sorted(mine, key=lambda pair: pair[0])], is_in_turns

    def _is_turned(self, name: str) -> bool:
        """Whether the class keeps this weight as [in, out]."""
        home = self._slots[name]
        return home.is_transposed or bool(getattr(home.module, "is_transposed", False))
