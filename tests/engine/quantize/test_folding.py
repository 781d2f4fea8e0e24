"""Scales that move through a layer: found in every family, and exact where they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from engine.formats.tensor_reader import TensorReader
from engine.models.architecture import build_on_meta
from engine.models.checkpoint import Checkpoint
from engine.models.weight_map import map_weights
from engine.quantize.decoder import Decoder
from engine.quantize.folding import Fold, find_fold
from engine.quantize.groups import find_groups
from tests.engine import tiny_models
from tests.tiers import tiered

PROMPTS = [tiny_models.make_prompts([24])[0], tiny_models.make_prompts([24], seed=1)[0]]

# what stands before each group of matrices in the first layer: the end of its name, "" for nothing
NORM_AND_UP = ["input_layernorm.weight", "", "post_attention_layernorm.weight", "up_proj.weight"]
GEMMA = ["input_layernorm.weight", "", "pre_feedforward_layernorm.weight", "up_proj.weight"]
EXPERTS = [
    "input_layernorm.weight", "", "post_attention_layernorm.weight", "experts.gate_up_proj",
]  # fmt: skip
FUSED = [
    "input_layernorm.weight", "", "post_attention_layernorm.weight", "gate_up_proj.weight",
]  # fmt: skip
FOUND = {
    "llama": NORM_AND_UP,
    "qwen2": NORM_AND_UP,
    "qwen3": NORM_AND_UP,
    "mistral": NORM_AND_UP,
    "gemma2": GEMMA,
    "gemma3": GEMMA,
    "phi3": FUSED,
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS,
    # norms only behind attention and MLP; an activation between the two matrices of the MLP
    "olmo2": ["", "", "", "up_proj.weight"],
    "gpt_neox": ["input_layernorm.weight", "", "post_attention_layernorm.weight", ""],
    "starcoder2": ["input_layernorm.weight", "", "post_attention_layernorm.weight", ""],
    "gpt2": ["ln_1.weight", "c_attn.weight", "ln_2.weight", ""],
    "gpt_oss": ["input_layernorm.weight", "", "post_attention_layernorm.weight", ""],
}


@contextmanager
def opened(folder: Path) -> Iterator[Decoder]:
    checkpoint = Checkpoint.open(folder)
    model = build_on_meta(checkpoint.config)
    weights = map_weights(checkpoint, model)
    with torch.inference_mode(), TensorReader(1, lambda *_: None, lambda: False) as reader:
        decoder = Decoder(checkpoint, model, weights, reader)
        decoder.start(PROMPTS, lambda: None)
        yield decoder


def outputs(decoder: Decoder, index: int, states: list[torch.Tensor]) -> list[torch.Tensor]:
    """Of a layer, for these states in place of the decoder's."""
    decoder.states = states
    return [decoder.run(index, sequence) for sequence in range(len(states))]


def find_folds(decoder: Decoder, index: int) -> list[Fold | None]:
    layer = decoder.layers[index]

    def run() -> torch.Tensor:
        return decoder.run(index, 0)

    groups = find_groups(layer, run)
    return [find_fold(layer, group, groups, run) for group in groups]


@pytest.mark.parametrize("family", tiered(FOUND))
def test_folding_leaves_the_model_as_it_was(family: str, tmp_path: Path) -> None:
    """Random scales in every place that was found, in all layers: the same hidden states."""
    model = tiny_models.make_model(family)
    tiny_models.save(model, tmp_path)
    with opened(tmp_path) as decoder:
        states = [state.clone() for state in decoder.states]
        plain, scaled, found = list(states), list(states), []
        for index in range(len(decoder.layers)):
            layer = decoder.load_layer(index)
            plain = outputs(decoder, index, plain)
            folds = find_folds(decoder, index)
            found.append([fold.weight if fold else "" for fold in folds])
            for fold in folds:
                if fold is not None:
                    fold.apply(layer, torch.exp2(torch.rand(fold.shape) * 2 - 1))
            scaled = outputs(decoder, index, scaled)
            decoder.drop_layer(index)
        for names in found:
            assert len(names) == len(FOUND[family])
            for name, end in zip(names, FOUND[family], strict=True):
                assert name.endswith(end) and bool(name) == bool(end)
        for before, after in zip(plain, scaled, strict=True):
            assert float((after - before).norm() / before.norm()) < 1e-5


