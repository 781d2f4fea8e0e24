"""What masks of transformers say reaches the engine's attention; what it does not know raises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from engine.attention.interface import HARMLESS, VISIBLE, AttentionOptions, _attention, active
from engine.attention.masks import bind_masks, copy_masks
from engine.errors import UnsupportedModelError
from engine.models.architecture import build_on_meta
from engine.models.smoke_test import TESTED
from tests.engine.tiny_models import _MOE, _SMALL, FAMILIES
from tests.tiers import tiered

LENGTH = 64


def on_meta(name: str, **own: Any) -> Any:
    return build_on_meta(getattr(transformers, name)(**{**_SMALL, "num_hidden_layers": 4, **own}))


def bound(model: Any) -> list[tuple[int | None, int | None] | None]:
    modules = [m for m in model.modules() if isinstance(getattr(m, "layer_idx", None), int)]
    return [tuple(found) for m in modules if (found := m.__dict__.get(VISIBLE))]


EVERYTHING = (None, None)


@pytest.mark.parametrize(
    ("name", "own", "expected"),
    [
        ("LlamaConfig", {}, [EVERYTHING] * 4),
        ("MistralConfig", {"sliding_window": 5}, [(5, None)] * 4),
        ("MistralConfig", {"sliding_window": LENGTH}, [EVERYTHING] * 4),  # never reached
        ("PhimoeConfig", {"sliding_window": 5, "num_local_experts": 4}, [(5, None)] * 4),
        (
            "Qwen2MoeConfig",
            {"use_sliding_window": True, "sliding_window": 5, "num_experts": 4, **_MOE},
            [(5, None), EVERYTHING] * 2,
        ),
        ("Qwen2MoeConfig", {"sliding_window": 5, "num_experts": 4, **_MOE}, [EVERYTHING] * 4),
        (
            "Llama4TextConfig",
            {"attention_chunk_size": 7, "num_local_experts": 2, "intermediate_size_mlp": 64},
            [(None, 7)] * 3 + [EVERYTHING],
        ),
    ],
)
def test_each_layer_keeps_what_its_mask_says(
    name: str, own: dict[str, Any], expected: list[Any]
) -> None:
    model = on_meta(name, **own)
    bind_masks(model, LENGTH)
    assert bound(model) == expected
    assert model.config._attn_implementation == "eager"
    other = on_meta(name, **own)
    copy_masks(model, other)
    assert bound(other) == expected


def test_a_model_that_was_loaded_before_is_not_run_again() -> None:
    first = on_meta("MistralConfig", sliding_window=6)
    bind_masks(first, LENGTH)
    for window, length, expected in (
        (6, LENGTH, [(6, None)] * 4),
        (6, 6, [EVERYTHING] * 4),
        (7, LENGTH, []),  # another one, which cannot run
    ):
        again = on_meta("MistralConfig", sliding_window=window)
        again.forward = None
        bind_masks(again, length)
        assert bound(again) == expected
    assert bound(first) == [(6, None)] * 4


@pytest.mark.parametrize("family", tiered(FAMILIES))
def test_the_masks_of_every_tested_type_are_known(family: str) -> None:
    name, own = FAMILIES[family]
    model = on_meta(name, **{"num_hidden_layers": 2, **own})
    assert model.config.model_type in TESTED
    bind_masks(model, LENGTH)
    assert len(bound(model)) == model.config.num_hidden_layers


@pytest.mark.parametrize(
    ("name", "own", "part"),
    [
        ("BertConfig", {}, "bidirectional_mask_function"),
        ("Gemma3TextConfig", {"head_dim": 16, "use_bidirectional_attention": True}, "or_masks"),
    ],
)
def test_another_mask_is_refused_by_name(name: str, own: dict[str, Any], part: str) -> None:
    with pytest.raises(UnsupportedModelError, match=part):
        bind_masks(on_meta(name, **own), LENGTH)


class Sees:
    """Keeps the options that arrive."""

    options: AttentionOptions | None = None

    def forward(
        self, layer: int, q: Any, k: Any, v: Any, options: AttentionOptions
    ) -> torch.Tensor:
        self.options = options
        return v


def attend(**given: Any) -> AttentionOptions | None:
    module = torch.nn.Module()
    module.layer_idx = 0  # type: ignore[assignment]
    for name, value in given.pop("on_module", {}).items():
        setattr(module, name, value)
    tensor, sees = torch.zeros(1, 2, 3, 4), Sees()
    with active(sees):
        _attention(module, tensor, tensor, tensor, **given)
    return sees.options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention_mask", torch.ones(1, 1, 3, 3)),
        ("attention_mask", object()),
        ("is_causal", False),
        ("dropout", 0.1),
        ("position_bias", torch.zeros(1)),
        ("indices", torch.zeros(1)),
        ("something_new", False),
    ],
)
def test_arguments_that_would_be_ignored_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=name):
        attend(**{name: value})


@pytest.mark.parametrize(("queries", "keys", "values"), [(3, 5, 5), (5, 3, 3), (3, 3, 1)])
def test_keys_of_other_tokens_are_refused(queries: int, keys: int, values: int) -> None:
    module = torch.nn.Module()
    tensors = [torch.zeros(1, 2, count, 4) for count in (queries, keys, values)]
    with pytest.raises(UnsupportedModelError, match=f"{queries} queries.*{keys} keys"):
        _attention(module, *tensors)


def test_known_and_absent_arguments_pass() -> None:
    options = attend(
        **dict.fromkeys(HARMLESS, 1), attention_mask=None, something_new=None, dropout=0.0,
        is_causal=True, sliding_window=5, softcap=2.0, scaling=0.5,
    )  # fmt: skip
    assert options == AttentionOptions(0.5, 5, 2.0, None)


def test_the_mask_decides_over_the_window_that_a_class_passes() -> None:
    from engine.attention.interface import Visible

    options = attend(on_module={VISIBLE: Visible(window=3)}, sliding_window=5)
    assert options is not None and options.window == 3
    options = attend(on_module={VISIBLE: Visible()}, sliding_window=5)
    assert options is not None and options.window is None
    options = attend(on_module={VISIBLE: Visible(chunk=7)})
    assert options is not None and (options.window, options.chunk) == (None, 7)
