"""Attention of few tokens by compiled code: against the textbook in float64, and bit by bit against
itself in other company."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.attention.interface import AttentionOptions
from engine.attention.pages import FORMATS, Pages, token_rows
from engine.batch.batch import slots
from engine.kernels.cpu import build
from engine.kernels.cpu.attention import NativeCache, NativeStep, can_attend
from engine.kernels.cpu.check import library
from engine.kernels.cpu.library import Library
from engine.kernels.paged_kv import PLAIN, PageTensors
from tests.engine.attention.test_cpu_attention import read_back
from tests.engine.kernels.compiled import PROCESSORS, needs_compiler
from tests.engine.textbook_kv import attention
from tests.tiers import examples

pytestmark = needs_compiler
FORMS = ("auto", "int8", "fp8")
ROUNDING = {torch.float32: 2**-22, torch.bfloat16: 2**-8, torch.float16: 2**-11}
DTYPES = st.sampled_from(tuple(ROUNDING))


@dataclass(frozen=True)
class Scene:
    """Requests as (tokens in the cache, last of them that attend), in shuffled blocks."""

    requests: tuple[tuple[int, int], ...]
    block_size: int = 16
    num_kv_heads: int = 2
    group: int = 2
    widths: tuple[int, int] = (32, 32)
    forms: tuple[str, str] = ("auto", "auto")
    dtype: torch.dtype = torch.float32
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    seed: int = 0
    chunk: int | None = None  # in place of the window


scenes = st.builds(
    Scene,
    requests=st.lists(
        st.tuples(st.integers(1, 1300), st.sampled_from((1, 1, 2, 5, 16))), min_size=1, max_size=4
    ).map(lambda pairs: tuple((max(pair), min(pair)) for pair in pairs)),
    block_size=st.sampled_from((1, 4, 16, 24, 128)),
    num_kv_heads=st.sampled_from((1, 3)),
    group=st.integers(1, 7),
    widths=st.sampled_from(((16, 16), (64, 64), (80, 48), (128, 128), (192, 128), (576, 512))),
    forms=st.tuples(st.sampled_from(FORMS), st.sampled_from(FORMS)),
    dtype=DTYPES,
    window=st.sampled_from((None, 1, 7, 100, 512, 700)),
    softcap=st.sampled_from((None, 5.0)),
    has_sinks=st.booleans(),
    seed=st.integers(0, 2**31),
    chunk=st.sampled_from((None, None, 1, 64, 512, 600)),
)


def cache_of(keys: Pages, values: Pages) -> NativeCache:
    native = library()
    assert native is not None and can_attend(keys.tensors, values.tensors)
    return NativeCache(native, keys.tensors, values.tensors)


class Stage:
    """A scene with its caches filled. What nobody owns is NaN."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._generator = torch.Generator().manual_seed(scene.seed)
        counts = [-(-length // scene.block_size) for length, _ in scene.requests]
        order = torch.randperm(sum(counts) + 2, generator=self._generator).tolist()
        self.tables = [[order.pop() for _ in range(count)] for count in counts]
        shape = (sum(counts) + 2, scene.num_kv_heads, scene.block_size)
        self.keys, self.values = (
            self._pages((*shape, width), form)
            for width, form in zip(scene.widths, scene.forms, strict=True)
        )
        for (length, _), table in zip(scene.requests, self.tables, strict=True):
            places = torch.tensor(slots(table, 0, length, scene.block_size))
            rows = token_rows(places, scene.block_size, scene.num_kv_heads)
            for pages, width in zip((self.keys, self.values), scene.widths, strict=True):
                pages.write(rows, self._noise(length, scene.num_kv_heads, width))
        heads = scene.num_kv_heads * scene.group
        self.queries = [self._noise(tokens, heads, scene.widths[0]) for _, tokens in scene.requests]
        sinks = self._noise(heads) if scene.has_sinks else None
        window = None if scene.chunk else scene.window
        self.options = AttentionOptions(0.2, window, scene.softcap, sinks, scene.chunk)

    def _noise(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator).to(self.scene.dtype)

    def _pages(self, shape: tuple[int, int, int, int], form: str) -> Pages:
        pages = Pages(shape, self.scene.dtype, form=FORMATS.get(form))
        pages.elements.fill_(float("nan") if pages.scales is None else 99)
        if pages.scales is not None:
            pages.scales.fill_(float("nan"))
        return pages

    @property
    def cache(self) -> NativeCache:
        return cache_of(self.keys, self.values)

    def attend(self, requests: Sequence[int], last: int | None = None) -> list[Tensor]:
        """What these requests come to in one step; `last`: of so many tokens alone."""
        queries = [self.queries[i][-last if last else None :] for i in requests]
        starts = [0]
        for q in queries:
            starts.append(starts[-1] + len(q))
        step = NativeStep(
            starts[:-1], [len(q) for q in queries],
            [self.scene.requests[i][0] for i in requests], [self.tables[i] for i in requests],
        )  # fmt: skip
        q = torch.cat(queries)
        output = torch.full((*q.shape[:2], self.scene.widths[1]), 7.0, dtype=q.dtype)
        self.cache.attend(step, q, output, *self.options)
        return list(output.split([len(q) for q in queries]))

    def exact(self, request: int) -> tuple[Tensor, Tensor]:
        """By the textbook in float64; and what the numbers that are added up come to together."""
        length, table = self.scene.requests[request][0], self.tables[request]
        keys, values = (read_back(p, table, length).double() for p in (self.keys, self.values))
        sinks = None if self.options.sinks is None else self.options.sinks.double()
        options = self.options._replace(sinks=sinks)
        q = self.queries[request].double()
        return attention(q, keys, values, options), attention(q, keys, values.abs(), options)


@settings(deadline=None, max_examples=examples(80))
@given(scenes)
def test_attention_is_exact_but_for_float32_and_one_rounding(scene: Scene) -> None:
    stage = Stage(scene)
    for request, found in enumerate(stage.attend(range(len(scene.requests)))):
        exact, sizes = stage.exact(request)
        allowed = ROUNDING[scene.dtype] * exact.abs() + 2e-5 * sizes + 1e-6
        assert bool(((found.double() - exact).abs() <= allowed).all())


@settings(deadline=None, max_examples=examples(60))
@given(scenes, st.integers(1, 4))
def test_a_token_comes_to_the_same_in_any_company(scene: Scene, last: int) -> None:
    """Other requests, drafts after and before it, threads: not one bit."""
    stage, everyone = Stage(scene), range(len(scene.requests))
    together = stage.attend(everyone)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert all(map(torch.equal, stage.attend(everyone), together))
    finally:
        torch.set_num_threads(threads)
    for request in everyone:
        [alone] = stage.attend([request], last)
        assert torch.equal(alone, together[request][-last:])


def test_a_prefix_says_the_same_whatever_comes_after_it() -> None:
    """A token that is verified with drafts behind it is one that is decoded."""
    stage = Stage(Scene(((700, 4),), group=3, window=600))
    [verified] = stage.attend([0])
    length = stage.scene.requests[0][0]
    for place in range(4):
        step = NativeStep([0], [1], [length - 3 + place], stage.tables)
        q = stage.queries[0][place : place + 1]
        output = torch.empty(1, *verified.shape[1:])
        stage.cache.attend(step, q, output, *stage.options)
        assert torch.equal(output[0], verified[place])


@settings(deadline=None, max_examples=examples(30))
@given(scenes, st.integers(0, 4))
def test_a_request_without_tokens_changes_nothing(scene: Scene, place: int) -> None:
    """Nor are pages looked for that it has no keys in: right behind a window of one token."""
    stage = Stage(scene)
    everyone = range(len(scene.requests))
    expected = stage.attend(everyone)
    starts = [0]
    for q in stage.queries:
        starts.append(starts[-1] + len(q))
    columns = starts[:-1], list(map(len, stage.queries)), [n for n, _ in scene.requests]
    for column, number in zip(columns, (min(place, starts[-1]), 0, 37), strict=True):
        column.insert(place, number)
    tables = list(stage.tables)
    tables.insert(place, [0] * -(-37 // scene.block_size))
    q = torch.cat(stage.queries)
    for options in (stage.options._replace(window=1, chunk=None), stage.options):
        output = torch.empty(*q.shape[:2], scene.widths[1], dtype=q.dtype)
        stage.cache.attend(NativeStep(*columns, tables), q, output, *options)
        if options is stage.options:
            assert torch.equal(output, torch.cat(expected))


def test_a_step_without_requests_leaves_everything_as_it_is() -> None:
    stage = Stage(Scene(((20, 1),)))
    output = torch.full((3, 4, 32), 7.0)
    stage.cache.attend(NativeStep([], [], [], []), torch.ones(3, 4, 32), output, *stage.options)
    assert bool((output == 7).all())
    before = stage.keys.tensors.elements.clone()
    stage.cache.write(torch.empty(0, dtype=torch.int64), *torch.empty(2, 0, 2, 32))
    assert torch.equal(stage.keys.tensors.elements.view(torch.int32), before.view(torch.int32))


@pytest.mark.parametrize("shape", [(1, 5, 32), (1, 1, 32), (1, 4, 48)])
def test_heads_that_do_not_fit_the_cache_are_an_error(shape: tuple[int, int, int]) -> None:
    """They are neither left out nor read beyond their end."""
    stage = Stage(Scene(((20, 1),)))
    step = NativeStep([0], [1], [20], stage.tables)
    with pytest.raises(ValueError, match="query heads"):
        stage.cache.attend(step, torch.ones(shape), torch.empty(1, shape[1], 32), 0.2)


def test_threads_that_attend_at_the_same_time_do_not_disturb_each_other() -> None:
    """Scratch is each thread's own, also where it grows in between."""
    stages = [
        Stage(Scene(((600 * n, 3), (40, 1)), forms=form, group=n, seed=n))
        for n, form in enumerate((FORMS[:2], FORMS[1:], FORMS[::2]), 1)
    ]
    orders = [(1,), (0, 1), (0,), (1, 0)] * 5
    expected = [[stage.attend(order) for order in orders] for stage in stages]
    with ThreadPoolExecutor(len(stages)) as pool:
        found = list(pool.map(lambda stage: [stage.attend(order) for order in orders], stages))
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert all(map(torch.equal, one, other))


def both(stage: Stage, dtype: torch.dtype) -> list[Tensor]:
    return [*stage.attend(range(len(stage.tables))), *written(stage, dtype)]


@pytest.mark.slow
@pytest.mark.parametrize("processor", [name for name in PROCESSORS if name != "native"])
def test_every_processor_attends_and_writes_the_same(processor: str) -> None:
    if PROCESSORS[processor] not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip(f"this CPU has no {PROCESSORS[processor]}")
    path, compiler = build.compiled(processor)
    made = Library(path, compiler.origin)
    for forms in (("auto", "auto"), ("int8", "fp8")):
        for dtype in ROUNDING:
            scene = Scene(((900, 3), (40, 1)), group=5, widths=(80, 96), forms=forms, dtype=dtype,
                          softcap=9.0, has_sinks=True)  # fmt: skip
            expected = both(Stage(scene), dtype)
            with patch(f"{__name__}.library", lambda: made):
                found = both(Stage(scene), dtype)
            assert all(map(torch.equal, found, expected))


# Writing -----------------------------------------------------------------------------------------


def written(stage: Stage, dtype: torch.dtype, scale: float = 1.0) -> list[Tensor]:
    """What is in the pages after other keys and values were written to some slots."""
    scene, size = stage.scene, stage.scene.block_size
    places = torch.tensor([1, 7, size * 2, size + 3, 0])
    generator = torch.Generator().manual_seed(5)
    shape = (scene.num_kv_heads, len(places))
    k, v = (
        (torch.randn(*shape, width, generator=generator) * scale).to(dtype).transpose(0, 1)
        for width in scene.widths
    )  # as the model's operations lay them: by head
    stage.cache.write(places, k, v)
    return [
        tensor.clone().view(torch.uint8)
        for pages in (stage.keys, stage.values)
        for tensor in (pages.tensors.elements, pages.tensors.scales)
        if tensor is not None
    ]


@settings(deadline=None, max_examples=examples(60))
@given(
    st.tuples(st.sampled_from(FORMS), st.sampled_from(FORMS)), DTYPES,
    st.sampled_from([1e-30, 1e-12, 1e-3, 1.0, 50.0, 1e4]), st.integers(0, 2**31),
)  # fmt: skip
def test_what_is_written_is_what_torch_writes(
    forms: tuple[str, str], dtype: torch.dtype, scale: float, seed: int
) -> None:
    def scene() -> Stage:
        return Stage(Scene(((40, 1),), forms=forms, widths=(64, 48), dtype=dtype, seed=seed))

    ours, theirs = scene(), scene()
    generator = torch.Generator().manual_seed(seed)
    k, v = ((torch.randn(6, 2, width, generator=generator) * scale).to(dtype) for width in (64, 48))
    k[0], v[1, 1] = 0, k[1, 1, :48].abs().amax()  # zeros, and nothing but the largest
    places = torch.tensor([3, 17, 18, 33, 40, 0])
    ours.cache.write(places, k, v)
    rows = token_rows(places, 16, 2)
    theirs.keys.write(rows, k)
    theirs.values.write(rows, v)
    for mine, other in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
        for one, expected in zip(mine.tensors, other.tensors, strict=True):
            if isinstance(one, Tensor):
                assert torch.equal(one.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_keys_and_values_may_be_of_two_dtypes(form: str, dtype: torch.dtype) -> None:
    """As torch writes them: each is rounded from what it was."""
    ours, theirs = (Stage(Scene(((20, 1),), forms=(form, form), dtype=dtype)) for _ in range(2))
    generator = torch.Generator().manual_seed(3)
    wide = torch.randn(2, 2, 2, 32, generator=generator)
    places = torch.tensor([5, 18])
    rows = token_rows(places, 16, 2)
    for k, v in ((wide[0], wide[1].bfloat16()), (wide[0].bfloat16(), wide[1])):
        ours.cache.write(places, k, v)
        theirs.keys.write(rows, k)
        theirs.values.write(rows, v)
        for mine, other in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
            for one, expected in zip(mine.tensors, other.tensors, strict=True):
                if isinstance(one, Tensor):
                    assert torch.equal(one.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_read_as_nan(form: str, bad: float) -> None:
    stage = Stage(Scene(((20, 1),), forms=(form, form)))
    k = torch.ones(1, 2, 32)
    k[0, 1, 3] = bad
    stage.cache.write(torch.tensor(slots(stage.tables[0], 19, 20, 16)), k, k)
    [found] = stage.attend([0])
    assert bool(found[0, :2].isfinite().all())  # the other head's
    assert bool(found[0, 2:].isnan().any())


def test_all_codes_of_fp8_are_rounded_as_torch_rounds_them() -> None:
    """Every number between, at and beside two codes."""
    codes = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (codes[1:] + codes[:-1]) / 2
    near = [torch.nextafter(middles, torch.tensor(end)) for end in (0.0, 1e9)]
    numbers = torch.cat((codes, middles, *near))
    numbers = torch.cat((numbers, -numbers))
    numbers = torch.cat((numbers, numbers.new_zeros(-len(numbers) % 15)))
    rows = torch.cat((numbers.view(-1, 15), torch.full((len(numbers) // 15, 1), 448.0)), dim=1)
    pages = [
        Pages((len(rows), 1, 1, 16), torch.float32, form=FORMATS["fp8"]) for _ in "kv"
    ]
    cache = cache_of(*pages)
    vectors = rows.unsqueeze(1)  # their scale is 1
    cache.write(torch.arange(len(rows)), vectors, vectors)
    expected = rows.to(torch.float8_e4m3fn).view(torch.int8)
    assert torch.equal(pages[0].elements.flatten(1), expected)
    scales = pages[1].scales
    assert scales is not None and bool((scales == 1).all())


def test_heads_that_are_no_whole_vectors_are_left_to_torch() -> None:
    for width, is_read in ((24, False), (592, False), (48, True)):
        pages = Pages((2, 1, 4, width), torch.float32).tensors
        assert can_attend(pages, pages) is is_read


@pytest.mark.parametrize("tokens", [3, 40])
def test_a_slot_of_minus_one_is_written_nowhere(tokens: int) -> None:
    """What fills a prompt up; of many tokens by several threads."""
    native = library()
    assert native is not None
    whole = torch.full((2, 6, 2, 16, 128), 7.0)
    held = whole[:, 1:-1]  # with pages before and behind, which stay as they are
    keys, values = (PageTensors(one, PLAIN, None) for one in held)
    k, v = torch.randn(2, tokens, 2, 128)
    places = [-1, 21, *[-1] * (tokens - 2)]
    expected = whole.clone()
    expected[0, 2, :, 5], expected[1, 2, :, 5] = k[1], v[1]
    NativeCache(native, keys, values).write(torch.tensor(places), k, v)
    assert torch.equal(whole, expected)
