"""Every implementation of the matrix product agrees with the plain one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels import registry, tiled
from engine.kernels.cpu.check import library
from engine.kernels.dense import BLOCKED, IMPLEMENTATIONS
from engine.kernels.linear import Linear, linear
from engine.kernels.measure import Choice
from engine.kernels.registry import ROW_BUCKETS, choices, choose_linear
from tests.engine.kernels.compiled import leave_to_torch, needs_compiler

DTYPES = [torch.bfloat16, torch.float16]


def make(rows: int, width: int, outputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows * 7 + width)
    shapes = ((rows, width), (outputs, width), (outputs,))
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


@settings(max_examples=60)
@given(
    name=st.sampled_from(["upcast", "upcast_wide"]),
    rows=st.integers(1, 40),
    width=st.integers(1, 70),
    outputs=st.integers(1, 90),
    tile_bytes=st.sampled_from([4, 1000, 4096, 2**22]),
    dtype=st.sampled_from(DTYPES),
    has_bias=st.booleans(),
)
def test_upcast_is_the_float32_product(
    name: str,
    rows: int,
    width: int,
    outputs: int,
    tile_bytes: int,
    dtype: torch.dtype,
    has_bias: bool,
) -> None:
    x, weight, bias = make(rows, width, outputs, dtype)
    with pytest.MonkeyPatch.context() as patch:
        for tile in ("TILE_BYTES", "WIDE_TILE_BYTES"):
            patch.setattr(tiled, tile, tile_bytes)  # many, and a last one not full
        found = IMPLEMENTATIONS[name](x, weight, bias if has_bias else None)
    expected = F.linear(x.float(), weight.float(), bias.float() if has_bias else None)
    assert found.dtype == dtype
    assert torch.allclose(found.float(), expected, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_leading_dimensions_and_strided_inputs(name: str, dtype: torch.dtype) -> None:
    x, weight, _ = make(12, 16, 5, dtype)
    x = x.view(2, 6, 16)
    strided = torch.cat((x, x), dim=-1)[..., :16]
    found = IMPLEMENTATIONS[name](strided, weight, None)
    assert found.shape == (2, 6, 5)
    assert torch.allclose(found.float(), x.float() @ weight.float().t(), rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_results_outlive_the_scratch_buffers(name: str) -> None:
    x, weight, _ = make(4, 16, 8, torch.bfloat16)
    first = IMPLEMENTATIONS[name](x, weight, None)
    kept = first.clone()
    IMPLEMENTATIONS[name](x * 2, weight, None)
    assert torch.equal(first, kept)


def test_scratch_is_usable_in_and_out_of_inference_mode() -> None:
    x, weight, _ = make(3, 300, 400, torch.bfloat16)
    with ThreadPoolExecutor(1) as fresh_thread:  # which has no scratch yet

        def in_and_out() -> tuple[torch.Tensor, torch.Tensor]:
            with torch.inference_mode():
                inside = IMPLEMENTATIONS["upcast"](x, weight, None).clone()
            return inside, IMPLEMENTATIONS["upcast"](x, weight, None)

        inside, outside = fresh_thread.submit(in_and_out).result()
    assert torch.equal(inside, outside)


@pytest.mark.parametrize("rows", [1, 2, 5, 9, 63, 300])
def test_float32_equals_torch_s_own_whatever_was_chosen(rows: int) -> None:
    layer = Linear(16, 8, bias=True, device="cpu")
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)  # type: ignore[arg-type]
    x = torch.randn(rows, 16)
    expected = F.linear(x, layer.weight, layer.bias)
    for result in (layer(x), IMPLEMENTATIONS["transposed"](x, layer.weight, layer.bias)):
        assert result.is_contiguous()
        # sixteen products of up to about 10 each, added in another order
        assert torch.allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_choices_say_what_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    table = choices()
    assert {c.dtype for c in table} == {"float32", "bfloat16", "float16", "any"}
    known = {*IMPLEMENTATIONS, *BLOCKED, "tiled"}
    assert all(c.implementation in known and c.reason for c in table)
    assert choices() == table  # measured once


def test_the_fastest_is_taken_and_a_hopeless_one_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = {"torch": 1.0, "transposed": 0.97, "upcast": 8.0, "upcast_wide": 9.0}  # per call
    each = {"torch": 1.0, "transposed": 1.0, "upcast": 0.2, "upcast_wide": 0.1}  # per row
    tried: dict[int, tuple[str, ...]] = {}

    def measured(candidates: tuple[str, ...], dtype: object, rows: int, clock: object) -> object:
        tried[rows] = tuple(candidates)
        return {key: base[key] + rows * each[key] for key in candidates}

    monkeypatch.setattr(registry, "linear_ms", measured)
    leave_to_torch(monkeypatch)
    found = registry._16bit_choices(torch.bfloat16)
    # a gain of less than 5 % does not unseat what is chosen; only changes are listed
    assert [(c.rows, c.implementation) for c in found] == [
        (1, "torch"), (16, "upcast_wide"),
    ]  # fmt: skip
    assert list(tried) == list(ROW_BUCKETS)
    assert tried[32] == tuple(base) and tried[64] == ("upcast", "upcast_wide")


@needs_compiler
@pytest.mark.parametrize(("has_tiles", "fewest"), [(False, 16), (True, 8)])
def test_what_is_compiled_here_multiplies_few_rows_until_something_else_is_faster(
    has_tiles: bool, fewest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_from, tried = 64, {}
    compiled = library()
    assert compiled is not None
    monkeypatch.setattr(compiled, "has_tiles", has_tiles)
    monkeypatch.setattr(compiled, "has_amx", False)

    def measured(candidates: tuple[str, ...], dtype: object, rows: int, clock: object) -> object:
        tried[rows] = candidates
        times = {"native": 1.0 if rows < slow_from or rows > 64 else 2.0, "torch": 1.3}
        return {key: times.get(key, 1.4) for key in candidates}

    monkeypatch.setattr(registry, "linear_ms", measured)
    found = registry._16bit_choices(torch.bfloat16)
    assert [(c.rows, c.implementation) for c in found] == [(1, "native"), (64, "torch")]
    assert min(tried) == fewest and "native" in tried[64] and "native" not in tried[128]
    assert ("tiles" in tried[64]) == has_tiles
    slow_from = fewest  # at once: only where reading the weight decides
    found = registry._16bit_choices(torch.bfloat16)
    assert [(c.rows, c.implementation) for c in found] == [
        (1, "native"), (fewest, "torch"),
    ]  # fmt: skip


@needs_compiler
def test_tiles_of_amx_are_doubted_from_many_rows_on(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    compiled = library()
    assert compiled is not None
    for name in ("has_tiles", "has_amx"):
        monkeypatch.setattr(compiled, name, True)

    def measured(candidates: tuple[str, ...], dtype: object, rows: int, clock: object) -> object:
        tried.append((rows, candidates))
        return {key: 1.0 if key == "torch" else 2.0 for key in candidates}

    monkeypatch.setattr(registry, "linear_ms", measured)
    found = registry._16bit_choices(torch.bfloat16)
    assert [(c.rows, c.implementation) for c in found] == [
        (1, "native"), (16, "tiles"), (512, "torch"),
    ]  # fmt: skip
    assert tried[0] == (512, ("tiles", "torch"))


@needs_compiler
def test_weights_stay_plain_where_they_are_read_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native = (Choice("linear", "bfloat16", 1, "native", ""),)
    monkeypatch.setattr(registry, "_linear_choices", lambda dtype: native)
    assert registry._blocked_choices.__wrapped__(torch.bfloat16) == ()


def test_the_choice_follows_the_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tuple(
        Choice("linear", "bfloat16", rows, "torch" if rows < 4 else "upcast", "")
        for rows in ROW_BUCKETS
    )
    monkeypatch.setattr(registry, "_linear_choices", lambda dtype: table)
    found = [choose_linear(torch.bfloat16, "cpu", rows) for rows in (0, 1, 3, 4, 5, 1000)]
    assert found == ["torch", "torch", "torch", "upcast", "upcast", "upcast"]
    assert choose_linear(torch.bfloat16, "cuda", 1000) == "torch"
    x, weight, _ = make(8, 16, 8, torch.bfloat16)
    assert torch.equal(linear(x, weight), IMPLEMENTATIONS["upcast"](x, weight, None))
