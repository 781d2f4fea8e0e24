"""A quantized model computes what its rounded weights would compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import CheckpointError, UnsupportedModelError
from engine.hardware.device_map import DeviceMap
from engine.kernels.embedding import Int8Rows, PackedEmbedding
from engine.kernels.linear import Linear
from engine.memory.model_sizes import model_sizes
from engine.models import loader
from engine.models.architecture import build_on_meta
from engine.models.checkpoint import Checkpoint
from engine.models.layers.experts import QuantizedExperts
from engine.models.targets import find_head
from engine.numerics.rounding import round_int8
from engine.numerics.scheme import PLAIN, Scheme, weights_to_hold
from tests.engine.kernels.compiled import leave_to_torch, needs_compiler
from tests.engine.models.quantized import SCHEMES, difference, load, logits
from tests.engine.quantized_checkpoints import make_quantized
from tests.engine.tiny_models import FAMILIES, make_model, save
from tests.tiers import first_fast, tiered

MOE = ["qwen3_moe", "mixtral", "gpt_oss", "phimoe", "qwen2_moe"]
"""Those whose experts are stacked and quantized."""
ORIGINALS = ["llama4", "gemma3n", "gemma4"]
"""Those with layers that no kernel of ours computes alike: they stay transformers' own."""


@torch.no_grad()
def rounded_in_place(model: Any, scheme: Scheme) -> Any:
    """The same model of transformers with its weights as the scheme rounds them."""
    for name, shape in weights_to_hold(build_on_meta(model.config)).items():
        weight = model.get_parameter(name)
        matrices = weight if len(shape) == 3 else [weight]
        for matrix in matrices:
            is_turned = tuple(matrix.shape) != shape[-2:] or _is_conv1d(model, name)
            plain = matrix.t() if is_turned else matrix
            codes = scheme.rounded(plain.contiguous()).dequantize()
            matrix.copy_(codes.t() if is_turned else codes)
    return model


def _is_conv1d(model: Any, name: str) -> bool:
    module = model.get_submodule(name.rpartition(".")[0])
    return type(module).__name__ == "Conv1D" or getattr(module, "is_transposed", False)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.method)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gemma4_moe"])
def test_logits_are_those_of_the_rounded_weights(
    family: str, scheme: Scheme, tmp_path: Path
) -> None:
    model = make_model(family)
    loaded = load(save(model, tmp_path), scheme=scheme)
    expected = logits(rounded_in_place(model, scheme))
    # int8 rounds activations too
    assert difference(logits(loaded.model), expected) < (0.06 if scheme.method == "int8" else 1e-5)
    held = [m for m in loaded.model.modules() if isinstance(m, Linear) and m.packed is not None]
    assert held and all(m.is_quantized for m in held)
    assert any(isinstance(m, QuantizedExperts) for m in loaded.model.modules()) is (family in MOE)
    assert scheme.method.removeprefix("int") in loaded.kernels["linear"]
    outcomes = " ".join(loaded.kernels.values())
    assert ("original" in outcomes) is (family in ORIGINALS)


def test_experts_that_cannot_be_quantized_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="Gemma4ForCausalLM"):
        load(save(make_model("gemma4_moe"), tmp_path), scheme=SCHEMES[0])


@pytest.mark.parametrize("dtype", tiered([torch.float32, torch.bfloat16], [torch.bfloat16]))
@pytest.mark.parametrize("scheme", [*SCHEMES, Scheme("int8", 128, "int8")], ids=str)
@pytest.mark.parametrize(
    "family", tiered(["llama", "gpt2", "qwen3_moe", "gemma2"], ["llama", "qwen3_moe"])
)
def test_memory_is_as_predicted(
    family: str, scheme: Scheme, dtype: torch.dtype, tmp_path: Path
) -> None:
    folder = save(make_model(family, hidden_size=128), tmp_path)
    checkpoint = Checkpoint.open(folder)
    predicted = model_sizes(checkpoint, dtype, scheme).weights
    loaded = load(folder, scheme=scheme, dtype=dtype)
    buffers = sum(b.nbytes for b in loaded.model.buffers())
    assert predicted == pytest.approx(loaded.weights_bytes - buffers, rel=0.03)
    assert predicted < 0.9 * model_sizes(checkpoint, dtype).weights


