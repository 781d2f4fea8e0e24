"""A mixture's experts multiplied together: each pair of token and expert as if it were alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.tiers import examples

pytest.importorskip("triton")

from engine.kernels import experts as kernels
from engine.kernels import quantized
from engine.kernels.experts import FEW_PAIRS, Route, StackedExperts, stacked
from engine.kernels.linear import PlainWeights
from engine.kernels.packed import PackedWeights
from engine.kernels.quantized import make_expert_weights
from engine.kernels.triton.experts import plan_tiles
from engine.models.layers.experts import QuantizedExperts
from engine.numerics.codes import Codes
from engine.numerics.rounding import round_asymmetric, round_fp8, round_int8, round_nf4
from tests.gpu.conftest import HAS_GPU
from tests.gpu.references import (
    TOLERANCE,
    poison,
    random_floats,
    random_ints,
    random_rows,
    relative_error,
)

quick = settings(
    max_examples=50 if HAS_GPU else examples(8), deadline=None, derandomize=not HAS_GPU,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
seeds = st.integers(0, 2**31)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN: what no kernel wrote is seen."""
    poison(monkeypatch)


@quick
@given(
    seed=seeds, tokens=st.integers(1, 40), count=st.integers(1, 7), slots=st.integers(1, 3),
    rows=st.sampled_from([2, 16]),
)  # fmt: skip
def test_tiles_cover_each_pair_once(
    device: torch.device, seed: int, tokens: int, count: int, slots: int, rows: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(0, count, (tokens * slots,), generator=generator).to(device)
    tiles = plan_tiles(chosen, count, rows)
    seen: list[int] = []
    for owner, start, end in zip(tiles.owner, tiles.start, tiles.end, strict=True):
        assert 0 <= end - start <= rows
        pairs = tiles.order[start:end]
        assert (chosen[pairs] == owner).all()
        seen += pairs.tolist()
    assert sorted(seen) == list(range(tokens * slots))


@quick
@given(
    seed=seeds, kind=st.sampled_from(["int4", "int8", "fp8"]), tokens=st.sampled_from([1, 5, 30]),
    count=st.integers(1, 5), outputs=st.integers(1, 70), inputs=st.integers(1, 200),
    dtype=st.sampled_from(list(TOLERANCE)), with_bias=st.booleans(), is_shared=st.booleans(),
)  # fmt: skip
def test_each_pair_is_multiplied_with_its_expert(
    device: torch.device, seed: int, kind: str, tokens: int, count: int, outputs: int,
    inputs: int, dtype: torch.dtype, with_bias: bool, is_shared: bool,
) -> None:  # fmt: skip
    slots = 2
    codes: list[Codes] = []
    for i in range(count):
        if kind == "fp8":
            codes.append(random_floats(outputs, inputs, (1, inputs), seed + i))
        else:
            bits = int(kind[3:])
            codes.append(random_ints(bits, outputs, inputs, 32, seed + i, with_zeros=True))
    together = stacked([PackedWeights(c, dtype, device) for c in codes])  # type: ignore[arg-type]
    assert together is not None
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(0, count, (tokens, slots), generator=generator)
    shared = slots if is_shared else 1
    x = random_rows(tokens * slots // shared, inputs, seed, dtype, device)
    bias = random_rows(count, outputs, seed + 9, dtype, device) if with_bias else None
    found = together.product(x, Route(chosen.to(device), count), bias, shared)
    assert found.shape == (tokens * slots, outputs)
    flat, plain = chosen.view(-1), torch.stack([c.dequantize() for c in codes])
    rows = x.float().cpu()[torch.arange(tokens * slots) // shared]
    expected = torch.einsum("pi,poi->po", rows, plain[flat])
    if bias is not None:
        expected += bias.float().cpu()[flat]
    assert relative_error(found, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize(("family", "tokens"), [("qwen3_moe", 20), ("gpt_oss", 3)])
def test_a_mixture_is_what_its_rounded_weights_compute(
    device: torch.device, family: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both orders of gate and up, with and without biases; few pairs and many."""
    monkeypatch.setattr(quantized, "is_usable", lambda device: True)
    config, original = mixture(family)
    original = original.to(device)
    together, apart = QuantizedExperts(original), QuantizedExperts(original)
    for name in (together.first_name, "down_proj"):
        plain = [w.t() if together.is_transposed else w for w in getattr(original, name).cpu()]
        codes = [round_asymmetric(w.contiguous(), bits=4, group_size=32) for w in plain]
        together.pack(name, [make_expert_weights([c], torch.float32, device) for c in codes])
        apart.pack(name, [PlainWeights(c.dequantize().to(device)) for c in codes])
    x = random_rows(tokens, config.hidden_size, 1, torch.float32, device)
    router = random_rows(tokens, together.num_experts, 2, torch.float32, device).softmax(-1)
    shares, chosen = router.topk(2)
    assert isinstance(together._together["down_proj"], StackedExperts)
    assert apart._together["down_proj"] is None
    assert (tokens * 2 > FEW_PAIRS) == (tokens == 20)
    found, expected = together(x, chosen, shares), apart(x, chosen, shares)
    assert relative_error(found, expected) < 1e-5


def mixture(family: str) -> tuple[Any, Any]:
    """(config, experts) of a tiny model with random weights."""
    import transformers

    small = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 32}
    if family == "qwen3_moe":
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts as Experts

        config: Any = transformers.Qwen3MoeConfig(
            num_experts=5, moe_intermediate_size=64, num_experts_per_tok=2, **small
        )
    else:
        from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts as Experts

        config = transformers.GptOssConfig(num_local_experts=5, num_experts_per_tok=2, **small)
    config._experts_implementation = "eager"
    experts = Experts(config)
    generator = torch.Generator().manual_seed(4)
    for parameter in experts.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
        parameter.requires_grad_(False)
    return config, experts


def test_a_token_does_not_depend_on_the_others(device: torch.device) -> None:
    """Among a few pairs, which are multiplied one by one."""
    codes = [random_ints(4, 40, 128, 32, i, with_zeros=False) for i in range(4)]
    together = stacked([PackedWeights(c, torch.float32, device) for c in codes])
    assert together is not None
    x = random_rows(8, 128, 1, torch.float32, device)
    chosen = torch.arange(16, device=device).view(8, 2) % 4
    whole = together.product(x, Route(chosen, 4), None, 2)
    alone = together.product(x[3:4], Route(chosen[3:4], 4), None, 2)
    assert torch.equal(alone, whole[6:8])


def test_memory_is_taken_over_and_not_doubled(device: torch.device) -> None:
    parts = [
        PackedWeights(random_ints(4, 32, 64, 32, i, with_zeros=True), torch.half, device)
        for i in range(3)
    ]
    before = [part.dense() for part in parts]
    assert stacked(parts) is not None
    storages = {part.packed.words.untyped_storage().data_ptr() for part in parts}
    assert len(storages) == 1
    assert all(torch.equal(p.dense(), b) for p, b in zip(parts, before, strict=True))


def test_unlike_experts_stay_apart(device: torch.device) -> None:
    first = PackedWeights(random_ints(4, 32, 64, 32, 0, with_zeros=True), torch.half, device)
    other = PackedWeights(random_ints(4, 32, 64, 64, 0, with_zeros=True), torch.half, device)
    assert stacked([first, other]) is None
    assert stacked([first, PlainWeights(torch.ones(32, 64))]) is None


@pytest.mark.parametrize("rounding", [round_int8, round_fp8, round_nf4])
def test_an_expert_is_packed(
    device: torch.device, rounding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the row, where a linear layer's would be held as rows of 8 bits. Nothing is measured: an
    expert's product is never one of its own."""
    monkeypatch.setattr(quantized, "is_usable", lambda device: True)
    monkeypatch.setattr(quantized, "measure_tile_rows", lambda weights: pytest.fail("measured"))
    codes = rounding(torch.randn(16, 64))
    weights = make_expert_weights([codes], torch.float32, device)
    assert isinstance(weights, PackedWeights)
    assert torch.allclose(weights.dense().cpu(), codes.dequantize(), atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 4, 64, 1000])
def test_at_real_sizes_without_a_wait(device: torch.device, tokens: int) -> None:
    """Also captured: nothing in a mixture's pass asks the device for a number."""
    codes = [random_ints(4, 1536, 2048, 128, i, with_zeros=True) for i in range(32)]
    together = kernels.stacked([PackedWeights(c, torch.bfloat16, device) for c in codes])
    assert together is not None
    x = random_rows(tokens, 2048, 1, torch.bfloat16, device)
    chosen = random_rows(tokens, 32, 2, torch.float32, device).topk(8).indices
    together.product(x, Route(chosen, 32), None, 8)  # compiles
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = together.product(x, Route(chosen, 32), None, 8)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    plain = torch.stack([c.dequantize(torch.bfloat16) for c in codes]).to(device)
    for slot in range(0, tokens * 8, 97):
        weight = plain[chosen.view(-1)[slot]].float()
        assert relative_error(found[slot], weight @ x[slot // 8].float()) < 1.2e-2
