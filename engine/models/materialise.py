"""Allocates a model that was built on the meta device, and computes its buffers.

names of the class             where the values are after replacements
q_proj.weight  [Q, H]   --->   packed.weight[0 : Q]
k_proj.weight  [K, H]   --->   packed.weight[Q : Q + K]
norm.weight    [H]      --->   norm.weight
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from engine.errors import OutOfMemoryError, UnsupportedModelError
from engine.hardware.device_map import DeviceMap, is_inside
from engine.hardware.mapped import empty_weight


@dataclass(frozen=True, slots=True)
class Slot:
    """The location of a parameter of the unmodified class: an attribute of a module, a range of its
    rows (None: all), transposed or not."""

    module: nn.Module
    attribute: str
    rows: slice | None = None
    is_transposed: bool = False

    def view(self) -> torch.Tensor:
        """The values, in the class's own shape, on the memory where they live."""
        tensor: torch.Tensor = getattr(self.module, self.attribute)
        if self.rows is not None:
            tensor = tensor[self.rows]
        return tensor.t() if self.is_transposed else tensor


Slots = dict[str, Slot]


def own_slots(model: nn.Module) -> Slots:
    """Every persistent tensor of `model` in its own place."""
    slots: Slots = {}
    for name in model.state_dict():
        path, _, attribute = name.rpartition(".")
        slots[name] = Slot(model.get_submodule(path), attribute)
    return slots


def allocate(
    slots: Slots,
    tied: Mapping[str, str],
    dtype: torch.dtype,
    device_map: DeviceMap,
    keep: DtypePlan,
) -> None:
    """Memory for every tensor that is still on the meta device; tied names share one tensor, where
    they are on one device.

    Floating-point tensors get `dtype`, but for those that `keep` asks to stay in float32.
    Raises OutOfMemoryError with the bytes.
    """
    for name, slot in slots.items():
        if _shares(name, tied, device_map):
            continue
        tensor: torch.Tensor = getattr(slot.module, slot.attribute)
        if not tensor.is_meta:
            continue
        wanted = keep.dtype_of(name, dtype) if tensor.is_floating_point() else tensor.dtype
        set_tensor(
            slot.module, slot.attribute, _empty(tensor.shape, wanted, device_map.of(name), name)
        )
    for name, source in tied.items():
        # a name may be tied to one that is itself absent from the class
        if source in slots and _shares(name, tied, device_map):
            target = slots[name]
            set_tensor(target.module, target.attribute, slots[source].view())


def copy_tied(slots: Slots, tied: Mapping[str, str], device_map: DeviceMap) -> None:
    """Tied names on two devices have a tensor each, with the same values."""
    for name, source in tied.items():
        if source in slots and not _shares(name, tied, device_map):
            slots[name].view().copy_(slots[source].view())


def _shares(name: str, tied: Mapping[str, str], device_map: DeviceMap) -> bool:
    """Whether a name has no tensor of its own."""
    return name in tied and device_map.of(name) == device_map.of(tied[name])


@dataclass(frozen=True, slots=True)
class DtypePlan:
    """The parameters that a class keeps in float32 whatever the model's dtype.

    transformers: `_keep_in_fp32_modules` applies to float16, `_keep_in_fp32_modules_strict` to
    bfloat16 too.
    """

    always: re.Pattern[str] | None
    for_float16: re.Pattern[str] | None

    @classmethod
    def of(cls, model: nn.Module) -> DtypePlan:
        strict = _pattern(getattr(model, "_keep_in_fp32_modules_strict", None))
        return cls(strict, _pattern(getattr(model, "_keep_in_fp32_modules", None)))

    def dtype_of(self, name: str, dtype: torch.dtype) -> torch.dtype:
        if dtype in (torch.float16, torch.bfloat16):
            if self.always and self.always.search(name):
                return torch.float32
            if dtype is torch.float16 and self.for_float16 and self.for_float16.search(name):
                return torch.float32
        return dtype


def _pattern(names: Any) -> re.Pattern[str] | None:
    if not names:
        return None
    globs = [re.escape(name).replace(r"\*", ".*") for name in names]
    return re.compile("|".join(rf"((^|\.){glob}($|\.))" for glob in globs))


