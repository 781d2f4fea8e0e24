"""A folder in, a folder out: what is written, what is refused, and that nothing is left behind."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import (
    CheckpointError,
    ConfigError,
    DiskFullError,
    LoadCancelled,
    UnsupportedModelError,
)
from engine.models.checkpoint import Checkpoint
from engine.numerics.codes import Codes
from engine.quantize import layer_by_layer, output_folder, quantize
from engine.quantize import output_folder as shards
from engine.quantize.layer_by_layer import LayerByLayer
from engine.quantize.recipe import METHODS, RESULT_FILE, QuantizeResult, Recipe
from engine.quantize.work import NO_TOKENS, LayerWork
from tests import heap
from tests.engine.quantize import quantized_models as models
from tests.figures import numbers
from tests.tiers import first_fast

TEXT = [models.text(1500)]
SMALL: dict[str, Any] = {
    "group_size": 32, "num_sequences": 6, "sequence_length": 64, "num_search_sequences": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save(tmp_path_factory.mktemp("plain"), num_key_value_heads=4)


@pytest.fixture(scope="module")
def outliers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save(tmp_path_factory.mktemp("outliers"), outliers=12.0)


def run(source: Path, output: Path, method: str = "awq", **changes: Any) -> QuantizeResult:
    return quantize.quantize(source, Recipe(method=method, **{**SMALL, **changes}), output, TEXT)


def loss(source: Path, output: Path) -> float:
    ids = models.token_ids(200)
    return models.divergence(models.log_probs(source, ids), models.log_probs(output, ids))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["awq", "gptq", "rtn"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "phi3", "gemma3"])
def test_the_folder_says_what_was_computed(
    family: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the published formula, bit for bit; all other tensors keep name, dtype and values."""
    source = models.save(tmp_path / "source", family, moe_intermediate_size=64)
    computed: dict[str, Tensor] = {}
    original = LayerByLayer.store

    def store(self: Any, piece: Any, codes: Codes) -> None:
        computed[piece.disk_name] = codes.dequantize()
        original(self, piece, codes)

    monkeypatch.setattr(LayerByLayer, "store", store)
    result = run(source, tmp_path / "out", method, symmetric=None if method == "awq" else False)
    read = models.dense_tensors(tmp_path / "out")
    before = models.tensors_of(source)
    assert set(read) == set(before)
    assert len(computed) == sum(len(layer.linears) for layer in result.layers) > 0
    for name, values in computed.items():
        assert torch.equal(read[name], values)
    for name in set(before) - set(computed):
        after = models.tensors_of(tmp_path / "out")[name]
        assert after.dtype is before[name].dtype
        if method != "awq":
            assert torch.equal(after, before[name])
    if family != "qwen3_moe":
        assert loss(source, tmp_path / "out") < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_writes_a_whole_folder(method: str, folder: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    recipe = Recipe(method=method, **SMALL)
    result = quantize.quantize(
        folder, recipe, tmp_path / "out", TEXT, lambda *call: calls.append(call)
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]
    assert models.names_of(tmp_path / "out") == sorted(
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
         "tokenizer_config.json", RESULT_FILE]
    )  # fmt: skip
    checkpoint = Checkpoint.open(tmp_path / "out")
    settings = checkpoint.raw_config["quantization_config"]
    assert settings["quant_method"] == METHODS[method].format
    assert result.bytes_after == checkpoint.disk_bytes < result.bytes_before
    assert result.bytes_before == Checkpoint.open(folder).disk_bytes
    stored = json.loads((tmp_path / "out" / RESULT_FILE).read_text())
    assert stored == json.loads(json.dumps(result.as_json(), default=str))
    assert [layer.index for layer in result.layers] == [0, 1]
    assert {layers for _, _, layers in calls} == {0, 2}
    assert all(len(layer.linears) == 7 for layer in result.layers)
    for layer in result.layers:
        assert (layer.output_error is not None) == METHODS[method].is_calibrated
        assert all(0 < linear.weight_error < 0.3 for linear in layer.linears)


