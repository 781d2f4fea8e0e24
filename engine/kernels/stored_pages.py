"""The pages of a KV cache as kernels take them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

PLAIN = "plain"


class Stored(NamedTuple):
    """Keys or values of a layer: elements[num_blocks, Hkv, block_size, D] of the model's dtype; or
    int8 codes, of which `form` says whether they are "int8" or the bits of "fp8", and
    scales[num_blocks, Hkv, block_size] in bfloat16."""

    elements: Tensor
    form: str = PLAIN
    scales: Tensor | None = None