@pytest.mark.parametrize("scheme", [Scheme("int4", 32), Scheme("int8", 128, "int8")], ids=str)
def test_memory_is_as_predicted_without_a_compiler(
    scheme: Scheme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_to_torch(monkeypatch)
    test_memory_is_as_predicted("llama", scheme, torch.bfloat16, tmp_path)


@needs_compiler
@pytest.mark.parametrize(
    "scheme, dtype", [(Scheme("int4", 40), torch.bfloat16), (PLAIN, torch.float32)]
)
def test_a_missing_compiler_is_named_with_what_it_costs(
    scheme: Scheme, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(make_model("llama", hidden_size=128), tmp_path)
    assert load(folder, scheme=scheme, dtype=dtype).notices == []
    leave_to_torch(monkeypatch)
    notices = load(folder, scheme=scheme, dtype=dtype).notices
    assert any("no C compiler" in notice for notice in notices)


FORMATS: list[tuple[str, dict[str, Any]]] = [
    ("awq", {}),
    ("gptq", {"desc_act": True}),
    ("compressed-tensors", {"symmetric": False, "actorder": "group"}),
    ("fp8", {}),
    ("bitsandbytes", {"double": True}),
    # further ones of each
    ("gptq", {}),
    ("gptq", {"version": 2, "symmetric": False}),
    ("gptq", {"bits": 8, "group_size": -1}),
    ("compressed-tensors", {}),
    ("compressed-tensors", {"layout": "int", "bits": 8}),
    ("compressed-tensors", {"layout": "float"}),
    ("fp8", {"strategy": "channel"}),
    ("bitsandbytes", {"kind": "int8"}),
]
EIGHT_BITS_PER_OUTPUT = [
    {"bits": 8, "group_size": -1}, {"layout": "int", "bits": 8}, {"kind": "int8"},
]  # fmt: skip


@pytest.mark.parametrize(
    "family", tiered(["llama", "qwen3", "qwen3_moe", "mixtral"], ["qwen3_moe"])
)
@pytest.mark.parametrize(("method", "options"), first_fast(5, FORMATS), ids=str)
def test_quantized_checkpoints_compute_what_their_formula_says(
    method: str, options: dict[str, Any], family: str, tmp_path: Path
) -> None:
    dense = make_quantized(tmp_path, method, family=family, **options)
    loaded = load(tmp_path)
    expected = logits(with_weights(family, dense, tmp_path / "dense"))
    is_int8 = options in EIGHT_BITS_PER_OUTPUT  # which rounds activations too
    assert difference(logits(loaded.model), expected) < (0.06 if is_int8 else 1e-5)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.quantization is not None and checkpoint.quantization.method == method
    predicted = model_sizes(checkpoint, torch.float32).weights
    # the order of inputs is not predicted: in these models a tenth, in real ones a thousandth
    tolerance = 0.1 if {"desc_act", "actorder"} & set(options) else 0.06
    assert predicted == pytest.approx(loaded.weights_bytes, rel=tolerance)


def with_weights(family: str, dense: dict[str, Tensor], folder: Path) -> Any:
    """The family's model with tensors by the names that they have on disk."""
    from safetensors.torch import save_file

    model = make_model(family)
    save(model, folder)
    save_file({n: t.contiguous() for n, t in dense.items()}, folder / "model.safetensors",
              {"format": "pt"})  # fmt: skip
    return type(model).from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("excluded", ["k_proj", "gate_proj", "layers.0."])
def test_what_a_checkpoint_leaves_plain_stays_so(excluded: str, tmp_path: Path) -> None:
    """Also inside a packed product: q and v in 4 bits, k plain."""
    dense = make_quantized(tmp_path, "awq", exclude=(excluded,))
    loaded = load(tmp_path)
    expected = logits(with_weights("llama", dense, tmp_path / "dense"))
    assert difference(logits(loaded.model), expected) < 1e-5
    assert "float32" in loaded.kernels["linear"] or excluded == "layers.0."


def put_tensors(folder: Path, added: dict[str, Tensor]) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    save_file({**load_file(file), **added}, file, {"format": "pt"})


def biases(value: float) -> dict[str, Tensor]:
    """For linears that have none."""
    ends = ("self_attn.q_proj", "mlp.down_proj")
    made = torch.full((64,), value, dtype=torch.float16)
    return {f"model.layers.{i}.{end}.bias": made.clone() for i in (0, 1) for end in ends}


def test_biases_of_zeros_that_autogptq_added_are_left_out(tmp_path: Path) -> None:
    dense = make_quantized(tmp_path, "gptq")
    put_tensors(tmp_path, biases(0.0))
    expected = logits(with_weights("llama", dense, tmp_path / "dense"))
    assert difference(logits(load(tmp_path).model), expected) < 1e-5


def test_other_biases_that_the_class_does_not_know_are_refused(tmp_path: Path) -> None:
    make_quantized(tmp_path, "gptq")
    put_tensors(tmp_path, biases(0.5))
    with pytest.raises(CheckpointError, match=r"_proj\.bias in .* is not zero") as caught:
        load(tmp_path)
    assert caught.value.remedy


def test_a_plain_model_with_scales_for_the_cache(tmp_path: Path) -> None:
    model = make_model("llama")
    save(model, tmp_path)
    layer = "model.layers.0.self_attn"
    ends = ("k_scale", "v_scale", "k_proj.output_scale")
    put_tensors(tmp_path, {f"{layer}.{end}": torch.ones(1) for end in ends})
    file = tmp_path / "config.json"
    settings = {
        "quant_method": "compressed-tensors", "format": "dense", "config_groups": {},
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    }  # fmt: skip
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": settings}))
    assert difference(logits(load(tmp_path).model), logits(model)) < 1e-5


@pytest.mark.slow
class TestHead:
    @pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_moe", "gpt2"])
    @pytest.mark.parametrize("is_tied", [True, False])
    @pytest.mark.parametrize("is_compiled", [True, False])
    def test_lookups_and_logits_are_those_of_the_rounded_rows(
        self, family: str, is_tied: bool, is_compiled: bool, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        if not is_compiled:
            leave_to_torch(monkeypatch)
        # several chunks, and a last one not full
        monkeypatch.setattr("engine.models.disk_weights.CHUNK_ROWS", 64)
        model = make_model(family, tie_word_embeddings=is_tied)
        loaded = load(save(model, tmp_path), scheme=Scheme(head="int8"))
        embedding = loaded.model.get_input_embeddings()
        head = loaded.model.get_output_embeddings()
        assert isinstance(embedding, PackedEmbedding) and isinstance(head.packed, Int8Rows)
        table = model.get_input_embeddings().weight
        expected = round_int8(table).dequantize()
        for ids in (torch.tensor([0, 198, 64, 64]), torch.arange(199)):
            assert torch.equal(embedding.rows(ids), expected[ids])
        assert torch.equal(head.weight, round_int8(model.lm_head.weight).dequantize())
        assert difference(logits(loaded.model), logits(model)) < 0.05
        assert (embedding.packed_bytes == 0) is is_tied

    def test_an_embedding_of_another_kind_stays_plain(self, tmp_path: Path) -> None:
        model = load(save(make_model("llama"), tmp_path)).model
        model.set_input_embeddings(torch.nn.EmbeddingBag(4, 4))
        assert isinstance(find_head(model, DeviceMap("cpu")), str)


@pytest.mark.slow
class TestDummy:
    @pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.method)
    def test_random_weights_are_held_as_real_ones(self, scheme: Scheme, tmp_path: Path) -> None:
        folder = save(make_model("qwen3_moe"), tmp_path)
        real = load(folder, scheme=scheme)
        seen: list[tuple[str, int, int]] = []
        dummy = load(folder, scheme=scheme, load_format="dummy",
                     progress=lambda *a: seen.append(a))  # fmt: skip
        assert dummy.weights_bytes == real.weights_bytes
        assert logits(dummy.model).isfinite().all()
        again = load(folder, scheme=scheme, load_format="dummy")
        assert torch.equal(logits(dummy.model), logits(again.model))
        assert any("random" in stage for stage, _, _ in seen)

    def test_the_shape_of_a_quantized_checkpoint(self, tmp_path: Path) -> None:
        make_quantized(tmp_path, "awq")
        real = load(tmp_path)
        dummy = load(tmp_path, load_format="dummy")
        assert dummy.weights_bytes == pytest.approx(real.weights_bytes, rel=0.02)


def test_groups_that_no_kernel_knows_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(make_model("llama", hidden_size=96), tmp_path)
    monkeypatch.setattr(loader, "remedy", lambda: "")
    assert not load(folder, scheme=Scheme("int4", 96)).notices
    (notice,) = load(folder, scheme=Scheme("int4", 97)).notices
    assert "97" in notice


class TestBadInput:
    def test_experts_that_cannot_be_followed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(QuantizedExperts, "forward", lambda self, x, i, w: x)
        folder = save(make_model("mixtral"), tmp_path)
        with pytest.raises(UnsupportedModelError, match=r"experts .*MixtralForCausalLM"):
            load(folder, scheme=Scheme("int8"))

    def test_a_quantized_matrix_of_the_wrong_size(self, tmp_path: Path) -> None:
        make_quantized(tmp_path, "awq")
        file = tmp_path / "config.json"
        config = json.loads(file.read_text())
        file.write_text(json.dumps(config | {"intermediate_size": 128}))
        with pytest.raises(CheckpointError, match=r"\[96, 64\].*\[128, 64\]"):
            load(tmp_path)
