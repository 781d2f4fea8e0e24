"""Plans of a model of which the CPU computes the first layers: both parts stay within their
limits, have the same blocks, and are together the whole."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.errors import OutOfMemoryError
from engine.memory.model_sizes import model_sizes
from engine.memory.plan import blocks_of, max_useful_blocks, plan, plan_memory
from engine.models.checkpoint import Checkpoint
from engine.numerics.kv_dtype import KVWidths
from engine.snapshot import MemoryPlan
from tests.engine.tiny_models import FAMILIES, make_model

GIB = 2**30
LAYERS = 4
PLENTY = (64 * GIB, 64 * GIB)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Layers of 50 MB in float32, embeddings and head of 4 MB each."""
    return stored("llama", tmp_path_factory, hidden_size=1024, intermediate_size=2752)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return stored("gemma2", tmp_path_factory, hidden_size=1024, intermediate_size=2752)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored("llama", tmp_path_factory).path


DIVIDED = [name for name in FAMILIES if name not in ("gemma3n", "gemma4", "gemma4_moe")]
"""Not those with a list per layer; two of them share a cache and stay on one device."""


def stored(family: str, folders: pytest.TempPathFactory, **changes: int) -> Checkpoint:
    """Its config alone: nothing here reads weights."""
    with torch.device("meta"):
        model = make_model(family, num_hidden_layers=LAYERS, vocab_size=1000, **changes)
    folder = folders.mktemp(family)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    return Checkpoint.open(folder, dummy=True)


class Case(NamedTuple):
    """Bytes of both memories: free, and in all; and what is asked of them."""

    gpu: tuple[int, int]
    ram: tuple[int, int]
    config: EngineConfig


def config(**changes: object) -> EngineConfig:
    return EngineConfig().replace(
        **{
            "device": "cuda:0", "dtype": "float32", "max_model_len": 256, "max_num_seqs": 4,
            "max_num_batched_tokens": 64, "load_format": "dummy", **changes,
        }
    )  # fmt: skip


def memories(least: int, most: int) -> st.SearchStrategy[tuple[int, int]]:
    """(free, total), the latter so many MiB."""
    return st.tuples(st.integers(least, most), st.floats(0.7, 1.0)).map(
        lambda found: (int((found[0] << 20) * found[1]), found[0] << 20)
    )


gpus, rams = memories(140, 600), memories(140, 1500)  # about what parts of the model need
layers = st.sampled_from(["auto", "all", *(str(n) for n in range(1, LAYERS + 2))])
configs = st.builds(
    config,
    gpu_layers=layers,
    gpu_memory_utilization=st.floats(0.6, 1.0),
    max_model_len=st.integers(1, 256),
    max_num_seqs=st.integers(1, 16),
    block_size=st.sampled_from([1, 8, 16, 32]),
    kv_cache_dtype=st.sampled_from(["auto", "int8", "k=fp8,v=auto"]),
    quantization=st.sampled_from(["none", "int8", "int4"]),
    kv_cache_memory_bytes=st.none() | st.integers(1 << 16, 1 << 24),
)
cases = st.builds(Case, gpus, rams, configs)


def planned(checkpoint: Checkpoint, case: Case) -> MemoryPlan:
    return plan_memory(checkpoint, case.config, memory=case.gpu, host_memory=case.ram)


def host_layers_wanted(settings: EngineConfig) -> int:
    return max(0, LAYERS - int(settings.gpu_layers))


@given(case=cases)
def test_both_parts_stay_within_their_limits(checkpoint: Checkpoint, case: Case) -> None:
    settings = case.config
    try:
        made = planned(checkpoint, case)
    except OutOfMemoryError as error:
        assert error.remedy and any(unit in error.cause for unit in ("GiB", "MiB", "bytes"))
        if settings.gpu_layers not in ("auto", "all") and host_layers_wanted(settings):
            own = settings.kv_cache_memory_bytes
            places = ("layers on cuda:0: ", "layers on the CPU: ")
            is_small = own is not None and f"The KV cache of {own:,} bytes" in error.cause
            assert is_small or sum(place in error.cause for place in places) == 1
        return
    assert made.predicted <= made.limit <= settings.gpu_memory_utilization * case.gpu[1]
    assert made.limit + made.reserve <= case.gpu[0]
    assert made.kv_cache == made.num_blocks * made.bytes_per_block
    assert made.host_kv_cache == made.num_blocks * made.host_bytes_per_block
    if settings.gpu_layers == "all":
        assert not made.host_layers
    elif settings.gpu_layers != "auto":
        assert made.host_layers == host_layers_wanted(settings)
    if made.host_layers:
        assert made.host_predicted <= made.host_limit <= 0.9 * case.ram[1], "whatever the GPU's"
        assert made.host_limit < made.host_free == case.ram[0]
        assert min(made.host_weights, made.host_activations, made.host_kv_cache) > 0
        assert min(made.weights, made.activations, made.kv_cache) > 0
    else:
        assert made.host_predicted == made.host_limit == 0
    if settings.kv_cache_memory_bytes is None:
        assert blocks_of(settings.max_model_len or 0, settings) <= made.num_blocks
        assert made.num_blocks <= max_useful_blocks(settings)
    else:
        of_both = made.bytes_per_block + made.host_bytes_per_block
        taken = made.kv_cache + made.host_kv_cache
        assert settings.kv_cache_memory_bytes - of_both < taken <= settings.kv_cache_memory_bytes


