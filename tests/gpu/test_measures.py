"""How measurements are read: the stretch in which all decode, gaps on the device, the engine's
interfaces."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.gpu import GPUAttention
from engine.attention.interface import LayerSpec
from engine.config import EngineConfig
from engine.numerics.kv_dtype import parse_kv_dtype
from engine.snapshot import RequestTimes, TokenEvent
from tests.gpu.bench import attention_cells, profile_cells, wave_cells
from tests.gpu.bench.bench import Bench
from tests.gpu.bench.serving import Decoding, random_prompts, serve
from tests.gpu.bench.shapes import Shape
from tests.gpu.bench.timing import ROTATED_BYTES, num_sets, time_turns
from tests.gpu.conftest import HAS_GPU
from tests.tiers import first_fast

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def request(times: list[float]) -> RequestTimes:
    return RequestTimes(0.0, 0.0, tuple(TokenEvent(t, 1) for t in times), times[-1])


@given(st.integers(1, 5), st.integers(0, 6), st.integers(2, 20), st.floats(0.001, 1.0))
def test_decoding_is_what_lies_between_the_last_first_token_and_the_first_last_one(
    count: int, late: int, num_output: int, step_s: float
) -> None:
    """Requests begin `late` steps one after the other; slow steps while prompts are computed do
    not count."""
    starts = [1.0 + index * late * step_s * 3 for index in range(count)]
    begun = starts[-1]
    requests = []
    for index, start in enumerate(starts):
        before = [start + k * 3 * step_s for k in range((count - 1 - index) * late)]
        after = [begun + k * step_s for k in range(num_output)]
        requests.append(request([*before, *after]))
    found = Decoding.of(requests, num_input=100)
    assert found is not None
    assert found.step_s == pytest.approx(step_s)
    assert found.num_steps == num_output - 1
    first = 100 + sum((count - 1 - i) * late for i in range(count)) / count
    # step k reads the prompt and what came before it
    assert found.context == pytest.approx(first + (1 + num_output - 1) / 2)


def test_there_is_no_such_stretch_where_one_ends_before_another_begins() -> None:
    assert Decoding.of([request([1.0, 2.0]), request([3.0, 4.0])], 10) is None
    assert Decoding.of([request([1.0])], 10) is None


def test_gaps_and_shares_of_kernels() -> None:
    spans = [
        profile_cells.Span("gemm", 0, 10), profile_cells.Span("norm", 12, 14),
        profile_cells.Span("overlapping", 13, 20), profile_cells.Span("gemm", 25, 35),
    ]  # fmt: skip
    found = profile_cells.on_the_device(reversed(spans), num_steps=1)
    assert found["device_ms_per_step"] == pytest.approx(0.035)
    assert found["busy_share"] == pytest.approx(28 / 35)
    assert found["gap_us"] == {"mean": 3.5, "max": 5}
    assert found["top"][0]["name"] == "gemm"
    assert found["top"][0]["share_of_busy"] == pytest.approx(20 / 28)
    assert found["kernels_per_step"] == 4


@given(st.floats(1, 1e12))
def test_inputs_rotate_through_more_than_a_cache_holds(nbytes: float) -> None:
    count = num_sets(nbytes, GPU)
    assert 2 <= count <= 64
    assert count == 64 or count * nbytes >= ROTATED_BYTES
    assert num_sets(nbytes, CPU) == 2


def test_turns_are_timed_on_the_cpu_too() -> None:
    turns: list[int] = []
    timed = time_turns(turns.append, CPU)
    assert timed.method == "clock" and timed.seconds >= 0 and turns == [0, 1, 2]


def test_the_cache_of_a_gpu_is_made_as_it_wants_to_be() -> None:
    """What the attention cells call on a GPU alone has the arguments that they give."""
    inspect.signature(GPUAttention).bind(
        {0: LayerSpec(2, 32, 32)}, 4, 16, torch.bfloat16, parse_kv_dtype("fp8"),
        device=GPU, max_num_seqs=256, max_model_len=1024, max_num_batched_tokens=1024,
    )  # fmt: skip


@pytest.mark.skipif(HAS_GPU, reason="Triton interprets nothing here")
@pytest.mark.parametrize(
    ("new", "context", "kv"), first_fast(1, [(5, 20, "auto"), (1, 20, "fp8")])
)
def test_attention_cells_measure_the_kernels_in_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, new: int, context: int, kv: str
) -> None:
    """The same cell with the cache of a GPU."""

    def make_backend(
        bench: Bench, shape: Shape, kv: str, num_layers: int, batch: int, context: int
    ) -> GPUAttention:
        spec = LayerSpec(shape.num_kv_heads, shape.head_dim, shape.head_dim)
        return GPUAttention(
            dict.fromkeys(range(num_layers), spec), batch * -(-context // 16) + 1, 16,
            torch.bfloat16, parse_kv_dtype(kv), device=CPU, max_num_seqs=batch,
            max_model_len=64, max_num_batched_tokens=64, implementation="triton",
        )  # fmt: skip

    monkeypatch.setattr(attention_cells, "make_backend", make_backend)
    found = attention_cells.measure(
        Bench("cpu", quick=True), shape="tiny", kv=kv, batch=2, new=new, context=context
    )
    assert found["bytes"] > 0 and found["flops"] > 0 and found["time"]["us"] > 0


def test_a_wave_ends_with_its_last_token() -> None:
    bench = Bench("cpu", quick=True)
    engine = bench.engine("tiny", **wave_cells.settings_of("bf16", 4, 64, 64))
    prompts = random_prompts(3, 20, engine.model_info.vocab_size, "wave")
    for due in (None, [0.0, 0.01, 0.02]):
        served = serve(engine, prompts, [5, 7, 2], due)
        assert not engine.has_unfinished
        assert sorted(request.num_output_tokens for request in served.requests) == [2, 5, 7]
    bench.close()


@pytest.mark.skipif(HAS_GPU, reason="of what is launched, without a launch")
@pytest.mark.parametrize(("concurrency", "num_shared"), [(1, 0), (2, 0), (16, 0), (8, 96)])
def test_nothing_is_compiled_while_a_wave_is_measured(
    concurrency: int, num_shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is launched of attention for each step that is not replayed was launched before."""
    seen: list[set[tuple[object, ...]]] = [set()]

    def noted(q: Any, keys: Any, values: Any, tables: Any, launch: Any, *rest: Any) -> Any:
        if not launch.one_token:  # those are captured
            has_few, is_joined = launch.few_tokens > 0, launch.lanes > 1
            seen[-1].add((has_few, launch.has_many, launch.one_block, is_joined, launch.tiles))
        return rest[1].zero_()

    def make_backend(
        config: EngineConfig, layers: Any, num_blocks: int, dtype: torch.dtype, **_: Any
    ) -> GPUAttention:
        return GPUAttention(
            layers, num_blocks, config.block_size, dtype, device=CPU, implementation="triton",
            max_num_seqs=config.max_num_seqs, max_model_len=256, max_num_batched_tokens=512,
        )  # fmt: skip

    plain = wave_cells.warm_up

    def warm_up(*given: Any) -> None:
        plain(*given)
        seen.append(set())

    monkeypatch.setattr("engine.kernels.triton.attention.paged_attention", noted)
    monkeypatch.setattr("engine.kernels.triton.attention.SPLIT", 32)
    monkeypatch.setattr("engine.kernels.triton.kv_write.write_kv", lambda *_: None)
    monkeypatch.setattr("engine.host.kv_cache.make_backend", make_backend)
    monkeypatch.setattr(wave_cells, "warm_up", warm_up)
    bench = Bench("cpu", quick=True)
    wave_cells.measure(
        bench, shape="tiny", precision="bf16", kv="auto", concurrency=concurrency, num_input=126,
        num_output=4, num_shared=num_shared, rounds=1, most=16, budget=512,
    )  # fmt: skip
    bench.close()
    before, measured = seen
    assert measured and measured <= before


def test_a_cell_s_engine_is_on_one_device_unless_the_cell_says_otherwise() -> None:
    bench = Bench("cuda:0", quick=True)
    assert bench.config("tiny").gpu_layers == "all"
    assert bench.config("tiny", "fp8", gpu_layers="auto").gpu_layers == "auto"
    bench.close()


def test_a_folder_of_shapes_is_made_and_removed() -> None:
    bench = Bench("cpu", quick=True)
    folder = bench.model_folder("tiny")
    assert (folder / "config.json").is_file() and bench.model_folder("tiny") == folder
    bench.close()
    assert not folder.exists()
