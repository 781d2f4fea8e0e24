"""Profiles of a tiny llama: exact bytes and operations, times that add up, nothing left wrapped."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine import LLMEngine, SamplingParams
from engine.errors import InferdeckError
from engine.hardware.peaks import Peaks
from engine.kernels.cpu.check import library
from engine.kernels.ops import fuses_residual
from engine.models.layers import attention, norm, packing
from engine.snapshot.profile import DECODE, PREFILL, Operation, StepsProfile
from engine.telemetry import profiler as profiling
from engine.telemetry.profile import as_dict, bound_text, least_s, raised, roof_text
from engine.telemetry.profiler import StepProfiler
from tests.engine import tiny_models

PEAKS = Peaks(10e9, 100e9, "float32", 1, "a machine", 0.0)
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, WIDTH = 64, 96, 2, 4, 2, 16
VOCAB, F32 = tiny_models.VOCAB_SIZE, 4
PROMPT = 10


def profile(
    engine: LLMEngine, *, decodes: int = 6, requests: int = 1
) -> tuple[dict[str, StepsProfile], StepProfiler]:
    params = SamplingParams(max_tokens=decodes + 1, ignore_eos=True, temperature=0.0)
    for place in range(requests):
        engine.add_request([3 + place] * PROMPT, params)
    with engine.profiler() as profiler:
        while engine.has_unfinished:
            profiler.step(engine.step)
    return {one.kind: one for one in profiler.profiles()}, profiler


def of(one: StepsProfile) -> dict[str, Operation]:
    return {operation.name: operation for operation in one.operations}


def test_bytes_and_operations_of_known_shapes_are_exact(
    make_engine: Callable[..., LLMEngine],
) -> None:
    found, _ = profile(make_engine(), decodes=1)
    prefill = found[PREFILL]
    assert (prefill.num_steps, prefill.num_tokens) == (1, PROMPT)
    qkv = (HEADS + 2 * KV_HEADS) * WIDTH
    kv = 2 * KV_HEADS * WIDTH * F32  # bytes of a token in a layer
    shapes = {
        "qkv projection": (LAYERS, PROMPT, HIDDEN, qkv),
        "o projection": (LAYERS, PROMPT, HEADS * WIDTH, HIDDEN),
        "gate/up projection": (LAYERS, PROMPT, HIDDEN, 2 * INNER),
        "down projection": (LAYERS, PROMPT, INNER, HIDDEN),
        "LM head": (1, 1, HIDDEN, VOCAB),
    }
    expected = {
        name: (calls, calls * F32 * (t * i + i * o + t * o), calls * 2 * t * i * o)
        for name, (calls, t, i, o) in shapes.items()
    }
    pairs, heads = PROMPT * (PROMPT + 1) // 2, PROMPT * HEADS * WIDTH
    expected["attention"] = (
        LAYERS, LAYERS * (2 * heads * F32 + PROMPT * kv), LAYERS * pairs * HEADS * 4 * WIDTH
    )  # fmt: skip
    expected["KV write"] = (LAYERS, LAYERS * 2 * PROMPT * kv, 0)
    gated = PROMPT * INNER
    expected["activation"] = (LAYERS, LAYERS * 3 * gated * F32, LAYERS * 5 * gated)
    count, normed = 2 * LAYERS + 1, PROMPT * HIDDEN
    added = normed * LAYERS * fuses_residual("cpu")  # with a residual that is read and written
    nbytes = F32 * (count * (2 * normed + HIDDEN) + 2 * added)
    expected["norm"] = (count, nbytes, count * 4 * normed + added)
    own = of(prefill)
    seen = {name: (one.calls, one.bytes, one.operations) for name, one in own.items()}
    assert {name: seen[name] for name in expected} == expected
    assert own.keys() - expected.keys() == {"embedding", "rotary", "sampling"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_operations_and_the_rest_add_up_to_the_steps(
    make_engine: Callable[..., LLMEngine], dtype: str
) -> None:
    found, profiler = profile(make_engine(dtype=dtype), requests=2)
    assert profiler.num_steps == sum(one.num_steps for one in found.values())
    for one in found.values():
        assert 0 < sum(each.seconds for each in one.operations) < one.seconds
        shares = as_dict(one, PEAKS)
        total = sum(each["share"] for each in shares["operations"])
        assert total + shares["rest_ms"] / shares["step_ms"] == pytest.approx(1)


def test_recorded_steps_are_profiled_as_they_are_replayed(
    make_engine: Callable[..., LLMEngine],
) -> None:
    """The step that is spent on recording does not count."""
    engine = make_engine()
    kept = engine.runner.recordings
    assert kept is not None
    found, _ = profile(engine, decodes=6)
    decode = found[DECODE]
    assert decode.num_steps == 5
    calls = {name: one.calls / decode.num_steps for name, one in of(decode).items()}
    assert calls["qkv projection"] == calls["attention"] == calls["KV write"] == LAYERS
    assert calls["LM head"] == calls["sampling"] == 1
    assert engine.runner.recordings is kept


def test_tokens_are_the_same_and_nothing_stays_wrapped(
    make_engine: Callable[..., LLMEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(enable_prefix_caching=False)
    params = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.0)
    owners: list[Any] = [
        norm, attention, packing, engine.runner.backend, engine._host.sampler,
        *engine.runner.model.modules(),
    ]  # fmt: skip

    def names() -> list[dict[str, Any]]:
        return [{name: value for name, value in vars(one).items() if callable(value)}
                for one in owners]  # fmt: skip

    before, plain = names(), engine.generate([[5] * PROMPT], params)[0].token_ids
    engine.add_request([5] * PROMPT, params)
    events = []
    with engine.profiler() as profiler:
        assert names() != before
        while engine.has_unfinished:
            events += profiler.step(engine.step)
    assert [token for event in events for token in event.token_ids] == list(plain)
    assert names() == before
    # whoever marks an operation now would be called by it
    monkeypatch.setattr(StepProfiler, "_begin_now", lambda *_: pytest.fail("still wrapped"))
    assert engine.generate([[5] * PROMPT], params)[0].token_ids == plain


def test_a_step_that_fails_leaves_nothing_wrapped(
    make_engine: Callable[..., LLMEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    monkeypatch.setattr(packing, "silu_and_mul", lambda x: 1 / 0)
    failing = packing.silu_and_mul
    engine.add_request([5] * PROMPT, SamplingParams(max_tokens=2))
    with pytest.raises(ZeroDivisionError), engine.profiler() as profiler:
        profiler.step(engine.step)
    assert packing.silu_and_mul is failing
    assert profiler.profiles() == ()


def test_another_thread_is_not_counted(make_engine: Callable[..., LLMEngine]) -> None:
    engine = make_engine()
    x = torch.ones(1, 2 * INNER)
    engine.add_request([5] * PROMPT, SamplingParams(max_tokens=2))

    def step() -> Any:
        other = threading.Thread(target=packing.silu_and_mul, args=(x,))
        other.start()
        other.join()
        return engine.step()

    with engine.profiler() as profiler:
        profiler.step(step)
    assert of(profiler.profiles()[0])["activation"].calls == LAYERS


def test_one_profile_at_a_time(make_engine: Callable[..., LLMEngine]) -> None:
    engine = make_engine()
    with engine.profiler(), pytest.raises(InferdeckError), engine.profiler():
        pass
    with engine.profiler() as idle:
        idle.step(engine.step)  # no request: no step
    assert idle.num_steps == 0 and idle.profiles() == ()


def test_the_trace_names_the_operations(
    make_engine: Callable[..., LLMEngine], tmp_path: Path
) -> None:
    found, profiler = profile(make_engine(), decodes=1)
    file = tmp_path / "trace.json"
    profiler.export_trace(file)
    events = json.loads(file.read_text())["traceEvents"]
    ranges = [event for event in events if event.get("name") == f"{PREFILL}: qkv projection"]
    assert len(ranges) == of(found[PREFILL])["qkv projection"].calls
    assert ranges[0]["args"]["shapes"] == f"[{PROMPT}, {HIDDEN}]"


def test_on_a_gpu_the_time_of_the_kernels_counts(
    make_engine: Callable[..., LLMEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an operation launched some; torch's profiler adds up what is launched inside it."""
    _, profiler = profile(make_engine(), decodes=1)
    events = [SimpleNamespace(name=f"{PREFILL}: attention", device_time_total=us)
              for us in (200.0, 300.0)]  # fmt: skip
    monkeypatch.setattr(profiler, "_torch", SimpleNamespace(events=lambda: events))
    monkeypatch.setattr(profiler._runner, "device", torch.device("cuda"))
    found = of(profiler.profiles()[0])
    assert found["attention"].seconds == pytest.approx(500e-6)
    assert found["qkv projection"].seconds > 0
    assert found["attention"].calls == LAYERS