@pytest.mark.slow
def test_awq_beats_rounding_where_channels_stand_out(outliers: Path, tmp_path: Path) -> None:
    result = run(outliers, tmp_path / "awq")
    run(outliers, tmp_path / "rtn", "rtn", symmetric=False)
    assert loss(outliers, tmp_path / "awq") < 0.6 * loss(outliers, tmp_path / "rtn")
    for layer in result.layers:
        assert layer.output_error is not None and layer.rounding_error is not None
        assert layer.output_error < layer.rounding_error
        scaled = {linear.name.rpartition(".")[2] for linear in layer.linears if linear.scaled}
        assert {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"} <= scaled
        clipped = {x.name.rpartition(".")[2] for x in layer.linears if x.clipped is not None}
        assert clipped == {"v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma2", "mixtral"])
def test_awq_beats_rounding_in_other_families(family: str, tmp_path: Path) -> None:
    source = models.save(tmp_path / "source", family, outliers=12.0, intermediate_size=128)
    run(source, tmp_path / "awq")
    run(source, tmp_path / "rtn", "rtn", symmetric=False)
    assert loss(source, tmp_path / "awq") < loss(source, tmp_path / "rtn")


@pytest.mark.slow
@pytest.mark.parametrize("desc_act", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_gptq_beats_rounding(
    desc_act: bool, symmetric: bool, outliers: Path, tmp_path: Path
) -> None:
    settings = {"desc_act": desc_act, "static_groups": not desc_act, "symmetric": symmetric}
    result = run(outliers, tmp_path / "gptq", "gptq", **settings)
    run(outliers, tmp_path / "rtn", "rtn", symmetric=symmetric)
    assert loss(outliers, tmp_path / "gptq") < loss(outliers, tmp_path / "rtn")
    config = Checkpoint.open(tmp_path / "gptq").raw_config["quantization_config"]
    assert (config["desc_act"], config["sym"]) == (desc_act, symmetric)
    for layer in result.layers:
        assert layer.output_error is not None and layer.rounding_error is not None
        assert layer.output_error < layer.rounding_error


@pytest.mark.slow
def test_experts_that_saw_no_token_are_rounded_and_named(tmp_path: Path) -> None:
    source = models.save(tmp_path / "source", "qwen3_moe", moe_intermediate_size=64)
    reroute(source)
    for method in ("awq", "gptq"):
        result = run(source, tmp_path / method, method)
        noted = {x.name for layer in result.layers for x in layer.linears if x.note == NO_TOKENS}
        assert noted == {
            f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj"
            for layer in (0, 1)
            for expert in (2, 3)
            for name in ("gate", "up", "down")
        }


def reroute(source: Path) -> None:
    """Send every token to the first two experts: their rows of the router are far larger, in both
    directions of an input that has a constant channel."""
    from safetensors.torch import save_file

    tensors = models.tensors_of(source)
    for name, tensor in tensors.items():
        if name.endswith("mlp.gate.weight"):
            tensor.zero_()
            tensor[:2, 5], tensor[2:, 5] = 100.0, -100.0
        elif name.endswith("post_attention_layernorm.weight"):
            tensor[5] = 1.0
        elif name.endswith("embed_tokens.weight"):
            tensor[:, 5] = 8.0
        elif name.endswith(("o_proj.weight", "down_proj.weight")) and tensor.shape[0] == 128:
            tensor[5] = 0.0
    save_file(tensors, source / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("method", first_fast(1, ["awq", "gptq"]))
def test_the_same_seed_gives_the_same_bytes(method: str, folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(folder, tmp_path / name, method, seed=3)
    first, second = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("a", "b"))
    assert first == second


def test_excluded_modules_stay_and_are_named_for_readers(folder: Path, tmp_path: Path) -> None:
    result = run(folder, tmp_path / "out", exclude=("down_proj", "layers.1"))
    assert sum(len(layer.linears) for layer in result.layers) == 6
    assert result.kept["model.layers.0.mlp.down_proj"] == "excluded"
    settings = Checkpoint.open(tmp_path / "out").raw_config["quantization_config"]
    named = set(settings["modules_to_not_convert"])
    assert {"lm_head", "model.layers.0.mlp.down_proj", "model.layers.1.mlp.up_proj"} <= named
    stored, before = models.tensors_of(tmp_path / "out"), models.tensors_of(folder)
    assert torch.equal(
        stored["model.layers.1.mlp.up_proj.weight"], before["model.layers.1.mlp.up_proj.weight"]
    )
    assert loss(folder, tmp_path / "out") < 0.2


def test_tied_heads_stay_tied(tmp_path: Path) -> None:
    source = models.save(tmp_path / "source", tie_word_embeddings=True)
    run(source, tmp_path / "out")
    assert "lm_head.weight" not in models.tensors_of(tmp_path / "out")
    assert Checkpoint.open(tmp_path / "out").config.tie_word_embeddings
    assert loss(source, tmp_path / "out") < 0.2


def test_shards_and_their_index(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder, tmp_path / "one", "rtn")
    monkeypatch.setattr(shards.ShardWriter.__init__, "__defaults__", (lambda: None, 60_000))
    run(folder, tmp_path / "many", "rtn")
    files = [name for name in models.names_of(tmp_path / "many") if "safetensors" in name]
    assert len(files) > 3 and files[-1] == "model.safetensors.index.json"
    one, many = (models.tensors_of(tmp_path / name) for name in ("one", "many"))
    assert set(one) == set(many) and all(torch.equal(one[n], many[n]) for n in one)
    Checkpoint.open(tmp_path / "many")


class TestNothingIsLeftBehind:
    @pytest.mark.slow
    def test_when_it_is_cancelled_at_any_moment(self, folder: Path, tmp_path: Path) -> None:
        for method in ("awq", "gptq", "int8"):
            total = self.count_checks(folder, tmp_path / "whole", method)
            shutil.rmtree(tmp_path / "whole")
            for moment in sorted({1, 2, 3, total, *range(5, total, max(1, total // 6))}):
                self.cancel_at(moment, folder, tmp_path / "out", method)
                assert list(tmp_path.iterdir()) == []

    def test_when_the_disk_fills(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(self: Any, *args: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(shards.ShardWriter, "_write", full)
        with pytest.raises(DiskFullError, match=r"disk is full: .* 0 of about [\d,]+"):
            run(folder, tmp_path / "out")
        assert list(tmp_path.iterdir()) == []

    def test_when_a_fault_ends_it(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(work: LayerWork, store: Any) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr(layer_by_layer, "awq_layer", broken)
        with pytest.raises(RuntimeError, match="broken"):
            run(folder, tmp_path / "out")
        assert list(tmp_path.iterdir()) == []

    def test_by_a_run_that_was_killed(self, folder: Path, tmp_path: Path) -> None:
        mine = tmp_path / f".out.partial-{os.getpid()}-00"
        for path in (mine, tmp_path / ".out.partial-99999999-00"):
            path.mkdir()
        run(folder, tmp_path / "out", "int8")
        assert sorted(p.name for p in tmp_path.iterdir()) == [mine.name, "out"]

    @staticmethod
    def count_checks(folder: Path, output: Path, method: str) -> int:
        calls: list[int] = []
        quantize.quantize(
            folder, Recipe(method=method, **SMALL), output, TEXT,
            cancelled=lambda: bool(calls.append(1)),  # type: ignore[func-returns-value]
        )  # fmt: skip
        return len(calls)

    @staticmethod
    def cancel_at(moment: int, folder: Path, output: Path, method: str) -> None:
        calls: list[int] = []

        def cancelled() -> bool:
            calls.append(1)
            return len(calls) >= moment

        with pytest.raises(LoadCancelled, match="Nothing was written"):
            quantize.quantize(
                folder, Recipe(method=method, **SMALL), output, TEXT, cancelled=cancelled
            )


class TestRefusals:
    def test_a_folder_that_is_taken(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(ConfigError, match="exists and is not empty"):
            run(folder, tmp_path)
        assert (tmp_path / "notes.txt").read_text() == "mine"
        with pytest.raises(ConfigError, match="source model folder"):
            run(folder, folder)

    def test_an_empty_folder_is_used(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        run(folder, tmp_path / "out", "int8")
        assert (tmp_path / "out" / "model.safetensors").is_file()

    def test_a_model_that_is_quantized(self, folder: Path, tmp_path: Path) -> None:
        run(folder, tmp_path / "out", "rtn")
        with pytest.raises(UnsupportedModelError, match="out is already quantized"):
            run(tmp_path / "out", tmp_path / "again", "awq")

    def test_groups_that_do_not_divide(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"128 .* \(192\)") as error:
            run(folder, tmp_path / "out", group_size=128)
        assert "group size of 64" in error.value.remedy

    def test_exclusions_that_name_nothing_or_everything(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="'dwon_proj'"):
            run(folder, tmp_path / "out", exclude=("dwon_proj",))
        with pytest.raises(ConfigError, match="14 matrices found, 14 excluded"):
            run(folder, tmp_path / "out", exclude=("layers",))

    def test_no_text_or_a_short_one(self, folder: Path, tmp_path: Path) -> None:
        recipe = Recipe(method="gptq", **SMALL)
        with pytest.raises(ConfigError, match=r"gptq .*calibration"):
            quantize.quantize(folder, recipe, tmp_path / "out")
        with pytest.raises(ConfigError, match=r"\b3 .*\b256\b"):
            quantize.quantize(folder, recipe, tmp_path / "out", ["t3 t4 t5"])

    def test_a_disk_that_is_too_small(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(output_folder, "free_bytes", lambda path: 1000)
        with pytest.raises(DiskFullError, match=r"About [\d,]+ bytes .* 1,000 free"):
            run(folder, tmp_path / "out")

    def test_a_folder_that_cannot_be_written(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(CheckpointError, match="cannot be written"):
            run(folder, tmp_path / "file" / "out")

    def test_a_text_that_is_shorter_than_asked_for_is_noted(
        self, folder: Path, tmp_path: Path
    ) -> None:
        result = run(folder, tmp_path / "out", num_sequences=1000)
        assert result.num_sequences * 64 == result.num_tokens < 1000 * 64
        (note,) = result.notes
        assert numbers(note) == [result.num_tokens, 64_000]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["awq", "gptq", "rtn"])
def test_one_layer_is_in_memory_at_a_time(method: str, tmp_path: Path) -> None:
    """Live tensors: a layer in float32, copies of one group of its matrices while they are searched
    or rounded, a Hessian, and what is kept of the text; not the layer before, nor the model."""
    source = models.save(
        tmp_path / "source", num_hidden_layers=6, hidden_size=256, intermediate_size=512
    )
    most, calls = 0, 0

    def sample() -> bool:
        nonlocal most, calls
        calls += 1
        if calls % 5 == 0:
            most = max(most, live_bytes())
        return False

    recipe = Recipe(method=method, **{**SMALL, "num_sequences": 2})
    heap.settle()
    quantize.quantize(source, recipe, tmp_path / "out", TEXT, cancelled=sample)
    layer = 4 * (256 * 256 * 3 + 3 * 256 * 512)
    most -= 2**24  # through which files are read
    limits = {"awq": 2.5 * layer, "gptq": 2.5 * layer, "rtn": layer}
    assert layer / 10 < most < limits[method]
    assert limits[method] < Checkpoint.open(source).disk_bytes / 2


def live_bytes() -> int:
    """Of tensors made since the heap was settled."""
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in gc.get_objects()
        if isinstance(t, Tensor) and not t.is_meta
    }
    return sum(storages.values())
