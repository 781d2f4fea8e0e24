"""A checkpoint written by transformers and loaded by us computes what it computed."""

from __future__ import annotations

import gc
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from engine.errors import CheckpointError, LoadCancelled
from engine.hardware.device_map import DeviceMap
from engine.kernels import registry as select
from engine.kernels.linear import BlockedWeights, Linear
from engine.models.architecture import build_on_meta, count_parameters
from engine.models.checkpoint import Checkpoint
from engine.models.layers.packing import GatedMLP, PackedLinear
from engine.models.loader import LoadedModel, LoadRequest, load_model
from engine.models.materialise import compute_buffers
from tests.engine.models.live_bytes import live_bytes
from tests.engine.tiny_models import FAMILIES, make_model, make_prompts
from tests.figures import numbers
from tests.tiers import tiered

PACKED_QKV = {"llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "qwen3_moe", "mixtral",
              "olmo2", "starcoder2", "gpt_oss", "phimoe", "qwen2_moe", "llama4"}  # fmt: skip
PACKED_MLP = {"llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "olmo2", "qwen2_moe"}
RMS_NORM = set(FAMILIES) - {"gpt2", "gpt_neox", "starcoder2", "phimoe"}


# Their layers read what the model computes beside the hidden states: a layer alone is no check.
UNFUSED = {"gemma3n", "gemma4", "gemma4_moe"}


def load(folder: Path, **changes: Any) -> LoadedModel:
    options: dict[str, Any] = {
        "dtype": torch.float32,
        "device": "cpu",
        "load_format": "auto",
        "seed": 0,
        "max_model_len": 64,
    }
    options |= changes
    checkpoint = Checkpoint.open(folder, dummy=options["load_format"] == "dummy")
    return load_model(LoadRequest(checkpoint, **options))


@torch.inference_mode()
def logits(model: Any, length: int = 20) -> torch.Tensor:
    """In the loaded model attention is the engine's; here transformers' own computes it."""
    model.config._attn_implementation = "eager"
    return model(torch.tensor(make_prompts([length])), use_cache=False).logits


def test_buffers_of_weight_files_are_not_computed() -> None:
    config = transformers.ApertusConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=16,
    )  # fmt: skip
    model: Any = build_on_meta(config)
    compute_buffers(model, DeviceMap("cpu"))
    assert model.model.layers[0].mlp.act_fn.beta.is_meta
    assert model.model.rotary_emb.inv_freq.isfinite().all()