@given(case=cases)
def test_auto_leaves_the_cpu_as_few_layers_as_it_takes(checkpoint: Checkpoint, case: Case) -> None:
    """One fewer does not fit; and where nothing is found, nothing would."""

    def fits(host_layers: int) -> bool:
        layers = "all" if not host_layers else str(LAYERS - host_layers)
        try:
            planned(checkpoint, case._replace(config=case.config.replace(gpu_layers=layers)))
        except OutOfMemoryError:
            return False
        return True

    possible = [count for count in range(LAYERS) if fits(count)]
    auto = case._replace(config=case.config.replace(gpu_layers="auto"))
    if possible:
        assert planned(checkpoint, auto).host_layers == possible[0]
    else:
        with pytest.raises(OutOfMemoryError, match="CPU offload"):
            planned(checkpoint, auto)


@given(host_layers=st.integers(1, LAYERS - 1), case=cases)
def test_both_parts_are_together_the_whole(
    checkpoint: Checkpoint, tied: Checkpoint, host_layers: int, case: Case
) -> None:
    """But for a head that is the embeddings too, of which each part has one."""
    settings = case.config.replace(
        gpu_layers=str(LAYERS - host_layers), kv_cache_memory_bytes=None, gpu_memory_utilization=0.9
    )
    for model in (checkpoint, tied):
        whole = plan_memory(model, settings.replace(gpu_layers="all"), memory=PLENTY)
        made = plan_memory(model, settings, memory=PLENTY, host_memory=PLENTY)
        twice = 1000 * 1024 * 4 if model is tied else 0
        assert made.weights + made.host_weights == whole.weights + twice
        assert made.bytes_per_block + made.host_bytes_per_block == whole.bytes_per_block
        assert made.host_bytes_per_block * LAYERS == whole.bytes_per_block * host_layers
        assert made.num_blocks == whole.num_blocks, "as many as can be used"
        assert made.activations <= whole.activations, "no captured graphs"


