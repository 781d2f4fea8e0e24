"""The kernel that fills the KV cache, against the plainest statement of it: bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.pages import FORMATS, quantize
from tests.gpu.conftest import HAS_GPU
from tests.tiers import examples

pytest.importorskip("triton")

from engine.kernels.paged_kv import PageTensors
from engine.kernels.triton.kv_write import write_kv

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LEFT = 9  # what stands in the cache before


def pages(
    form: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> PageTensors:
    if form == "plain":
        return PageTensors(torch.full(shape, LEFT, dtype=dtype, device=device))
    codes = torch.full(shape, LEFT, dtype=torch.int8, device=device)
    scales = torch.full(shape[:3], LEFT, dtype=torch.bfloat16, device=device)
    return PageTensors(codes, form, scales)


def at(tensor: torch.Tensor, slots: list[int]) -> torch.Tensor:
    """tensor[num_blocks, Hkv, block_size, ...] at slots: [T, Hkv, ...]."""
    block_size = tensor.shape[2]
    return torch.stack([tensor[slot // block_size, :, slot % block_size] for slot in slots])


@settings(max_examples=60 if HAS_GPU else examples(25), derandomize=not HAS_GPU)
@given(
    num_tokens=st.integers(1, 6),
    num_heads=st.sampled_from((1, 2, 3)),
    dims=st.sampled_from(((64, 64), (80, 80), (192, 128), (16, 1))),
    block_size=st.sampled_from((1, 16, 24)),
    forms=st.tuples(*[st.sampled_from(("plain", "int8", "fp8"))] * 2),
    dtype=st.sampled_from(DTYPES),
    power=st.integers(-32, 32),
    spread=st.sampled_from((0.0, 1.0, 4.0)),
    seed=st.integers(0, 2**31),
)
def test_a_step_is_written_as_quantize_rounds_it(
    num_tokens: int, num_heads: int, dims: tuple[int, int], block_size: int,
    forms: tuple[str, str], dtype: torch.dtype, power: int, spread: float, seed: int,
    device: torch.device,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(num_tokens, 2 * num_heads, sum(dims), generator=generator)
    wide *= 10.0**power * torch.exp(spread * torch.randn(wide.shape, generator=generator))
    limit = torch.finfo(dtype).max
    packed = wide.clamp(-limit, limit).to(dtype).to(device)
    new = packed[:, :num_heads, : dims[0]], packed[:, num_heads:, dims[0] :]  # views, not copies
    shapes = [(4, num_heads, block_size, dim) for dim in dims]
    stored = [pages(f, s, dtype, device) for f, s in zip(forms, shapes, strict=True)]
    slots = torch.randperm(4 * block_size, generator=generator)[:num_tokens].tolist()
    slots = [*slots, *[-1] * (num_tokens - len(slots))]
    if num_tokens > 2:
        slots[1] = -1  # a row that only fills the batch up
    write_kv(*new, *stored, torch.tensor(slots, device=device))
    real = [i for i, slot in enumerate(slots) if slot >= 0]
    others = sorted(set(range(4 * block_size)) - set(slots))
    for found, given_, form in zip(stored, new, forms, strict=True):
        wanted = [given_] if form == "plain" else quantize(given_.cpu(), FORMATS[form])
        tensors = [t for t in (found.elements, found.scales) if t is not None]
        for tensor, expected in zip(tensors, wanted, strict=True):
            written = at(tensor, [slots[i] for i in real])
            assert torch.equal(written, expected[real].to(device))
            assert not others or (at(tensor, others) == LEFT).all()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, of the NaN
@pytest.mark.parametrize("form", ["int8", "fp8"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_shows_in_the_scale(form: str, bad: float, device: torch.device) -> None:
    new = torch.randn(3, 2, 16, device=device)
    new[1, 1, 7] = bad
    keys, values = (pages(form, (1, 2, 4, 16), torch.float32, device) for _ in "kv")
    write_kv(new, new.clone(), keys, values, torch.arange(3, device=device))
    for stored in (keys, values):
        assert stored.scales is not None
        finite = stored.scales[0, :, :3].isfinite()
        assert not finite[1, 1] and finite.sum() == 5


@pytest.mark.gpu
def test_a_long_prompt_is_written_natively(device: torch.device) -> None:
    new = torch.randn(8192, 2 * 8, 128, device=device, dtype=torch.bfloat16)
    k, v = new[:, :8], new[:, 8:]
    slots = torch.randperm(8192, device=device)
    for form in ("plain", "int8", "fp8"):
        stored = [pages(form, (512, 8, 16, 128), torch.bfloat16, device) for _ in "kv"]
        write_kv(k, v, *stored, slots)
        for found, given_ in zip(stored, (k, v), strict=True):
            wanted = [given_] if form == "plain" else quantize(given_.cpu(), FORMATS[form])
            order = slots.cpu().argsort()
            for tensor, expected in zip((found.elements, found.scales), wanted, strict=False):
                assert tensor is not None
                flat = tensor.transpose(1, 2).flatten(0, 1).cpu()
                assert torch.equal(flat, expected.cpu()[order])
