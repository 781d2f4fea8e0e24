"""What a checkpoint says of its quantization is understood, or refused with the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import CheckpointError, InferdeckError, UnsupportedModelError
from engine.formats import CheckpointFormat, open_format
from engine.models.checkpoint import Checkpoint

LLAMA = {"model_type": "llama", "num_hidden_layers": 1}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}


def compressed(**weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {**INT4, **weights}}
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }  # fmt: skip


def opened(
    folder: Path,
    config: dict[str, Any] | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
) -> CheckpointFormat | None:
    content = LLAMA if config is None else {**LLAMA, "quantization_config": config}
    (folder / "config.json").write_text(json.dumps(content))
    save_file(tensors or {"model.norm.weight": torch.ones(4)}, folder / "model.safetensors")
    return open_format(Checkpoint.open(folder))


def refused(folder: Path, config: dict[str, Any], kind: type[InferdeckError]) -> InferdeckError:
    with pytest.raises(kind) as caught:
        opened(folder, config)
    assert caught.value.remedy
    return caught.value


class TestWhereSettingsAreFound:
    def test_no_settings_and_plain_weights_are_no_format(self, tmp_path: Path) -> None:
        assert opened(tmp_path) is None

    @pytest.mark.parametrize("name", ["qweight", "weight_packed", "SCB", "weight.absmax"])
    def test_quantized_weights_without_settings(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=name):
            opened(tmp_path, tensors={f"model.layers.0.mlp.up_proj.{name}": torch.zeros(2)})

    def test_float8_weights_without_settings(self, tmp_path: Path) -> None:
        weight = torch.zeros(2, 2).to(torch.float8_e4m3fn)
        with pytest.raises(CheckpointError, match="F8_E4M3"):
            opened(tmp_path, tensors={"model.layers.0.mlp.up_proj.weight": weight})

    def test_older_awq_says_it_in_a_file_of_its_own(self, tmp_path: Path) -> None:
        old = {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}
        (tmp_path / "quant_config.json").write_text(json.dumps(old))
        found = opened(tmp_path)
        assert found is not None and found.title == "AWQ, 4-bit, groups of 64"

    def test_older_gptq_says_it_in_a_file_of_its_own(self, tmp_path: Path) -> None:
        old = {"bits": 8, "group_size": -1, "desc_act": True, "sym": False}
        (tmp_path / "quantize_config.json").write_text(json.dumps(old))
        found = opened(tmp_path)
        assert found is not None
        assert found.title == "GPTQ, 8-bit, per-channel scales, activation order"
        described = found.describe()
        assert described["desc_act"] and not described["symmetric"]

    def test_modelopt_says_it_in_a_file_of_its_own(self, tmp_path: Path) -> None:
        own = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
        content = {"producer": {"name": "modelopt"}, "quantization": own}
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(content))
        found = opened(tmp_path)
        assert found is not None and found.title == "FP8 (e4m3)"
        assert found.describe()["left_unquantized"] == ["lm_head"]

    def test_modelopt_nests_it_in_the_config_too(self, tmp_path: Path) -> None:
        nested = {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8_PB_WO"}}
        found = opened(tmp_path, nested)
        assert found is not None and "128 x 128" in found.title

    def test_scales_of_the_cache_alone_quantize_no_weights(self, tmp_path: Path) -> None:
        cache = {"num_bits": 8, "type": "float", "strategy": "tensor"}
        config = {**compressed(), "config_groups": {}, "kv_cache_scheme": cache}
        assert opened(tmp_path, config) is None
        found = opened(tmp_path, {**compressed(), "kv_cache_scheme": cache})
        assert found is not None

    def test_a_file_beside_the_model_that_is_damaged(self, tmp_path: Path) -> None:
        (tmp_path / "quant_config.json").write_text("{")
        with pytest.raises(CheckpointError, match=r"quant_config.json cannot be read"):
            opened(tmp_path)

    def test_a_file_beside_the_model_that_is_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "quant_config.json").write_text("[1]")
        assert opened(tmp_path) is None

    def test_a_multimodal_config_says_it_of_its_text_part(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(
            json.dumps(
                {
                    "model_type": "gemma3",
                    "text_config": {"num_hidden_layers": 1, "quantization_config": AWQ},
                }
            )
        )
        save_file({"model.norm.weight": torch.ones(4)}, tmp_path / "model.safetensors")
        found = open_format(Checkpoint.open(tmp_path))
        assert found is not None and found.method == "awq"

    def test_older_bitsandbytes_does_not_name_itself(self, tmp_path: Path) -> None:
        found = opened(tmp_path, {"load_in_8bit": True})
        assert found is not None and found.title == "bitsandbytes, 8-bit, per-channel scales"


class TestTitles:
    @pytest.mark.parametrize(
        ("config", "title"),
        [
            (AWQ, "AWQ, 4-bit, groups of 128"),
            ({**AWQ, "group_size": -1}, "AWQ, 4-bit, per-channel scales"),
            ({**GPTQ, "checkpoint_format": "gptq_v2"}, "GPTQ, 4-bit, groups of 128"),
            (compressed(), "compressed-tensors, 4-bit, groups of 128"),
            (
                compressed(type="float", num_bits=8, strategy="channel"),
                "compressed-tensors, FP8, per-channel scales",
            ),
            (
                compressed(type="float", num_bits=8, strategy="block", block_structure=[128, 64]),
                "compressed-tensors, FP8, scales per 128 x 64 block",
            ),
            (FP8, "FP8 (e4m3), scales per 128 x 128 block"),
            (
                compressed(type="float", num_bits=8, strategy="block", block_structure="64x32"),
                "compressed-tensors, FP8, scales per 64 x 32 block",
            ),
            ({"quant_method": "fbgemm_fp8"}, "FP8 (e4m3)"),
            (MODELOPT, "FP8 (e4m3)"),
            (
                {**MODELOPT, "quant_algo": "FP8_PB_WO"},
                "FP8 (e4m3), scales per 128 x 128 block",
            ),
            (BNB, "bitsandbytes, NF4"),
            (
                {**BNB, "bnb_4bit_use_double_quant": True},
                "bitsandbytes, NF4, double quantization",
            ),
        ],
    )  # fmt: skip
    def test_titles(self, config: dict[str, Any], title: str, tmp_path: Path) -> None:
        found = opened(tmp_path, config)
        assert found is not None and found.title == title
        described = found.describe()
        assert described["title"] == title and described["bits"] == found.bits
        assert json.loads(json.dumps(described)) == described


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"bits": 4}, "quant_method"),
    ({**AWQ, "bits": None}, " bits"),
    ({**AWQ, "bits": "4"}, 'bits = "4"'),
    ({**AWQ, "group_size": 0}, "size: 0"),
    ({**AWQ, "version": "x" * 3000}, "version"),
    ({**compressed(), "sparsity_config": {"format": [1]}}, "sparsity_config"),
    ({**AWQ, "modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
    ({**AWQ, "version": 2}, "version"),
    ({**GPTQ, "group_size": -2}, "size: -2"),
    ({**GPTQ, "sym": "yes"}, "sym"),
    ({**GPTQ, "dynamic": []}, "dynamic"),
    ({**compressed(), "config_groups": {}}, "config_groups"),
    ({**compressed(), "config_groups": {"W4A16": ["Linear"]}}, "config group W4A16"),
    ({**compressed(), "format": None}, "format"),
    (compressed(group_size=0), "group_size 0"),
    (compressed(type="float", num_bits=8, strategy="block"), "block_structure = null"),
    (compressed(type="float", num_bits=8, strategy="block", block_structure="0x128"), "[0, 128]"),
    (compressed(type="float", num_bits=8, strategy="block", block_structure="big"), '= "big"'),
    ({"quant_method": "modelopt"}, "quant_algo"),
    ({**FP8, "weight_block_size": [128]}, "[rows, columns]"),
    ({**FP8, "weight_block_size": [128, 0]}, "[rows, columns]"),
    ({"quant_method": "bitsandbytes"}, "neither load_in_4bit nor load_in_8bit"),
]

UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "hqq"}, "'hqq'"),
    ({"quant_method": "mxfp4"}, "'mxfp4'"),
    ({**AWQ, "bits": 8}, "8-bit AWQ"),
    ({**AWQ, "version": "GEMV"}, "'gemv'"),
    ({**AWQ, "backend": "llm-awq"}, "'llm-awq'"),
    ({**AWQ, "version": None, "format": "marlin"}, "'marlin'"),
    ({**GPTQ, "bits": 3}, "3-bit GPTQ"),
    ({**GPTQ, "checkpoint_format": "marlin"}, "'marlin'"),
    ({**GPTQ, "is_marlin_format": True}, "'marlin'"),
    ({**compressed(), "format": "nvfp4-pack-quantized"}, "'nvfp4-pack-quantized'"),
    ({**compressed(), "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
    ({**compressed(), "transform_config": {"config_groups": {"R1": {}}}}, "rotated"),
    (compressed(num_bits=6), "6-bit int"),
    (compressed(type="float"), "4-bit float"),
    (compressed(strategy="block", block_structure=[2, 2]), "'block'"),
    (compressed(strategy="tensor_group"), "'tensor_group'"),
    (compressed(type="float", num_bits=8, symmetric=False), "asymmetric float"),
    ({**MODELOPT, "quant_algo": "NVFP4"}, "ModelOpt NVFP4"),
    ({**FP8, "fmt": "e5m2"}, "e5m2"),
    ({**BNB, "bnb_4bit_quant_type": "int4"}, "4-bit type 'int4'"),
]


@pytest.mark.parametrize(("config", "words"), WRONG)
def test_settings_that_make_no_sense(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    cause = refused(tmp_path, config, CheckpointError).cause
    assert words in cause and len(cause) < 400


def test_settings_that_are_no_object(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "compression_config": "W4A16"}))
    save_file({"model.norm.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="compression_config"):
        open_format(Checkpoint.open(tmp_path))


@pytest.mark.parametrize(("config", "words"), UNSUPPORTED)
def test_what_is_not_read_is_named(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert words in refused(tmp_path, config, UnsupportedModelError).cause
