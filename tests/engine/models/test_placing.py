"""Where each family is divided: what is computed before its layers is found by running it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.errors import UnsupportedModelError
from engine.hardware.device_map import DeviceMap
from engine.models.architecture import build_on_meta
from engine.models.placement import place
from tests.engine.tiny_models import FAMILIES, make_model
from tests.tiers import tiered

SHARED_KV = ("gemma3n", "gemma4")
DIVIDED = [family for family in FAMILIES if family not in SHARED_KV]

USUAL = ("model.layers", "model.embed_tokens", "model.rotary_emb")
OTHERS = {
    "gpt2": ("transformer.h", "transformer.wte", "transformer.wpe"),
    "gpt_neox": ("gpt_neox.layers", "gpt_neox.embed_in", "gpt_neox.rotary_emb"),
}


def reference(family: str) -> Any:
    with torch.device("meta"):
        config = make_model(family).config
    return build_on_meta(config)


@pytest.mark.parametrize("family", tiered(DIVIDED))
def test_every_family_has_its_embeddings_before_its_layers(family: str) -> None:
    model = reference(family)
    attention = model.config._attn_implementation
    found = place(model, "cuda:0", 1)
    layers, *before = OTHERS.get(family, USUAL)
    assert found == DeviceMap("cuda:0", 1, layers, tuple(before))
    assert model.config._attn_implementation == attention
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("family", DIVIDED)
def test_each_tensor_has_one_place(family: str) -> None:
    """The first layer and what comes before it on the CPU; norm, head and the other layer not."""
    model = reference(family)
    found = place(model, "cuda:1", 1)
    layers = model.get_submodule(found.layers)
    first, second, *_ = ({id(t) for t in layer.parameters()} for layer in layers)
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert found.of(name) in ("cpu", "cuda:1")
        if id(tensor) in first or tensor is embeddings.weight:
            assert found.of(name) == "cpu", name
        if id(tensor) in second or tensor is head.weight or "norm" in name.split(".")[1]:
            assert found.of(name) == "cuda:1", name


@pytest.mark.parametrize("family", SHARED_KV)
def test_layers_that_share_a_cache_stay_on_one_device(family: str) -> None:
    with pytest.raises(UnsupportedModelError, match="share the KV cache"):
        place(reference(family), "cuda:0", 1)


def raising(*args: Any, **kwargs: Any) -> Any:
    raise ValueError("no such input")


def passing_by(*args: Any, **kwargs: Any) -> Any:
    class Output:
        logits = torch.empty(1, 1, 5, device="meta")

    return Output()


@pytest.mark.parametrize(
    ("forward", "why"), [(raising, "no such input"), (passing_by, "layers")]
)
def test_a_class_that_cannot_be_divided_is_refused(
    forward: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = reference("llama")
    attention = model.config._attn_implementation
    monkeypatch.setattr(type(model), "forward", forward)
    with pytest.raises(UnsupportedModelError, match=why) as error:
        place(model, "cuda:0", 1)
    assert "LlamaForCausalLM" in error.value.cause
    assert "gpu_layers" in error.value.remedy
    assert model.config._attn_implementation == attention
    assert not any(module._forward_pre_hooks for module in model.modules())
