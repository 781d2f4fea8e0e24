"""Classes that keep their matrices in ways of their own: GPT-2's transposed ones, and experts of
which all are one tensor. Files have each matrix as [out, in] under a name of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.errors import CheckpointError
from engine.models.architecture import build_on_meta
from engine.models.checkpoint import Checkpoint
from engine.models.weight_map import map_weights
from engine.quantize.quantize import quantize
from engine.quantize.recipe import METHODS, QuantizeResult, Recipe
from tests.engine import tiny_models
from tests.engine.quantize import quantized_models as models
from tests.tiers import tiered

PROMPT = [5, 9, 30, 17, 8, 44, 6]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    return {family: models.save(folder / family, family) for family in ("gpt2", "gpt_oss")}


def run(source: Path, output: Path, method: str, **changes: object) -> QuantizeResult:
    grouped = {"group_size": 32} if METHODS[method].is_grouped else {}
    small = {"num_sequences": 4, "sequence_length": 64, "num_search_sequences": 2}
    recipe = Recipe(method, **{**grouped, **small, **changes})  # type: ignore[arg-type]
    return quantize(source, recipe, output, [models.text(400)])


def as_the_class_keeps_them(dense: dict[str, Tensor], source: Path) -> dict[str, Tensor]:
    """Weights under the names and in the shapes of the source, by transposing and weaving."""
    found: dict[str, Tensor] = {}
    for name, before in models.tensors_of(source).items():
        if name in dense:
            found[name] = dense[name].t() if ".c_" in name and before.ndim == 2 else dense[name]
            continue
        path, _, parameter = name.rpartition(".")
        end = "bias" if parameter.endswith("_bias") else "weight"
        experts = []
        for expert in (f"{path}.{number}" for number in range(len(before))):
            if "gate_up" in parameter:
                both = [dense[f"{expert}.{matrix}_proj.{end}"] for matrix in ("gate", "up")]
                rows = torch.stack(both, 1).flatten(0, 1)
            else:
                rows = dense[f"{expert}.down_proj.{end}"]
            experts.append(rows if end == "bias" else rows.t())
        found[name] = torch.stack(experts)
    assert all(found[n].shape == t.shape for n, t in models.tensors_of(source).items())
    return found


def says(folder: Path) -> list[float]:
    """Log probabilities of what the engine says, computed in float32."""
    config = EngineConfig(model=str(folder), dtype="float32", kv_cache_memory_bytes=2**22)
    engine = LLMEngine(config)
    try:
        params = SamplingParams(temperature=0, max_tokens=4, logprobs=1, ignore_eos=True)
        (output,) = engine.generate([PROMPT], params)
        assert output.logprobs is not None
        return [entry.logprob for entry in output.logprobs]
    finally:
        engine.shutdown()


@pytest.mark.parametrize("method", ["awq", "gptq"])
@pytest.mark.parametrize("family", tiered(["gpt2", "gpt_oss"], ["gpt2"]))
def test_what_is_read_is_what_the_formula_says(
    family: str, method: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    source, output = sources[family], tmp_path / "out"
    result = run(source, output, method)
    assert not result.kept
    is_ours_alone = any("Conv1D" in note for note in result.notes)
    assert is_ours_alone is (family == "gpt2" and method != "gptq")
    weights = as_the_class_keeps_them(models.dense_tensors(output), source)
    ids = torch.tensor([PROMPT])
    expected = models.log_probs(source, ids, weights)[-1].max()
    assert says(output)[0] == pytest.approx(float(expected), abs=2e-3)
    loss = models.divergence(models.log_probs(source, ids), models.log_probs(source, ids, weights))
    assert loss < 0.1


@pytest.mark.parametrize(("family", "method"), [("gpt2", "fp8"), ("gpt_oss", "int8")])
def test_scales_per_output(
    family: str, method: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    run(sources[family], tmp_path / "out", method)
    assert says(tmp_path / "out")[0] == pytest.approx(says(sources[family])[0], abs=0.3)


def test_nf4_leaves_such_experts_as_others_do(sources: dict[str, Path], tmp_path: Path) -> None:
    result = run(sources["gpt_oss"], tmp_path / "out", "nf4")
    assert len(result.kept) == 4
    assert all("one tensor" in reason for reason in result.kept.values())


def test_experts_have_the_names_that_other_programs_give_them(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    run(sources["gpt_oss"], tmp_path / "out", "rtn")
    stored = models.tensors_of(tmp_path / "out")
    own = {n for n in stored if n.startswith("model.layers.0.mlp.experts.")}
    patterns = {re.sub(r"\d+", "N", name.removeprefix("model.layers.0.mlp.")) for name in own}
    ends = ("weight_packed", "weight_scale", "weight_shape", "bias")
    assert patterns == {
        f"experts.N.{matrix}_proj.{end}" for matrix in ("gate", "up", "down") for end in ends
    }
    before = models.tensors_of(sources["gpt_oss"])["model.layers.0.mlp.experts.gate_up_proj_bias"]
    assert torch.equal(stored["model.layers.0.mlp.experts.2.up_proj.bias"], before[2, 1::2])


def test_experts_are_cut_all_or_not_at_all(sources: dict[str, Path], tmp_path: Path) -> None:
    name = "model.layers.1.mlp.experts"
    result = run(sources["gpt_oss"], tmp_path / "out", "rtn", exclude=(f"{name}.2.up_proj",))
    stored, before = models.tensors_of(tmp_path / "out"), models.tensors_of(sources["gpt_oss"])
    assert set(result.kept) == {f"{name}.gate_up_proj", f"{name}.down_proj"}
    assert torch.equal(stored[f"{name}.gate_up_proj"], before[f"{name}.gate_up_proj"])
    assert "model.layers.0.mlp.experts.2.up_proj.weight_packed" in stored
    assert says(tmp_path / "out")


def test_an_expert_that_is_missing_is_named(sources: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import save_file

    run(sources["gpt_oss"], tmp_path / "out", "rtn")
    stored = models.tensors_of(tmp_path / "out")
    kept = {name: t for name, t in stored.items() if ".1.mlp.experts.3.down_proj." not in name}
    save_file(kept, tmp_path / "out" / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.experts\.down_proj.* needs"):
        says(tmp_path / "out")


def test_experts_one_by_one_in_sixteen_bits(sources: dict[str, Path], tmp_path: Path) -> None:
    """As other programs leave what they did not quantize: [out, in], though the class turns it."""
    from safetensors.torch import save_file

    before = models.tensors_of(sources["gpt_oss"])
    cut: dict[str, Tensor] = {}
    for name, tensor in before.items():
        prefix, _, parameter = name.rpartition(".")
        if not prefix.endswith(".experts"):
            cut[name] = tensor
            continue
        end = "bias" if parameter.endswith("_bias") else "weight"
        for expert, own in enumerate(tensor):
            rows = own if end == "bias" else own.t()
            parts = {"gate_proj": rows[0::2], "up_proj": rows[1::2]}
            parts = parts if "gate_up" in parameter else {"down_proj": rows}
            cut |= {f"{prefix}.{expert}.{m}.{end}": t.contiguous() for m, t in parts.items()}
    folder = tiny_models.save(tiny_models.make_model("gpt_oss", **models.SIZES), tmp_path / "cut")
    save_file(cut, folder / "model.safetensors", {"format": "pt"})
    checkpoint = Checkpoint.open(folder)
    assert not map_weights(checkpoint, build_on_meta(checkpoint.config)).conversions
    assert says(folder) == pytest.approx(says(sources["gpt_oss"]), abs=1e-5)
