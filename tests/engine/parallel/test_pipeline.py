"""A long prompt goes through the stages in pieces, which come to the whole."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.cpu import CPUAttention
from engine.attention.interface import NAME, register
from engine.batch.batch import Batch, Span, pack
from engine.errors import ConfigError
from engine.hardware.device_map import DeviceMap, stage_starts
from engine.memory.model_sizes import ModelSizes
from engine.numerics.kv_dtype import KVWidths
from engine.parallel.pipeline import in_pieces
from engine.runner.model_runner import ModelRunner, probe_kv
from tests.engine import tiny_models

BLOCK = 4


@st.composite
def steps(draw: st.DrawFn) -> Batch:
    """Prompts that begin or go on, and requests that decode, with rows that are sampled."""
    spans, used = [], 0
    for _ in range(draw(st.integers(1, 5))):
        start, count = draw(st.integers(0, 9)), draw(st.integers(1, 12))
        blocks = -(-(start + count) // BLOCK)
        tokens = draw(st.lists(st.integers(3, 190), min_size=count, max_size=count))
        num_rows = draw(st.integers(0, min(3, count)))
        spans.append(Span(tokens, start, range(used, used + blocks), num_rows))
        used += blocks
    return pack(spans, BLOCK)


@given(steps(), st.integers(1, 6))
def test_pieces_have_all_tokens_in_order(batch: Batch, count: int) -> None:
    count = min(count, batch.num_tokens)
    pieces = in_pieces(batch, count)
    assert len(pieces) == count
    assert max(p.num_tokens for p in pieces) - min(p.num_tokens for p in pieces) <= 1
    for name in ("input_ids", "positions", "slot_mapping"):
        assert torch.equal(torch.cat([getattr(p, name) for p in pieces]), getattr(batch, name))
    rows, start = [], 0
    for piece in pieces:
        rows += [start + int(row) for row in piece.logits_indices]
        for request in range(piece.num_requests):
            first, last = piece.query_start_loc[request : request + 2]
            assert piece.seq_lens[request] == int(piece.positions[last - 1]) + 1
            wanted = -(-piece.seq_lens[request] // BLOCK)
            assert len(piece.block_tables[request]) == wanted
            assert last > first
        start += piece.num_tokens
    assert rows == batch.logits_indices.tolist()


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_models.make_model("qwen3")


def runner_of(model: Any) -> ModelRunner:
    register()
    model.set_attn_implementation(NAME)
    return ModelRunner(model, CPUAttention(probe_kv(model), 32, BLOCK, torch.float32))


@given(steps(), st.integers(2, 4))
def test_pieces_compute_what_the_whole_does(model: Any, batch: Batch, count: int) -> None:
    """What stands before a span in its blocks is zeros in both."""
    whole, cut = runner_of(model), runner_of(model)
    expected = whole.execute(batch)
    pieces = in_pieces(batch, min(count, batch.num_tokens))
    found = torch.cat([cut.execute(piece) for piece in pieces])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@given(st.integers(1, 100), st.integers(1, 8))
def test_stages_have_as_many_layers_each(num_layers: int, size: int) -> None:
    devices = [f"cuda:{index}" for index in range(size)]
    if num_layers < size:
        with pytest.raises(ConfigError, match=f"pipeline_parallel_size {size} "):
            stage_starts(devices, num_layers)
        return
    found = DeviceMap(
        devices[0], layers="model.layers", before=("model.embed",),
        starts=stage_starts(devices, num_layers),
    )  # fmt: skip
    where = [found.of(f"model.layers.{index}.mlp") for index in range(num_layers)]
    assert where == sorted(where) and set(where) == set(devices)
    counts = [where.count(device) for device in devices]
    assert max(counts) - min(counts) <= 1
    assert found.of("model.embed.weight") == devices[0]
    assert found.of("lm_head.weight") == found.last == devices[-1]


@given(st.integers(2, 40), st.integers(1, 4), st.booleans())
def test_the_parts_of_all_stages_are_the_model(num_layers: int, size: int, is_tied: bool) -> None:
    size = min(size, num_layers)
    sizes = ModelSizes(
        weights=1000 * num_layers + 500 + (0 if is_tied else 700) + 10, kv=KVWidths(),
        itemsize=2, hidden_size=1, intermediate_size=1, num_heads=1, head_dim=1, vocab_size=1,
        layer_weights=(1000,) * num_layers, layer_kv=(KVWidths(4, 4, 1),) * num_layers,
        embeddings=500, is_tied=is_tied,
    )  # fmt: skip
    starts = [num_layers * stage // size for stage in range(size + 1)]
    parts = [sizes.part(first, last) for first, last in itertools.pairwise(starts)]
    copied = 500 if is_tied and size > 1 else 0
    assert sum(part.weights for part in parts) == sizes.weights + copied
    assert KVWidths.sum(part.kv for part in parts) == KVWidths.sum(sizes.layer_kv)


def test_the_cpu_has_no_stages(tmp_path: Path) -> None:
    from engine import EngineConfig, LLMEngine

    folder = tiny_models.save(tiny_models.make_model("llama"), tmp_path)
    for changes, words in (
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size 2"),
        ({"pipeline_parallel_size": 2, "tensor_parallel_size": 2}, "tensor_parallel_size 2"),
    ):
        with pytest.raises(ConfigError, match=words):
            LLMEngine(EngineConfig(model=str(folder), device="cpu", **changes))
