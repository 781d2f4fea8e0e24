"""The memory plan never exceeds its limit, wastes nothing that can be used, and says no in time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.gpu import WORKSPACE_BYTES
from engine.config import EngineConfig
from engine.errors import OutOfMemoryError
from engine.memory.model_sizes import ModelSizes, model_sizes, sizes_of
from engine.memory.plan import (
    activation_bytes,
    automatic_length,
    max_useful_blocks,
    plan,
    plan_memory,
)
from engine.models.architecture import count_parameters
from engine.models.checkpoint import Checkpoint
from engine.numerics.kv_dtype import KVWidths
from engine.runner.cuda_graphs import room_for
from tests.engine.tiny_models import make_model

GIB = 2**30
LLAMA_1B = ModelSizes(
    weights=2_471_645_608,
    kv=KVWidths(16 * 8 * 64, 16 * 8 * 64, 16 * 8),
    itemsize=2,
    hidden_size=2048,
    intermediate_size=8192,
    num_heads=32,
    head_dim=64,
    vocab_size=128_256,
)
PER_TOKEN = 16 * 2 * 8 * 64 * 2  # bytes of K and V


def config(**changes: object) -> EngineConfig:
    return EngineConfig().replace(**{"max_model_len": 4096, **changes})


def test_rotary_tables_count_as_weights_as_far_as_they_are_made() -> None:
    sizes = replace(LLAMA_1B, table_rows=(256, 2**15), longest=2048)
    assert sizes.loaded_bytes(1024) == LLAMA_1B.weights + 1024 * (256 + 2**15)
    # the second would have more than 64 MiB; nobody asks for more rows than the model has positions
    assert sizes.loaded_bytes(2**20) == LLAMA_1B.weights + 2048 * (256 + 2**15)
    longer = replace(sizes, longest=None)
    assert longer.loaded_bytes(4096) == LLAMA_1B.weights + 4096 * 256
    assert LLAMA_1B.loaded_bytes(4096) == LLAMA_1B.weights


def test_a_gpu_holds_graphs_and_scratch_memory_beside_its_steps() -> None:
    """Of the settings of now, whatever the step was measured with."""

    def beside(**changes: object) -> int:
        own = plan(
            LLAMA_1B, config(device="cuda:0", max_num_seqs=16, **changes), free=64 * GIB,
            total=64 * GIB, activations=GIB,
        )  # fmt: skip
        return own.activations - GIB

    plain = room_for(config(max_num_seqs=16), LLAMA_1B.vocab_size)
    assert beside() == plain > 16 * LLAMA_1B.vocab_size * 4
    assert beside(enforce_eager=True) == 0
    assert beside(speculative_method="ngram") > plain
    draft = beside(speculative_method="draft_model", num_speculative_tokens=4)
    assert draft > beside(speculative_method="ngram", num_speculative_tokens=4) + WORKSPACE_BYTES
    on_cpu = plan(LLAMA_1B, config(), free=64 * GIB, total=64 * GIB, activations=GIB)
    assert on_cpu.activations == GIB


@given(
    total=st.integers(1, 256).map(lambda n: n * GIB),
    free_share=st.floats(0.0, 1.0),
    utilization=st.floats(0.05, 1.0),
    max_model_len=st.integers(1, 131_072),
    max_num_seqs=st.integers(1, 256),
    block_size=st.sampled_from([1, 8, 16, 32, 256]),
    cache=st.none() | st.integers(1, 64 * GIB),
)
def test_a_plan_stays_within_its_limit(
    total: int,
    free_share: float,
    utilization: float,
    max_model_len: int,
    max_num_seqs: int,
    block_size: int,
    cache: int | None,
) -> None:
    free = int(total * free_share)
    settings = config(
        gpu_memory_utilization=utilization,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        block_size=block_size,
        kv_cache_memory_bytes=cache,
    )
    try:
        made = plan(LLAMA_1B, settings, free=free, total=total)
    except OutOfMemoryError as error:
        assert "GiB" in error.cause or "bytes" in error.cause
        assert error.remedy
        return
    assert made.predicted <= made.limit <= utilization * total
    assert made.limit + made.reserve <= free
    assert made.kv_cache == made.num_blocks * made.bytes_per_block
    assert made.bytes_per_block == block_size * PER_TOKEN
    if cache is None:
        assert made.num_blocks * block_size >= max_model_len
        assert made.num_blocks <= max_useful_blocks(settings)
    else:
        assert cache - made.bytes_per_block < made.kv_cache <= cache


@given(small=st.integers(8, 64), more=st.integers(0, 64))
def test_more_memory_never_gives_fewer_blocks(small: int, more: int) -> None:
    blocks = [
        plan(LLAMA_1B, config(), free=n * GIB, total=n * GIB).num_blocks
        for n in (small, small + more)
    ]
    assert blocks[0] <= blocks[1]


def test_a_small_machine_keeps_a_tenth_for_the_desktop() -> None:
    small = plan(LLAMA_1B, config(max_model_len=256), free=6 * GIB, total=6 * GIB)
    large = plan(LLAMA_1B, config(), free=100 * GIB, total=100 * GIB)
    assert small.reserve == 6 * GIB // 10
    assert large.reserve == 5 * GIB


def test_an_automatic_cache_leaves_half_of_the_free_ram() -> None:
    settings = config(max_num_seqs=1024, max_model_len=4096)
    for gib in ((22, 24), (10, 32), (60, 64)):
        free, total = (size * GIB for size in gib)
        made = plan(LLAMA_1B, settings, free=free, total=total)
        rest = made.free - made.weights - made.activations
        assert abs(made.kv_cache - rest // 2) <= made.bytes_per_block
        gpu = plan(LLAMA_1B, settings.replace(device="cuda:0"), free=free, total=total)
        assert gpu.kv_cache > made.kv_cache
        asked = settings.replace(kv_cache_memory_bytes=made.kv_cache + GIB)
        assert plan(LLAMA_1B, asked, free=free, total=total).kv_cache > made.kv_cache
        with pytest.raises(OutOfMemoryError):
            asked = settings.replace(kv_cache_memory_bytes=free)
            plan(LLAMA_1B, asked, free=free, total=total)


def test_one_whole_request_fits_whatever_is_left_for_others() -> None:
    settings = config(max_num_seqs=16, max_model_len=131_072)
    made = plan(LLAMA_1B, settings, free=9 * GIB, total=10 * GIB)
    assert made.num_blocks == -(-131_072 // settings.block_size)
    assert made.kv_cache > (made.free - made.weights - made.activations) // 2


def test_the_cache_is_no_larger_than_its_requests_can_use() -> None:
    made = plan(LLAMA_1B, config(max_num_seqs=2, watermark=0.0), free=64 * GIB, total=64 * GIB)
    assert made.num_blocks == 2 * 4096 // 16


def test_weights_that_do_not_fit_are_refused_with_the_numbers() -> None:
    with pytest.raises(OutOfMemoryError, match=r"weights 2\.30 GiB.*2\.00 GiB of 8\.00 GiB") as e:
        plan(LLAMA_1B, config(), free=2 * GIB, total=8 * GIB)
    assert "smaller model" in e.value.remedy


def test_a_context_that_does_not_fit_points_to_max_model_len() -> None:
    with pytest.raises(OutOfMemoryError) as error:
        plan(LLAMA_1B, config(max_model_len=131_072), free=6 * GIB, total=8 * GIB)
    assert "max_model_len" in error.value.remedy


def test_a_cache_of_the_user_s_own_size_may_be_one_block() -> None:
    one = 16 * PER_TOKEN
    made = plan(LLAMA_1B, config(kv_cache_memory_bytes=one), free=8 * GIB, total=8 * GIB)
    assert made.num_blocks == 1
    with pytest.raises(OutOfMemoryError, match="smaller than one block"):
        plan(LLAMA_1B, config(kv_cache_memory_bytes=one - 1), free=8 * GIB, total=8 * GIB)


def test_without_chunked_prefill_a_whole_context_has_to_fit_a_step() -> None:
    chunked, whole = (
        plan(LLAMA_1B, config(enable_chunked_prefill=on), free=32 * GIB, total=32 * GIB)
        for on in (True, False)
    )
    assert whole.activations > chunked.activations


@given(
    heads=st.integers(1, 16),
    key_dim=st.integers(64, 256),
    value_dim=st.integers(64, 256),
    kv_dtype=st.sampled_from(["int8", "fp8", "k=int8,v=fp8"]),
)
def test_eight_bits_hold_almost_twice_the_tokens(
    heads: int, key_dim: int, value_dim: int, kv_dtype: str
) -> None:
    sizes = replace(LLAMA_1B, kv=KVWidths(heads * key_dim, heads * value_dim, heads))
    settings = config(kv_cache_memory_bytes=2**28, dtype="bfloat16")
    plain, narrow = (
        plan(sizes, settings.replace(kv_cache_dtype=name), free=64 * GIB, total=64 * GIB)
        for name in ("auto", kv_dtype)
    )
    assert narrow.num_blocks >= 1.9 * plain.num_blocks
    assert narrow.kv_cache <= 2**28
    assert narrow.bytes_per_block == 16 * heads * (key_dim + value_dim + 2 + 2)
    assert (plain.key_dtype, plain.value_dtype) == ("bfloat16", "bfloat16")
    assert "bfloat16" not in (narrow.key_dtype, narrow.value_dtype)


def test_keys_and_values_are_counted_apart() -> None:
    sizes = replace(LLAMA_1B, kv=KVWidths(keys=400, values=100, heads=4))
    per_token = {
        name: plan(
            sizes, config(kv_cache_dtype=name, block_size=1), free=64 * GIB, total=64 * GIB
        ).bytes_per_block
        for name in ("auto", "k=int8,v=auto", "k=auto,v=fp8", "fp8")
    }
    assert list(per_token.values()) == [1000, 408 + 200, 800 + 108, 408 + 108]


def test_a_draft_is_counted_in_the_same_precision() -> None:
    draft = replace(LLAMA_1B, kv=KVWidths(64, 64, 1))
    made = plan(LLAMA_1B, config(kv_cache_dtype="int8"), free=64 * GIB, total=64 * GIB, draft=draft)
    assert made.draft_bytes_per_block == 16 * (64 + 64 + 4)


def test_a_plain_cache_that_does_not_fit_points_to_eight_bits() -> None:
    for kv_dtype, is_named in (("auto", True), ("int8", False)):
        with pytest.raises(OutOfMemoryError) as error:
            plan(
                LLAMA_1B,
                config(max_model_len=131_072, kv_cache_dtype=kv_dtype),
                free=5 * GIB,
                total=8 * GIB,
            )
        assert ("kv_cache_dtype" in error.value.remedy) == is_named


class TestOfACheckpoint:
    @pytest.fixture
    def checkpoint(self, tmp_path: Path) -> Checkpoint:
        make_model("qwen3_moe").save_pretrained(tmp_path)
        return Checkpoint.open(tmp_path)

    def test_sizes_follow_the_dtype(self, checkpoint: Checkpoint) -> None:
        wide, narrow = (model_sizes(checkpoint, d) for d in (torch.float32, torch.bfloat16))
        assert wide.weights == 2 * narrow.weights == 4 * count_parameters(checkpoint.config)
        assert wide.kv == narrow.kv == KVWidths(2 * 2 * 16, 2 * 2 * 16, 2 * 2)

    def test_what_the_engine_holds_counts_as_free(self, checkpoint: Checkpoint) -> None:
        settings = config(device="cpu", dtype="float32", max_model_len=256)
        memory = (1 * GIB, 4 * GIB)
        plain = plan_memory(checkpoint, settings, memory=memory)
        again = plan_memory(checkpoint, settings, memory=memory, in_use={"cpu": GIB})
        assert again.limit == plain.limit + GIB
        assert again.free == plain.free + GIB

    @pytest.mark.parametrize("free_mib", [1, 200, 300, 600, 1000, 4000])
    def test_an_automatic_context_leaves_half_of_the_free_ram(
        self, free_mib: int, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        memory = free_mib * 2**20, 32 * GIB
        monkeypatch.setattr("engine.memory.plan.free_memory", lambda name: memory)
        open_length = EngineConfig(device="cpu", dtype="float32")
        limit = 2**20
        length = automatic_length(checkpoint, open_length, limit)
        assert 4096 <= length <= limit and length == 1 << (length.bit_length() - 1)
        settings = open_length.replace(max_model_len=length)
        sizes = sizes_of(checkpoint, settings)
        room = memory[0] - sizes.loaded_bytes(limit) - activation_bytes(sizes, settings)
        needed = length * sizes.kv_bytes_per_token(settings.kv_dtype)
        assert needed <= room / 2 or length == 4096
        assert 2 * needed > room / 2 or length == limit
        assert automatic_length(checkpoint, open_length, 2048) == 2048
        held = {"cpu": 2**30}
        assert automatic_length(checkpoint, open_length, limit, held) >= length
        for other in ({"device": "cuda:0"}, {"kv_cache_memory_bytes": 2**20}):
            assert automatic_length(checkpoint, open_length.replace(**other), limit) == limit

    def test_a_context_that_results_depend_on_is_the_models(self, checkpoint: Checkpoint) -> None:
        checkpoint.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4}
        settings = EngineConfig(device="cpu", dtype="float32")
        assert automatic_length(checkpoint, settings, 2**40) == 2**40

    def test_it_measures_the_machine(self, checkpoint: Checkpoint) -> None:
        made = plan_memory(checkpoint, config(dtype="float32", max_model_len=64))
        assert 0 < made.free <= made.total
