"""The files beside tokenizer.json: what the popular families write passes, the rest is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CheckpointError
from engine.text.files import check_files
from engine.text.tokenizer import CheckpointTokenizer
from tests.engine.small_tokenizers import CHATML, byte_fallback, byte_level, save

CONFIG, MAP = "tokenizer_config.json", "special_tokens_map.json"
FLAGS = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
HUGE = 1000000000000000019884624838656


def named(content: str) -> dict[str, Any]:
    return {"__type": "AddedToken", "content": content, **FLAGS}


def added(**tokens: str) -> dict[str, Any]:
    return {id_[1:]: {"content": token, "special": True, **FLAGS} for id_, token in tokens.items()}


FAMILIES: dict[str, dict[str, Any]] = {
    "llama 2": {
        "add_bos_token": True, "add_eos_token": False, "bos_token": named("<s>"),
        "eos_token": named("</s>"), "unk_token": named("<unk>"), "pad_token": None, "legacy": False,
        "clean_up_tokenization_spaces": False, "model_max_length": HUGE, "sp_model_kwargs": {},
        "tokenizer_class": "LlamaTokenizer", "padding_side": "right", "chat_template": CHATML,
    },
    "llama 3": {
        "added_tokens_decoder": added(_128000="<|begin_of_text|>", _128009="<|eot_id|>"),
        "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "model_max_length": 131072,
        "clean_up_tokenization_spaces": True, "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"], "chat_template": CHATML,
    },
    "qwen": {
        "add_bos_token": False, "add_prefix_space": False, "bos_token": None, "unk_token": None,
        "added_tokens_decoder": added(_151643="<|endoftext|>", _151645="<|im_end|>"),
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "errors": "replace",
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "split_special_tokens": False,
        "model_max_length": 131072, "tokenizer_class": "Qwen2Tokenizer", "chat_template": CHATML,
    },
    "qwen 3.5": {
        "backend": "tokenizers", "is_local": False, "tokenizer_class": "TokenizersBackend",
        "extra_special_tokens": {"image_token": "<|image|>"}, "image_token": "<|image|>",
        "model_specific_special_tokens": {"image_token": "<|image|>"},
    },
    "mistral": {
        "bos_token": "<s>", "eos_token": "</s>", "model_max_length": 1e30, "legacy": True,
        "chat_template": [{"name": "default", "template": CHATML},
                          {"name": "tool_use", "template": "x"}],
        "processor_class": "PixtralProcessor", "extra_special_tokens": ["[INST]", "[/INST]"],
    },
    "gemma": {
        "bos_token": "<bos>", "eos_token": "<eos>", "spaces_between_special_tokens": False,
        "sp_model_kwargs": None, "extra_special_tokens": {"boi_token": "<start_of_image>"},
        "model_max_length": HUGE, "tokenizer_class": "GemmaTokenizer", "unk_token": "<unk>",
    },
    "phi": {
        "auto_map": {"AutoProcessor": "processing.Phi", "AutoTokenizer": ["tokens.Phi", None]},
        "padding_side": "left", "legacy": False, "use_default_system_prompt": False,
        "tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>",
    },
    "gpt-2": {"model_max_length": 1024},
    "deepseek": {
        "bos_token": named("<|begin|>"), "eos_token": named("<|end|>"), "add_bos_token": True,
        "unk_token": None, "tokenizer_class": "LlamaTokenizerFast", "model_max_length": 16384,
        "sp_model_kwargs": {}, "clean_up_tokenization_spaces": False, "chat_template": CHATML,
    },
    "gpt-oss": {
        "added_tokens_decoder": added(_199998="<|startoftext|>", _200002="<|return|>"),
        "bos_token": "<|startoftext|>", "eos_token": "<|return|>", "extra_special_tokens": {},
        "model_max_length": HUGE, "model_input_names": ["input_ids", "attention_mask"],
    },
    "t5": {
        "eos_token": "</s>", "extra_ids": 100, "pad_token": "<pad>", "unk_token": "<unk>",
        "additional_special_tokens": [f"<extra_id_{i}>" for i in range(100)],
        "special_tokens_map_file": None, "name_or_path": "t5", "model_max_length": 512,
    },
    "saved by transformers 4": {
        "special_tokens_map_file": "/home/x/special_tokens_map.json", "vocab_file": None,
        "tokenizer_file": "/home/x/tokenizer.json", "name_or_path": "/home/x", "init_inputs": [],
        "fast_tokenizer_files": ["tokenizer.json"],
    },
}  # fmt: skip
MAPS: dict[str, dict[str, Any]] = {
    "objects": {"bos_token": {"content": "<s>", **FLAGS}, "image_token": {"content": "x"},
                "additional_special_tokens": ["a", {"content": "b", **FLAGS}]},
    "names": {"eos_token": "</s>", "extra_special_tokens": ["a"], "pad_token": None},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_settings_of_families_pass(tmp_path: Path, family: str) -> None:
    (tmp_path / CONFIG).write_text(json.dumps(FAMILIES[family]))
    check_files(tmp_path)


@pytest.mark.parametrize("kind", MAPS)
def test_special_tokens_maps_pass(tmp_path: Path, kind: str) -> None:
    (tmp_path / MAP).write_text(json.dumps(MAPS[kind]))
    check_files(tmp_path)


WRONG: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    (CONFIG, {"tokenizer_class": 64.5}, ("tokenizer_class", "64.5")),
    (CONFIG, {"eos_token": 10**30}, ("eos_token", str(10**30))),
    (CONFIG, {"eos_token": {"content": "x"}}, ("eos_token", "__type")),
    (CONFIG, {"pad_token": {"__type": "AddedToken", "content": 5}}, ("pad_token.content", "5")),
    (CONFIG, {"model_max_length": "8k"}, ("model_max_length", "8k")),
    (CONFIG, {"added_tokens_decoder": None}, ("added_tokens_decoder", "null")),
    (CONFIG, {"added_tokens_decoder": {"-1": {"content": "x"}}}, ("added_tokens_decoder", "-1")),
    (CONFIG, {"added_tokens_decoder": {"5": {}}}, ("added_tokens_decoder", "content")),
    (CONFIG, {"extra_special_tokens": ["a", None]}, ("extra_special_tokens[1]", "null")),
    (CONFIG, {"padding_side": "top"}, ("padding_side", "top")),
    (CONFIG, {"auto_map": None}, ("auto_map", "null")),
    (CONFIG, {"auto_map": []}, ("auto_map",)),
    (CONFIG, {"model_input_names": 5}, ("model_input_names", "5")),
    (CONFIG, {"chat_template": True}, ("chat_template", "true")),
    (CONFIG, {"chat_template": [{"name": 5, "template": "x"}]}, ("chat_template[0].name", "5")),
    (CONFIG, {"chat_template": [{"template": "x"}]}, ("chat_template[0]", "name")),
    (CONFIG, {"tokenizer_padding": {"length": 10**9}}, ("tokenizer_padding", str(10**9))),
    (CONFIG, {f"x{i}": 0 for i in range(1001)}, ("1,001", "1,000")),
    (
        CONFIG,
        {"fast_tokenizer_files": ["../x/tokenizer.4.0.0.json"]},
        ("fast_tokenizer_files", "../x/tokenizer.4.0.0.json"),
    ),
    (
        CONFIG,
        {"fast_tokenizer_files": ["tokenizer.json", "tokenizer.4.0.0.json"]},
        ("fast_tokenizer_files", "tokenizer.4.0.0.json"),
    ),
    (CONFIG, {"vocab_file": "../x.model"}, ("vocab_file", "../x.model")),
    (CONFIG, {"merges": "/x.txt"}, ("merges", "/x.txt")),
    (CONFIG, {"init_inputs": ["/x.json"]}, ("init_inputs", "/x.json")),
    (CONFIG, {"gguf_file": "x.gguf"}, ("gguf_file", "x.gguf")),
    ("config.json", {"configuration_files": ["config.4.0.0.json"]}, ("config.4.0.0.json",)),
    (MAP, {"tokenizer_file": "../x/tokenizer.json"}, ("tokenizer_file", "../x/tokenizer.json")),
    (MAP, {"vocab": {}}, ("vocab",)),
    (MAP, {"bos_token": 5}, ("bos_token", "5")),
    ("added_tokens.json", {"x": "y"}, ("integer",)),
    ("added_tokens.json", {"x": 2**32}, ("integer",)),
]


@pytest.mark.parametrize(("name", "content", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_named(
    tmp_path: Path, name: str, content: dict[str, Any], words: tuple[str, ...]
) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(CheckpointError) as caught:
        check_files(tmp_path)
    for word in (str(tmp_path / name), *words):
        assert word in caught.value.cause
    assert caught.value.remedy


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"x": ', b"\xef\xbb\xbf{}", b'{"x": "\xff"}',
     b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}"],
    ids=["empty", "list", "cut", "byte order mark", "no UTF-8", "deep"],
)  # fmt: skip
def test_damaged_settings(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CONFIG).write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        check_files(tmp_path)
    assert str(tmp_path / CONFIG) in caught.value.cause and caught.value.remedy


def test_a_template_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe{{ messages }}")
    with pytest.raises(CheckpointError) as caught:
        check_files(tmp_path)
    assert "chat_template.jinja" in caught.value.cause and caught.value.remedy


def test_opening_checks_them_first(tmp_path: Path) -> None:
    save(byte_level(), tmp_path)
    (tmp_path / CONFIG).write_text('{"padding_side": null}')
    with pytest.raises(CheckpointError, match="padding_side"):
        CheckpointTokenizer(tmp_path)


def test_a_saved_path_is_not_read(tmp_path: Path) -> None:
    """transformers takes the folder's own file instead."""
    save(byte_level(), tmp_path / "model")
    save(byte_fallback(), tmp_path / "other")
    settings = tmp_path / "model" / CONFIG
    named = {"tokenizer_file": str(tmp_path / "other" / "tokenizer.json")}
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **named}))
    tokenizer = CheckpointTokenizer(tmp_path / "model")
    assert tokenizer.vocab_size == 420
    tokenizer.close()