def compute_buffers(model: nn.Module, device_map: DeviceMap) -> None:
    """Real values for buffers that are not saved (rotary frequencies, embedding scales).

    The class's own `_init_weights` computes them, as in from_pretrained; parameters are flagged
    so that it leaves them alone. Raises UnsupportedModelError for a buffer that stays unset.
    """
    from engine.lazy_transformers import PreTrainedModel

    owners = {n: m for n, m in model.named_modules() if isinstance(m, PreTrainedModel)}
    for path, module in model.named_modules():
        unsaved = module._non_persistent_buffers_set
        names = [n for n, b in module.named_buffers(recurse=False) if b.is_meta and n in unsaved]
        if not names:
            continue
        for name in names:
            meta = module.get_buffer(name)
            value = torch.empty_like(meta, device=device_map.of(f"{path}.{name}"))
            value.fill_(float("nan") if value.is_floating_point() else 0)
            set_tensor(module, name, value)
        for parameter in module.parameters(recurse=False):
            parameter._is_hf_initialized = True
        owner = owners[max((n for n in owners if not n or is_inside(path, n)), key=len)]
        owner._init_weights(module)
        unset = [n for n in names if _has_nan(module.get_buffer(n))]
        if unset:
            raise UnsupportedModelError(
                f"{type(module).__name__} does not initialize its buffer {unset[0]}.",
                "Update transformers, or choose another model.",
            )


def freeze_rotary(model: nn.Module, max_model_len: int) -> list[str]:
    """Fix rotary frequencies that would follow the length of the longest request of a step.

    With dynamic and longrope scaling transformers picks them from the greatest position of the
    whole batch; here they are those of `max_model_len`, so that a request's tokens do not depend
    on its neighbours. Returns a notice for each kind frozen.
    """
    notices: dict[str, None] = {}
    for module in model.modules():
        of_module: Any = getattr(module, "rope_type", None)
        kinds = of_module if isinstance(of_module, dict) else {None: of_module}
        for layer_type, kind in list(kinds.items()):
            if follows_length(kind):
                original = _freeze(module, kind, max_model_len, layer_type)
                kinds[layer_type] = "frozen"
                notices[
                    f"RoPE scaling ({kind}): frequencies are fixed for the context length of "
                    f"{max_model_len:,} tokens (original: {original:,}). Another context length "
                    "gives other results."
                ] = None
        if None in kinds and of_module is not None:
            module.rope_type = kinds[None]
    return sorted(notices)


def follows_length(rope_type: Any) -> bool:
    """Whether frequencies of this kind depend on the context length."""
    return isinstance(rope_type, str) and ("dynamic" in rope_type or rope_type == "longrope")


def _freeze(module: nn.Module, kind: str, max_model_len: int, layer_type: str | None) -> int:
    """The original context length, before scaling."""
    from engine.lazy_transformers import ROPE_INIT_FUNCTIONS

    prefix = f"{layer_type}_" if layer_type else ""
    arguments = {"layer_type": layer_type} if layer_type else {}
    buffer: torch.Tensor = getattr(module, f"{prefix}inv_freq")
    frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](
        module.config, buffer.device, seq_len=max_model_len, **arguments
    )
    buffer.copy_(frequencies)
    setattr(module, f"{prefix}attention_scaling", scaling)
    config: Any = module.config
    rope = config.rope_parameters
    rope = rope[layer_type] if layer_type else rope
    length = rope.get("original_max_position_embeddings") or config.max_position_embeddings
    return int(length)


def weight_bytes(model: nn.Module, device_map: DeviceMap) -> dict[str, int]:
    """Bytes of memory behind all parameters and buffers on each device, each storage counted
    once."""
    found = dict.fromkeys(device_map.devices, 0)
    seen = set()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            found[device_map.of(name)] += storage.nbytes()
    for path, module in model.named_modules():
        # Linear, QuantizedExperts, PackedEmbedding
        found[device_map.of(path)] += getattr(module, "packed_bytes", 0)
    return found


def _empty(shape: torch.Size, dtype: torch.dtype, device: str, name: str) -> torch.Tensor:
    try:
        if device == "cpu":
            return empty_weight(shape, dtype)
        return torch.empty(shape, dtype=dtype, device=device)
    except (RuntimeError, MemoryError) as error:
        needed = shape.numel() * dtype.itemsize
        raise OutOfMemoryError(
            f"Out of memory allocating {name}: {needed:,} bytes on {device} ({error}).",
            "Choose a 16-bit dtype, a quantization or a smaller model, or close other programs.",
        ) from error


def tensor_of(model: nn.Module, name: str) -> torch.Tensor:
    """A parameter or buffer."""
    path, _, attribute = name.rpartition(".")
    tensor: torch.Tensor = getattr(model.get_submodule(path), attribute)
    return tensor


def set_tensor(model: nn.Module, name: str, value: torch.Tensor) -> None:
    """Put `value` in the place of a parameter or buffer."""
    path, _, attribute = name.rpartition(".")
    owner = model.get_submodule(path)
    if attribute in owner._buffers:
        owner._buffers[attribute] = value
    elif isinstance(value, nn.Parameter):
        owner._parameters[attribute] = value
    else:
        owner._parameters[attribute] = nn.Parameter(value, requires_grad=False)


def _has_nan(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and bool(tensor.isnan().any())
