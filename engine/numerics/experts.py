"""Maps fused expert tensors to the per-expert matrices of quantized checkpoints.

    in the model (and in a 16-bit file)         in a quantized file
    experts.gate_up_proj [E, H, 2I]      --->   experts.0.gate_proj [I, H], experts.0.up_proj [I, H]
    experts.down_proj    [E, I, H]              experts.0.down_proj [H, I], ...

llm-compressor and GPTQModel split them like this, with the biases if there are any. Some classes
store gate before up, some (gpt_oss) interleave their rows.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from torch import nn

_MATRIX = re.compile(r"(.+)\.(0|[1-9][0-9]*)\.(gate|up|down)_proj\.(weight|bias)")


class ExpertPart(NamedTuple):
    """`rows` of the [out, in] matrix (or of the bias) of one expert in parameter `name`."""

    name: str
    expert: int
    rows: slice

    @property
    def part(self) -> tuple[int | slice, ...]:
        return (self.expert,) if self.rows == slice(None) else (self.expert, self.rows)


def is_experts(module: nn.Module) -> bool:
    """Whether `module` is a mixture's experts as transformers writes them since version 5: weights
    of all experts in one tensor, with the flags that its decorator sets."""
    down = getattr(module, "down_proj", None)
    return hasattr(module, "is_transposed") and isinstance(down, nn.Parameter) and down.dim() == 3


def find_part(model: nn.Module, disk_name: str) -> ExpertPart | None:
    """Where a tensor of one expert goes; None where `model` has no such experts."""
    found = _MATRIX.fullmatch(disk_name)
    if found is None:
        return None
    path, expert, matrix, attribute = found.groups()
    try:
        module = model.get_submodule(path)
    except AttributeError:
        return None
    if not is_experts(module) or int(expert) >= module.get_parameter("down_proj").shape[0]:
        return None
    for name, part, rows in parts_of(module):
        if part == f"{matrix}_proj":
            end = "_bias" if attribute == "bias" else ""
            return ExpertPart(f"{path}.{name}{end}", int(expert), rows)
    return None


def parts_of(experts: Any) -> list[tuple[str, str, slice]]:
    """(parameter, matrix that is cut from it, its rows) of each matrix of an expert."""
    down = ("down_proj", "down_proj", slice(None))
    if not experts.has_gate:
        return [("up_proj", "up_proj", slice(None)), down]
    if experts.is_concatenated:
        both = experts.gate_up_proj.shape[-1 if experts.is_transposed else -2]
        gate, up = slice(0, both // 2), slice(both // 2, both)
    else:
        gate, up = slice(0, None, 2), slice(1, None, 2)
    return [("gate_up_proj", "gate_proj", gate), ("gate_up_proj", "up_proj", up), down]