@pytest.mark.parametrize("family", tiered(FOUND))
def test_layers_one_at_a_time_are_the_model(family: str, tmp_path: Path) -> None:
    """Masks, windows, rotary tables: every layer gets what the whole model would give it."""
    model = tiny_models.make_model(family, max_position_embeddings=256, sliding_window=7)
    tiny_models.save(model, tmp_path)
    with opened(tmp_path) as decoder:
        for index in range(len(decoder.layers)):
            decoder.load_layer(index)
            decoder.advance(index, lambda: None)
            decoder.drop_layer(index)
            assert all(p.is_meta for p in decoder.model.parameters())
        for ids, state in zip(PROMPTS, decoder.states, strict=True):
            caught: list[torch.Tensor] = []
            last = decoder_layers(model)[-1]
            handle = last.register_forward_hook(
                lambda m, i, o, caught=caught: caught.append(o[0] if isinstance(o, tuple) else o)
            )
            model(torch.tensor([ids]), use_cache=False)
            handle.remove()
            assert torch.allclose(caught[0], state, atol=1e-5)


def decoder_layers(model: torch.nn.Module) -> torch.nn.ModuleList:
    return next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))


def test_values_scale_the_output_projection_where_heads_are_not_shared(tmp_path: Path) -> None:
    model = tiny_models.make_model("llama", num_key_value_heads=4)
    with opened(tiny_models.save(model, tmp_path)) as decoder:
        decoder.load_layer(0)
        names = [fold.weight if fold else None for fold in find_folds(decoder, 0)]
    assert names[1] == "self_attn.v_proj.weight"


def test_a_gemma_norm_is_divided_as_one_plus_its_weight(tmp_path: Path) -> None:
    model = tiny_models.make_model("gemma2")
    with opened(tiny_models.save(model, tmp_path)) as decoder:
        layer = decoder.load_layer(0)
        fold = find_folds(decoder, 0)[0]
        assert fold is not None and fold.is_plus_one
        before = layer.get_parameter(fold.weight).clone()
        fold.divide(layer, torch.full(fold.shape, 2.0))
        assert torch.allclose(layer.get_parameter(fold.weight), (1 + before) / 2 - 1)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_what_a_norm_cannot_store_is_moved_into_the_scales(family: str, tmp_path: Path) -> None:
    """After rounding to bfloat16 the norm is off by 0.4 %; with the exact scales by nothing."""
    model = tiny_models.make_model(family)
    with opened(tiny_models.save(model, tmp_path)) as decoder:
        layer = decoder.load_layer(0)
        output = decoder.run(0, 0)
        fold = find_folds(decoder, 0)[0]
        assert fold is not None
        weight = layer.get_parameter(fold.weight).data
        weight.copy_(weight.to(torch.bfloat16))
        output = decoder.run(0, 0)
        scales = torch.exp2(torch.rand(fold.shape) * 2 - 1)
        exact = fold.exact(layer, scales, torch.bfloat16)
        assert torch.allclose(exact, scales, rtol=0.05)
        fold.apply(layer, exact)
        weight.copy_(weight.to(torch.bfloat16))
        assert float((decoder.run(0, 0) - output).norm() / output.norm()) < 1e-5


def test_parameters_that_cannot_be_written_are_left_alone(tmp_path: Path) -> None:
    with opened(tiny_models.save(tiny_models.make_model("llama"), tmp_path)) as decoder:
        layer = decoder.load_layer(0)

        def run() -> torch.Tensor:
            return decoder.run(0, 0)

        groups = find_groups(layer, run)
        frozen = frozenset({"input_layernorm.weight"})
        assert find_fold(layer, groups[0], groups, run, frozen) is None
        assert find_fold(layer, groups[2], groups, run, frozen) is not None
