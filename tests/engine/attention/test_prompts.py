"""Attention of many tokens in tiles: against the textbook in float64, and bit by bit against
itself on other threads and in other company."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.attention.cpu import CPUAttention
from engine.attention.interface import AttentionOptions, LayerSpec
from engine.batch.batch import Batch, slots
from engine.kernels.cpu.attention import NativeStep
from engine.kernels.cpu.check import library
from engine.numerics.kv_dtype import parse_kv_dtype
from tests.engine.attention.test_few_tokens import Scene, Stage, scenes
from tests.engine.kernels.compiled import needs_compiler
from tests.tiers import examples


def has_tiles() -> bool:
    compiled = library()
    return compiled is not None and compiled.has_tiles


pytestmark = [
    needs_compiler,
    pytest.mark.skipif(not has_tiles(), reason="this CPU has no AVX-512 VNNI"),
]

prompts = st.builds(
    replace,
    scenes,
    requests=st.lists(
        st.tuples(st.integers(1, 700), st.sampled_from((1, 8, 31, 33, 200))),
        min_size=1, max_size=3,
    ).map(lambda pairs: tuple((max(pair), min(pair)) for pair in pairs)),
)  # fmt: skip


class Prompts(Stage):
    """A scene whose requests are computed in tiles."""

    def compute(self, requests: list[int]) -> list[Tensor]:
        queries = [self.queries[i] for i in requests]
        starts = [sum(map(len, queries[:i])) for i in range(len(queries))]
        step = NativeStep(
            starts, list(map(len, queries)), [self.scene.requests[i][0] for i in requests],
            [self.tables[i] for i in requests],
        )  # fmt: skip
        q = torch.cat(queries)
        output = torch.full((*q.shape[:2], self.scene.widths[1]), 7.0, dtype=q.dtype)
        self.cache.attend(step, q, output, *self.options, in_tiles=True)
        return list(output.split(list(map(len, queries))))


@settings(deadline=None, max_examples=examples(60))
@given(prompts)
def test_attention_in_tiles_is_exact_but_for_bfloat16(scene: Scene) -> None:
    """Queries, keys, values and weights are rounded to it: a score by up to 2^-8 of the sizes of
    its products."""
    stage = Prompts(scene)
    for request, found in enumerate(stage.compute(list(range(len(scene.requests))))):
        exact, sizes = stage.exact(request)
        allowed = 2**-5 * sizes + 2**-8 * exact.abs() + 1e-3
        assert bool(((found.double() - exact).abs() <= allowed).all())


@pytest.mark.parametrize("steepness", [30, 100])
def test_scores_far_below_the_largest_are_exact_too(steepness: int) -> None:
    """Their weights are too small for float32, in part or at all."""
    stage = Prompts(Scene(((700, 200),), dtype=torch.bfloat16))
    stage.queries = [steepness * q for q in stage.queries]
    (found,), (exact, sizes) = stage.compute([0]), stage.exact(0)
    assert bool(((found.double() - exact).abs() <= 2**-6 * sizes + 1e-30).all())


@settings(deadline=None, max_examples=examples(30))
@given(prompts)
def test_a_request_comes_to_the_same_in_any_company(scene: Scene) -> None:
    stage, everyone = Prompts(scene), list(range(len(scene.requests)))
    together, threads = stage.compute(everyone), torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert all(map(torch.equal, stage.compute(everyone), together))
    finally:
        torch.set_num_threads(threads)
    for request in everyone:
        assert torch.equal(stage.compute([request])[0], together[request])


@settings(deadline=None, max_examples=examples(30))
@given(prompts, st.lists(st.integers(1, 199), max_size=3, unique=True))
def test_a_prompt_in_chunks_comes_to_the_same(scene: Scene, cuts: list[int]) -> None:
    stage, whole = Prompts(scene), Prompts(scene).compute([0])[0]
    length, count = scene.requests[0]
    bounds = [0, *(cut for cut in sorted(cuts) if cut < count), count]
    for first, end in pairwise(bounds):
        q, output = stage.queries[0][first:end], torch.empty_like(whole[first:end])
        step = NativeStep([0], [end - first], [length - count + end], [stage.tables[0]])
        stage.cache.attend(step, q, output, *stage.options, in_tiles=True)
        assert torch.equal(output, whole[first:end])


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "k=int8,v=fp8"])
@pytest.mark.parametrize("window", [None, 20])
def test_a_backend_leaves_prompts_to_tiles(kv_dtype: str, window: int | None) -> None:
    """Beside requests that decode, and as torch computes them but for rounding."""
    new, lengths, tables = (40, 1, 9), (40, 31, 70), ([2, 0, 5], [1, 3], [7, 4, 6, 9, 8])
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(sum(new), n, 32, generator=generator).bfloat16() for n in (4, 2, 2))
    places = [
        slot
        for table, count, length in zip(tables, new, lengths, strict=True)
        for slot in slots(table, length - count, length, 16)
    ]
    starts, empty = [0, 40, 41, 50], torch.zeros(0, dtype=torch.int64)
    batch = Batch(empty, empty, torch.tensor(places), empty, starts, list(lengths), list(tables),
                  16)  # fmt: skip
    outputs = []
    for in_tiles in (True, False):
        backend = CPUAttention(
            {0: LayerSpec(2, 32, 32)}, 10, 16, torch.bfloat16, few_tokens=8, in_tiles=in_tiles,
            kv_dtype=parse_kv_dtype(kv_dtype),
        )  # fmt: skip
        backend.clear_blocks(list(range(10)))
        backend.begin_step(batch)
        outputs.append(backend.forward(0, q, k, v, AttentionOptions(0.2, window)))
    assert torch.equal(outputs[0][40], outputs[1][40])  # one token: no tiles
    torch.testing.assert_close(*outputs, rtol=0.02, atol=0.02)
