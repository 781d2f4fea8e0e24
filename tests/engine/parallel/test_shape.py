"""What ranks have of a model comes to the whole, for every class that can be divided; the others
are refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UnsupportedModelError
from engine.formats.safetensors_file import TensorInfo
from engine.models.architecture import build_on_meta, kv_layout
from engine.parallel import smoke_test as trial
from engine.parallel.shape import Cut, Shape, shape_of
from engine.parallel.share import Share
from engine.parallel.smoke_test import TESTED, check_division, in_parts
from tests.engine import tiny_models


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


DIVIDED = sorted(
    family
    for family in tiny_models.FAMILIES
    if tiny_models.make_model(family).config.model_type in TESTED
)


@pytest.mark.parametrize("family", DIVIDED)
@pytest.mark.parametrize("size", (2, 4))
def test_logits_of_parts_are_those_of_the_whole(family: str, size: int) -> None:
    model = tiny_models.make_model(family, num_key_value_heads=4)
    tokens = torch.tensor(tiny_models.make_prompts((19,)))
    with torch.inference_mode():
        expected = model(tokens, use_cache=False).logits[0]
    found = in_parts(model, tokens, size)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", DIVIDED)
def test_parts_of_weights_put_together_are_the_weights(family: str) -> None:
    model = tiny_models.make_model(family)
    shape = shape_of(model.config, 2)
    for name, whole in model.state_dict().items():
        parts = [Share(shape, rank).cut(name, whole) for rank in range(2)]
        cut = shape.cuts.get(name)
        if cut is None:
            assert torch.equal(parts[0], whole)
            assert torch.equal(parts[1], torch.zeros_like(whole) if name in shape.once else whole)
            continue
        assert parts[0].shape == parts[1].shape
        back = torch.empty_like(whole)
        for rank, part in enumerate(parts):
            start = 0
            for low, high in cut.ranges(rank, 2):
                back.narrow(cut.dim, low, high - low).copy_(
                    part.narrow(cut.dim, start, high - low)
                )
                start += high - low
            assert not part.narrow(cut.dim, start, part.shape[cut.dim] - start).any()
        assert torch.equal(back, whole)


def test_all_that_does_not_come_out_even_is_named() -> None:
    config = tiny_models.make_model("llama").config
    with pytest.raises(UnsupportedModelError) as refused:
        shape_of(config, 5)
    assert "num_attention_heads 4, num_key_value_heads 2" in refused.value.cause
    assert "intermediate_size 96" in refused.value.cause
    with pytest.raises(UnsupportedModelError, match="num_key_value_heads 2"):
        shape_of(config, 4)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("gpt2", "heads"),
        ("gpt_neox", "logits"),
        ("olmo2", "a norm over all 64"),
    ],
)
def test_classes_that_cannot_be_divided_are_refused(family: str, reason: str) -> None:
    config = tiny_models.make_model(family).config
    with pytest.raises(UnsupportedModelError, match=reason):
        check_division(config, 2)


def test_the_trial_sees_what_the_shapes_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """With halves that are cut as if they lay in one piece, shapes are right and numbers wrong."""
    config: Any = tiny_models.make_model("phi3").config
    monkeypatch.setattr(trial, "TESTED", frozenset())
    trial._run.cache_clear()
    check_division(config, 2)
    monkeypatch.setattr("engine.parallel.shape._segments", lambda model, name, length: (length,))
    trial._run.cache_clear()
    with pytest.raises(UnsupportedModelError, match="logits differ"):
        check_division(config, 2)
    trial._run.cache_clear()


def test_the_trial_sees_what_is_wrong_behind_the_first_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Experts, cut as if their halves lay in one piece, come behind two dense layers."""
    config = transformers.DeepseekV3Config(
        hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, vocab_size=199, first_k_dense_replace=2,
        n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, q_lora_rank=24,
        kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=12,
    )  # fmt: skip
    trial._run.cache_clear()
    check_division(config, 2)
    monkeypatch.setattr("engine.parallel.shape._segments", lambda model, name, length: (length,))
    trial._run.cache_clear()
    with pytest.raises(UnsupportedModelError, match="logits differ"):
        check_division(config, 2)
    trial._run.cache_clear()


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 20))
def test_rows_of_a_vocabulary_come_in_chunks_of_one_size(
    vocabulary: int, size: int, at_once: int
) -> None:
    """All but the last: formats in panels count on it."""
    cut = Cut(0, vocabulary, -(-vocabulary // size), (vocabulary,))
    shape = Shape(size, None, {"head": cut}, frozenset(), (), vocabulary, True, cut.part)
    info = TensorInfo(Path("file"), "F32", (vocabulary, 2), vocabulary * 8, 100)
    places: list[int] = []
    for rank in range(size):
        chunks = list(Share(shape, rank).rows("head", info, at_once))
        heights = [(found.shape[0] if found else 0) + zeros for found, zeros in chunks]
        assert sum(heights) == cut.part and set(heights[:-1]) <= {at_once}
        for found, _ in chunks:
            if found is not None:
                start = (found.offset - 100) // 8
                places += range(start, start + found.shape[0])
    assert places == list(range(vocabulary))


def mixed_config(**changes: Any) -> Any:
    """Of a model with layers of two kinds, which differ in the width of their heads."""
    shape = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 199,
        "max_position_embeddings": 256, "head_dim": 16, "global_head_dim": 32,
        "sliding_window": 13, "layer_types": ["sliding_attention", "full_attention"],
        "vocab_size_per_layer_input": 199, "hidden_size_per_layer_input": 0,
    }  # fmt: skip
    return transformers.Gemma4TextConfig(**shape, **changes)


def test_layers_that_differ_in_the_width_of_their_heads_can_be_divided() -> None:
    check_division(mixed_config(), 2)


def test_layers_that_differ_in_their_number_of_heads_are_refused_by_ranks_alone() -> None:
    config = mixed_config(num_global_key_value_heads=1, attention_k_eq_v=True)
    with pytest.raises(UnsupportedModelError, match="differ in num_key_value_heads"):
        check_division(config, 2)
    layout = kv_layout(build_on_meta(config))
    assert [(layer.num_kv_heads, layer.key_dim) for layer in layout] == [(2, 16), (1, 32)]
