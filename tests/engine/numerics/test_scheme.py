"""Which scheme settings and checkpoints mean, and which weights it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.models.architecture import build_on_meta
from engine.models.checkpoint import Checkpoint
from engine.numerics.scheme import Scheme, fitting_group, scheme_of, weights_to_hold
from tests.engine.quantized_checkpoints import make_quantized
from tests.engine.tiny_models import make_model


class TestScheme:
    def test_what_the_settings_mean(self, tmp_path: Path) -> None:
        for method, expected in (("auto", "none"), ("none", "none"), ("int4", "int4")):
            config = EngineConfig(quantization=method, quantization_group_size=64)
            assert scheme_of(config, None, "m").method == expected
        make_quantized(tmp_path, "gptq")
        stored = Checkpoint.open(tmp_path).quantization
        for method in ("auto", "gptq"):
            config = EngineConfig(quantization=method, quantization_head="int8")
            assert scheme_of(config, stored, "m") == Scheme(head="int8")

    @pytest.mark.parametrize("method", ["awq", "gptq", "compressed-tensors", "bitsandbytes"])
    def test_a_plain_checkpoint_is_not_calibrated_while_loading(self, method: str) -> None:
        with pytest.raises(ConfigError, match=f"inferdeck quantize --method {method}"):
            scheme_of(EngineConfig(quantization=method), None, "m")

    @pytest.mark.parametrize(
        ("method", "words"), [("none", "16-bit"), ("int8", "int8")]
    )
    def test_there_is_no_way_back_without_the_source(
        self, method: str, words: str, tmp_path: Path
    ) -> None:
        make_quantized(tmp_path, "awq")
        stored = Checkpoint.open(tmp_path).quantization
        with pytest.raises(ConfigError, match=words):
            scheme_of(EngineConfig(quantization=method), stored, "m")

    @pytest.mark.parametrize(
        ("inputs", "wanted", "size"),
        [(4096, 128, 128), (4864, 128, 128), (96, 128, 32), (64, 128, 64), (40, 128, 40)],
    )
    def test_a_group_divides_the_inputs_where_one_does(
        self, inputs: int, wanted: int, size: int
    ) -> None:
        assert fitting_group(inputs, wanted) == size

    def test_routers_heads_and_embeddings_are_left(self) -> None:
        names = weights_to_hold(build_on_meta(make_model("qwen3_moe").config))
        assert not any("embed" in n or "lm_head" in n or n.endswith("gate.weight") for n in names)
        assert names["model.layers.0.mlp.experts.gate_up_proj"] == (4, 64, 64)