@pytest.mark.parametrize(("window", "chunk", "keys", "pairs"), [
    (None, None, 20, 5 * 18), (4, None, 8, 5 * 4), (None, 8, 12, 1 + 2 + 3 + 4 + 8),
])  # fmt: skip
def test_windows_and_chunks_are_read_in_part(
    make_engine: Callable[..., LLMEngine], window: int | None, chunk: int | None, keys: int,
    pairs: int,
) -> None:  # fmt: skip
    """Positions 15 to 19 of a sequence."""
    engine = make_engine()
    profiler = StepProfiler(engine.runner, engine._host.sampler)
    batch = profiling.Batch(
        *[torch.empty(0)] * 4, query_start_loc=[0, 5], seq_lens=[20], block_tables=[[]],
        block_size=8,
    )  # fmt: skip
    profiler._batch = batch
    assert profiler._visible(window, chunk) == (keys, pairs)


def test_the_bound_follows_from_the_peaks() -> None:
    """10 operations a byte is where both roofs meet."""
    few, many = (Operation("x", "", 1, 2.0, 1e9, count) for count in (9.9e9, 10.1e9))
    assert (bound_text(few, PEAKS), bound_text(many, PEAKS)) == ("memory", "compute")
    assert (few.bytes_per_s, few.operations_per_s, few.intensity) == (0.5e9, 4.95e9, 9.9)
    assert least_s(few, PEAKS) == pytest.approx(0.1)
    assert least_s(many, PEAKS) == pytest.approx(0.101)


