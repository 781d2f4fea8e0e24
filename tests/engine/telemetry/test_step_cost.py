"""Where a step goes: what is counted, and that the parts add up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import LLMEngine, SamplingParams
from engine.hardware.peaks import Peaks
from engine.snapshot import EngineSnapshot, ModelInfo, StepEntry, StepRecord
from engine.telemetry.step_cost import (
    Batch,
    CostedStep,
    ModelCost,
    Split,
    Work,
    cost_step,
    least_time,
    pause_between,
    total,
    verdict,
)
from tests.engine import tiny_models
from tests.widgets import synthetic

PEAKS = Peaks(40e9, 800e9, "bfloat16", 2, "a machine", 0.0)
MODEL = ModelInfo(
    "m", "/m", "Llama", "bfloat16", "cpu", 1_000_000_000, 2_000_000_000, 16, 2048, 32, 8, 64,
    100_000, 8192, False, True, num_lookup_parameters=204_800_000, output_bytes=409_600_000,
    lookup_bytes=409_600_000,
)  # fmt: skip
COST = ModelCost.of(MODEL, kv_bytes_per_token=32_768.0)
DECODE = StepEntry("a", "decode", 1, num_context=1000, num_logits=1)


def step(*entries: StepEntry, model_s: float = 0.05, start: float = 0.0, **rest: int) -> StepRecord:
    return StepRecord(
        0, start, model_s + 0.003, entries, num_running=len(entries), num_waiting=0,
        schedule_s=0.001, model_s=model_s, sample_s=0.001, commit_s=0.001, **rest,
    )  # fmt: skip


def prefill(tokens: int, context: int, logits: int = 1) -> StepEntry:
    return StepEntry("p", "prefill", tokens, num_context=context, num_logits=logits)


def snapshot(**changes: object) -> EngineSnapshot:
    config = type("Config", (), {
        "max_num_seqs": 16, "max_num_batched_tokens": 512, "enable_prefix_caching": True,
    })()  # fmt: skip
    return dataclasses.replace(synthetic.snapshot(0.0), model=MODEL, config=config, **changes)


entries = st.builds(
    lambda kind, tokens, before, logits: StepEntry(
        "r", kind, tokens, num_context=before + tokens, num_logits=logits
    ),
    st.sampled_from(["prefill", "decode"]), st.integers(1, 2048), st.integers(0, 8192),
    st.integers(0, 1),
)  # fmt: skip
steps = st.builds(
    lambda batch, model_s: step(*batch, model_s=model_s),
    st.lists(entries, min_size=1, max_size=8), st.floats(1e-5, 5.0),
)  # fmt: skip


def test_one_row_reads_every_weight_once_but_the_input_embedding() -> None:
    work = COST.work([DECODE])
    row = 2048 * 2
    assert work.weights == pytest.approx(2e9 - 204_800_000 * 2 + row)
    assert work.linear == pytest.approx(2 * (1e9 - 204_800_000))
    assert work.kv == 1001 * 32_768
    assert work.attention == 4 * 16 * 32 * 64 * 1000
    assert COST.work([]) == Work()


def test_a_batch_shares_the_weights_and_not_the_cache() -> None:
    one, many = COST.work([DECODE]), COST.work([DECODE] * 8)
    assert many.weights == pytest.approx(one.weights, rel=1e-4)
    assert many.kv == 8 * one.kv and many.linear == pytest.approx(8 * one.linear)


@given(st.lists(entries, max_size=8))
def test_a_batch_with_cached_prompts_computes_a_token_of_each(batch: list[StepEntry]) -> None:
    kept = [
        entry if entry.kind == "decode" else entry._replace(num_tokens=1)
        for entry in batch
        if entry.kind == "decode" or entry.num_logits
    ]
    found = Batch.of(batch)
    assert found.least == Batch.of(kept).counts
    assert found.counts.tokens == sum(entry.num_computed for entry in batch)
    assert found.only_decodes == all(entry.kind == "decode" for entry in batch)
    assert found.has_parts == any(not entry.num_logits for entry in batch)


def test_a_chunk_attends_to_itself_as_a_triangle() -> None:
    work = COST.work([prefill(4, 4)])
    assert work.attention == (4 + 3 + 2 + 1) * COST.flops_per_pair


def test_chunks_of_a_prompt_are_the_attention_of_the_whole() -> None:
    whole = COST.work([prefill(300, 300)])
    parts = [COST.work([prefill(100, end)]) for end in (100, 200, 300)]
    assert sum(part.attention for part in parts) == pytest.approx(whole.attention)


def test_experts_are_read_as_far_as_they_are_chosen() -> None:
    moe = dataclasses.replace(
        MODEL,
        num_expert_parameters=400_000_000,
        num_experts=8,
        experts_per_token=2,
        expert_bytes=800_000_000,
    )
    cost = ModelCost.of(moe, 32_768.0)
    one, many = cost.work([DECODE]), cost.work([DECODE] * 64)
    assert one.linear == pytest.approx(2 * (1e9 - 204_800_000 - 400e6 * 6 / 8))
    assert one.weights == pytest.approx(many.weights - 0.8e9 * 6 / 8, rel=1e-3)


@given(steps, st.floats(0, 0.4))
def test_the_parts_are_never_negative_and_add_up_to_what_was_measured(
    record: StepRecord, pause: float
) -> None:
    costed = cost_step(record, pause, COST, PEAKS)
    assert min(costed.split) >= 0
    assert costed.split.total == pytest.approx(record.duration + pause)
    assert costed.split.shares().total == pytest.approx(1.0)
    assert 0 < costed.speed <= 1


@given(st.floats(0, 1e13), st.floats(0, 1e15), st.floats(0, 1e13), st.floats(0, 1e15))
def test_reading_hides_arithmetic_and_the_other_way_round(
    weights: float, linear: float, kv: float, attention: float
) -> None:
    least = least_time(Work(weights, 0.0, linear, kv, attention), PEAKS)
    products = max(weights / PEAKS.read_bytes_per_s, linear / PEAKS.flops_per_s)
    reading = max(kv / PEAKS.read_bytes_per_s, attention / PEAKS.flops_per_s)
    assert least.floor == pytest.approx(products + reading)


def costed(steps: Sequence[StepRecord], cost: ModelCost = COST) -> list[CostedStep]:
    return [
        cost_step(step, pause_between(before, step), cost, PEAKS)
        for before, step in zip([None, *steps], steps, strict=False)
    ]


def test_a_pause_counts_only_while_somebody_waits() -> None:
    first, second = step(DECODE), step(DECODE, start=0.063)
    [_, after] = costed([first, second])
    assert after.split.queue == pytest.approx(0.01)
    alone = dataclasses.replace(first, num_running=0)
    assert [s.split.queue for s in costed([alone, second])] == [0.0, 0.0]
    rebuilt = dataclasses.replace(second, start=9.0)
    assert [s.split.queue for s in costed([first, rebuilt])] == [0.0, 0.0]


# The verdict --------------------------------------------------------------------------------


def test_the_verdict_names_what_is_largest() -> None:
    assert verdict(Split(71, 9, 12, 0, 8, 0)) == "memory-bound: weights 71 %"
    assert verdict(Split(10, 50, 12, 0, 8, 0)) == "memory-bound: KV 62 %"
    assert verdict(Split(10, 10, 60, 10, 10, 0)) == "compute-bound: 60 %"
    launching = verdict(Split(10, 10, 10, 60, 10, 0))
    assert launching.startswith("overhead-bound") and "60 %" in launching
    assert verdict(Split()) == ""


# The real engine ---------------------------------------------------------------------------------


def test_the_engine_says_what_each_step_read(make_engine: Callable[..., LLMEngine]) -> None:
    engine = make_engine(max_num_batched_tokens=16)
    engine.generate([list(range(3, 43))], SamplingParams(max_tokens=4, ignore_eos=True))
    seen = engine.snapshot()
    shapes = [(e.num_tokens, e.num_context, e.num_logits) for s in seen.steps for e in s.entries]
    assert shapes == [(16, 16, 0), (16, 32, 0), (8, 40, 1), (1, 41, 1), (1, 42, 1), (1, 43, 1)]
    cost = ModelCost.of(seen.model, 1.0)
    read = cost.work(seen.steps[-1].entries).weights
    assert read <= seen.model.weights_bytes + 4 * seen.model.hidden_size
    assert total(costed(seen.steps, cost)).total >= sum(s.duration for s in seen.steps) * 0.999


def test_experts_and_untied_embeddings_of_a_loaded_model_are_counted(
    make_engine: Callable[..., LLMEngine], tmp_path: Path
) -> None:
    folder = tiny_models.save(tiny_models.make_model("qwen3_moe"), tmp_path)
    info = make_engine(model=str(folder)).model_info
    assert (info.num_experts, info.experts_per_token) == (4, 2)
    assert info.num_expert_parameters == 2 * 4 * 3 * 64 * 32  # layers, experts, three matrices
    assert info.num_lookup_parameters == tiny_models.VOCAB_SIZE * 64
    assert info.expert_bytes == 4 * info.num_expert_parameters
    assert info.output_bytes == info.lookup_bytes == 4 * info.num_lookup_parameters
