"""Attention by torch's paged kernel: what is passed to it, where it is used, and its trial."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import varlen as torchs

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.attention import varlen as varlen_trial
from engine.attention.cpu import CPUAttention
from engine.attention.gpu import GPUAttention
from engine.attention.interface import AttentionOptions, LayerSpec
from engine.attention.pages import PagedCache, Pages, token_rows
from engine.attention.varlen import VarlenSteps
from engine.batch.batch import Span, pack, pad, slots
from engine.numerics.kv_dtype import PLAIN, parse_kv_dtype
from tests.engine import tiny_models, varlen_stand_in
from tests.engine.textbook_kv import attention
from tests.figures import numbers
from tests.tiers import examples, first_fast

CPU = torch.device("cpu")
TORCHS = torchs.varlen_attn


@pytest.fixture(autouse=True)
def stand_in() -> Iterator[pytest.MonkeyPatch]:
    """In the place of torch's, which is for GPUs; what was tried before is forgotten."""
    varlen_trial._problem_of.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        put(patch, varlen_stand_in.varlen_attn)
        yield patch
    varlen_trial._problem_of.cache_clear()


def put(patch: pytest.MonkeyPatch, attend: Callable[..., Tensor]) -> None:
    """In the place of torch's, with its arguments by name: the trial looks at them."""
    attend.__signature__ = inspect.signature(TORCHS)  # type: ignore[attr-defined]
    patch.setattr(torchs, "varlen_attn", attend)


def test_the_stand_in_takes_what_torchs_takes() -> None:
    theirs, ours = map(inspect.getfullargspec, (TORCHS, varlen_stand_in.varlen_attn))
    assert (theirs.args, theirs.kwonlyargs) == (ours.args, ours.kwonlyargs)


@dataclass(frozen=True)
class Scene:
    """Requests as (tokens computed before, tokens of this step, whole blocks that are the first
    request's too)."""

    requests: tuple[tuple[int, int, int], ...]
    block_size: int
    num_kv_heads: int
    group: int
    window: int | None
    seed: int


scenes = st.builds(
    Scene,
    requests=st.lists(
        st.tuples(
            st.integers(0, 60), st.sampled_from((1, 1, 1, 2, 5, 40)), st.sampled_from((0, 0, 1, 3))
        ),
        min_size=1,
        max_size=5,
    ).map(tuple),
    block_size=st.sampled_from((1, 4, 16, 64)),
    num_kv_heads=st.sampled_from((1, 2)),
    group=st.sampled_from((1, 3)),
    window=st.sampled_from((None, 1, 2, 7, 16, 17, 99)),
    seed=st.integers(0, 2**31),
)


@settings(max_examples=examples(60))
@given(steps=st.lists(scenes, min_size=1, max_size=2))
def test_every_request_sees_its_own_tokens_in_its_window(steps: list[Scene]) -> None:
    """Prompts, chunks, drafts and decoded tokens in shuffled pages, of which requests may share
    the first; what nobody wrote is NaN. More requests and longer tables than were announced."""
    found_by = VarlenSteps(2, 3, CPU)
    for scene in steps:
        check(scene, found_by)


