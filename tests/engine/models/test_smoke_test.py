"""An architecture that was never tested is tried at load: right ones pass, others are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import transformers

from engine.attention.cpu import CPUAttention
from engine.attention.interface import Visible
from engine.models import smoke_run
from engine.models.architecture import VOCAB_SIZE
from engine.models.smoke_config import WINDOWS, shrunk_config
from engine.models.smoke_run import TOLERANCE, judge, largest_difference
from engine.models.smoke_test import TESTED
from tests.engine.tiny_models import _SMALL, FAMILIES

UNLISTED: dict[str, dict[str, Any]] = {
    "OlmoConfig": {},
    "GraniteConfig": {},
    "CohereConfig": {},
    "StableLmConfig": {},
    "OPTConfig": {"ffn_dim": 64, "word_embed_proj_dim": 64},
    "Olmo3Config": {"sliding_window": 4},
}


def build(name: str, **own: Any) -> tuple[Any, Any]:
    config = getattr(transformers, name)(**{**_SMALL, "num_hidden_layers": 4, **own})
    return config, transformers.AutoModelForCausalLM._model_mapping[type(config)]


def reason(config: Any, model_class: Any) -> str | None:
    """`judge` in this process."""
    return judge(path_of(model_class), shrunk_config(config).to_json_string(use_diff=False))


def path_of(model_class: Any) -> str:
    return f"{model_class.__module__}:{model_class.__qualname__}"


@pytest.mark.parametrize("name", sorted(UNLISTED))
def test_architectures_that_compute_packed_sequences_rightly_pass(name: str) -> None:
    config, model_class = build(name, **UNLISTED[name])
    assert config.model_type not in TESTED
    assert reason(config, model_class) is None


@pytest.mark.parametrize(
    ("name", "own", "words"),
    [
        ("BloomConfig", {"n_head": 4, "n_layer": 4}, "found 0 in|failed"),
        ("FalconConfig", {}, "found 0 in|failed|differ"),
        (
            "Qwen3NextConfig",
            {
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "num_experts": 4,
                "linear_key_head_dim": 16,
                "linear_value_head_dim": 16,
            },
            "found 0 in|failed|differ",
        ),
    ],
)
def test_architectures_that_leak_or_never_call_us_are_refused(
    name: str, own: dict[str, Any], words: str
) -> None:
    assert re.search(words, reason(*build(name, **own)) or "")


def test_the_tested_types_are_those_that_the_tests_compare() -> None:
    names = {getattr(transformers, name)().model_type for name, _ in FAMILIES.values()}
    assert names == TESTED


LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32,
    "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
}  # fmt: skip
LIKE_TESTED: list[tuple[str, dict[str, Any]]] = [
    *FAMILIES.values(),
    ("Qwen2Config", {"use_sliding_window": True, "max_window_layers": 1}),
    ("Qwen3Config", {"use_sliding_window": True, "max_window_layers": 1, "head_dim": 16}),
    ("Phi3Config", {"rope_parameters": LONGROPE}),
    ("LlamaConfig", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}),
]


def difference(name: str, own: dict[str, Any]) -> float | str:
    config, model_class = build(name, **own)
    return largest_difference(model_class, shrunk_config(config).to_json_string(use_diff=False))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "own"), LIKE_TESTED)
def test_tested_types_are_equal_with_small_windows(name: str, own: dict[str, Any]) -> None:
    found = difference(name, own)
    assert isinstance(found, float) and found < TOLERANCE / 10, found


@pytest.mark.parametrize("family", ["gemma3", "gpt_oss", "mistral", "phimoe", "qwen2_moe"])
def test_a_window_that_is_ignored_is_seen(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in ("engine.attention.interface", "engine.models.layers.attention"):
        monkeypatch.setattr(f"{room}.visible_to", lambda module, window: Visible())
    assert difference(*FAMILIES[family]) > 100 * TOLERANCE  # type: ignore[operator]


@pytest.mark.parametrize("off", [-1, 1])
def test_a_window_of_another_size_is_seen(off: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in ("engine.attention.interface", "engine.models.layers.attention"):
        monkeypatch.setattr(f"{room}.visible_to", lambda module, window: Visible(window + off))
    assert difference(*FAMILIES["mistral"]) > 100 * TOLERANCE  # type: ignore[operator]


def test_sinks_that_are_ignored_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = CPUAttention.forward

    def without(self: Any, layer: int, q: Any, k: Any, v: Any, options: Any) -> Any:
        return forward(self, layer, q, k, v, options._replace(sinks=None))

    monkeypatch.setattr(CPUAttention, "forward", without)
    assert difference(*FAMILIES["gpt_oss"]) > 10 * TOLERANCE  # type: ignore[operator]


@pytest.mark.parametrize("position", [0, 20])
def test_positions_that_are_wrong_are_seen(position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(model: Any, ids: Any, positions: Any, rows: Any) -> Any:
        return forward(model, ids, positions + (positions >= position), rows)

    forward = smoke_run.forward
    monkeypatch.setattr(smoke_run, "forward", moved)
    found = difference("LlamaConfig", {})
    # a shift of all positions changes nothing for rotary embeddings
    assert (found > TOLERANCE) == (position > 0), found  # type: ignore[operator]


def test_windows_become_smaller_than_the_prompts() -> None:
    config = transformers.Gemma3TextConfig(sliding_window=4096, num_hidden_layers=26)
    assert shrunk_config(config).sliding_window == WINDOWS["sliding_window"]
    config = transformers.Llama4TextConfig()
    shrunk = shrunk_config(config)
    assert (shrunk.attention_chunk_size, shrunk.floor_scale) == (7, 3)
    without = transformers.Qwen2MoeConfig()  # 0: no window
    assert shrunk_config(without).sliding_window == 0
    assert all(size < smoke_run.MAX_MODEL_LEN / 5 for size in WINDOWS.values())


@pytest.mark.parametrize(
    ("name", "own", "words"),
    [
        ("DogeConfig", {}, "attention_mask"),
        ("DiffLlamaConfig", {}, "layer index"),
        ("BertConfig", {"is_decoder": False}, "bidirectional_mask_function"),
        ("XmodConfig", {"is_decoder": True}, "ValueError"),
    ],
)
def test_what_the_engine_cannot_compute_is_named(
    name: str, own: dict[str, Any], words: str
) -> None:
    assert re.search(words, reason(*build(name, **own)) or "")


def test_every_kind_of_layer_is_tried() -> None:
    config = transformers.Exaone4Config(
        num_hidden_layers=6,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
        sliding_window=8,
    )
    shrunk = shrunk_config(config)
    assert shrunk.num_hidden_layers == 2
    assert shrunk.layer_types == ["sliding_attention", "full_attention"]
    alike = transformers.Exaone4Config(
        num_hidden_layers=4, layer_types=["full_attention"] * 4, sliding_window=None
    )
    assert shrunk_config(alike).layer_types == ["full_attention"] * 2


def test_experts_behind_dense_layers_are_tried_and_are_few() -> None:
    config = transformers.DeepseekV3Config()  # 61 layers, 3 of them dense; 256 experts in 8 groups
    shrunk = shrunk_config(config)
    assert (shrunk.num_hidden_layers, shrunk.first_k_dense_replace) == (2, 1)
    assert shrunk.n_routed_experts == 16 and config.n_routed_experts == 256


def test_a_class_that_insists_on_special_tokens_is_tried() -> None:
    config, model_class = build("CwmConfig", head_dim=16)
    shrunk = shrunk_config(config)
    assert shrunk.vocab_size == VOCAB_SIZE > shrunk.bos_token_id == 0
    assert reason(config, model_class) is None


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("can't allocate memory"), OSError(5)]
)
def test_what_the_machine_lacks_is_no_verdict(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(smoke_run, "packed_and_alone", fails)
    config, model_class = build("OlmoConfig")
    with pytest.raises(type(error)):
        reason(config, model_class)


def test_windows_of_single_layers_become_small_too() -> None:
    config = transformers.LlamaConfig(**{**_SMALL, "num_hidden_layers": 3})
    config.sliding_window = [4096, None, 2]
    few = WINDOWS["sliding_window"]
    assert shrunk_config(config).sliding_window == [few, None, 2]
