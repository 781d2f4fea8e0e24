"""A recipe: what each method takes, and what is refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import ConfigError
from engine.quantize.recipe import METHODS, Recipe, matches


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_settings_of_its_own(method: str) -> None:
    recipe = Recipe(method=method)
    assert recipe.chosen_bits == METHODS[method].bits[0]
    assert recipe.is_symmetric == METHODS[method].symmetric
    assert recipe.as_json()["bits"] == recipe.chosen_bits


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "magic"}, "'magic'"),
        ({"method": "awq", "bits": 8}, "^awq .* 8-bit"),
        ({"method": "gptq", "bits": 3}, "Choose 4 or 8"),
        ({"method": "rtn", "group_size": 100}, "size: 100"),
        ({"method": "awq", "symmetric": True}, "awq .*asymmetric"),
        ({"method": "int8", "symmetric": False}, "int8 .* symmetric"),
        ({"method": "awq", "desc_act": True}, "desc_act applies to gptq"),
        ({"num_sequences": 0}, "num_sequences: 0"),
        ({"sequence_length": 4}, "at least 16"),
        ({"method": "gptq", "damping": 0.0}, "damping: 0.0"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Recipe(**settings)


def test_an_index_of_columns_is_needed_only_where_groups_follow_the_order() -> None:
    assert Recipe(method="gptq", desc_act=True, static_groups=False).uses_desc_act
    assert not Recipe(method="gptq", desc_act=True, static_groups=True).uses_desc_act
    assert not Recipe(method="gptq").uses_desc_act


@pytest.mark.parametrize(
    ("pattern", "is_meant"),
    [
        ("model.layers.1.mlp.down_proj", True),
        ("down_proj", True),
        ("layers.1", True),
        ("*.mlp.*", True),
        ("layers.10", False),
        ("down", False),
        ("*.self_attn.*", False),
    ],
)
def test_modules_are_named_whole_in_part_or_by_pattern(pattern: str, is_meant: bool) -> None:
    assert matches("model.layers.1.mlp.down_proj", pattern) is is_meant
