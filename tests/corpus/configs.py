"""Every field of config.json with every wrong type, and values that no model can have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.corpus.case import Case, Expected
from tests.corpus.commands import MARK, generate

FILE = "config.json"
MISSING = object()
NAN, INFINITY = float("nan"), float("inf")

WRONG: dict[str, Any] = {
    "null": None, "text": "text", "digits": "64", "fraction": 64.5, "true": True, "list": [],
    "object": {}, "list_of_null": [None], "0": 0, "-1": -1, "10**9": 10**9, "10**30": 10**30,
    "nan": NAN, "infinity": INFINITY,
}  # fmt: skip
SIZES = {
    "llama": ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
              "num_key_value_heads", "vocab_size", "head_dim"),
    "mixtral": ("num_local_experts", "num_experts_per_tok"),
    "gpt2": ("n_embd", "n_layer", "n_head", "n_positions"),
}  # fmt: skip
"""Fields that must be what the weights say. None of WRONG is."""
HARMLESS = {
    "head_dim=null": "same",  # hidden_size / num_attention_heads
}
ABSENT = {"num_key_value_heads=null"}  # below: as many as num_attention_heads
COUNTED = {"n_positions=10**9"}
"""Known by the number of parameters alone."""
UNUSED = ("attention_dropout", "initializer_range", "pretraining_tp", "use_cache",
          "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id", "architectures",
          "max_position_embeddings", "dtype", "torch_dtype", "text_config", "layer_types",
          "sliding_window", "output_attentions", "tokenizer_class", "id2label", "auto_map",
          "vision_config", "transformer_layer_config")  # fmt: skip
"""Fields that do not change the tokens: the control's, or a message."""

VALUES: dict[str, dict[str, Any]] = {
    "rms_norm_eps": {key: WRONG[key] for key in (
        "text", "true", "list", "object", "-1", "nan", "infinity")},
    "hidden_act": {"null": None, "5": 5, "list": [], "object": {}, "unknown": "nope", "empty": "",
                   "module": "os.system", "true": True},
    "model_type": {"null": None, "5": 5, "list": [], "object": {}, "unknown": "nope", "empty": "",
                   "missing": MISSING, "bert": "bert", "t5": "t5", "mamba": "mamba",
                   "whisper": "whisper", "gpt2": "gpt2", "llama4": "llama4", "path": "../llama"},
    "rope_parameters": {
        "5": 5, "text": "default", "list": [], "type_unknown": {"rope_type": "nope"},
        "type_5": {"rope_type": 5}, "type_list": {"rope_type": []},
        "theta_0": {"rope_type": "default", "rope_theta": 0},
        "theta_negative": {"rope_type": "default", "rope_theta": -1.0},
        "theta_text": {"rope_type": "default", "rope_theta": "x"},
        "theta_list": {"rope_type": "default", "rope_theta": [1.0]},
        "theta_nan": {"rope_type": "default", "rope_theta": NAN},
        "theta_infinity": {"rope_type": "default", "rope_theta": INFINITY},
        "linear_no_factor": {"rope_type": "linear", "rope_theta": 1e4},
        "linear_0": {"rope_type": "linear", "rope_theta": 1e4, "factor": 0},
        "linear_text": {"rope_type": "linear", "rope_theta": 1e4, "factor": "2"},
        "linear_nan": {"rope_type": "linear", "rope_theta": 1e4, "factor": NAN},
        "yarn_text": {"rope_type": "yarn", "rope_theta": 1e4, "factor": "4"},
        "yarn_list": {"rope_type": "yarn", "rope_theta": 1e4, "factor": [4.0]},
        "llama3_alone": {"rope_type": "llama3", "rope_theta": 1e4},
        "longrope_alone": {"rope_type": "longrope", "rope_theta": 1e4},
        "longrope_texts": {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": ["1"] * 8,
                           "long_factor": ["1"] * 8, "factor": 2.0},
        "partial_0": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0},
        "partial_9": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 9},
    },
    "quantization_config": {
        "list": [], "text": "awq", "5": 5, "true": True, "empty": {},
        "method_5": {"quant_method": 5}, "method_unknown": {"quant_method": "nope"},
        "method_null": {"quant_method": None},
    },
}  # fmt: skip
"""All refused."""
LAYER_TYPES: dict[str, Any] = {
    "text": "full_attention", "5": 5, "object": {}, "short": ["full_attention"],
    "unknown": ["nope", "nope"], "numbers": [1, 2], "nulls": [None, None], "lists": [[], []],
    "linear": ["linear_attention", "full_attention"], "empty": [],
    "long": ["full_attention"] * 100_000,
}  # fmt: skip
ONE_FACTOR = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0],
              "long_factor": [1.0], "factor": 2.0}  # fmt: skip
