"""A cache of more elements than 32 bits count: pages at its end are written and read as any other.

On the CPU its memory is taken from the system only where it is written.
"""

from __future__ import annotations

import pytest
import torch

from engine.attention.gpu import GPUAttention
from engine.attention.interface import AttentionOptions, LayerSpec
from engine.batch.batch import Span, pack
from engine.numerics.kv_dtype import parse_kv_dtype
from tests.gpu.test_gpu_backend import backend, moved

pytest.importorskip("triton")

BLOCK, WIDTH = 16, 64
BLOCKS = 2**31 // (BLOCK * WIDTH) + 2


def attended(cache: GPUAttention, table: list[int], device: torch.device) -> list[torch.Tensor]:
    """Of a prompt, and of a token that is decoded after it."""
    generator = torch.Generator().manual_seed(1)
    found, before = [], 0
    for tokens in (40, 1):
        batch = pack([Span([0] * tokens, before, table, 1)], BLOCK)
        cache.begin_step(moved(batch, device))
        q = torch.randn(tokens, 3, WIDTH, generator=generator).to(device)
        k, v = (torch.randn(tokens, 1, WIDTH, generator=generator).to(device) for _ in "kv")
        found.append(cache.forward(0, q, k, v, AttentionOptions(0.2)))
        before += tokens
    return found


def test_pages_beyond_32_bits(device: torch.device) -> None:
    layers = {0: LayerSpec(1, WIDTH, WIDTH)}

    def made(num_blocks: int) -> GPUAttention:
        form = parse_kv_dtype("int8")
        return backend(layers, num_blocks, BLOCK, torch.float32, form, device)

    wide = made(BLOCKS)
    assert wide.caches[0].keys.tensors.elements.numel() > 2**31
    found = attended(wide, [BLOCKS - 1, 0, BLOCKS - 2], device)
    wanted = attended(made(3), [2, 0, 1], device)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    assert wide.caches[0].keys.tensors.elements[BLOCKS - 1].any()
