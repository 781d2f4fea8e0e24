"""With an 8-bit KV cache the tokens are those of the textbook with keys and values rounded to 8
bits, whatever the batch, the chunks, the cache and preemption do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.attention.cpu import CPUAttention
from engine.attention.interface import LayerSpec
from engine.config import SETTINGS, Change
from engine.errors import ConfigError, OutOfMemoryError
from engine.numerics.kv_dtype import NAMES, KVDtype, parse_kv_dtype
from engine.snapshot import FinishReason
from tests.engine import textbook_kv, tiny_models
from tests.tiers import examples, tiered

MakeEngine = Callable[..., LLMEngine]
DTYPES = ("int8", "fp8", "k=int8,v=fp8")
LENGTH = 12
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True, logprobs=1)
NEAR = 0.02
"""Of log probabilities. A key that differs in its last bit may round to another code."""

_known: dict[tuple[Any, ...], tiny_models.Reference] = {}


def reference(
    model: Any, prompt: list[int], kv_dtype: str, family: str = "llama"
) -> tiny_models.Reference:
    key = (family, tuple(prompt), kv_dtype)
    if key not in _known:
        _known[key] = textbook_kv.reference(model, prompt, LENGTH, kv_dtype)
    return _known[key]


# -- the setting ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("auto", KVDtype("auto", "auto")),
        ("fp8", KVDtype("fp8", "fp8")),
        ("k=int8,v=fp8", KVDtype("int8", "fp8")),
        ("v=int8, k=auto", KVDtype("auto", "int8")),
    ],
)
def test_one_name_or_one_for_each(text: str, wanted: KVDtype) -> None:
    assert parse_kv_dtype(text) == wanted
    assert EngineConfig(kv_cache_dtype=text).kv_dtype == wanted


@pytest.mark.parametrize(
    "value", ["int4", "", "k=int8", "k=int8,v=fp8,k=auto", "k=int8,q=fp8", "k=int8,v=e5m2", "=,", 8]
)
def test_anything_else_is_refused_with_what_is_allowed(value: object) -> None:
    with pytest.raises(ConfigError, match="kv_cache_dtype: ") as caught:
        EngineConfig().replace(kv_cache_dtype=value)
    assert "k=int8,v=fp8" in caught.value.remedy


def test_the_setting_costs_a_cache_rebuild() -> None:
    assert SETTINGS["kv_cache_dtype"].change is Change.CACHE_REBUILD
    assert SETTINGS["kv_cache_dtype"].choices == NAMES
    assert (*parse_kv_dtype("k=int8,v=auto").resolved("bfloat16"),) == ("int8", "bfloat16")


# -- the same tokens whatever happens -------------------------------------------------------


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize(
    "family", tiered(["llama", "gemma2", "gpt_oss", "mistral"], ["gpt_oss"])
)
def test_batched_chunked_preempted_and_cached_equal_the_textbook(
    family: str, kv_dtype: str, tmp_path: Path
) -> None:
    """Among them a window, a soft cap, and sinks."""
    model = tiny_models.make_model(family)
    prompts = tiny_models.make_prompts((5, 40, 17, 33, 90))
    prompts.append(prompts[3][:24] + prompts[0])  # shares a prefix of whole blocks
    engine = LLMEngine(
        EngineConfig(
            model=str(tiny_models.save(model, tmp_path)), dtype="float32", block_size=8,
            num_threads=1, max_num_batched_tokens=24, watermark=0.0, kv_cache_dtype=kv_dtype,
        )
    )  # fmt: skip
    engine.reconfigure(kv_cache_memory_bytes=15 * engine.plan.bytes_per_block)
    try:
        for _ in range(2):  # the second time with prefix hits
            for prompt, output in zip(prompts, engine.generate(prompts, GREEDY), strict=True):
                wanted = reference(model, prompt, kv_dtype, family)
                assert output.token_ids == wanted.token_ids
                chosen = [entry.logprob for entry in output.logprobs]
                assert chosen == pytest.approx(wanted.logprobs, abs=NEAR)
            engine.check_integrity()
        counters = engine.snapshot().counters
        assert counters.preemptions > 0 and counters.prefix_hits > 0
    finally:
        engine.shutdown()


@pytest.mark.parametrize("kv_dtype", tiered(DTYPES, DTYPES[:1]))
@settings(
    max_examples=examples(8),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_random_driver_never_changes_the_tokens(
    kv_dtype: str, tiny_model: Any, make_engine: MakeEngine, data: st.DataObject
) -> None:
    engine = make_engine(kv_cache_memory_bytes=2**15, kv_cache_dtype=kv_dtype)
    prompts = tiny_models.make_prompts((3, 17, 30, 41), seed=1)
    prompts.append(prompts[2][:16] + prompts[0])
    running: dict[str, int] = {}
    produced: dict[str, list[int]] = {}
    for _ in range(data.draw(st.integers(5, 25))):
        action = data.draw(st.sampled_from(["add", "step", "step", "abort", "live", "rebuild"]))
        if action == "add":
            choice = data.draw(st.integers(0, len(prompts) - 1))
            running[engine.add_request(prompts[choice], GREEDY)] = choice
        elif action == "abort" and running:
            engine.abort(data.draw(st.sampled_from(sorted(running))))
        elif action == "live":
            engine.reconfigure(
                max_num_seqs=data.draw(st.integers(1, 5)),
                max_num_batched_tokens=data.draw(st.integers(1, 64)),
                enable_prefix_caching=data.draw(st.booleans()),
                enable_chunked_prefill=data.draw(st.booleans()),
            )
        elif action == "rebuild":
            engine.reconfigure(
                block_size=data.draw(st.integers(1, 20)),
                kv_allocation=data.draw(st.sampled_from(["paged", "contiguous"])),
            )
        _step(engine, running, produced, tiny_model, prompts, kv_dtype)
    while engine.has_unfinished:
        _step(engine, running, produced, tiny_model, prompts, kv_dtype)


def _step(
    engine: LLMEngine,
    running: dict[str, int],
    produced: dict[str, list[int]],
    model: Any,
    prompts: list[list[int]],
    kv_dtype: str,
) -> None:
    for event in engine.step():
        produced.setdefault(event.request_id, []).extend(event.token_ids)
        if event.finish_reason is FinishReason.LENGTH:
            wanted = reference(model, prompts[running[event.request_id]], kv_dtype)
            assert produced[event.request_id] == wanted.token_ids
        if event.finish_reason is not None:
            running.pop(event.request_id, None)
    engine.check_integrity()


# -- changing it ----------------------------------------------------------------------------


def test_requests_in_flight_resume_and_finish(make_engine: MakeEngine, tiny_model: Any) -> None:
    engine = make_engine()
    prompts = tiny_models.make_prompts((20, 7, 31))
    ids = [engine.add_request(prompt, GREEDY) for prompt in prompts]
    produced: dict[str, list[int]] = {i: [] for i in ids}
    for kv_dtype in ("int8", "k=auto,v=fp8", "auto"):
        for _ in range(2):
            _collect(engine, produced)
        assert engine.reconfigure(kv_cache_dtype=kv_dtype) is Change.CACHE_REBUILD
        assert engine.plan.key_dtype == parse_kv_dtype(kv_dtype).resolved("float32").keys
        engine.check_integrity()
    while engine.has_unfinished:
        _collect(engine, produced)
    assert all(len(tokens) == LENGTH for tokens in produced.values())
    for request_id, prompt in zip(ids, prompts, strict=True):
        # what was said before the first change is plain, what comes after the last one follows on
        wanted = reference(tiny_model, prompt, "auto").token_ids
        assert produced[request_id][:2] == wanted[:2]


def _collect(engine: LLMEngine, produced: dict[str, list[int]]) -> None:
    for event in engine.step():
        produced[event.request_id] += event.token_ids


def test_a_change_that_fails_leaves_the_cache_as_it_was(
    make_engine: MakeEngine, tiny_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(kv_cache_dtype="int8")
    prompt = tiny_models.make_prompts((20,))[0]
    produced: dict[str, list[int]] = {engine.add_request(prompt, GREEDY): []}
    _collect(engine, produced)
    before, bytes_before = engine.config, engine.snapshot().memory.kv_cache
    with pytest.raises(ConfigError, match="int4"):
        engine.reconfigure(kv_cache_dtype="int4")
    real = CPUAttention.__init__
    calls: list[int] = []

    def fail_once(self: CPUAttention, *args: Any, **kwargs: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise MemoryError("no room")
        real(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(CPUAttention, "__init__", fail_once)
        with pytest.raises(OutOfMemoryError, match="no room"):
            engine.reconfigure(kv_cache_dtype="fp8")
    assert engine.config == before and engine.plan.key_dtype == "int8"
    assert engine.snapshot().memory.kv_cache == bytes_before
    while engine.has_unfinished:
        _collect(engine, produced)
    assert list(produced.values()) == [reference(tiny_model, prompt, "int8").token_ids]


def test_blocks_of_another_dtype_are_no_prefix(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the epoch alone would tell caches apart: without it the dtype still does
    monkeypatch.setattr("engine.host.model_host._epochs", itertools.repeat(0))
    engine = make_engine()
    roots = {}
    for kv_dtype in (*DTYPES, "k=fp8,v=int8", "auto"):
        engine.reconfigure(kv_cache_dtype=kv_dtype)
        roots[kv_dtype] = engine._host.new_pool()[1]
        before = engine.snapshot().counters.prefix_hits
        prompt = tiny_models.make_prompts((30,))[0]
        engine.generate([prompt], GREEDY)
        assert engine.snapshot().counters.prefix_hits == before
        engine.generate([prompt], GREEDY)
        assert engine.snapshot().counters.prefix_hits > before
    assert len(set(roots.values())) == len(roots)


# -- damage ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_damaged_keys_end_one_request_and_never_reach_another(
    kv_dtype: str, bad: float, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(max_num_seqs=4, kv_cache_dtype=kv_dtype, enforce_eager=True)
    good, other = tiny_models.make_prompts((20, 21))
    wanted = engine.generate([good], GREEDY)[0].token_ids
    backend = engine._host.runner.backend
    real = CPUAttention.write

    def write(self: CPUAttention, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """The 24th token of a sequence has damaged keys and values."""
        batch = self._step
        for row, length in enumerate(batch.seq_lens):
            if length == 24:
                k, v = k.clone(), v.clone()
                k[batch.query_start_loc[row + 1] - 1] = bad
                v[batch.query_start_loc[row + 1] - 1, :, 0] = bad
        real(self, layer, k, v)

    with monkeypatch.context() as patch:
        patch.setattr(CPUAttention, "write", write)
        outputs = engine.generate([good[:17], other], GREEDY)
    assert [o.finish_reason for o in outputs] == [FinishReason.ERROR] * 2
    assert all(o.error is not None and "NaN" in o.error.cause for o in outputs)
    for cache in backend.caches.values():
        assert all(bool(pages.scales.isfinite().all()) for pages in cache)
    engine.check_integrity()
    assert [o.token_ids for o in engine.generate([good] * 4, GREEDY)] == [wanted] * 4


def test_damaged_keys_are_found_in_a_replayed_step(make_engine: MakeEngine) -> None:
    good, other = tiny_models.make_prompts((20, 21))
    wanted = make_engine(kv_cache_dtype="int8").generate([good], GREEDY)[0].token_ids
    engine = make_engine(max_num_seqs=4, kv_cache_dtype="int8")
    backend, ended = engine._host.runner.backend, []
    for prompt in (good, other):
        engine.add_request(prompt, GREEDY)
    for _ in range(6):
        assert not any(event.finish_reason for event in engine.step())
    assert engine.runner.recordings
    for cache in backend.caches.values():
        for pages in cache:
            pages.scales[pages.scales != 0] = float("nan")  # of every token so far
    while engine.has_unfinished:
        ended += [event.error for event in engine.step() if event.finish_reason]
    assert len(ended) == 2 and all(error is not None and "NaN" in error.cause for error in ended)
    engine.check_integrity()
    assert [o.token_ids for o in engine.generate([good] * 4, GREEDY)] == [wanted] * 4


def test_cleared_blocks_hold_zeros() -> None:
    spec, kv_dtype = LayerSpec(2, 8, 6), parse_kv_dtype("k=int8,v=fp8")
    backend = CPUAttention({0: spec}, 4, 4, torch.float32, kv_dtype=kv_dtype)
    for pages in backend.caches[0]:
        pages.elements.fill_(7)
        pages.scales.fill_(float("nan"))
    backend.clear_blocks([1, 3])
    for pages in backend.caches[0]:
        assert not pages.elements[[1, 3]].any() and not pages.scales[[1, 3]].any()
        assert (pages.elements[[0, 2]] == 7).all() and pages.scales[[0, 2]].isnan().all()