def test_no_operation_is_above_its_roof() -> None:
    """The measured peak of compute is raised; above that of memory is the cache."""
    fast = Operation("x", "", 1, 1.0, 1e9, 3 * PEAKS.flops_per_s)
    one = StepsProfile("decode", 1, 1, 1.0, (fast,))
    peaks = raised(PEAKS, [one])
    assert (peaks.flops_per_s, peaks.read_bytes_per_s) == (
        3 * PEAKS.flops_per_s, PEAKS.read_bytes_per_s
    )  # fmt: skip
    assert roof_text(fast, peaks) == "100 %" and raised(PEAKS, []) == PEAKS
    cached = Operation("x", "", 1, 1.0, 1.2 * PEAKS.read_bytes_per_s, 0)
    assert "%" not in roof_text(cached, PEAKS)


@pytest.mark.skipif(library() is None, reason="no compiled kernels")
def test_quantized_weights_count_as_they_are_stored(
    make_engine: Callable[..., LLMEngine],
) -> None:
    engine = make_engine(quantization="int8")
    found, _ = profile(engine, decodes=1)
    own = of(found[PREFILL])["down projection"]
    plain = LAYERS * F32 * (PROMPT * INNER + INNER * HIDDEN + PROMPT * HIDDEN)
    assert "int8" in own.kernel
    assert own.bytes < plain - LAYERS * 2 * INNER * HIDDEN
