"""Replacements compute what they replace, and stay out where they would not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine.kernels.linear import Linear
from engine.models import prepare as preparing
from engine.models.architecture import build_on_meta
from engine.models.checkpoint import Checkpoint
from engine.models.layers.norm import FusedRMSNorm, norm_swaps
from engine.models.layers.packing import QKV, PackedLinear, Part, gate_up_swaps, qkv_swaps
from engine.models.layers.replacement import ForwardSwap, ModuleSwap, keep_what_agrees
from engine.models.layers.rotary import (
    RotaryTable,
    apply_halves,
    apply_swaps,
    bytes_of_tables,
    table_rows,
    table_swaps,
)
from engine.models.loader import LoadRequest, load_model
from engine.models.prepare import prepare
from tests.engine.tiny_models import make_model
from tests.figures import numbers


def make_linear(width: int, outputs: int, *, bias: bool = False) -> Linear:
    made = Linear(width, outputs, bias=bias, device="cpu")
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


class TestPackedLinear:
    @pytest.fixture(params=[False, True], ids=["no bias", "bias"])
    def parts(self, request: pytest.FixtureRequest) -> list[Linear]:
        torch.manual_seed(0)
        return [make_linear(8, n, bias=request.param) for n in (6, 4, 2)]

    @pytest.fixture
    def packed(self, parts: list[Linear]) -> PackedLinear:
        packed = PackedLinear(parts)
        packed.weight = nn.Parameter(torch.cat([p.weight for p in parts]), requires_grad=False)
        if packed.bias is not None:
            biases = torch.cat([p.bias for p in parts if p.bias is not None])
            packed.bias = nn.Parameter(biases, requires_grad=False)
        return packed

    def test_the_parts_hand_out_the_slices(self, parts: list[Linear], packed: PackedLinear) -> None:
        x = torch.randn(1, 5, 8)
        found = [packed(x), Part(packed, 1)(x), Part(packed, 2)(x)]
        for part, result in zip(parts, found, strict=True):
            assert torch.allclose(result, part(x), atol=1e-6)

    @pytest.mark.parametrize("order", [(1, 2), (2, 1)])
    def test_another_input_is_computed_afresh(
        self, order: tuple[int, int], parts: list[Linear], packed: PackedLinear
    ) -> None:
        packed(torch.randn(1, 5, 8))
        y = torch.randn(1, 3, 8)
        for index in order:
            assert torch.allclose(Part(packed, index)(y), parts[index](y), atol=1e-6)

    def test_equal_values_in_another_tensor_are_another_input(
        self, parts: list[Linear], packed: PackedLinear
    ) -> None:
        x = torch.randn(1, 5, 8)
        packed(x)
        other = x.clone()
        x.zero_()
        assert torch.allclose(Part(packed, 1)(other), parts[1](other), atol=1e-6)

    def test_activations_are_let_go(self, packed: PackedLinear) -> None:
        x = torch.randn(1, 5, 8)
        packed(x)
        Part(packed, 1)(x)
        Part(packed, 2)(x)
        assert packed._input is None and not packed._kept

    def test_a_part_adds_no_second_name_for_the_weight(self, packed: PackedLinear) -> None:
        assert not list(Part(packed, 1).parameters())


class Attention(nn.Module):
    def __init__(self, *widths: int, biases: tuple[bool, bool, bool] = (False,) * 3) -> None:
        super().__init__()
        q, k, v = (Linear(w, 4, bias=b) for w, b in zip(widths, biases, strict=True))
        self.q_proj, self.k_proj, self.v_proj = q, k, v


@pytest.mark.parametrize(
    ("attention", "packs"),
    [
        (Attention(8, 8, 8), True),
        (Attention(8, 8, 8, biases=(True, True, True)), True),
        (Attention(8, 6, 8), False),
        (Attention(8, 8, 8, biases=(True, False, True)), False),
    ],
)
def test_only_linears_with_the_same_input_are_packed(attention: nn.Module, packs: bool) -> None:
    assert bool(list(qkv_swaps(attention))) == packs


def test_an_mlp_with_something_more_in_it_is_left_alone() -> None:
    prepared = prepare(build_on_meta(make_model("llama").config))
    assert len([s for s in prepared.swaps if s.kind == "gate/up"]) == 2
    other = nn.Module()
    other.mlp = nn.Module()
    for name in ("gate_proj", "up_proj", "down_proj", "extra_proj"):
        setattr(other.mlp, name, Linear(8, 8))
    other.mlp.act_fn = nn.SiLU()
    assert not list(gate_up_swaps(other))


class TestRMSNorm:
    @pytest.mark.parametrize(
        ("family", "offset"), [("llama", 0.0), ("olmo2", 0.0), ("gpt_oss", 0.0), ("gemma2", 1.0)]
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_it_equals_the_family_s_own(
        self, family: str, offset: float, dtype: torch.dtype
    ) -> None:
        swap = next(iter(norm_swaps(make_model(family).to(dtype))))
        fused = swap.replacement
        assert isinstance(fused, FusedRMSNorm) and fused.offset == offset
        fused.weight = swap.original.weight  # type: ignore[assignment]
        x = torch.randn(2, 7, 64, generator=torch.Generator().manual_seed(0)).to(dtype) * 30
        tolerance = 1e-5 if dtype is torch.float32 else 2e-2
        with torch.inference_mode():
            assert torch.allclose(fused(x), swap.original(x), rtol=tolerance, atol=tolerance)
        assert fused(x).dtype == dtype

    def test_an_unknown_formula_is_left_alone(self) -> None:
        class OddRMSNorm(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(8))
                self.eps = 1e-6

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * 2

        assert not list(norm_swaps(nn.Sequential(OddRMSNorm())))


class TestRotary:
    @pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_neox", "phi3"])
    def test_the_table_equals_the_computed_values(self, family: str) -> None:
        model = make_model(family)
        (swap,) = table_swaps(model, 64, torch.float32)
        assert isinstance(swap.replacement, RotaryTable)
        kinds: Any = swap.original.rope_type
        keys = [{"layer_type": k} for k in kinds] if isinstance(kinds, dict) else [{}]
        positions = torch.tensor([[0, 63, 5, 5]])
        for key in keys:
            found = swap.replacement(torch.zeros(1), positions, **key)
            expected = swap.original(torch.zeros(1), positions, **key)
            assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_neox", "phi3", "gpt_oss", "gpt2"])
    def test_what_the_tables_take_is_known_from_the_class_alone(
        self, family: str, dtype: torch.dtype
    ) -> None:
        model = make_model(family)
        made = [swap.replacement for swap in table_swaps(model, 48, dtype)]
        size = sum(b.nbytes for table in made for b in table.buffers())
        assert bytes_of_tables(table_rows(model.to("meta"), dtype), 48) == size

    def test_a_table_that_would_be_too_large_is_not_made(self) -> None:
        assert not list(table_swaps(make_model("llama"), 2**21, torch.float32))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_turning_halves_equals_transformers(self, dtype: torch.dtype) -> None:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        generator = torch.Generator().manual_seed(0)
        q, k = (torch.randn(1, 5, h, 16, generator=generator).to(dtype) for h in (4, 2))
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        angles = torch.rand(1, 5, 8, generator=generator).repeat(1, 1, 2)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        tolerance = 1e-6 if dtype is torch.float32 else 2e-2
        for found, expected in zip(
            apply_halves(q, k, cos, sin), apply_rotary_pos_emb(q, k, cos, sin), strict=True
        ):
            assert torch.allclose(found, expected, rtol=tolerance, atol=tolerance)

    def test_other_users_of_transformers_keep_their_function(self) -> None:
        from transformers.models.llama import modeling_llama

        before = modeling_llama.apply_rotary_pos_emb
        ours, theirs = make_model("llama"), make_model("llama")
        swaps = list(apply_swaps(ours))
        for swap in swaps:
            swap.apply()
        assert len(swaps) == 2
        assert modeling_llama.apply_rotary_pos_emb is before
        attention = theirs.model.layers[0].self_attn
        assert "forward" not in vars(attention)
        assert attention.forward.__func__ is modeling_llama.LlamaAttention.forward


class TestVerification:
    """The check takes out a replacement that computes something else, and only that one."""

    def test_a_wrong_replacement_is_taken_out(self) -> None:
        model = make_model("llama")
        good = list(norm_swaps(model))
        for swap in good:
            swap.replacement.weight = swap.original.weight  # type: ignore[assignment]
        attention = model.model.layers[0].self_attn
        wrong = Linear(64, 64, device="cpu")
        nn.init.normal_(wrong.weight)
        bad = ModuleSwap(QKV, attention, "q_proj", attention.q_proj, wrong)
        for swap in (*good, bad):
            swap.apply()
        stay, outcomes = keep_what_agrees(model, [*good, bad], torch.float32)
        assert stay == good
        assert attention.q_proj is bad.original
        assert outcomes[QKV].startswith("original") and numbers(outcomes[QKV])
        assert outcomes["rms norm"].startswith("fused")

    def test_a_replacement_that_fails_is_taken_out(self) -> None:
        def broken(self: nn.Module, *args: object, **kwargs: object) -> None:
            raise ZeroDivisionError

        model = make_model("llama")
        swap = ForwardSwap("broken", model.model.layers[0].mlp, broken)
        swap.apply()
        stay, outcomes = keep_what_agrees(model, [swap], torch.float32)
        assert not stay
        assert outcomes == {"broken": "original (failed: ZeroDivisionError)"}
        assert "forward" not in vars(model.model.layers[0].mlp)

    def test_the_model_is_whole_again_afterwards(self) -> None:
        model = make_model("llama", num_hidden_layers=5)
        model.config._attn_implementation = "sdpa"
        keep_what_agrees(model, [], torch.float32)
        assert len(model.model.layers) == 5
        assert model.config._attn_implementation == "sdpa"

    def test_a_configuration_that_agrees_is_compared_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import engine.models.layers.replacement as verify

        compared: list[torch.dtype] = []

        def compare(model: Any, swaps: Any, dtype: torch.dtype) -> Any:
            compared.append(dtype)
            return keep_what_agrees(model, swaps, dtype)

        monkeypatch.setattr(preparing, "_known", {})
        monkeypatch.setattr(preparing, "keep_what_agrees", compare)
        config, other = (make_model("qwen2", num_hidden_layers=n).config for n in (2, 3))
        find = lambda config, dtype: preparing.kinds_that_agree(config, 64, dtype, "cpu", False)
        assert find(config, torch.float32) == find(copy.deepcopy(config), torch.float32)
        assert compared == [torch.float32]
        find(other, torch.float32)
        find(config, torch.bfloat16)
        assert compared == [torch.float32, torch.float32, torch.bfloat16]
        monkeypatch.setitem(verify.TOLERANCE, torch.float16, -1.0)
        for _ in range(2):  # where one differs it may be the machine
            assert not find(config, torch.float16)[0]
        assert compared[3:] == [torch.float16] * 2

    def test_what_is_taken_out_after_loading_still_has_its_weights(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import engine.models.layers.replacement as verify

        model = make_model("qwen2")
        model.save_pretrained(tmp_path)
        monkeypatch.setattr(preparing, "_known", {})
        monkeypatch.setitem(verify.TOLERANCE, torch.float32, -1.0)  # nothing agrees
        checkpoint = Checkpoint.open(tmp_path)
        loaded = load_model(LoadRequest(checkpoint, torch.float32, "cpu", "auto", 0, 64))
        assert all(
            outcome.startswith("original")
            for kind, outcome in loaded.kernels.items()
            if kind != "linear"
        )
        loaded.model.config._attn_implementation = "eager"  # type: ignore[union-attr]
        tokens = torch.tensor([[3, 4, 5, 6]])
        with torch.inference_mode():
            found = loaded.model(tokens, use_cache=False).logits
            expected = model(tokens, use_cache=False).logits
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-4)
        assert not any(isinstance(m, PackedLinear | FusedRMSNorm) for m in loaded.model.modules())
