"""Several ranks give the tokens of one, whatever the weights are held in and whatever happens to
the requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.errors import ConfigError, DraftModelError, InferdeckError, UnsupportedModelError
from engine.runner.model_runner import ModelRunner
from tests.engine import tiny_models
from tests.engine.parallel.test_shape import DIVIDED
from tests.engine.quantized_checkpoints import make_quantized
from tests.engine.tiny_heads import make_head
from tests.engine.tiny_heads import save as save_head

pytestmark = pytest.mark.slow

WIDE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_key_value_heads": 2}
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
LENGTHS = (5, 40, 17, 33)

Start = Callable[..., LLMEngine]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """For what transformers computes: threads that wait for each other lose their cores to other
    tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def start() -> Iterator[Start]:
    engines: list[LLMEngine] = []

    def started(folder: Path, **settings: Any) -> LLMEngine:
        config = EngineConfig(
            model=str(folder), device="cpu", dtype="float32", num_threads=1, block_size=8,
            max_model_len=128, kv_cache_memory_bytes=2**21, tensor_parallel_size=2,
        )  # fmt: skip
        engines.append(LLMEngine(config.replace(**settings)))
        return engines[-1]

    yield started
    for engine in engines:
        engine.shutdown()
    assert not any(thread.name.startswith("rank-") for thread in threading.enumerate())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(tiny_models.make_model("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(
        tiny_models.make_model("qwen3", **WIDE, tie_word_embeddings=True),
        tmp_path_factory.mktemp("wide"),
    )


def tokens_of(engine: LLMEngine, params: SamplingParams = GREEDY) -> list[list[int]]:
    outputs = engine.generate(tiny_models.make_prompts(LENGTHS), params)
    engine.check_integrity()
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("family", DIVIDED)
def test_tokens_are_those_of_transformers(start: Start, family: str, tmp_path: Path) -> None:
    """In chunks, with a cache for some of the requests, and again with what is in it."""
    model = tiny_models.make_model(family)
    prompts = tiny_models.make_prompts((*LENGTHS, 90))
    expected = [tiny_models.reference(model, prompt, 12) for prompt in prompts]
    engine = start(
        tiny_models.save(model, tmp_path), max_num_batched_tokens=24, watermark=0.0
    )
    engine.reconfigure(kv_cache_memory_bytes=15 * engine.plan.bytes_per_block)
    for _ in range(2):
        outputs = engine.generate(prompts, GREEDY)
        engine.check_integrity()
        for output, reference in zip(outputs, expected, strict=True):
            assert output.token_ids == reference.token_ids
            found = [entry.logprob for entry in output.logprobs or ()]
            assert found == pytest.approx(reference.logprobs, abs=2e-4)
    assert engine.snapshot().counters.preemptions > 0


def logprobs_of(engine: LLMEngine) -> list[float]:
    outputs = engine.generate(tiny_models.make_prompts(LENGTHS), GREEDY)
    return [entry.logprob for output in outputs for entry in output.logprobs or ()]


EXACT = [
    ("awq", {}),
    ("gptq", {"group_size": 32}),
    ("gptq", {"group_size": -1}),
    ("gptq", {"bits": 8, "group_size": 64, "symmetric": False}),
    ("compressed-tensors", {"layout": "pack", "group_size": 32}),
    ("compressed-tensors", {"layout": "float", "strategy": "channel"}),
    ("fp8", {"strategy": "block", "block": (32, 32)}),
    ("fp8", {"strategy": "block", "block": (128, 128)}),
    ("bitsandbytes", {"kind": "nf4"}),
    ("bitsandbytes", {"kind": "fp4", "blocksize": 128, "double": True}),
]


@pytest.mark.parametrize(("method", "options"), EXACT)
def test_codes_on_disk_are_cut_and_not_rounded_again(
    start: Start, method: str, options: dict[str, Any], tmp_path: Path
) -> None:
    make_quantized(tmp_path, method, model=WIDE, **options)
    one, two = start(tmp_path, tensor_parallel_size=1), start(tmp_path)
    assert logprobs_of(two) == pytest.approx(logprobs_of(one), abs=1e-4)
    kinds = [engine.model_info.kernels["linear"].partition(" (")[0] for engine in (one, two)]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize(
    "settings",
    [
        {"quantization": "int4", "quantization_group_size": 32},
        {"quantization": "nf4"},
        {"kv_cache_dtype": "int8"},
        {"kv_cache_dtype": "k=int8,v=fp8"},
        {"block_size": 16, "enable_chunked_prefill": False},
    ],
    ids=str,
)
def test_rounding_by_groups_and_quantized_caches_are_as_with_one_rank(
    start: Start, wide: Path, settings: dict[str, Any]
) -> None:
    one, two = start(wide, tensor_parallel_size=1, **settings), start(wide, **settings)
    assert logprobs_of(two) == pytest.approx(logprobs_of(one), abs=1e-3)


@pytest.mark.parametrize("quantization", ["int8", "fp8", "none"])
@pytest.mark.parametrize("head", ["none", "int8"])
def test_scales_of_a_part_lose_as_little_as_those_of_the_whole(
    start: Start, wide: Path, quantization: str, head: str
) -> None:
    """A row that two ranks share is rounded with a scale for each part: other numbers, as near."""
    settings = {"quantization": quantization, "quantization_head": head}
    exact, one, two = (
        distributions_of(start(wide, **changes))
        for changes in (
            {"tensor_parallel_size": 1}, {"tensor_parallel_size": 1, **settings}, settings,
        )
    )  # fmt: skip

    def loss(found: list[dict[int, float]]) -> float:
        pairs = zip(found, exact, strict=True)
        return sum(abs(a[token] - b[token]) for a, b in pairs for token in a.keys() & b.keys())

    assert loss(two) <= 1.5 * loss(one) + 1e-3


def distributions_of(engine: LLMEngine) -> list[dict[int, float]]:
    """Log probabilities of the likeliest first tokens of some replies."""
    first = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, logprobs=20)
    outputs = engine.generate(tiny_models.make_prompts(range(3, 43)), first)
    entries = [entry for output in outputs for entry in output.logprobs or ()]
    assert len(entries) == 40
    return [{token: value for token, _, value in entry.alternatives} for entry in entries]


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_experts_in_few_bits(start: Start, family: str, tmp_path: Path) -> None:
    folder = tiny_models.save(
        tiny_models.make_model(family, **{**WIDE, "moe_intermediate_size": 64}), tmp_path
    )
    settings = {"quantization": "int4", "quantization_group_size": 32}
    one, two = start(folder, tensor_parallel_size=1, **settings), start(folder, **settings)
    assert tokens_of(one) == tokens_of(two)