def check(scene: Scene, found_by: VarlenSteps) -> None:
    generator = torch.Generator().manual_seed(scene.seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    size, heads, width = scene.block_size, scene.num_kv_heads, 8
    counts = [-(-(before + new) // size) for before, new, _ in scene.requests]
    order = torch.randperm(sum(counts) + 2, generator=generator).tolist()
    tables = [[order.pop() for _ in range(count)] for count in counts]
    keys = [noise(before + new, heads, width) for before, new, _ in scene.requests]
    values = [noise(*k.shape) for k in keys]
    for i, (before, _, shared) in enumerate(scene.requests):
        whole = min(shared, before // size, scene.requests[0][0] // size)
        tables[i][:whole] = tables[0][:whole]
        for side in (keys, values):
            side[i][: whole * size] = side[0][: whole * size]
    shape = (sum(counts) + 2, heads, size, width)
    cache = PagedCache(*(Pages(shape, torch.float32) for _ in range(2)))
    for pages, sequences in zip(cache, (keys, values), strict=True):
        pages.tensors.elements.fill_(float("nan"))
        for table, sequence in zip(tables, sequences, strict=True):
            places = torch.tensor(slots(table, 0, len(sequence), size))
            pages.write(token_rows(places, size, heads), sequence)
    queries = [noise(new, heads * scene.group, width) for _, new, _ in scene.requests]
    options = AttentionOptions(0.3, scene.window)
    spans = [
        Span([0] * new, before, table, 1)
        for (before, new, _), table in zip(scene.requests, tables, strict=True)
    ]
    found_by.begin_step(pack(spans, size))
    assert found_by.takes(options)
    # a view, as of a packed product
    q = torch.cat([torch.cat(queries), noise(sum(map(len, queries)), 2, width)], 1)[:, :-2]
    found = found_by.attend(q, cache, options)
    wanted = [attention(*of, options) for of in zip(queries, keys, values, strict=True)]
    torch.testing.assert_close(found, torch.cat(wanted), atol=2e-5, rtol=2e-4)


# -- where it is used --------------------------------------------------------------------------


def backend(implementation: str | None, dtype: torch.dtype, **options: Any) -> GPUAttention:
    given_ = {"layers": {0: LayerSpec(2, 16, 16)}, "kv_dtype": PLAIN, "block_size": 16, **options}
    return GPUAttention(
        given_["layers"], 40, given_["block_size"], dtype, given_["kv_dtype"], device=CPU,
        max_num_seqs=4, max_model_len=256, max_num_batched_tokens=64,
        implementation=implementation,
    )  # fmt: skip


def test_layers_that_it_has_no_words_for_are_gathered(stand_in: pytest.MonkeyPatch) -> None:
    """And write to the same pages."""
    calls: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(1)
        return varlen_stand_in.varlen_attn(*args, **kwargs)

    put(stand_in, counted)
    layers = {0: LayerSpec(2, 16, 16), 1: LayerSpec(2, 16, 16)}
    found_by = backend("varlen", torch.float32, layers=layers)
    wanted_by = CPUAttention(layers, 40, 16, torch.float32)
    generator = torch.Generator().manual_seed(5)
    all_options = [
        AttentionOptions(0.2), AttentionOptions(0.2, window=9),
        AttentionOptions(0.2, softcap=3.0), AttentionOptions(0.2, sinks=torch.ones(4)),
    ]  # fmt: skip
    for step in ([Span([0] * 20, 0, [3, 1], 1), Span([0], 0, [7], 1)],
                 [Span([0] * 3, 20, [3, 1], 3), Span([0], 1, [7], 1)]):  # fmt: skip
        batch = pack(step, 16)
        for layer in layers:
            for options in all_options:
                q, k, v = (
                    torch.randn(batch.num_tokens, heads, 16, generator=generator)
                    for heads in (4, 2, 2)
                )
                found_by.begin_step(batch)
                wanted_by.begin_step(batch)
                found = found_by.forward(layer, q, k, v, options)
                wanted = wanted_by.forward(layer, q, k, v, options)
                torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-4)
    assert len(calls) == 2 * 2 * 2


def test_steps_of_a_fixed_shape_are_not_captured_and_padding_is_zeros() -> None:
    found_by = backend("varlen", torch.float32)
    assert found_by.most_captured == 0 and not found_by.can_be_captured
    found_by.begin_step(pad(pack([Span([0], 0, [5], 1)], 16), 4))
    ones = torch.ones(4, 2, 16)
    found = found_by.forward(0, ones, ones, ones, AttentionOptions(1.0))
    assert torch.equal(found[:1], ones[:1]) and not found[1:].any()


def test_it_takes_what_passed_its_trial_and_says_so() -> None:
    found = backend(None, torch.bfloat16)
    assert found.implementation == "varlen" and "varlen_attn" in found.description
    assert found.workspace_bytes > 0
    for refused, why in [
        (backend(None, torch.float32), "16-bit"),
        (backend(None, torch.bfloat16, kv_dtype=parse_kv_dtype("k=int8,v=auto")), "8-bit"),
        (backend(None, torch.bfloat16, layers={0: LayerSpec(2, 16, 8)}), "head sizes"),
    ]:
        assert refused.implementation == "torch" and why in refused.description
        assert refused.workspace_bytes == 0


@pytest.fixture
def generate(tmp_path: Path, stand_in: pytest.MonkeyPatch) -> Callable[..., list[list[int]]]:
    """Greedy tokens of a tiny model in float32, by torch's paged attention or by the CPU's."""

    def make(family: str, prompts: list[list[int]], how: str, **changed: Any) -> list[list[int]]:
        folder = tmp_path / family
        if not folder.exists():
            tiny_models.save(tiny_models.make_model(family), folder)

        def by_varlen(
            config: EngineConfig, layers: dict[int, LayerSpec], num_blocks: int, dtype: torch.dtype,
            **_: Any,
        ) -> GPUAttention:  # fmt: skip
            assert config.max_model_len is not None
            return GPUAttention(
                layers, num_blocks, config.block_size, dtype, config.kv_dtype, device=CPU,
                max_num_seqs=config.max_num_seqs, max_model_len=config.max_model_len,
                max_num_batched_tokens=config.token_budget,
            )  # fmt: skip

        with pytest.MonkeyPatch.context() as patch:
            if how == "varlen":
                patch.setitem(varlen_trial.TOLERANCE, torch.float32, 1e-4)
                patch.setattr("engine.host.kv_cache.make_backend", by_varlen)
            config = EngineConfig(
                model=str(folder), device="cpu", dtype="float32", num_threads=1, block_size=8,
                kv_cache_memory_bytes=2**20,
            )  # fmt: skip
            engine = LLMEngine(config.replace(**changed))
            try:
                outputs = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=3))
                told = engine.model_info.kernels.get("paged attention", "")
                assert told.startswith("varlen (") == (how == "varlen")
                engine.check_integrity()
            finally:
                engine.shutdown()
        return [output.token_ids for output in outputs]

    return make


@pytest.mark.parametrize(
    ("family", "changed"),
    first_fast(2, [
        ("llama", {"max_num_batched_tokens": 20}),  # chunks
        ("llama", {"speculative_method": "ngram"}),
        ("gemma2", {}),  # window; its soft cap is gathered
        ("gemma3", {}),  # window
    ]),
)
def test_the_engine_says_the_same_with_it(
    family: str, changed: dict[str, Any], generate: Callable[..., list[list[int]]]
) -> None:
    first, second = tiny_models.make_prompts((32, 7))
    prompts = [first, second * 3, first]  # the last finds its beginning in the cache
    wanted = generate(family, prompts, "cpu")
    assert generate(family, prompts, "varlen", **changed) == wanted


# -- its trial ---------------------------------------------------------------------------------


def tried(dtype: torch.dtype = torch.bfloat16, width: int = 16, block_size: int = 16) -> str:
    return varlen_trial.problem(CPU, [LayerSpec(2, width, width)], dtype, PLAIN, block_size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("width", "block_size"), [(8, 1), (64, 16), (80, 256)])
def test_the_right_numbers_pass(dtype: torch.dtype, width: int, block_size: int) -> None:
    assert tried(dtype, width, block_size) == ""


def one_key_more(*args: Any, window_size: tuple[int, int], **kwargs: Any) -> Tensor:
    left = window_size[0] + (window_size[0] >= 0)
    return varlen_stand_in.varlen_attn(*args, window_size=(left, 0), **kwargs)


def one_key_less(*args: Any, window_size: tuple[int, int], **kwargs: Any) -> Tensor:
    left = max(window_size[0] - 1, min(window_size[0], 0))
    return varlen_stand_in.varlen_attn(*args, window_size=(left, 0), **kwargs)


def not_causal(*args: Any, window_size: tuple[int, int], **kwargs: Any) -> Tensor:
    return varlen_stand_in.varlen_attn(*args, window_size=(window_size[0], -1), **kwargs)


def scale_ignored(*args: Any, scale: float, **kwargs: Any) -> Tensor:
    return varlen_stand_in.varlen_attn(*args, **kwargs)


def pages_in_order(*args: Any, block_table: Tensor, **kwargs: Any) -> Tensor:
    table = torch.arange(block_table.numel(), dtype=torch.int32).view_as(block_table)
    pages = args[1].shape[0]
    return varlen_stand_in.varlen_attn(*args, block_table=table % pages, **kwargs)


def whole_pages_read(*args: Any, **kwargs: Any) -> Tensor:
    """Keys that do not exist weigh nothing, but are multiplied."""
    return varlen_stand_in.varlen_attn(*args, **kwargs) + 0 * args[2].sum()


def last_rows_unwritten(*args: Any, **kwargs: Any) -> Tensor:
    found = varlen_stand_in.varlen_attn(*args, **kwargs)
    found[-1] = 0
    return found


@pytest.mark.parametrize(
    "wrong",
    [one_key_more, one_key_less, not_causal, scale_ignored, pages_in_order, whole_pages_read,
     last_rows_unwritten],
)  # fmt: skip
@pytest.mark.parametrize("block_size", [16, 256])
def test_wrong_numbers_do_not(
    wrong: Callable[..., Tensor], block_size: int, stand_in: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(1)
        return wrong(*args, **kwargs)

    put(stand_in, counted)
    wanted = tried(block_size=block_size)
    assert numbers(wanted) == [16, block_size]
    so_far = len(calls)
    assert so_far > 0 and tried(block_size=block_size) == wanted and len(calls) == so_far


def test_what_it_refuses_is_told_in_its_own_words(stand_in: pytest.MonkeyPatch) -> None:
    words = "Paged KV cache block size must be divisible by 256"

    def refuses(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"{words}. Or ask others.\nException raised from mha_varlen_fwd")

    put(stand_in, refuses)
    assert tried() == words  # the first sentence of them
    refused = backend(None, torch.bfloat16)
    assert refused.implementation == "torch" and words in refused.description


def test_where_no_memory_is_left_to_try_it_the_next_cache_tries_again(
    stand_in: pytest.MonkeyPatch,
) -> None:
    def full(*args: Any, **kwargs: Any) -> NoReturn:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB")

    with stand_in.context() as patch:
        put(patch, full)
        assert "memory" in tried()
    assert tried() == ""


def test_every_width_of_a_model_is_tried(stand_in: pytest.MonkeyPatch) -> None:
    def up_to_32(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if query.shape[-1] > 32:
            raise RuntimeError("head dimension at most 32")
        return varlen_stand_in.varlen_attn(query, *args, **kwargs)

    put(stand_in, up_to_32)
    narrow, wide = LayerSpec(2, 32, 32), LayerSpec(1, 64, 64)
    for specs, why in ([narrow], ""), ([narrow, wide], "head dimension at most 32"):
        assert varlen_trial.problem(CPU, specs, torch.float16, PLAIN, 16) == why
