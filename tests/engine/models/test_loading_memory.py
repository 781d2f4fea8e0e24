"""A model that is quantized while it is loaded takes little more memory than it will hold."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import LoadCancelled
from engine.kernels import registry as select
from engine.kernels.linear import Linear
from engine.numerics.scheme import METHODS, Scheme
from tests.engine.models.live_bytes import live_bytes
from tests.engine.models.peak import allocated
from tests.engine.models.quantized import load
from tests.engine.quantized_checkpoints import make_quantized
from tests.engine.tiny_models import make_model, save

SIZES = {
    "num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1024,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
}  # fmt: skip
LAYER = 2 * (512 * 512 * 3 + 3 * 512 * 1024)
"""Bytes of a layer of that size in bfloat16."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in bfloat16."""
    return save(make_model("llama", **SIZES).bfloat16(), tmp_path_factory.mktemp("plain"))


EXPERTS = {
    "num_hidden_layers": 2, "hidden_size": 512, "moe_intermediate_size": 512, "head_dim": 64,
    "num_experts": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
LAYER_OF_EXPERTS = 2 * (512 * 512 * 3 + 8 * 3 * 512 * 512)
READ_BUFFER = 2**20


@pytest.mark.slow
class TestMemoryWhileLoading:
    @pytest.fixture(autouse=True)
    def small_buffer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Files are read through a buffer of 16 MiB, in which a model of this size would hide."""
        monkeypatch.setattr("engine.formats.tensor_reader._CHUNK", READ_BUFFER)

    @pytest.mark.parametrize("method", METHODS)
    def test_peak_is_one_layer_above_the_result(self, method: str, plain: Path) -> None:
        self._check_peak(plain, Scheme(method), LAYER)

    @pytest.mark.parametrize(
        ("method", "options"),
        [
            ("awq", {"group_size": 64}), ("gptq", {"group_size": 64, "bits": 8}), ("fp8", {}),
            ("bitsandbytes", {"kind": "int8"}),
        ],
    )  # fmt: skip
    def test_that_of_a_quantized_checkpoint_too(
        self, method: str, options: dict[str, Any], tmp_path: Path
    ) -> None:
        make_quantized(tmp_path, method, model=SIZES, **options)
        self._check_peak(tmp_path, Scheme(), LAYER)

    def test_that_of_a_mixture_too(self, tmp_path: Path) -> None:
        folder = save(make_model("qwen3_moe", **EXPERTS).bfloat16(), tmp_path)
        self._check_peak(folder, Scheme("int4"), LAYER_OF_EXPERTS)

    def _check_peak(self, folder: Path, scheme: Scheme, layer: int) -> None:
        load(folder, dtype=torch.bfloat16, scheme=scheme)  # what is kept between loads is there now
        gc.collect()
        with allocated() as peak:
            loaded = load(folder, dtype=torch.bfloat16, scheme=scheme)
        assert peak.bytes <= peak.left + layer + READ_BUFFER
        assert 0.9 * loaded.weights_bytes < peak.left < 1.2 * loaded.weights_bytes + 2**21

    def test_what_is_packed_is_never_made_plain_again(
        self, plain: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blocks = (select.Choice("linear, blocked weights", "", 1, "onednn", "by the test"),)
        monkeypatch.setattr(select, "_blocked_choices", lambda dtype: blocks)
        asked: list[str] = []
        plain_of = Linear.__getattr__

        def watch(module: Linear, name: str) -> Any:
            if name == "weight" and module.is_quantized:
                asked.append(module.packed.title)
            return plain_of(module, name)

        monkeypatch.setattr(Linear, "__getattr__", watch)
        loaded = load(plain, dtype=torch.bfloat16, scheme=Scheme("int8"))
        assert "int8" in loaded.kernels["linear"]
        assert not asked

    def test_cancelling_between_layers_keeps_nothing(self, tmp_path: Path) -> None:
        save(make_model("llama"), tmp_path)
        gc.collect()
        before = live_bytes()
        for limit in (0, 3, 12):
            calls = itertools.count()
            with pytest.raises(LoadCancelled):
                load(tmp_path, scheme=Scheme("int4"), cancelled=lambda: next(calls) >= limit)  # noqa: B023
        gc.collect()
        assert live_bytes() - before < 2**16