def test_seeded_requests_draw_the_same(start: Start, folder: Path) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.9, seed=5, max_tokens=12, ignore_eos=True)
    found = [tokens_of(start(folder, tensor_parallel_size=size), params) for size in (1, 2)]
    assert found[0] == found[1]


def test_the_number_of_ranks_changes_while_a_request_runs(start: Start, folder: Path) -> None:
    expected = tokens_of(start(folder, tensor_parallel_size=1))
    engine = start(folder, tensor_parallel_size=1)
    ids = [engine.add_request(p, GREEDY) for p in tiny_models.make_prompts(LENGTHS)]
    found: dict[str, list[int]] = {name: [] for name in ids}
    for size in (2, 1, 2):
        for _ in range(4):
            for event in engine.step():
                found[event.request_id] += event.token_ids
        engine.reconfigure(tensor_parallel_size=size)
        assert engine.model_info.num_ranks == size
        running = sum(thread.name.startswith("rank-") for thread in threading.enumerate())
        assert running == (size if size > 1 else 0)
    while engine.has_unfinished:
        for event in engine.step():
            found[event.request_id] += event.token_ids
    assert [found[name] for name in ids] == expected


def test_drafts_are_verified_by_all_ranks(start: Start, folder: Path) -> None:
    expected = tokens_of(start(folder, tensor_parallel_size=1))
    engine = start(
        folder, speculative_method="draft_model", speculative_model=str(folder),
        num_speculative_tokens=3, speculative_adaptive=False,
    )  # fmt: skip
    assert tokens_of(engine) == expected
    speculation = engine.snapshot().speculation
    assert speculation is not None and speculation.accepted > 0
    engine.reconfigure(speculative_method="ngram")
    assert tokens_of(engine) == expected


