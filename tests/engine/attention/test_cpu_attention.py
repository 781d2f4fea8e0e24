"""Paged attention on the CPU against the textbook formula, over random ragged batches."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.attention import cpu
from engine.attention.cpu import CPUAttention
from engine.attention.interface import AttentionOptions, LayerSpec
from engine.attention.pages import Pages, token_rows
from engine.attention.rows import FEW_QUERIES
from engine.batch.batch import Batch, slots
from engine.hardware.mapped import HUGE_PAGE
from engine.numerics.kv_dtype import parse_kv_dtype
from tests.engine.textbook_kv import attention
from tests.tiers import examples


@dataclass(frozen=True)
class Scene:
    """Requests as (tokens computed before, tokens of this step), in a cache of shuffled blocks."""

    requests: tuple[tuple[int, int], ...]
    block_size: int
    num_kv_heads: int
    group: int
    window: int | None
    softcap: float | None
    has_sinks: bool
    seed: int
    kv_dtype: str
    widths: tuple[int, int]  # of keys and values; wholes of 16 are attended by compiled code
    few_tokens: int
    chunk: int | None  # in place of the window


scenes = st.builds(
    Scene,
    requests=st.lists(
        st.tuples(st.integers(0, 90), st.sampled_from((1, 1, 1, 2, 5, 70))), min_size=1, max_size=6
    ).map(tuple),
    block_size=st.sampled_from((1, 4, 16)),
    num_kv_heads=st.sampled_from((1, 2)),
    group=st.sampled_from((1, 3)),
    window=st.sampled_from((None, 1, 7, 16, 40)),
    softcap=st.sampled_from((None, 5.0)),
    has_sinks=st.booleans(),
    seed=st.integers(0, 2**31),
    kv_dtype=st.sampled_from(("auto", "auto", "int8", "fp8", "k=int8,v=fp8", "k=auto,v=int8")),
    widths=st.sampled_from(((8, 6), (16, 16), (48, 80), (32, 16))),
    few_tokens=st.sampled_from((0, 3, sys.maxsize)),
    chunk=st.sampled_from((None, None, 1, 8, 13, 64)),
)


def read_back(pages: Pages, table: list[int], length: int) -> Tensor:
    """Keys or values [L, Hkv, D] as they are stored, by the formula of their format."""
    elements, form, scales = pages.tensors
    if scales is not None:
        codes = elements.view(torch.float8_e4m3fn) if form == "fp8" else elements
        elements = codes.float() * scales.float().unsqueeze(-1)
    return elements[table].transpose(1, 2).flatten(0, 1)[:length]


def leave_behind(pages: Pages, value: float) -> None:
    """What another request left in every block."""
    if pages.scales is not None:
        pages.elements.fill_(99)
        pages.scales.fill_(value)
    else:
        pages.elements.fill_(value)


@settings(max_examples=examples(200))
@given(scenes)
def test_every_request_sees_its_own_tokens_in_its_window(scene: Scene) -> None:
    generator = torch.Generator().manual_seed(scene.seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    lengths = [before + new for before, new in scene.requests]
    counts = [-(-length // scene.block_size) for length in lengths]
    order = torch.randperm(sum(counts) + 3, generator=generator).tolist()
    tables = [[order.pop() for _ in range(count)] for count in counts]
    key_dim, value_dim = scene.widths
    spec = LayerSpec(scene.num_kv_heads, key_dim, value_dim)
    kv_dtype = parse_kv_dtype(scene.kv_dtype)
    backend = CPUAttention(
        {0: spec}, sum(counts) + 3, scene.block_size, torch.float32, kv_dtype=kv_dtype,
        few_tokens=scene.few_tokens,
    )  # fmt: skip
    cache = backend.caches[0]
    leave_behind(cache.keys, float("nan"))
    leave_behind(cache.values, 3.0)
    num_heads = scene.num_kv_heads * scene.group
    options = AttentionOptions(
        0.3, None if scene.chunk else scene.window, scene.softcap,
        noise(num_heads) if scene.has_sinks else None, scene.chunk,
    )  # fmt: skip
    keys = [noise(length, scene.num_kv_heads, key_dim) for length in lengths]
    values = [noise(length, scene.num_kv_heads, value_dim) for length in lengths]
    queries = [noise(new, num_heads, key_dim) for _, new in scene.requests]
    starts = [0]
    for index, (before, new) in enumerate(scene.requests):
        starts.append(starts[-1] + new)
        old = torch.tensor(slots(tables[index], 0, before, scene.block_size), dtype=torch.int64)
        rows = token_rows(old, scene.block_size, scene.num_kv_heads)
        cache.keys.write(rows, keys[index][:before])
        cache.values.write(rows, values[index][:before])
    new_slots = [
        slot
        for table, (before, new) in zip(tables, scene.requests, strict=True)
        for slot in slots(table, before, before + new, scene.block_size)
    ]
    empty = torch.zeros(0, dtype=torch.int64)
    backend.begin_step(
        Batch(empty, empty, torch.tensor(new_slots), empty, starts, lengths, tables,
              scene.block_size)
    )  # fmt: skip
    latest = [new for _, new in scene.requests]
    found = backend.forward(
        0,
        torch.cat(queries),
        torch.cat([k[-new:] for k, new in zip(keys, latest, strict=True)]),
        torch.cat([v[-new:] for v, new in zip(values, latest, strict=True)]),
        options,
    )
    for index, q in enumerate(queries):
        expected = attention(
            q,
            read_back(cache.keys, tables[index], lengths[index]),
            read_back(cache.values, tables[index], lengths[index]),
            options,
        )
        torch.testing.assert_close(
            found[starts[index] : starts[index + 1]], expected, atol=2e-5, rtol=2e-4
        )


def nan(*shape: int) -> Tensor:
    return torch.full(shape, float("nan"))


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "fp8"])
@pytest.mark.parametrize(
    ("narrow", "wide"), [({"window": 9}, {"window": 13}), ({"chunk": 37}, {"chunk": 70})]
)
def test_blocks_before_the_window_are_not_read(
    kv_dtype: str, narrow: dict[str, int], wide: dict[str, int]
) -> None:
    backend = CPUAttention(
        {0: LayerSpec(1, 4, 4)}, 64, 4, torch.float32, kv_dtype=parse_kv_dtype(kv_dtype)
    )
    table = list(range(40))
    empty = torch.zeros(0, dtype=torch.int64)
    batch = Batch(empty, empty, torch.tensor([159]), empty, [0, 1], [160], [table], 4)
    before = list(range(37))
    for pages in backend.caches[0]:  # would spread through a product, masked or not
        pages.write(token_rows(torch.tensor(slots(before, 0, 148, 4)), 4, 1), nan(148, 1, 4))
    backend.begin_step(batch)
    one = torch.ones(1, 1, 4)
    options = AttentionOptions(1.0, **narrow)
    assert backend.forward(0, one, one, one, options).isfinite().all()
    with pytest.raises(AssertionError):  # the other reaches further back
        options = AttentionOptions(1.0, **wide)
        assert backend.forward(0, one, one, one, options).isfinite().all()


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "k=int8,v=fp8", "k=auto,v=int8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 5, 64])  # decoded, verified, prefilled
@pytest.mark.parametrize("few_tokens", [0, sys.maxsize])  # by torch, and by compiled code
def test_16_bit_products_over_codes_are_as_good_as_over_plain_keys(
    tokens: int, dtype: torch.dtype, kv_dtype: str, few_tokens: int
) -> None:
    """Keys of 10 and more: their codes add up to more than float16 holds."""
    generator = torch.Generator().manual_seed(tokens)
    heads, key_dim, value_dim, length = 2, 80, 48, 90
    table = [5, 1, 4, 0, 7, 2]
    options = AttentionOptions(0.1 * key_dim**-0.5)
    keys = 10 * torch.randn(length, heads, key_dim, generator=generator).to(dtype)
    values = torch.randn(length, heads, value_dim, generator=generator).to(dtype)
    queries = 10 * torch.randn(tokens, heads * 3, key_dim, generator=generator).to(dtype)
    empty = torch.zeros(0, dtype=torch.int64)
    rows = torch.tensor(slots(table, 0, length, 16))
    batch = Batch(empty, empty, rows[-tokens:], empty, [0, tokens], [length], [table], 16)

    def error(name: str) -> float:
        """Mean distance from the textbook over what is stored."""
        backend = CPUAttention(
            {0: LayerSpec(heads, key_dim, value_dim)}, 8, 16, dtype, kv_dtype=parse_kv_dtype(name),
            few_tokens=few_tokens,
        )  # fmt: skip
        cache = backend.caches[0]
        for pages, vectors in zip(cache, (keys, values), strict=True):
            pages.write(token_rows(rows, 16, heads), vectors)
        backend.begin_step(batch)
        found = backend.forward(0, queries, keys[-tokens:], values[-tokens:], options)
        stored = [read_back(pages, table, length).float() for pages in cache]
        assert found.dtype is dtype
        return float((found.float() - attention(queries.float(), *stored, options)).abs().mean())

    # a prefill scales its keys first, which rounds each of them once more
    assert error(kv_dtype) <= 1.5 * error("auto")


@pytest.mark.parametrize("tokens", [FEW_QUERIES - 1, FEW_QUERIES])
def test_a_prompt_is_attended_in_the_dtype_that_is_fast_for_it(tokens: int) -> None:
    """By torch: in float32 everything but the last rounding is exact; a few drafts stay at 16
    bits."""
    generator = torch.Generator().manual_seed(tokens)
    heads, width, dtype = 2, 64, torch.bfloat16
    keys, values = (torch.randn(tokens, heads, width, generator=generator).to(dtype) for _ in "kv")
    queries = torch.randn(tokens, heads * 2, width, generator=generator).to(dtype)
    options = AttentionOptions(width**-0.5)
    empty, table = torch.zeros(0, dtype=torch.int64), [3, 0, 2]
    rows = torch.tensor(slots(table, 0, tokens, 16))
    batch = Batch(empty, empty, rows, empty, [0, tokens], [tokens], [table], 16)
    backend = CPUAttention(
        {0: LayerSpec(heads, width, width)}, 4, 16, dtype, prompt_dtype=torch.float32, few_tokens=0
    )
    backend.begin_step(batch)
    found = backend.forward(0, queries, keys, values, options)
    exact = attention(queries.float(), keys.float(), values.float(), options)
    rounded_once = (found.float() - exact).abs() <= exact.abs() / 2**8 + 1e-6
    assert found.dtype is dtype
    assert bool(rounded_once.all()) == (tokens >= FEW_QUERIES)


@pytest.mark.skipif(sys.platform != "linux", reason="has no huge pages")
def test_memory_beyond_the_used_blocks_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a block of half a huge page for keys, and one for values."""
    monkeypatch.setattr(cpu, "AHEAD_BYTES", 4 * HUGE_PAGE)
    width = HUGE_PAGE // 2 // 16 // 2 // 4
    backend = CPUAttention({0: LayerSpec(2, width, width)}, 16, 16, torch.float32)
    assert backend.nbytes == 16 * HUGE_PAGE and backend.resident == 0
    assert backend.use_ahead(0, 0.0) and backend.resident == 0
    for num_blocks, pages in ((0, 4), (3, 6), (1, 6), (16, 16)):
        assert not backend.use_ahead(num_blocks, math.inf)
        assert -(-(backend.resident or 0) // HUGE_PAGE) == pages
