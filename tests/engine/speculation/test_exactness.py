"""With drafts the tokens are those without, whatever drafts and however good it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import LLMEngine, SamplingParams
from engine.config import Change
from engine.scheduling.request import Grant
from engine.snapshot import FinishReason, SpeculationSnapshot
from engine.speculation.proposer import Proposal, Proposer
from tests.engine import tiny_models
from tests.engine.speculation.runs import (
    GREEDY,
    LENGTH,
    PARAMS,
    PROMPTS,
    draft_settings,
    results,
    use_proposer,
)
from tests.tiers import examples, tiered

MakeEngine = Callable[..., LLMEngine]


class Scripted(Proposer):
    """Knows what comes next: drafts the right tokens, but each with probability `wrong` another."""

    def __init__(self, texts: Sequence[Sequence[int]], wrong: float) -> None:
        self.texts, self.wrong = [list(text) for text in texts], wrong
        self.random = random.Random(0)

    def propose(self, grants: Sequence[Grant], budget: int) -> list[Proposal]:
        return [Proposal(self._drafts(grant)) for grant in grants]

    def forget(self, request_id: str) -> None:
        pass

    def _drafts(self, grant: Grant) -> tuple[int, ...]:
        known = grant.request.token_ids
        text = next(t for t in self.texts if t[: len(known)] == known)
        right = text[len(known) : len(known) + grant.num_draft_places]
        return tuple(
            self.random.randrange(tiny_models.VOCAB_SIZE)
            if self.random.random() < self.wrong
            else token
            for token in right
        )


TIGHTEST = [
    {"max_num_batched_tokens": 16, "block_size": 3},
    {"kv_cache_memory_bytes": 2**16, "block_size": 4, "watermark": 0.0},  # preemptions
]


@pytest.mark.parametrize("k", tiered([1, 4, 9], [4]))
@pytest.mark.parametrize(
    "tight",
    tiered([
        {},
        *TIGHTEST,
        {"batching": "static", "max_num_seqs": 2, "enable_prefix_caching": False},
    ], TIGHTEST[1:]),
)  # fmt: skip
def test_a_draft_model_changes_no_token(
    k: int, tight: dict[str, Any], make_engine: MakeEngine, draft_folder: Path, plain: list[Any]
) -> None:
    engine = make_engine(**draft_settings(draft_folder, num_speculative_tokens=k, **tight))
    assert results(engine) == plain
    figures = engine.snapshot().speculation
    assert figures is not None and 0 < figures.accepted < figures.drafted
    if "kv_cache_memory_bytes" in tight:
        assert engine.snapshot().counters.preemptions > 0
    assert results(engine) == plain  # now with prefix hits, which serve the draft too


def test_ngrams_change_no_token(make_engine: MakeEngine, plain: list[Any]) -> None:
    engine = make_engine(
        speculative_method="ngram", prompt_lookup_min=1, speculative_adaptive=False
    )
    assert results(engine) == plain
    figures = engine.snapshot().speculation
    assert figures is not None and figures.drafted > 0


@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
def test_a_perfect_and_an_adversarial_proposer(
    wrong: float, make_engine: MakeEngine, plain: list[Any]
) -> None:
    engine = make_engine(num_speculative_tokens=5, speculative_adaptive=False)
    texts = [prompt + found[0] for prompt, found in zip(PROMPTS, plain, strict=True)]
    use_proposer(engine, Scripted(texts, wrong))
    assert results(engine) == plain
    figures = engine.snapshot().speculation
    assert figures is not None and figures.acceptance_rate is not None
    if wrong == 0.0:
        assert figures.acceptance_rate == 1.0
    if wrong == 1.0:
        assert figures.acceptance_rate < 0.05


def test_a_perfect_proposer_gives_k_plus_one_tokens_a_step(
    make_engine: MakeEngine, plain: list[Any]
) -> None:
    engine = make_engine(num_speculative_tokens=5, speculative_adaptive=False)
    use_proposer(engine, Scripted([PROMPTS[0] + plain[0][0]], 0.0))
    (output,) = engine.generate(PROMPTS[:1], GREEDY)
    assert output.token_ids == plain[0][0]
    sizes = [event.num_tokens for event in output.metrics.tokens]
    # one from the prompt, three full rounds of six, and the rest up to 24
    assert sizes == [1, 6, 6, 6, 5]
    assert [len(r.token_ids) for r in output.drafts] == [5, 5, 5, 4]
    assert sum(len(r.token_ids) == r.num_accepted for r in output.drafts) == 4


def test_the_same_model_as_its_own_draft_is_always_right(
    make_engine: MakeEngine, tiny_folder: Path, plain: list[Any]
) -> None:
    engine = make_engine(**draft_settings(tiny_folder))
    assert results(engine) == plain
    figures = engine.snapshot().speculation
    assert figures is not None and figures.acceptance_rate == 1.0
    sampled = SamplingParams(temperature=1.0, max_tokens=LENGTH, ignore_eos=True)
    engine.generate(PROMPTS, sampled)  # by rejection: p = q accepts everything
    again = engine.snapshot().speculation
    assert again is not None and again.acceptance_rate is not None
    assert again.acceptance_rate > 0.99


def test_the_end_is_where_it_is_without_drafts(
    make_engine: MakeEngine, tiny_folder: Path, plain: list[Any]
) -> None:
    tokens = plain[0][0]
    first_seen = [t for i, t in enumerate(tokens) if t not in tokens[:i]]
    ends = [
        SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 2, 3, 7, 11)
    ] + [
        SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True, **stop)
        for token in first_seen[1:6]
        for stop in (
            {"stop_token_ids": (token,)},
            {"stop": (f"t{token}",)},
            {"stop": (f"t{token}",), "include_stop_str_in_output": True},
        )
    ]
    alone, drafting = make_engine(), make_engine(**draft_settings(tiny_folder))
    for params in ends:
        (wanted,) = alone.generate(PROMPTS[:1], params)
        (found,) = drafting.generate(PROMPTS[:1], params)
        assert (found.token_ids, found.text) == (wanted.token_ids, wanted.text)
        assert found.finish_reason is wanted.finish_reason
        drafting.check_integrity()


@settings(
    max_examples=examples(12),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_random_driver_never_changes_the_tokens(
    data: st.DataObject,
    make_engine: MakeEngine,
    draft_folder: Path,
    head_folder: Path,
    plain: list[Any],
) -> None:
    """Add, abort, change and exchange in any order, with drafts from whatever it is."""
    engine = make_engine(kv_cache_memory_bytes=2**17, **draft_settings(draft_folder))
    methods = {
        "off": draft_folder, "ngram": draft_folder, "draft_model": draft_folder,
        "eagle3": head_folder,
    }  # fmt: skip
    running: dict[str, int] = {}
    produced: dict[str, list[int]] = {}
    for _ in range(data.draw(st.integers(5, 25))):
        action = data.draw(st.sampled_from(["add", "add", "step", "step", "abort", "live", "swap"]))
        if action == "add":
            choice = data.draw(st.integers(0, len(PROMPTS) - 1))
            running[engine.add_request(PROMPTS[choice], PARAMS[choice])] = choice
        elif action == "abort" and running:
            engine.abort(data.draw(st.sampled_from(sorted(running))))
        elif action == "live":
            engine.reconfigure(
                num_speculative_tokens=data.draw(st.integers(0, 6)),
                speculative_adaptive=data.draw(st.booleans()),
                prompt_lookup_min=data.draw(st.integers(1, 3)),
                max_num_batched_tokens=data.draw(st.integers(1, 64)),
                max_num_seqs=data.draw(st.integers(1, 5)),
                enable_prefix_caching=data.draw(st.booleans()),
            )
        elif action == "swap":
            method, folder = data.draw(st.sampled_from(list(methods.items())))
            engine.reconfigure(
                speculative_method=method,
                speculative_model=str(folder),
                block_size=data.draw(st.integers(1, 20)),
            )
        _step(engine, running, produced, plain)
    while engine.has_unfinished:
        _step(engine, running, produced, plain)


def _step(
    engine: LLMEngine, running: dict[str, int], produced: dict[str, list[int]], plain: list[Any]
) -> None:
    for event in engine.step():
        produced.setdefault(event.request_id, []).extend(event.token_ids)
        if event.finish_reason in (FinishReason.LENGTH, FinishReason.STOP):
            assert produced[event.request_id] == plain[running[event.request_id]][0]
        if event.finish_reason is not None:
            running.pop(event.request_id, None)
    engine.check_integrity()


# -- what is learned on the way -------------------------------------------------------------


def long_run(engine: LLMEngine) -> SpeculationSnapshot:
    for _ in range(8):
        engine.generate(PROMPTS[:2], replace(GREEDY, max_tokens=100))
    figures = engine.snapshot().speculation
    assert figures is not None
    return figures


@pytest.mark.slow
def test_the_gain_is_measured_against_plain_steps(
    make_engine: MakeEngine, tiny_folder: Path
) -> None:
    engine = make_engine(**draft_settings(tiny_folder))
    figures = long_run(engine)
    assert figures.speed_up is not None
    assert figures.speed_up.num_plain_steps >= 3
    assert figures.speed_up.num_drafted_steps > figures.speed_up.num_plain_steps
    assert figures.speed_up.factor > 0


@pytest.mark.slow
def test_drafts_that_never_stand_are_given_up(make_engine: MakeEngine) -> None:
    engine = make_engine(num_speculative_tokens=6, speculative_adaptive=True)
    plain_texts = [p + engine.generate([p], replace(GREEDY, max_tokens=100))[0].token_ids
                   for p in PROMPTS[:2]]  # fmt: skip
    use_proposer(engine, Scripted(plain_texts, 1.0))
    figures = long_run(engine)
    num_tokens = 8 * 2 * 100
    assert figures.accepted < 0.1 * figures.drafted
    assert figures.drafted < 0.5 * num_tokens  # six for each token, if nobody had learned
    assert figures.drafted_per_position[0] > 3 * figures.drafted_per_position[-1]


# -- the draft's own KV ---------------------------------------------------------------------


def test_a_prompt_that_was_computed_without_drafts_is_caught_up_with(
    make_engine: MakeEngine, tiny_folder: Path
) -> None:
    """Drafting begins in the middle of a reply, over a prefix that has no draft KV; acceptance is
    what it would have been."""
    engine = make_engine(
        **draft_settings(tiny_folder, num_speculative_tokens=0, max_num_batched_tokens=16)
    )
    engine.generate(PROMPTS[3:4], GREEDY)
    engine.add_request(PROMPTS[3], GREEDY)
    for _ in range(4):
        engine.step()
    engine.reconfigure(num_speculative_tokens=4)
    while engine.has_unfinished:
        engine.step()
        engine.check_integrity()
    figures = engine.snapshot().speculation
    assert figures is not None and figures.drafted > 0
    assert figures.acceptance_rate == 1.0


def test_a_context_that_the_draft_cannot_hold_ends_drafting(
    make_engine: MakeEngine, tmp_path: Path, tiny_model: Any
) -> None:
    draft = tiny_models.make_model("llama", max_position_embeddings=40)
    draft.load_state_dict(tiny_model.state_dict())
    tiny_models.save(draft, tmp_path)
    engine = make_engine(**draft_settings(tmp_path))
    plain_engine = make_engine()
    (found,), (wanted,) = (e.generate(PROMPTS[1:2], GREEDY) for e in (engine, plain_engine))
    assert found.token_ids == wanted.token_ids
    lengths = [len(r.token_ids) for r in found.drafts]
    assert 0 < sum(lengths) <= 10 and lengths[0] == 4


# -- settings -------------------------------------------------------------------------------


def test_methods_are_exchanged_in_mid_reply(
    make_engine: MakeEngine, draft_folder: Path, head_folder: Path, plain: list[Any]
) -> None:
    engine = make_engine(speculative_adaptive=False)
    ids = [engine.add_request(p, q) for p, q in zip(PROMPTS, PARAMS, strict=True)]
    produced: dict[str, list[int]] = {i: [] for i in ids}
    changes: list[dict[str, Any]] = [
        {"speculative_method": "ngram", "prompt_lookup_min": 1},
        {"num_speculative_tokens": 7},
        {"speculative_method": "draft_model", "speculative_model": str(draft_folder)},
        {"num_speculative_tokens": 1},
        {"speculative_method": "eagle3", "speculative_model": str(head_folder)},
        {"speculative_method": "off"},
    ]
    classes = []
    while engine.has_unfinished:
        for event in engine.step():
            produced[event.request_id] += event.token_ids
        if changes and len(produced[ids[0]]) >= 3 * (7 - len(changes)):
            classes.append(engine.reconfigure(**changes.pop(0)))
    assert [produced[i] for i in ids] == [found[0] for found in plain]
    rebuild, live = Change.CACHE_REBUILD, Change.LIVE
    assert classes == [rebuild, live, rebuild, live, rebuild, rebuild]


def test_memory_counts_the_draft(make_engine: MakeEngine, draft_folder: Path) -> None:
    alone, drafting = make_engine(), make_engine(**draft_settings(draft_folder))
    memory, before = drafting.snapshot().memory, alone.snapshot().memory
    assert memory.weights == 2 * before.weights  # the draft has the model's own shape
    assert memory.plan.draft_weights * 2 == memory.plan.weights
    assert memory.plan.bytes_per_block == 2 * before.plan.bytes_per_block
    assert memory.kv_cache == memory.plan.kv_cache <= 2**20
    drafting.reconfigure(speculative_method="off")
    assert drafting.snapshot().memory.weights == before.weights
    assert drafting.snapshot().speculation is None
