"""An architecture that was never tested is tried at load: right ones pass, others are refused."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from engine.errors import UnsupportedModelError
from engine.models.smoke_test import TESTED, VOCAB_SIZE, check_architecture, shrunk_config
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


@pytest.mark.parametrize("name", sorted(UNLISTED))
def test_architectures_that_compute_packed_sequences_rightly_pass(name: str) -> None:
    config, model_class = build(name, **UNLISTED[name])
    assert config.model_type not in TESTED
    check_architecture(config, model_class)


@pytest.mark.parametrize(
    ("name", "own", "reason"),
    [
        ("BloomConfig", {"n_head": 4, "n_layer": 4}, "only 0 of|failed"),
        ("FalconConfig", {}, "only 0 of|failed|differ"),
        (
            "Qwen3NextConfig",
            {
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "num_experts": 4,
                "linear_key_head_dim": 16,
                "linear_value_head_dim": 16,
            },
            "only 0 of|failed|differ",
        ),
    ],
)
def test_architectures_that_leak_or_never_call_us_are_refused(
    name: str, own: dict[str, Any], reason: str
) -> None:
    config, model_class = build(name, **own)
    with pytest.raises(UnsupportedModelError, match=reason):
        check_architecture(config, model_class)


def test_the_tested_types_are_those_that_the_tests_compare() -> None:
    names = {getattr(transformers, name)().model_type for name, _ in FAMILIES.values()}
    assert names == TESTED


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
    check_architecture(config, model_class)
