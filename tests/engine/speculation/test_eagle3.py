"""EAGLE-3 in the engine: tokens never change, drafts come from the right context, nothing leaks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.speculation.eagle3.proposer import Eagle3Proposer
from resources import resource_path
from tests.engine import tiny_heads
from tests.engine.speculation.runs import GREEDY, LENGTH, PARAMS, PROMPTS, SEEDED, eagle, results
from tests.tiers import examples, first_fast, tiered

MakeEngine = Callable[..., LLMEngine]


# -- tokens never change --------------------------------------------------------------------


TIGHTEST = [
    {"max_num_batched_tokens": 16, "block_size": 3},  # chunks
    {"kv_cache_memory_bytes": 3 * 2**14, "block_size": 4, "watermark": 0.0},  # preemptions
]


@pytest.mark.parametrize("k", tiered([1, 5], [5]))
@pytest.mark.parametrize(
    "tight",
    tiered([
        {},
        *TIGHTEST,
        {"batching": "static", "max_num_seqs": 2, "enable_prefix_caching": False},
    ], TIGHTEST[1:]),
)  # fmt: skip
def test_a_head_changes_no_token(
    k: int, tight: dict[str, Any], make_engine: MakeEngine, head_folder: Path, plain: list[Any]
) -> None:
    engine = make_engine(**eagle(head_folder, num_speculative_tokens=k, **tight))
    assert results(engine) == plain
    figures = engine.snapshot().speculation
    assert figures is not None and 0 < figures.accepted < figures.drafted
    if "kv_cache_memory_bytes" in tight:
        assert engine.snapshot().counters.preemptions > 0
    assert results(engine) == plain  # now with prefix hits


def test_a_step_that_finds_no_memory_to_be_followed_loses_no_token(
    make_engine: MakeEngine, head_folder: Path, plain: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever of it was stored by then."""
    engine = make_engine(**eagle(head_folder))
    follow, calls = Eagle3Proposer.follow, 0

    def maybe(proposer: Eagle3Proposer, *step: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.")
        follow(proposer, *step)
        if calls == 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.")

    monkeypatch.setattr(Eagle3Proposer, "follow", maybe)
    assert results(engine) == plain
    figures = engine.snapshot().speculation
    assert figures is not None and figures.accepted > 0
    assert engine.times_shrunk == 2  # the next one needs as much
    engine.check_integrity()


def test_the_last_step_of_the_last_request_finds_no_memory_to_be_followed(
    make_engine: MakeEngine, head_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step after it has nothing to make room for, and the next request everything."""
    engine = make_engine(**eagle(head_folder, num_speculative_tokens=1))

    def refused(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.")

    with monkeypatch.context() as patch:
        patch.setattr(Eagle3Proposer, "follow", refused)
        params = SamplingParams(temperature=0, max_tokens=1)
        engine.add_request(PROMPTS[0], params)
        assert [event.finish_reason is not None for event in engine.step()] == [True]
    assert engine.step() == []
    assert not engine.has_unfinished and engine.times_shrunk == 1
    (output,) = engine.generate([PROMPTS[0]], params)
    assert len(output.token_ids) == 1
    engine.check_integrity()


@pytest.mark.parametrize("params", first_fast(1, [GREEDY, SEEDED, PARAMS[3]]))
def test_drafting_is_switched_in_mid_reply(
    params: SamplingParams, make_engine: MakeEngine, head_folder: Path, plain: list[Any]
) -> None:
    wanted = results(make_engine(), [params] * len(PROMPTS))
    engine = make_engine(**eagle(head_folder, block_size=4))
    ids = [engine.add_request(prompt, params) for prompt in PROMPTS]
    produced: dict[str, list[int]] = {i: [] for i in ids}
    for step in range(10**3):
        if not engine.has_unfinished:
            break
        if step % 3 == 2:
            engine.reconfigure(num_speculative_tokens=(0, 4, 1)[step // 3 % 3])
        for event in engine.step():
            produced[event.request_id] += event.token_ids
        engine.check_integrity()
    assert [produced[i] for i in ids] == [found[0] for found in wanted]


@pytest.mark.parametrize(
    "filters",
    first_fast(2, [{}, {"top_k": 3, "top_p": 0.9}, {"top_k": 150}, {"min_p": 0.2}]),
    ids=str,
)
def test_unseeded_sampling_is_verified_by_rejection(
    filters: dict[str, Any], make_engine: MakeEngine, head_folder: Path
) -> None:
    """Drafts stand with the model's own probability of them: some do, and all replies are whole;
    also where a filter would keep more tokens than the head can draft."""
    engine = make_engine(**eagle(head_folder))
    params = SamplingParams(temperature=1.0, max_tokens=LENGTH, ignore_eos=True, **filters)
    outputs = engine.generate(PROMPTS * 3, params)
    assert all(len(output.token_ids) == LENGTH for output in outputs)
    figures = engine.snapshot().speculation
    assert figures is not None and 0 < figures.accepted < figures.drafted


def test_drafts_are_tokens_of_the_draft_vocabulary(
    make_engine: MakeEngine, tiny_head: tiny_heads.Head, head_folder: Path
) -> None:
    engine = make_engine(**eagle(head_folder))
    allowed = set(tiny_head.target_ids.tolist())
    for output in engine.generate(PROMPTS, PARAMS):
        assert {t for r in output.drafts for t in r.token_ids} <= allowed


# -- what the head drafts -------------------------------------------------------------------


class Watched:
    """Steps an engine, and checks every first draft against the reference: what the head says
    after all tokens from the beginning of its context on."""

    def __init__(self, engine: LLMEngine, head: tiny_heads.Head, model: Any) -> None:
        self.engine, self.head, self.model = engine, head, model
        self.checked: list[int] = []  # where the context began, for each draft
        proposer = engine._loop.speculator.proposer
        assert isinstance(proposer, Eagle3Proposer)
        self.propose, proposer.propose = proposer.propose, self._propose  # type: ignore[method-assign]

    def run(self) -> None:
        while self.engine.has_unfinished:
            self.engine.step()
            self.engine.check_integrity()

    def _propose(self, grants: Sequence[Any], budget: int) -> Any:
        known = [(g.request, list(g.request.token_ids)) for g in grants]
        starts = [g.request.draft_kv_start for g in grants]
        proposals = self.propose(grants, budget)
        for (request, tokens), start, proposal in zip(known, starts, proposals, strict=True):
            if proposal.token_ids:
                assert request.params.temperature == 0
                assert proposal.token_ids[0] == int(self.head.target_ids[self._best(tokens, start)])
                self.checked.append(start)
        return proposals

    def _best(self, tokens: list[int], start: int) -> Tensor:
        f = tiny_heads.features(self.head, self.model, tokens[:-1])
        # RoPE counts differences only: a context that begins later may count from there
        found = tiny_heads.reference(self.head, self.model, f[start:], tokens[start + 1 :])
        return found.logits[-1].argmax()


PLAIN_GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)


@pytest.mark.parametrize(
    "tight",
    first_fast(1, [
        {"kv_cache_memory_bytes": 3 * 2**14, "block_size": 4, "watermark": 0.0},
        {"max_num_batched_tokens": 7, "block_size": 3},
        {},
    ]),
)  # fmt: skip
def test_drafts_come_from_the_whole_text(
    tight: dict[str, Any],
    make_engine: MakeEngine,
    tiny_head: tiny_heads.Head,
    head_folder: Path,
    tiny_model: Any,
) -> None:
    """In chunks, after preemption, and after rounds whose drafts were rejected."""
    engine = make_engine(**eagle(head_folder, **tight))
    watched = Watched(engine, tiny_head, tiny_model)
    for prompt in PROMPTS:
        engine.add_request(prompt, PLAIN_GREEDY)
    watched.run()
    assert len(watched.checked) > 20 and set(watched.checked) == {0}


def test_a_prefix_hit_brings_the_head_its_context(
    make_engine: MakeEngine, tiny_head: tiny_heads.Head, head_folder: Path, tiny_model: Any
) -> None:
    """A hit gives up its last block, whose last entry was made with another text's next token."""
    engine = make_engine(**eagle(head_folder))
    watched = Watched(engine, tiny_head, tiny_model)
    engine.add_request(PROMPTS[3], PLAIN_GREEDY)
    watched.run()
    for prompt, cached in ((PROMPTS[3], 32), (PROMPTS[3][:32] + PROMPTS[0], 24)):
        (output,) = engine.generate([prompt], PLAIN_GREEDY)
        assert output.num_cached_tokens == cached
        assert output.drafts
    assert set(watched.checked) == {0}


def test_a_context_begins_where_drafting_was_switched_on(
    make_engine: MakeEngine, tiny_head: tiny_heads.Head, head_folder: Path, tiny_model: Any
) -> None:
    engine = make_engine(**eagle(head_folder, num_speculative_tokens=0))
    engine.generate(PROMPTS[3:4], PLAIN_GREEDY)  # 41 tokens: five published blocks without its KV
    engine.add_request(PROMPTS[3], PLAIN_GREEDY)
    for _ in range(5):
        engine.step()
    engine.reconfigure(num_speculative_tokens=4)
    watched = Watched(engine, tiny_head, tiny_model)
    watched.run()
    assert watched.checked and set(watched.checked) == {48}
    # Over that prefix, which has no KV of the head: the block that the hit gives up is its first.
    engine.generate(PROMPTS[3:4], PLAIN_GREEDY)
    assert set(watched.checked[-2:]) == {32}


@settings(
    max_examples=examples(6),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_blocks_say_truly_whether_the_head_was_there(
    data: st.DataObject,
    make_engine: MakeEngine,
    tiny_head: tiny_heads.Head,
    head_folder: Path,
    tiny_model: Any,
) -> None:
    """Prompts that share beginnings, drafting switched on and off, aborts and preemptions: every
    first draft is what the head says of its own context, wherever that begins."""
    engine = make_engine(**eagle(head_folder, block_size=4, kv_cache_memory_bytes=2**16))
    # a text that the model would write, and its beginnings: after a shared block always comes the
    # same token, so that no entry is made with another one
    (whole,) = engine.generate(PROMPTS[:1], PLAIN_GREEDY)
    text = PROMPTS[0] + whole.token_ids
    watched = Watched(engine, tiny_head, tiny_model)
    for _ in range(data.draw(st.integers(4, 14))):
        action = data.draw(st.sampled_from(["add", "add", "step", "abort", "switch"]))
        if action == "add":
            length = data.draw(st.integers(len(PROMPTS[0]), len(text)))
            engine.add_request(text[:length], PLAIN_GREEDY)
        elif action == "abort" and engine._loop.requests:
            engine.abort(data.draw(st.sampled_from(sorted(engine._loop.requests))))
        elif action == "switch":
            engine.reconfigure(
                num_speculative_tokens=data.draw(st.integers(0, 4)),
                max_num_batched_tokens=data.draw(st.integers(3, 64)),
            )
        for _ in range(data.draw(st.integers(0, 6))):
            engine.step()
            engine.check_integrity()
    watched.run()


def test_what_is_kept_for_a_request_goes_with_it(
    make_engine: MakeEngine, head_folder: Path
) -> None:
    engine = make_engine(**eagle(head_folder))
    proposer = engine._loop.speculator.proposer
    assert isinstance(proposer, Eagle3Proposer)
    ids = [engine.add_request(prompt, PARAMS[3]) for prompt in PROMPTS]
    for _ in range(3):
        engine.step()
    assert set(proposer._last) == set(ids)
    for request_id in ids[:2]:
        engine.abort(request_id)
    assert set(proposer._last) == set(ids[2:])
    while engine.has_unfinished:
        engine.step()
    assert not proposer._last and not proposer._failed


def test_hidden_states_that_are_not_finite_end_drafting_for_that_request_alone(
    make_engine: MakeEngine, head_folder: Path, plain: list[Any]
) -> None:
    engine = make_engine(**eagle(head_folder))
    proposer = engine._loop.speculator.proposer
    assert isinstance(proposer, Eagle3Proposer)
    ids = [engine.add_request(prompt, GREEDY) for prompt in PROMPTS[:2]]
    take, length = proposer.taps.take, len(PROMPTS[0])

    def damaged() -> list[Tensor]:
        states = [state.clone() for state in take()]
        states[0][length - 1] = torch.nan
        return states

    proposer.taps.take = damaged  # type: ignore[method-assign]
    engine.step()
    proposer.taps.take = take  # type: ignore[method-assign]
    drafted: dict[str, int] = dict.fromkeys(ids, 0)
    produced: dict[str, list[int]] = {i: [] for i in ids}
    while engine.has_unfinished:
        for event in engine.step():
            drafted[event.request_id] += event.drafts is not None
            produced[event.request_id] += event.token_ids
    assert drafted[ids[0]] == 0 and drafted[ids[1]] > 0
    assert produced[ids[0]] == plain[0][0][1:]
    assert all(bool(c.keys.elements.isfinite().all()) for c in proposer._cache.caches.values())


# -- memory, settings -----------------------------------------------------------------------


def test_memory_counts_the_head(make_engine: MakeEngine, head_folder: Path) -> None:
    alone, drafting = make_engine(), make_engine(**eagle(head_folder))
    plan, before = drafting.plan, alone.plan
    figures = drafting.snapshot().speculation
    assert figures is not None and figures.method == "eagle3"
    shape = drafting._host.assembly.draft.model.shape
    assert plan.draft_weights == shape.num_parameters * 4
    assert plan.weights == before.weights + plan.draft_weights
    assert plan.draft_bytes_per_block == 8 * 2 * shape.kv_width * 4
    assert plan.bytes_per_block == before.bytes_per_block + plan.draft_bytes_per_block
    assert drafting.snapshot().memory.kv_cache == plan.kv_cache <= 2**20
    drafting.reconfigure(speculative_method="off")
    assert drafting.snapshot().memory.weights == alone.snapshot().memory.weights


def test_random_heads_and_16_bits(make_engine: MakeEngine, head_folder: Path) -> None:
    for changes in ({"load_format": "dummy"}, {"dtype": "bfloat16"}):
        engine = make_engine(**eagle(head_folder, **changes))
        (output,) = engine.generate(PROMPTS[:1], GREEDY)
        assert len(output.token_ids) == LENGTH and output.drafts


def test_a_model_is_loaded_again_under_its_head(
    make_engine: MakeEngine, head_folder: Path, plain: list[Any]
) -> None:
    """A reload exchanges the layers that are listened to and the embeddings that are shared."""
    engine = make_engine(**eagle(head_folder))
    ids = [engine.add_request(p, q) for p, q in zip(PROMPTS, PARAMS, strict=True)]
    produced: dict[str, list[int]] = {i: [] for i in ids}
    for event in [*engine.step(), *engine.step(), *engine.step()]:
        produced[event.request_id] += event.token_ids
    engine.reconfigure(num_threads=2)
    engine.reconfigure(num_threads=1)
    while engine.has_unfinished:
        for event in engine.step():
            produced[event.request_id] += event.token_ids
    assert [produced[i] for i in ids] == [found[0] for found in plain]
    figures = engine.snapshot().speculation
    assert figures is not None and figures.accepted > 0


# -- the head of the starter model ----------------------------------------------------------


def test_the_starter_head_drafts_as_well_as_its_training_recorded() -> None:
    recorded = json.loads(resource_path("starter", "eagle3", "training.json").read_text())
    config = EngineConfig(
        model=str(resource_path("starter", "chat")), dtype="float32", num_threads=1,
        kv_cache_memory_bytes=2**24, **eagle(resource_path("starter", "eagle3")),
    )  # fmt: skip
    engine = LLMEngine(config)
    prompts = ["What is TTFT?", "Count from 1 to 20.", "What is the KV cache?"]
    params = SamplingParams(temperature=0, max_tokens=48)
    engine.generate([[{"role": "user", "content": p}] for p in prompts], params)
    figures = engine.snapshot().speculation
    engine.shutdown()
    assert figures is not None and figures.acceptance_rate is not None
    assert figures.drafted > 30
    promised = (recorded["held_out_acceptance_length"] - 1) / 4
    assert figures.acceptance_rate > 0.8 * promised > 0.6