def test_random_weights_are_each_rank_s_own(start: Start, wide: Path) -> None:
    engine = start(wide, load_format="dummy")
    assert engine.model_info.is_dummy
    assert len({tuple(tokens) for tokens in tokens_of(engine)}) > 1
    again = start(wide, load_format="dummy")
    assert tokens_of(again) == tokens_of(engine)


def test_steps_say_what_the_exchange_took(start: Start, folder: Path) -> None:
    engine = start(folder)
    tokens_of(engine)
    steps = engine.snapshot().steps
    assert all(0 < step.exchange_s < step.model_s for step in steps)
    alone = start(folder, tensor_parallel_size=1)
    tokens_of(alone)
    assert all(step.exchange_s == 0 for step in alone.snapshot().steps)
    assert engine.model_info.num_kv_heads == alone.model_info.num_kv_heads
    assert engine.plan.bytes_per_block == alone.plan.bytes_per_block
    assert engine.snapshot().memory.kv_cache == alone.snapshot().memory.kv_cache


def test_memory_that_one_rank_lacks_makes_the_cache_smaller(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(folder)
    expected = tokens_of(engine)
    blocks = engine.plan.num_blocks
    compute, calls = ModelRunner._compute, []

    def failing(runner: ModelRunner, batch: Any) -> Any:
        if threading.current_thread().name.startswith("rank-1"):
            calls.append(batch)
            if len(calls) == 3:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: no room")
        return compute(runner, batch)

    monkeypatch.setattr(ModelRunner, "_compute", failing)
    assert tokens_of(engine) == expected
    assert engine.times_shrunk == 1 and engine.plan.num_blocks < blocks


def test_a_failure_that_is_no_lack_of_memory_is_the_rank_s_own(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(folder)

    def failing(runner: ModelRunner, batch: Any) -> Any:
        if threading.current_thread().name.startswith("rank-1"):
            raise ValueError("the second rank is broken")
        return compute(runner, batch)

    compute = ModelRunner._compute
    engine.add_request([5, 6, 7], GREEDY)
    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "_compute", failing)
        with pytest.raises(ValueError, match="second rank"):
            engine.step()


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"tensor_parallel_size": 4}, UnsupportedModelError, "num_key_value_heads 2"),
        ({"tensor_parallel_size": 9}, ConfigError, "9.* 1 to 8"),
        (
            {"speculative_method": "eagle3", "speculative_model": "nowhere"},
            InferdeckError, "nowhere",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_and_nothing_is_lost(
    start: Start, folder: Path, settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    engine = start(folder)
    expected = tokens_of(engine)
    with pytest.raises(error, match=words):
        engine.reconfigure(**settings)
    assert engine.config.tensor_parallel_size == 2
    assert tokens_of(engine) == expected


def test_a_head_of_eagle_is_refused(start: Start, folder: Path, tmp_path: Path) -> None:
    head = make_head(tiny_models.make_model("llama"), layer_ids=(0, 1, 1))
    with pytest.raises(DraftModelError, match="2 devices"):
        start(
            folder, speculative_method="eagle3", speculative_model=str(save_head(head, tmp_path))
        )