def save(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


@pytest.mark.parametrize("family", tiered(FAMILIES))
def test_logits_equal_those_of_from_pretrained(family: str, tmp_path: Path) -> None:
    model = make_model(family)
    loaded = load(save(model, tmp_path))
    expected = logits(model)
    # the weights of these models are large: errors count against the size of the logits
    assert (logits(loaded.model) - expected).abs().max() < 1e-5 * max(1, expected.abs().max())
    if family in UNFUSED:
        fused = [kind for kind, outcome in loaded.kernels.items() if "fused" in outcome]
        assert not fused, fused
        return
    assert ("qkv" in loaded.kernels) == (family in PACKED_QKV)
    assert ("gate/up" in loaded.kernels) == (family in PACKED_MLP)
    assert ("rms norm" in loaded.kernels) == (family in RMS_NORM)
    original = {kind for kind, outcome in loaded.kernels.items() if "original" in outcome}
    assert original == ({"rotary table"} if family == "llama4" else set())


@pytest.mark.parametrize("family", tiered(FAMILIES))
def test_weights_take_no_more_memory_than_the_model_has(family: str, tmp_path: Path) -> None:
    model = make_model(family)
    loaded = load(save(model, tmp_path))
    wanted = sum(p.nbytes for p in model.parameters())
    buffers = sum(b.nbytes for b in loaded.model.buffers())
    assert wanted <= loaded.weights_bytes <= wanted + buffers
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert not any(module.training for module in loaded.model.modules())


@pytest.mark.parametrize("are_arranged", [False, True])
def test_no_second_copy_of_the_weights_at_any_time(
    are_arranged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = (select.Choice("linear, blocked weights", "float32", 1, "onednn", "by the test"),)
    monkeypatch.setattr(select, "_blocked_choices", lambda dtype: blocks if are_arranged else ())
    changes = {"num_hidden_layers": 6, "hidden_size": 256, "intermediate_size": 512}
    model = make_model("llama", **changes)
    largest = max(p.nbytes for p in model.parameters())
    total = sum(p.nbytes for p in model.parameters())
    save(model, tmp_path)
    del model
    gc.collect()
    before = live_bytes()
    peaks: list[int] = []
    calls = itertools.count()

    def watch(stage: str, done: int, size: int) -> None:
        if next(calls) % 8 == 0 or done == size:  # looking at every object takes a while
            peaks.append(live_bytes())

    loaded = load(tmp_path, progress=watch)
    linears = [m for m in loaded.model.modules() if isinstance(m, Linear)]
    assert any(isinstance(module.packed, BlockedWeights) for module in linears) is are_arranged
    gc.collect()
    read_buffer = 16 * 2**20
    assert max(peaks) - before <= total + largest + read_buffer + 2**18
    assert live_bytes() - before <= total + 2**18
    assert loaded.weights_bytes >= total


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt2"])
def test_sharded_checkpoints(family: str, tmp_path: Path) -> None:
    model = make_model(family)
    save(model, tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert torch.allclose(logits(load(tmp_path).model), logits(model), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kept", ["embedding", "head", "both"])
def test_tied_embeddings_whichever_name_is_on_disk(kept: str, tmp_path: Path) -> None:
    model = make_model("llama", tie_word_embeddings=True)
    save(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    embedding = tensors.pop("model.embed_tokens.weight")
    if kept in ("embedding", "both"):
        tensors["model.embed_tokens.weight"] = embedding
    if kept in ("head", "both"):
        tensors["lm_head.weight"] = embedding.clone()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    loaded = load(tmp_path)
    assert torch.allclose(logits(loaded.model), logits(model), atol=1e-4, rtol=1e-5)
    model_: Any = loaded.model
    assert model_.lm_head.weight is model_.model.embed_tokens.weight
    assert not loaded.notices


def test_a_head_that_differs_from_the_embedding_it_should_share_is_used(tmp_path: Path) -> None:
    model = make_model("llama", tie_word_embeddings=True)
    save(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 2
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    loaded = load(tmp_path)
    assert torch.allclose(logits(loaded.model), 2 * logits(model), atol=1e-3, rtol=1e-4)
    assert "lm_head.weight" in loaded.notices[0]


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float64])
def test_stored_dtypes_are_converted(stored: torch.dtype, tmp_path: Path) -> None:
    model = make_model("qwen3").to(stored)
    loaded = load(save(model, tmp_path))
    expected = logits(model.float())
    assert torch.allclose(logits(loaded.model), expected, atol=1e-4, rtol=1e-4)


def test_loading_in_bfloat16_gives_the_model_in_bfloat16(tmp_path: Path) -> None:
    model = make_model("qwen3")
    loaded = load(save(model, tmp_path), dtype=torch.bfloat16)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
    agreement = nn.functional.cosine_similarity(logits(loaded.model), logits(model), dim=-1)
    assert agreement.min() > 0.99
    assert all("original" not in outcome for outcome in loaded.kernels.values())


def test_the_text_part_of_a_multimodal_checkpoint(tmp_path: Path) -> None:
    text = make_model("gemma3")
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
              "num_attention_heads": 2, "image_size": 28, "patch_size": 14}  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=text.config.to_dict(), vision_config=vision, mm_tokens_per_image=4
    )
    whole = transformers.Gemma3ForConditionalGeneration(config)
    missing, unexpected = whole.model.language_model.load_state_dict(text.model.state_dict())
    assert not missing and not unexpected
    whole.lm_head.weight = whole.model.language_model.embed_tokens.weight
    save(whole, tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.is_multimodal
    loaded = load(tmp_path)
    assert type(loaded.model).__name__ == "Gemma3ForCausalLM"
    assert torch.allclose(logits(loaded.model), logits(text), atol=1e-3, rtol=1e-4)
    (notice,) = loaded.notices
    assert numbers(notice) == [34]


@pytest.mark.parametrize(
    ("family", "config_name", "prefix", "head"),
    [
        ("llama4", "Llama4Config", "language_model.model.", "language_model."),
        ("gemma3n", "Gemma3nConfig", "model.language_model.", ""),
        ("gemma4", "Gemma4Config", "model.language_model.", ""),
    ],
)
def test_the_text_part_of_a_folder_with_images_and_sound(
    tmp_path: Path, family: str, config_name: str, prefix: str, head: str
) -> None:
    """Named as published: the classes around these need other packages, or large towers."""
    text = make_model(family)
    save(text, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    renamed = {
        prefix + name.removeprefix("model.") if name.startswith("model.") else head + name: tensor
        for name, tensor in stored.items()
    }
    other = {"model.vision_tower.patch.weight": torch.ones(2, 2)}
    save_file(renamed | other, tmp_path / "model.safetensors", {"format": "pt"})
    whole = getattr(transformers, config_name)(text_config=text.config.to_dict())
    whole.save_pretrained(tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.is_multimodal and checkpoint.config.model_type == text.config.model_type
    loaded = load(tmp_path)
    assert torch.allclose(logits(loaded.model), logits(text), atol=1e-3, rtol=1e-4)
    (notice,) = loaded.notices
    assert numbers(notice) == [1]


class TestDamagedCheckpoints:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return save(make_model("llama"), tmp_path)

    def change(self, folder: Path, **changes: torch.Tensor | None) -> None:
        tensors: dict[str, Any] = load_file(folder / "model.safetensors") | changes
        kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        save_file(kept, folder / "model.safetensors", {"format": "pt"})

    def test_missing_tensors_are_named(self, folder: Path) -> None:
        self.change(folder, **{"model.layers.1.mlp.up_proj.weight": None})
        with pytest.raises(CheckpointError, match=r"1 tensor .*layers\.1\.mlp\.up_proj"):
            load(folder)

    def test_unexpected_tensors_are_named(self, folder: Path) -> None:
        self.change(folder, **{"model.layers.0.adapter.weight": torch.zeros(2, 2)})
        with pytest.raises(CheckpointError, match=r" 1 tensor .*layers\.0\.adapter\.weight"):
            load(folder)

    def test_misshapen_tensors_are_named_with_both_shapes(self, folder: Path) -> None:
        self.change(folder, **{"model.norm.weight": torch.ones(63)})
        with pytest.raises(CheckpointError, match=r"model\.norm\.weight .*\[63\].*\[64\]"):
            load(folder)

    def test_a_missing_expert_is_an_error(self, tmp_path: Path) -> None:
        folder = save(make_model("mixtral"), tmp_path)
        name = next(n for n in load_file(folder / "model.safetensors") if "experts.2" in n)
        self.change(folder, **{name: None})
        with pytest.raises(CheckpointError, match="needs 4 tensors of each kind"):
            load(folder)

    def test_buffers_of_older_checkpoints_do_no_harm(self, folder: Path) -> None:
        name = "model.layers.0.self_attn.rotary_emb.inv_freq"
        self.change(folder, **{name: torch.zeros(8)})
        load(folder)

    def test_more_layers_in_the_config_than_on_disk(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["num_hidden_layers"] = 3
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match=r"9 tensors.*model\.layers\.2"):
            load(folder)

    def test_a_file_that_shrinks_after_it_was_checked(self, folder: Path) -> None:
        checkpoint = Checkpoint.open(folder)
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1000])
        request = LoadRequest(checkpoint, torch.float32, "cpu", "auto", seed=0, max_model_len=64)
        with pytest.raises(CheckpointError, match="truncated"):
            load_model(request)


class TestProgressAndCancel:
    def test_progress_ends_at_the_bytes_on_disk(self, tmp_path: Path) -> None:
        seen: list[tuple[str, int, int]] = []
        load(save(make_model("mixtral"), tmp_path), progress=lambda *a: seen.append(a))
        reading = [(done, total) for stage, done, total in seen if stage == "Reading weights"]
        assert reading == sorted(reading)
        assert reading[-1] == (Checkpoint.open(tmp_path).disk_bytes,) * 2

    @pytest.mark.parametrize("load_format", ["auto", "dummy"])
    def test_cancelling_stops_and_keeps_nothing(self, load_format: str, tmp_path: Path) -> None:
        save(make_model("llama"), tmp_path)
        gc.collect()
        before = live_bytes()
        calls = iter(range(1000))
        with pytest.raises(LoadCancelled):
            load(tmp_path, load_format=load_format, cancelled=lambda: next(calls) >= 3)
        assert next(calls) < 10
        gc.collect()
        assert live_bytes() - before < 2**16


class TestDummyWeights:
    def config_only(self, folder: Path, **changes: Any) -> Path:
        make_model("qwen3", **changes).config.save_pretrained(folder)
        return folder

    def test_the_same_seed_gives_the_same_weights(self, tmp_path: Path) -> None:
        self.config_only(tmp_path)
        first, again, other = (
            dict(load(tmp_path, load_format="dummy", seed=s).model.named_parameters())
            for s in (1, 1, 2)
        )
        assert all(torch.equal(first[name], again[name]) for name in first)
        matrices = [name for name, p in first.items() if p.dim() > 1]
        assert not any(torch.equal(first[name], other[name]) for name in matrices)

    def test_matrices_are_normal_and_norms_are_one(self, tmp_path: Path) -> None:
        model: Any = load(self.config_only(tmp_path), load_format="dummy").model
        weight = model.model.embed_tokens.weight
        assert abs(float(weight.mean())) < 0.002
        assert 0.018 < float(weight.std()) < 0.022
        assert torch.equal(model.model.norm.weight, torch.ones(64))
        assert logits(model).isfinite().all()

    def test_a_config_file_alone_is_enough(self, tmp_path: Path) -> None:
        self.config_only(tmp_path)
        file = (tmp_path / "config.json").rename(tmp_path / "Tiny-1M.json")
        checkpoint = Checkpoint.open(file, dummy=True)
        assert checkpoint.name == "Tiny-1M"
        assert count_parameters(checkpoint.config) == make_model("qwen3").num_parameters()


def test_linears_and_packs_are_where_they_should_be(tmp_path: Path) -> None:
    model: Any = load(save(make_model("llama"), tmp_path)).model
    layer = model.model.layers[0]
    assert type(layer.self_attn.q_proj) is PackedLinear
    assert layer.self_attn.q_proj.weight.shape == (64 + 32 + 32, 64)
    assert type(layer.mlp) is GatedMLP
    assert type(model.lm_head) is Linear
    assert not any(type(m) is nn.Linear for m in model.modules())
