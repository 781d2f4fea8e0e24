"""What the cache stores keys and values in is named where the model's precision is."""

from __future__ import annotations

import dataclasses

import pytest

from engine.units import kv_precision_text
from tests.widgets import synthetic
from widgets.blocks.texts import summary
from widgets.live.figures import precision_text


@pytest.mark.parametrize(
    ("keys", "values", "title", "note"),
    [
        ("", "", "BF16", "1,152 blocks × 16 tokens"),
        ("bfloat16", "bfloat16", "BF16", "1,152 blocks × 16 tokens · KV BF16"),
        ("int8", "int8", "BF16, KV INT8", "1,152 blocks × 16 tokens · KV INT8"),
        ("fp8", "bfloat16", "BF16, K FP8, V BF16",
         "1,152 blocks × 16 tokens · K FP8, V BF16"),
    ],
)
def test_a_cache_of_another_precision_is_named(
    keys: str, values: str, title: str, note: str
) -> None:
    seen = synthetic.snapshot(0.0)
    plan = dataclasses.replace(seen.memory.plan, key_dtype=keys, value_dtype=values)
    seen = dataclasses.replace(seen, memory=dataclasses.replace(seen.memory, plan=plan))
    assert precision_text(seen) == title
    kv = kv_precision_text(plan.key_dtype, plan.value_dtype)
    assert summary(seen.blocks, kv).endswith(note)