"""transformers uses it for all frequencies."""
CHANGES: dict[str, tuple[dict[str, Any], Expected]] = {
    "unknown_field": ({"not_a_field": {"a": [1]}}, "same"),
    "quantization_config=null": ({"quantization_config": None}, "same"),
    "attention_bias=true": ({"attention_bias": True}, "refused"),
    "mlp_bias=true": ({"mlp_bias": True}, "refused"),
    "num_hidden_layers=1": ({"num_hidden_layers": 1}, "refused"),
    "num_hidden_layers=3": ({"num_hidden_layers": 3}, "refused"),
    "num_hidden_layers=100000": ({"num_hidden_layers": 100_000}, "refused"),
    "num_attention_heads=3": ({"num_attention_heads": 3}, "refused"),
    "num_key_value_heads=3": ({"num_key_value_heads": 3}, "refused"),
    "num_key_value_heads=8": ({"num_key_value_heads": 8}, "refused"),
    "vocab_size=198": ({"vocab_size": 198}, "refused"),
    "vocab_size=200": ({"vocab_size": 200}, "refused"),
    "hidden_size=65": ({"hidden_size": 65}, "refused"),
    "head_dim=8": ({"head_dim": 8}, "refused"),
    "head_dim=17": ({"head_dim": 17}, "refused"),
    "all_zero": ({"hidden_size": 0, "num_attention_heads": 0, "vocab_size": 0}, "refused"),
    "num_key_value_heads=null": ({"num_key_value_heads": None}, "refused"),
    "longrope_one": ({"rope_parameters": ONE_FACTOR}, "usable"),
    "max_position_embeddings=1": ({"max_position_embeddings": 1}, "refused"),
}


def cases() -> Iterator[Case]:
    for control, fields in SIZES.items():
        for field in fields:
            for name, value in WRONG.items():
                key = f"{field}={name}"
                if key not in ABSENT:
                    expected = HARMLESS.get(key, "refused")
                    names = (FILE,) if key in COUNTED else (FILE, field)
                    yield _case(key, {field: value}, expected, *names, control=control)
    for field in UNUSED:
        for name, value in WRONG.items():
            yield _case(f"{field}={name}", {field: value}, "sound")
    for field, values in VALUES.items():
        for name, value in values.items():
            # a type that another architecture has is one of its tensors' missing
            names = (FILE,) if field == "model_type" and name in ("gpt2", "bert") else (FILE, field)
            names = ("input",) if field == "model_type" and isinstance(value, str) else names
            yield _case(f"{field}={name}", {field: value}, "refused", *names)
    for name, value in LAYER_TYPES.items():
        change = {"layer_types": value}
        yield _case(f"qwen3/layer_types={name}", change, "refused", FILE, control="qwen3")
    for name, (change, expected) in CHANGES.items():
        yield _case(name, change, expected)
    yield Case("folder", "config/code", generate, _with_code, "llama", "sound")


def _case(
    key: str, change: dict[str, Any], expected: str, *names: str, control: str = "llama"
) -> Case:
    def make(folder: Path) -> None:
        rewrite(folder / FILE, lambda values: {**values, **change})

    wanted: Expected = expected  # type: ignore[assignment]
    refused = names if wanted == "refused" else ()
    return Case("folder", f"config/{key}", generate, make, control, wanted, refused)


def rewrite(file: Path, change: Callable[[Any], Any]) -> None:
    """Write what `change` makes of a JSON file, without keys that are MISSING."""
    values = change(json.loads(file.read_text(encoding="utf-8")))
    if isinstance(values, dict):
        values = {key: value for key, value in values.items() if value is not MISSING}
    file.write_text(json.dumps(values), encoding="utf-8")


def _with_code(folder: Path) -> None:
    """Code of the folder's own, which config.json asks to be run."""
    body = f"open({str(folder / MARK)!r}, 'w').close()\nclass Model: pass\nConfig = Model\n"
    (folder / "modeling.py").write_text(body)
    places = {"AutoConfig": "modeling.Config", "AutoModelForCausalLM": "modeling.Model",
              "AutoTokenizer": ["modeling.Model", None]}  # fmt: skip
    for name in (FILE, "tokenizer_config.json"):
        rewrite(folder / name, lambda values: {**values, "auto_map": places})
