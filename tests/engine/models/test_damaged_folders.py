"""Model folders with impossible fields, names and files: refused by file, field and value, soon and
without the memory that they ask for."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import EngineConfig, LLMEngine
from engine.attention.masks import bind_masks
from engine.errors import CheckpointError, InferdeckError, UnsupportedModelError
from engine.host.resolve import resolve
from engine.memory.model_sizes import describe_model
from engine.models.architecture import build_on_meta
from engine.models.checkpoint import Checkpoint
from engine.models.layers.rotary import table_swaps
from engine.models.weight_files import INDEX
from engine.models.weight_map import map_weights
from tests.engine.tiny_models import make_model, save_tokenizer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    make_model("llama").save_pretrained(folder, max_shard_size="60KB")
    save_tokenizer(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def refusal(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        assert Checkpoint.open(folder).eos_token_ids
    assert caught.value.remedy and len(caught.value.cause) < 1000
    return caught.value


def test_the_folder_that_is_not_damaged_opens(folder: Path) -> None:
    assert describe_model(folder).supported
    assert Checkpoint.open(folder).eos_token_ids == {2}


FIELDS: list[tuple[str, Any]] = [
    (name, value)
    for name, values in {
        "num_hidden_layers": [10**9, 0, -1, 1025, 2.5, 2.0, True, "2", [2], {}],
        "vocab_size": [10**12, 0, -5, "199", 199.5],
        "hidden_size": [0, -64, 2**40, 64.5, "64", True, [64]],
        "intermediate_size": [0, -1, 2**62, "96"],
        "num_attention_heads": [0, -4, 10**9, "4", 4.5, False],
        "num_key_value_heads": [0, -2, 10**9, "2", 3],
        "head_dim": [0, -16, 2**50, "16"],
        "max_position_embeddings": [-1, 10**15, "256", 256.5],
        "sliding_window": [-1, -4096, "13", 13.5, 10**15],
        "num_experts": [-1, 10**9, "4"],
        "num_local_experts": [10**9],
        "rms_norm_eps": [-1, float("nan"), float("inf"), "small"],
        "hidden_act": [7, ["silu"]],
        "model_type": [7, ["llama"], {}],
        "architectures": ["LlamaForCausalLM", 7, [7], {"a": 1}, [None]],
        "text_config": ["llama", 7, [1], True, {}],
        "layer_types": ["full_attention", 7, [7], [None], ["full_attention"]],
        "initializer_range": [64.5, "small"],
        "attention_dropout": ["none", [1]],
        "partial_rotary_factor": [0, 7],
        "quantization_config": [[], "awq", 5, True],
        "rope_parameters": ["default", 7, [1], {"rope_theta": 0}, {"rope_theta": "1"},
                            {"rope_theta": float("nan")}, {"factor": -1}, {"rope_type": 7},
                            {"rope_type": "nope", "rope_theta": 1e4},
                            {"rope_type": "default", "rope_theta": None}],
        "rope_scaling": ["linear", 7, [1]],
        "eos_token_id": ["2", 2.5, [2, "3"], {"a": 2}, True],
        "tie_word_embeddings": ["false", 1],
        "is_encoder_decoder": ["no"],
        "transformer_layer_config": ["llama", 7],
        "use_cache": [10**9],
        "pretraining_tp": ["text"],
    }.items()
    for value in values
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), FIELDS)
def test_impossible_fields_of_the_config(name: str, value: Any, folder: Path) -> None:
    change(folder / "config.json", **{name: value})
    cause = refusal(folder).cause
    assert str(folder / "config.json") in cause and name in cause
    assert not describe_model(folder).supported


NESTED: list[tuple[str, dict[str, Any]]] = [
    ("text_config.num_hidden_layers", {"text_config": {"num_hidden_layers": 10**9}}),
    ("vision_config.num_hidden_layers", {"vision_config": {"num_hidden_layers": 10**9}}),
    ("vision_config.depth", {"vision_config": {"depth": 10**9}}),
    ("num_hidden_layers", {"text_config": {"num_hidden_layers": "many"}}),
    ("rope_theta", {"rope_parameters": {"full_attention": {"rope_theta": -1}}}),
]


@pytest.mark.parametrize(("name", "changes"), NESTED)
def test_impossible_fields_inside_of_objects(
    name: str, changes: dict[str, Any], folder: Path
) -> None:
    change(folder / "config.json", **changes)
    cause = refusal(folder).cause
    assert str(folder / "config.json") in cause and name in cause


@pytest.mark.parametrize("chosen", [0, 9])
def test_more_experts_per_token_than_there_are(chosen: int, tmp_path: Path) -> None:
    values = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": chosen}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(tmp_path, dummy=True)
    named = f"num_experts_per_tok = {chosen} and num_local_experts = 8"
    assert named in caught.value.cause and str(tmp_path / "config.json") in caught.value.cause


def test_a_config_of_a_much_larger_model_than_the_files(folder: Path) -> None:
    change(folder / "config.json", vocab_size=2**25)
    with pytest.raises(CheckpointError) as caught:
        resolve(EngineConfig(model=str(folder), device="cpu"))
    assert str(folder / "config.json") in caught.value.cause


def test_values_with_which_a_class_cannot_run(tmp_path: Path) -> None:
    """They have the right types, and no bound forbids them."""
    values = {
        "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "hidden_size": 64,
        "moe_intermediate_size": 0, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128,
        "max_position_embeddings": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = EngineConfig(
        model=str(tmp_path), load_format="dummy", dtype="float32", device="cpu", num_threads=1
    )
    with pytest.raises(CheckpointError) as caught:
        LLMEngine(config)
    assert str(tmp_path / "config.json") in caught.value.cause


@pytest.mark.parametrize("name", ["sliding_window", "attention_chunk_size"])
def test_windows_that_show_no_token(name: str, tmp_path: Path) -> None:
    kind = "mistral" if name == "sliding_window" else "llama4_text"
    values = {"model_type": kind, "num_hidden_layers": 1, "vocab_size": 64, name: 0}
    (tmp_path / "config.json").write_text(json.dumps(values))
    model = build_on_meta(Checkpoint.open(tmp_path, dummy=True).config)
    with pytest.raises(UnsupportedModelError, match=name):
        bind_masks(model, 64)


def test_a_rotary_table_that_is_too_large_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    module = make_model("llama").model.rotary_emb
    plain, lengths = torch.arange, []

    def arange(length: int, **options: Any) -> torch.Tensor:
        lengths.append(length)
        return plain(length, **options)

    monkeypatch.setattr(torch, "arange", arange)
    assert list(table_swaps(torch.nn.ModuleList([module]), 10**9, torch.float32)) == []
    assert max(lengths, default=0) < 10**6


def test_more_layers_than_the_files_have_tensors(folder: Path) -> None:
    change(folder / "config.json", num_hidden_layers=1000, layer_types=None)
    cause = refusal(folder).cause
    assert "num_hidden_layers = 1000" in cause
    num_tensors = len(json.loads((folder / INDEX).read_text())["weight_map"])
    assert re.search(rf"tensors.*\b{num_tensors}\b", cause)


# file, content, what the error names beside the file
CONTENT: list[tuple[str, Any, str]] = [
    ("config.json", b"[" * 10**5, "levels"),
    ("config.json", b'{"a":' * 5000 + b"1" + b"}" * 5000, "levels"),
    ("config.json", b'{"a": {"__float__": []}}', "float"),
    ("config.json", b"\xff{}", "UTF-8"),
    ("config.json", [], "object"),
    (INDEX, [], "object"),
    (INDEX, {}, "weight_map"),
    (INDEX, {"weight_map": {}}, "weight_map"),
    (INDEX, {"weight_map": []}, "weight_map"),
    (INDEX, {"weight_map": "model.safetensors"}, "weight_map"),
    (INDEX, {"weight_map": {"a": 1}}, "weight_map"),
    (INDEX, {"weight_map": {"a": None}}, "weight_map"),
    (INDEX, {"weight_map": {"a": ["x"]}}, "weight_map"),
    (INDEX, b'{"weight_map":' * 10**5, "weight_map"),
    ("generation_config.json", {"eos_token_id": "2"}, "eos_token_id"),
    ("generation_config.json", {"eos_token_id": [2.5]}, "eos_token_id"),
    ("generation_config.json", [], "object"),
    ("tokenizer_config.json", {"eos_token": 7}, "eos_token"),
    ("tokenizer_config.json", {"eos_token": {"content": 7}}, "eos_token.content"),
    ("tokenizer_config.json", {"added_tokens_decoder": []}, "added_tokens_decoder"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, "added_tokens_decoder"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"1": "x"}}, "added_tokens_decoder"),
    ("tokenizer.json", {"added_tokens": {}}, "added_tokens"),
    ("tokenizer.json", {"added_tokens": [{"id": "x"}]}, "added_tokens[0].id"),
    ("tokenizer.json", {"model": []}, "model"),
    ("tokenizer.json", {"model": {"vocab": {"a": "b"}}}, "vocab"),
    ("tokenizer.json", b'{"x":' * 10**5, "levels"),
]


@pytest.mark.parametrize(("name", "content", "words"), CONTENT)
def test_files_with_other_content(name: str, content: Any, words: str, folder: Path) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / name).write_bytes(data)
    cause = refusal(folder).cause
    assert str(folder / name) in cause and words in cause


@pytest.mark.parametrize("name", ["config.json", INDEX, "tokenizer.json", "tokenizer_config.json"])
def test_files_larger_than_any_model_has(name: str, folder: Path) -> None:
    with (folder / name).open("ab") as stream:
        stream.truncate(2 * 10**9)
    cause = refusal(folder).cause
    assert str(folder / name) in cause and "2,000,000,000" in cause


SPECIAL: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo, "folder": os.mkdir, "device": lambda file: file.symlink_to("/dev/null"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize(
    "name", ["config.json", INDEX, "generation_config.json", "tokenizer_config.json", "shard"]
)
def test_files_that_are_no_files(name: str, kind: str, folder: Path) -> None:
    file = sorted(folder.glob("*.safetensors"))[0] if name == "shard" else folder / name
    file.unlink()
    SPECIAL[kind](file)
    cause = refusal(folder).cause
    assert str(file) in cause and kind in cause


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../model.safetensors", "sub/../../x.safetensors", "..", ".", "",
     "C:x.safetensors", "C:\\x.safetensors", "..\\x.safetensors", "\\\\host\\share\\x", "a//b",
     "./../x.safetensors", "./", ".//x", "sub/", "a\\b.safetensors"],
)  # fmt: skip
def test_names_that_lead_out_of_the_folder(name: str, folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())["weight_map"]
    tensor = next(iter(index))
    change(folder / INDEX, weight_map={**index, tensor: name})
    cause = refusal(folder).cause
    assert INDEX in cause and tensor in cause and json.dumps(name) in cause


def test_files_may_be_links_out_of_the_folder_and_in_folders_of_it(
    folder: Path, tmp_path: Path
) -> None:
    index = json.loads((folder / INDEX).read_text())["weight_map"]
    first, second = sorted(set(index.values()))[:2]
    (folder / first).rename(tmp_path / "blob")
    (folder / first).symlink_to(tmp_path / "blob")
    (folder / "sub").mkdir()
    (folder / second).rename(folder / "sub" / second)
    moved = {n: f"sub/{second}" if file == second else file for n, file in index.items()}
    change(folder / INDEX, weight_map=moved)
    assert set(Checkpoint.open(folder).tensors) == set(index)


def test_names_with_a_dot_stay_in_the_folder(folder: Path) -> None:
    files = json.loads((folder / INDEX).read_text())["weight_map"]
    change(folder / INDEX, weight_map={name: f"./{file}" for name, file in files.items()})
    assert {t.file.name for t in Checkpoint.open(folder).tensors.values()} == set(files.values())


def test_a_missing_file_is_named_with_the_index(folder: Path) -> None:
    files = json.loads((folder / INDEX).read_text())["weight_map"]
    change(folder / INDEX, weight_map={**files, "x": "model-9.safetensors"})
    cause = refusal(folder).cause
    assert INDEX in cause and "model-9.safetensors" in cause


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "nope"},
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0,
                             "short_factor": ["1"] * 8, "long_factor": ["1"] * 8}},
    ],
)  # fmt: skip
def test_fields_that_only_the_built_model_uses(changes: dict[str, Any], folder: Path) -> None:
    change(folder / "config.json", **changes)
    cause = refusal(folder).cause
    assert str(folder / "config.json") in cause and next(iter(changes)) in cause


def mapped(folder: Path) -> str:
    """The cause that the weights do not fit the model."""
    checkpoint = Checkpoint.open(folder)
    with pytest.raises(CheckpointError) as caught:
        map_weights(checkpoint, build_on_meta(checkpoint.config))
    assert caught.value.remedy and len(caught.value.cause) < 1000
    return caught.value.cause


def test_shapes_that_do_not_fit_name_both_files(folder: Path) -> None:
    change(folder / "config.json", vocab_size=198)
    cause = mapped(folder)
    assert str(folder / "config.json") in cause and "lm_head.weight in model-" in cause


def test_a_number_of_experts_that_does_not_fit_is_named(tmp_path: Path) -> None:
    make_model("mixtral").save_pretrained(tmp_path)
    change(tmp_path / "config.json", num_local_experts=0)
    cause = mapped(tmp_path)
    assert str(tmp_path / "config.json") in cause and "num_local_experts = 0" in cause


@pytest.mark.parametrize("number", ["7", "00"])
def test_experts_are_those_that_their_numbers_say(number: str, tmp_path: Path) -> None:
    make_model("mixtral").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {n.replace("experts.1.", f"experts.{number}."): t for n, t in load_file(file).items()}
    save_file(tensors, file)
    cause = mapped(tmp_path)
    assert f"experts.{number}." in cause and file.name in cause


def test_far_more_tensors_than_the_model_has_are_refused_unread(folder: Path) -> None:
    save_file({f"x.{i}": torch.zeros(1) for i in range(3000)}, folder / "model-extra.safetensors")
    (folder / INDEX).unlink()
    cause = mapped(folder)
    assert "model-extra.safetensors" in cause and "3,0" in cause


def test_a_tensor_in_two_files_is_read_where_the_index_says(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())["weight_map"]
    files = sorted(set(index.values()))
    name = next(n for n, file in index.items() if file == files[0])
    tensors = load_file(folder / files[1])
    save_file({**tensors, name: load_file(folder / files[0])[name] + 1}, folder / files[1])
    assert Checkpoint.open(folder).tensors[name].file.name == files[0]
    change(folder / INDEX, weight_map={**index, name: files[1]})
    assert Checkpoint.open(folder).tensors[name].file.name == files[1]
    (folder / INDEX).unlink()
    cause = refusal(folder).cause
    assert name in cause and files[0] in cause and files[1] in cause


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("end", ["up_proj.weight", "norm.weight", "embed_tokens.weight"])
def test_integers_where_the_model_has_floats(dtype: Any, end: str, folder: Path) -> None:
    file = next(f for f in folder.glob("*.safetensors") if any(end in n for n in load_file(f)))
    tensors = load_file(file)
    name = next(n for n in tensors if end in n)
    changed = tensors[name].to(dtype)
    save_file({**tensors, name: changed}, file)
    checkpoint = Checkpoint.open(folder)
    with pytest.raises(CheckpointError) as caught:
        map_weights(checkpoint, build_on_meta(checkpoint.config))
    code = {"int16": "I16", "int32": "I32", "uint8": "U8", "bool": "BOOL"}[str(dtype)[6:]]
    assert all(word in caught.value.cause for word in (name, file.name, code, "BF16"))


@pytest.mark.parametrize("path", ["~nobody-of-that-name/x", "x" * 5000, "a\0b"])
def test_paths_that_cannot_be(path: str) -> None:
    with pytest.raises(InferdeckError) as caught:
        Checkpoint.open(path)
    assert caught.value.remedy