@given(
    family=st.sampled_from(DIVIDED),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_sizes_of_every_family_are_those_of_their_parts(
    folders: dict[str, Checkpoint], family: str, dtype: torch.dtype
) -> None:
    sizes = model_sizes(folders[family], dtype)
    assert len(sizes.layer_weights) == len(sizes.layer_kv) == LAYERS
    assert min(sizes.layer_weights) > 0 and sizes.embeddings == 1000 * 64 * dtype.itemsize
    for host_layers in range(1, LAYERS):
        host, gpu = sizes.part(0, host_layers), sizes.part(host_layers, LAYERS)
        twice = sizes.embeddings if sizes.is_tied else 0
        assert host.loaded_bytes(64) + gpu.loaded_bytes(64) == sizes.loaded_bytes(64) + twice
        assert KVWidths.sum([host.kv, gpu.kv]) == sizes.kv


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    sizes = {"gpt2": {"n_layer": LAYERS}}
    return {name: stored(name, tmp_path_factory, **sizes.get(name, {})) for name in DIVIDED}


@given(own=st.integers(1, 1 << 24), host_layers=st.integers(1, LAYERS - 1))
def test_the_cache_of_a_draft_model_lies_on_the_gpu_and_counts(
    checkpoint: Checkpoint, draft: Path, own: int, host_layers: int
) -> None:
    settings = config(gpu_layers=str(LAYERS - host_layers), kv_cache_memory_bytes=own)
    drafting = settings.replace(speculative_method="draft_model", speculative_model=str(draft))
    roomy = drafting.replace(kv_cache_memory_bytes=1 << 26)
    made = plan_memory(checkpoint, roomy, memory=PLENTY, host_memory=PLENTY)
    alone = plan_memory(
        checkpoint, settings.replace(kv_cache_memory_bytes=1 << 26), memory=PLENTY,
        host_memory=PLENTY,
    )  # fmt: skip
    per_block = 16 * LAYERS * 2 * (2 * 16) * 4  # keys and values of two heads of 16, in float32
    assert made.draft_bytes_per_block == per_block
    assert made.bytes_per_block == alone.bytes_per_block + per_block
    assert made.host_bytes_per_block == alone.host_bytes_per_block
    assert made.weights == alone.weights + made.draft_weights > alone.weights
    assert made.host_weights == alone.host_weights
    of_both = made.bytes_per_block + made.host_bytes_per_block
    if own < of_both:
        with pytest.raises(OutOfMemoryError, match=f"one block of {of_both:,} bytes"):
            plan_memory(checkpoint, drafting, memory=PLENTY, host_memory=PLENTY)
        return
    made = plan_memory(checkpoint, drafting, memory=PLENTY, host_memory=PLENTY)
    assert made.num_blocks == own // of_both
    assert made.kv_cache + made.host_kv_cache <= own


@given(gpu=gpus, more=st.integers(0, 400), ram=rams)
def test_more_memory_never_gives_fewer_layers_or_blocks(
    checkpoint: Checkpoint, gpu: tuple[int, int], more: int, ram: tuple[int, int]
) -> None:
    found = []
    for bytes_more in (0, more << 20):
        memory = (gpu[0] + bytes_more, gpu[1] + bytes_more)
        try:
            found.append(plan_memory(checkpoint, config(), memory=memory, host_memory=ram))
        except OutOfMemoryError:
            assume(found)  # more memory does fit
            raise
    assert found[1].host_layers <= found[0].host_layers
    if found[1].host_layers == found[0].host_layers:
        assert found[1].num_blocks >= found[0].num_blocks


def test_errors_name_the_side_and_the_numbers(checkpoint: Checkpoint) -> None:
    small, large = (200 << 20, 256 << 20), (4 * GIB, 4 * GIB)
    divided = config(gpu_layers="3")
    with pytest.raises(OutOfMemoryError) as error:
        plan_memory(checkpoint, divided, memory=small, host_memory=large)
    assert error.value.cause.startswith("3 of 4 layers on cuda:0: 256 MiB")
    assert "(200 MiB of 256 MiB free)" in error.value.cause
    assert "Choose fewer GPU layers (gpu_layers)." in error.value.remedy
    with pytest.raises(OutOfMemoryError) as error:
        plan_memory(checkpoint, divided.replace(gpu_layers="1"), memory=large, host_memory=small)
    assert error.value.cause.startswith("3 of 4 layers on the CPU: 2")
    assert "(200 MiB of 256 MiB free)" in error.value.cause
    assert "Choose more GPU layers (gpu_layers)." in error.value.remedy


def test_what_the_engine_holds_on_both_sides_counts_as_free(checkpoint: Checkpoint) -> None:
    settings = config(gpu_layers="2")
    memory = (GIB // 2, GIB)
    plain = plan_memory(checkpoint, settings, memory=memory, host_memory=memory)
    again = plan_memory(
        checkpoint, settings, memory=memory, host_memory=memory,
        in_use={settings.device: 1 << 20, "cpu": 2 << 20},
    )  # fmt: skip
    assert again.free == plain.free + (1 << 20)
    assert again.host_free == plain.host_free + (2 << 20)


@example(length=1, gpu=300, shared=1)
@given(length=st.integers(1, 32_768), gpu=st.integers(200, 600), shared=st.integers(1, 4))
def test_the_context_with_which_it_would_fit_whole(
    checkpoint: Checkpoint, length: int, gpu: int, shared: int
) -> None:
    """Of those that are shorter and powers of two, the longest; none that nobody wants."""
    memory = (gpu << 20, gpu << 20)
    settings = config(max_model_len=length, max_num_seqs=shared)
    try:
        made = plan_memory(checkpoint, settings, memory=memory, host_memory=PLENTY)
    except OutOfMemoryError:
        return

    def fits(shorter: int) -> bool:
        try:
            whole = settings.replace(max_model_len=shorter, gpu_layers="all")
            plan_memory(checkpoint, whole, memory=memory)
        except OutOfMemoryError:
            return False
        return True

    useful = [shorter for n in range(11, 15) if (shorter := 1 << n) < length]
    longest = max(filter(fits, useful), default=0)
    assert made.undivided_model_len == (longest if made.host_layers else 0)


def test_a_model_that_is_loaded_stays_as_it_is_divided(checkpoint: Checkpoint) -> None:
    """Whatever would fit by now."""
    for count in (0, 1, 3):
        made = plan_memory(
            checkpoint, config(), memory=PLENTY, host_memory=PLENTY, host_layers=count
        )
        assert made.host_layers == count


def test_a_plan_of_other_blocks_is_of_both_parts(checkpoint: Checkpoint) -> None:
    made = plan_memory(checkpoint, config(gpu_layers="1"), memory=PLENTY, host_memory=PLENTY)
    fewer = made.with_blocks(7)
    assert (fewer.kv_cache, fewer.host_kv_cache) == (
        7 * made.bytes_per_block, 7 * made.host_bytes_per_block,
    )  # fmt: skip
    assert made.host_bytes_per_block == 3 * made.bytes_per_block


def test_the_cpu_divides_nothing(checkpoint: Checkpoint) -> None:
    for gpu_layers in ("auto", "1", "all"):
        settings = config(device="cpu", gpu_layers=gpu_layers)
        made = plan_memory(checkpoint, settings, memory=(4 * GIB, 4 * GIB))
        whole = plan(model_sizes(checkpoint, torch.float32), settings, free=4 * GIB, total=4 * GIB)
        assert made == whole and made.host_layers == 0
