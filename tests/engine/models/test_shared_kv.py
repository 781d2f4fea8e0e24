"""Layers that share KV own no pages: planned and allocated memory, and where it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import EngineConfig, LLMEngine
from engine.errors import UnsupportedModelError
from engine.models.architecture import build_on_meta, kv_layout
from engine.models.placement import place
from engine.models.smoke_config import shrunk_config
from tests.engine import tiny_models
from tests.tiers import first_fast


@pytest.mark.parametrize("family", first_fast(1, ["gemma3n", "gemma4"]))
def test_only_layers_with_their_own_kv_take_memory(family: str, tmp_path: Path) -> None:
    model = tiny_models.make_model(family)
    owners = model.config.num_hidden_layers - model.config.num_kv_shared_layers
    layout = kv_layout(build_on_meta(model.config))
    assert [layer.num_kv_heads > 0 for layer in layout] == [
        index < owners for index in range(len(layout))
    ]
    engine = LLMEngine(
        EngineConfig(
            model=str(tiny_models.save(model, tmp_path)), dtype="float32", block_size=8,
            num_threads=1, kv_cache_memory_bytes=2**20,
        )
    )  # fmt: skip
    try:
        widths = [layer.num_kv_heads * (layer.key_dim + layer.value_dim) for layer in layout]
        assert engine.plan.bytes_per_block == 8 * 4 * sum(widths)
        assert engine.snapshot().model.num_layers == len(layout)
    finally:
        engine.shutdown()


def test_layers_that_share_kv_stay_on_one_device() -> None:
    model = build_on_meta(tiny_models.make_model("gemma3n").config)
    with pytest.raises(UnsupportedModelError, match="Gemma3nForCausalLM"):
        place(model, "cuda", host_layers=2)


def test_the_smoke_test_keeps_layers_that_share_kv() -> None:
    config = tiny_models.make_model("gemma4").config
    shrunk = shrunk_config(config)
    assert shrunk.layer_types == ["sliding_attention", "full_attention"] * 2
    assert shrunk.num_kv_shared_layers == 2
    assert [layer.head_dim for layer in shrunk.per_layer_config] == [16, 32, 16, 32]
