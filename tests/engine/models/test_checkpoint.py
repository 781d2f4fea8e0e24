"""What is wrong with a folder is said before a byte of its weights is read."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from engine.errors import CheckpointError, UnsupportedModelError
from engine.memory.model_sizes import describe_model
from engine.models.architecture import build_on_meta, count_parameters, kv_layout, resolve_class
from engine.models.checkpoint import Checkpoint
from tests.engine.tiny_models import make_model


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("llama")


@pytest.fixture
def folder(model: Any, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path)
    return tmp_path


def refused(path: Path, *, dummy: bool = False) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(path, dummy=dummy)
    assert caught.value.remedy
    return caught.value


def write_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(config | changes))


class TestWhatIsRefused:
    def test_a_path_that_does_not_exist(self, tmp_path: Path) -> None:
        assert "does not exist" in refused(tmp_path / "nowhere").cause

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        assert "no config.json" in refused(tmp_path).cause

    def test_a_file_of_a_model_points_to_its_folder(self, folder: Path) -> None:
        assert str(folder) in refused(folder / "model.safetensors").remedy

    @pytest.mark.parametrize("inside_folder", [True, False])
    def test_gguf_points_to_the_safetensors_source(
        self, inside_folder: bool, tmp_path: Path
    ) -> None:
        (tmp_path / "model.gguf").write_bytes(b"GGUF")
        error = refused(tmp_path if inside_folder else tmp_path / "model.gguf")
        assert "GGUF" in error.cause and "safetensors" in error.remedy

    def test_pickled_weights_alone(self, folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        error = refused(folder)
        assert "*.bin" in error.cause and "save_pretrained" in error.remedy

    def test_a_config_without_weights(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        assert "no weights" in refused(folder).cause
        assert count_parameters(Checkpoint.open(folder, dummy=True).config) > 0

    def test_a_config_that_is_not_json(self, folder: Path) -> None:
        (folder / "config.json").write_text("{")
        assert "config.json cannot be read" in refused(folder).cause

    def test_a_config_without_a_model_type(self, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        assert "model_type" in refused(folder).cause

    def test_a_config_with_nonsense(self, folder: Path) -> None:
        write_config(folder, hidden_size="many")
        assert 'hidden_size = "many"' in refused(folder).cause

    @pytest.mark.parametrize("missing", [1, 1000, 100_000])
    def test_a_truncated_file_gives_expected_and_found_bytes(
        self, missing: int, folder: Path
    ) -> None:
        file = folder / "model.safetensors"
        size = file.stat().st_size
        file.write_bytes(file.read_bytes()[:-missing])
        cause = refused(folder).cause
        assert str(file) in cause and "truncated" in cause
        assert str(size) in cause and str(size - missing) in cause

    def test_a_file_cut_inside_its_header(self, folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:100])
        assert "truncated" in refused(folder).cause

    @pytest.mark.parametrize("content", [b"", b"123", b"\xff" * 50, struct.pack("<Q", 4) + b"{{{{"])
    def test_a_file_that_is_no_safetensors(self, content: bytes, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(content)
        assert "model.safetensors" in refused(folder).cause

    def test_a_git_lfs_pointer(self, folder: Path) -> None:
        (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
        assert "git lfs pull" in refused(folder).remedy

    def test_missing_shards_are_named(self, model: Any, tmp_path: Path) -> None:
        model.save_pretrained(tmp_path, max_shard_size="60KB")
        shards = sorted(tmp_path.glob("*.safetensors"))
        shards[1].unlink()
        assert shards[1].name in refused(tmp_path).cause
        (tmp_path / "model.safetensors.index.json").unlink()
        assert shards[1].name in refused(tmp_path).cause

    def test_an_index_that_names_a_tensor_no_file_has(self, model: Any, tmp_path: Path) -> None:
        model.save_pretrained(tmp_path, max_shard_size="60KB")
        index = tmp_path / "model.safetensors.index.json"
        content = json.loads(index.read_text())
        content["weight_map"]["model.ghost"] = next(iter(content["weight_map"].values()))
        index.write_text(json.dumps(content))
        assert "model.ghost" in refused(tmp_path).cause


class TestWhatIsUnsupported:
    def reason(self, folder: Path) -> str:
        report = describe_model(folder, dummy=True)
        assert not report.supported
        return report.reason

    def test_an_unknown_model_type(self, folder: Path) -> None:
        write_config(folder, model_type="brand_new")
        with pytest.raises(UnsupportedModelError, match="brand_new"):
            Checkpoint.open(folder)
        assert "brand_new" in self.reason(folder)

    @pytest.mark.parametrize(
        "name",
        ["MambaConfig", "JambaConfig", "FalconH1Config", "BambaConfig", "Qwen3NextConfig",
         "Qwen3_5TextConfig", "MiniMaxConfig", "Lfm2Config", "RwkvConfig", "RecurrentGemmaConfig",
         "ZambaConfig", "GraniteMoeHybridConfig", "NemotronHConfig"],
    )  # fmt: skip
    def test_state_space_and_linear_attention(self, name: str, tmp_path: Path) -> None:
        getattr(transformers, name)().save_pretrained(tmp_path)
        assert "state-space" in self.reason(tmp_path)

    @pytest.mark.parametrize("name", ["BloomConfig", "MptConfig", "FalconConfig"])
    def test_families_with_attention_of_their_own(self, name: str, tmp_path: Path) -> None:
        getattr(transformers, name)().save_pretrained(tmp_path)
        assert "attention interface" in self.reason(tmp_path)

    @pytest.mark.parametrize("name", ["T5Config", "BartConfig", "WhisperConfig"])
    def test_encoder_decoders(self, name: str, tmp_path: Path) -> None:
        getattr(transformers, name)().save_pretrained(tmp_path)
        assert "decoder" in self.reason(tmp_path)

    def test_layers_of_another_kind_in_a_known_family(self, folder: Path) -> None:
        write_config(folder, layer_types=["full_attention", "linear_attention"])
        assert "linear_attention" in self.reason(folder)

    def test_bert_is_no_language_model_of_this_kind(self, tmp_path: Path) -> None:
        transformers.ViTConfig().save_pretrained(tmp_path)
        assert "no decoder-only class" in self.reason(tmp_path)


class TestWhatIsRead:
    def test_eos_is_the_union_of_all_sources(self, folder: Path) -> None:
        write_config(folder, eos_token_id=2)
        (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
        (folder / "tokenizer_config.json").write_text(
            '{"eos_token": {"content": "<end>"}, "added_tokens_decoder": '
            '{"9": {"content": "<end>"}, "10": {"content": "<other>"}}}'
        )
        assert Checkpoint.open(folder).eos_token_ids == {2, 7, 8, 9}

    def test_eos_of_the_tokenizer_from_its_vocabulary(self, folder: Path) -> None:
        write_config(folder, eos_token_id=None)
        (folder / "generation_config.json").unlink()
        (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
        (folder / "tokenizer.json").write_text('{"model": {"vocab": {"</s>": 5}}}')
        assert Checkpoint.open(folder).eos_token_ids == {5}

    def test_a_cache_folder_leads_to_its_snapshot(self, model: Any, tmp_path: Path) -> None:
        cache = tmp_path / "models--owner--tiny"
        blobs, snapshot = cache / "blobs", cache / "snapshots" / "abc"
        blobs.mkdir(parents=True)
        snapshot.mkdir(parents=True)
        model.save_pretrained(tmp_path / "saved")
        for number, file in enumerate(sorted((tmp_path / "saved").iterdir())):
            file.rename(blobs / str(number))
            (snapshot / file.name).symlink_to(blobs / str(number))
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text("abc")
        for path in (cache, snapshot):
            checkpoint = Checkpoint.open(path)
            assert checkpoint.name == "owner/tiny"
            assert checkpoint.disk_bytes > 0

    @pytest.mark.parametrize("has_head", [False, True])
    def test_the_whole_model_says_whether_its_head_is_tied(
        self, has_head: bool, tmp_path: Path
    ) -> None:
        text = {"num_hidden_layers": 1, "tie_word_embeddings": False}
        config = {"model_type": "gemma3", "tie_word_embeddings": True, "text_config": text}
        (tmp_path / "config.json").write_text(json.dumps(config))
        names = ["model.norm.weight", *(["language_model.lm_head.weight"] * has_head)]
        save_file({name: torch.ones(4) for name in names}, tmp_path / "model.safetensors")
        assert Checkpoint.open(tmp_path).config.tie_word_embeddings is not has_head
        assert Checkpoint.open(tmp_path, dummy=True).config.tie_word_embeddings is False

    def test_the_report_before_loading(self, model: Any, folder: Path) -> None:
        report = describe_model(folder)
        count = sum(p.numel() for p in model.parameters())
        assert report.supported and report.reason == ""
        assert report.num_parameters == count == count_parameters(Checkpoint.open(folder).config)
        assert report.disk_bytes == 4 * count
        assert report.kv_bytes_per_token == 2 * (2 * 2 * 16) * 4
        assert (report.num_layers, report.num_heads, report.num_kv_heads) == (2, 4, 2)
        assert report.context_length == 256

    def test_a_class_is_resolved(self, folder: Path) -> None:
        assert resolve_class(Checkpoint.open(folder)).__name__ == "LlamaForCausalLM"

    def test_sliding_windows_are_in_the_layout(self, tmp_path: Path) -> None:
        make_model("gemma2").save_pretrained(tmp_path)
        layout = kv_layout(build_on_meta(Checkpoint.open(tmp_path).config))
        assert [layer.window for layer in layout] == [13, None]
