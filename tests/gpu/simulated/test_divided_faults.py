"""Models that are divided, where something is out of the ordinary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine import LLMEngine, SamplingParams
from engine.errors import UnsupportedModelError
from engine.evaluate.head import Head
from engine.hardware.device_map import DeviceMap
from engine.kernels.ops import fuses_residual
from engine.models import loader
from engine.models.layers.norm import RESIDUAL_KIND as RESIDUAL
from engine.models.layers.offload import SplitForward
from engine.models.placement import place
from engine.runner import cuda_graphs as graphs
from engine.runner.cuda_capture import CudaCapture
from tests.engine import tiny_models
from tests.gpu import engines
from tests.gpu.engines import PROMPTS, Engines, Make
from tests.gpu.simulated.machine import machine

torch.set_num_threads(1)

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SMALL: dict[str, Any] = {"vocab_size": tiny_models.VOCAB_SIZE, "bos_token_id": 1, "eos_token_id": 2}
OTHERS: dict[str, Callable[[], Any]] = {
    # a body that has a buffer of its own
    "gpt_bigcode": lambda: transformers.GPTBigCodeConfig(
        n_embd=64, n_layer=2, n_head=4, n_positions=256, n_inner=96, **SMALL
    ),
    # norms without parameters
    "olmo": lambda: transformers.OlmoConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=256, **SMALL,
    ),
    # whose head calls the decoder past the body
    "opt": lambda: transformers.OPTConfig(
        hidden_size=64, word_embed_proj_dim=64, ffn_dim=96, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=256, **SMALL,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("models")

    def find(family: str) -> Path:
        if not (root / family).exists():
            tiny_models.save(_model(family), root / family)
        return root / family

    return find


def _model(family: str) -> Any:
    if family in tiny_models.FAMILIES:
        return tiny_models.make_model(family)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(OTHERS[family]())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.25 if parameter.ndim > 1 else 0.3)
    return model.eval()


@pytest.fixture
def make(folder: Callable[[str], Path]) -> Iterator[Make]:
    made = Engines(
        folder, num_threads=1, kv_cache_memory_bytes=2**18, max_num_seqs=3,
        max_num_batched_tokens=16, max_model_len=64, gpu_layers="1",
    )  # fmt: skip
    yield made.make
    made.shutdown()


def tokens_of(engine: LLMEngine) -> list[list[int]]:
    return engines.tokens_of(engine, PROMPTS, PARAMS)


@pytest.mark.parametrize("family", OTHERS)
def test_families_of_other_shapes(make: Make, family: str) -> None:
    wanted = tokens_of(make(family, device="cpu"))
    engine = make(family)
    assert tokens_of(engine) == wanted


def test_nothing_is_kept_of_a_pass(make: Make) -> None:
    engine = make("opt", enforce_eager=True)
    tokens_of(engine)
    before = machine.allocated
    tokens_of(engine)
    assert machine.allocated == before


class _NoMemory:
    """Captures nothing."""

    graph_bytes = 0

    def __call__(self, run: Callable[[], None]) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def seconds(self, run: Callable[[], object]) -> float:
        raise AssertionError("nothing was captured")


@pytest.mark.slow
def test_what_is_captured_later_leaves_the_cache_as_it_is(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both halves are compared with the whole when there is memory for the first graphs, and then
    requests have the cache."""
    wanted = tokens_of(make(enforce_eager=True))
    monkeypatch.setattr(graphs, "capture_for", lambda device: _NoMemory())
    engine = make()
    assert "decode" not in engine.model_info.kernels
    ids = [engine.add_request(prompt, PARAMS) for prompt in PROMPTS]
    found: dict[str, list[int]] = {request_id: [] for request_id in ids}
    while engine.has_unfinished:
        for event in engine.step():
            found[event.request_id] += event.token_ids
        if all(found.values()) and "decode" not in engine.model_info.kernels:
            monkeypatch.setattr(graphs, "capture_for", CudaCapture)
            engine.reconfigure(max_num_seqs=engine.config.max_num_seqs + 1)
            assert "decode" in engine.model_info.kernels
    assert list(found.values()) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), "out of memory at"),
        (RuntimeError("Expected all tensors to be on the same device"), "Expected all tensors"),
    ],
)
def test_halves_that_cannot_be_computed_are_launched_as_a_whole(
    make: Make, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    """For want of memory, or for what a class computes between its layers."""
    engine = make()
    wanted = tokens_of(engine)

    def fails(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(SplitForward, "compute_on_cpu", fails)
        other = make()
        assert "decode" not in other.model_info.kernels
        assert told in " ".join(other.model_info.notices)
        assert tokens_of(other) == wanted
        other.shutdown()
    with monkeypatch.context() as patch:
        patch.setattr(SplitForward, "_new_copy", fails)
        engine.reconfigure(block_size=32)
        assert told in " ".join(engine.model_info.notices)
    assert tokens_of(engine) == wanted
    engine.reconfigure(max_num_seqs=4)
    assert "decode" in engine.model_info.kernels
    assert tokens_of(engine) == wanted


@pytest.mark.slow
def test_a_class_that_cannot_be_divided_leaves_the_engine_as_it_was(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(gpu_layers="all")
    wanted = tokens_of(engine)

    def elsewhere(*args: Any) -> DeviceMap:
        return replace(place(*args), before=("model.rotary_emb",))  # the embeddings are not

    monkeypatch.setattr(loader, "place", elsewhere)
    with pytest.raises(UnsupportedModelError, match="CPU offload"):
        engine.reconfigure(gpu_layers="1")
    assert tokens_of(engine) == wanted


@pytest.mark.slow
def test_few_parameters_of_their_own(make: Make) -> None:
    """Where weights are held in forms of their own, none may be left behind the layers."""
    changes = {"quantization": "int8", "quantization_head": "int8"}
    whole, divided = make("olmo", device="cpu", **changes), make("olmo", **changes)
    for engine in (whole, divided):
        assert all(tokens_of(engine))
    head = Head(divided.runner.model)
    states = torch.randn(3, 64)
    expected = Head(whole.runner.model).logits(states)
    torch.testing.assert_close(head.logits(states).cpu(), expected, atol=0.05, rtol=0.05)


def test_what_a_gpu_fuses_is_fused_in_its_half(make: Make) -> None:
    engine = make(quantization="int8", enforce_eager=True)
    layers: Any = engine.runner.model.get_submodule("model.layers")
    assert engine.model_info.kernels[RESIDUAL].startswith("fused")
    assert ["forward" in vars(layer) for layer in layers] == [fuses_residual("cpu"), True]


def test_lookups_of_a_head_that_is_tied(make: Make) -> None:
    """Its parameters are counted once, though there is a copy of them on each device."""
    whole, divided = (make("gemma2", gpu_layers=count).model_info for count in ("all", "1"))
    assert divided.weights_bytes > whole.weights_bytes
    assert divided.num_lookup_parameters == whole.num_lookup_parameters == 0


def test_what_was_launched_before_a_capture_failed_is_waited_for() -> None:
    """On its stream, by the engine's: both write to the tables of a step."""
    device = torch.device("cuda:0")
    table = torch.zeros(4, device=device)

    def fails() -> None:
        table.fill_(1)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(torch.OutOfMemoryError):
        CudaCapture(device)(fails)
    table.fill_(2)
    assert table.tolist() == [2] * 4
