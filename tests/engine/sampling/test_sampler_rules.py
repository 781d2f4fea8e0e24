"""What a request's parameters do to its logits: filters, penalties, forbidden and favoured tokens.

Filters and penalties are compared with transformers' processors and with written-out formulas.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.errors import InvalidRequestError
from engine.sampling.filters import Filters
from engine.sampling.logits_processors import PenalizedRow, SeenTokens, apply_penalties
from engine.sampling.sampler import Sampler
from engine.sampling_params import SamplingParams
from engine.scheduling.request import check_token_ids
from tests.engine.sampling_rows import (
    EOS,
    VOCAB,
    kept_tokens,
    random_logits,
    row,
    sample_one,
)
from tests.tiers import examples


class TestFilters:
    @settings(max_examples=examples(40), deadline=None)
    @given(
        seed=st.integers(0, 10_000),
        top_k=st.sampled_from([1, 3, 31, 33, 130, 600, 699]),
        top_p=st.floats(0.01, 0.999),
        min_p=st.floats(0.001, 0.999),
        scale=st.sampled_from([0.1, 1.0, 5.0]),
    )
    def test_keep_what_transformers_keeps(self, seed, top_k, top_p, min_p, scale):
        logits = random_logits(seed, 1, scale=scale)
        ids = torch.zeros(1, 1, dtype=torch.long)
        by_k, by_p, by_min = kept_tokens(
            logits.expand(3, -1),
            SamplingParams(top_k=top_k),
            SamplingParams(top_p=top_p),
            SamplingParams(min_p=min_p),
        )

        def kept(warper) -> set[int]:
            return set(warper(ids, logits.clone()).isfinite()[0].nonzero().flatten().tolist())

        assert by_k == kept(TopKLogitsWarper(top_k))
        # Within float32 rounding of the boundary, either answer is right.
        for ours, warpers in (
            (by_p, [TopPLogitsWarper(min(1.0, top_p + d)) for d in (-1e-5, 0, 1e-5)]),
            (by_min, [MinPLogitsWarper(min(1.0, min_p * (1 + d))) for d in (-1e-5, 0, 1e-5)]),
        ):
            theirs = [kept(w) for w in warpers]
            assert ours in theirs

    def test_top_p_beyond_the_first_candidates_sorts_as_much_as_it_takes(self):
        vocab = 9000
        flat = random_logits(1, 1, vocab, scale=0.5)
        for top_p in (0.2, 0.9, 0.9999):
            (kept,) = kept_tokens(flat, SamplingParams(top_p=top_p))
            probs = torch.softmax(flat[0].double(), 0)
            ordered, order = probs.sort(descending=True)
            size = int((ordered.cumsum(0) < top_p).sum()) + 1
            assert size > 256
            assert kept == set(order[:size].tolist())

    def test_equal_logits_are_kept_or_dropped_together(self):
        logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
        kept = kept_tokens(
            logits.expand(3, -1),
            SamplingParams(top_k=2),
            SamplingParams(top_p=0.5),
            SamplingParams(min_p=0.3),
        )
        assert kept == [{1, 2, 3, 4}] * 3

    def test_top_p_counts_the_mass_that_top_k_and_min_p_left(self):
        logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
        kept = kept_tokens(
            logits.expand(3, -1),
            SamplingParams(top_p=0.6),
            SamplingParams(top_p=0.56, top_k=2),
            SamplingParams(top_p=0.56, min_p=0.6),
        )
        assert kept == [{0, 1}, {0}, {0}]

    def test_rows_without_filters_need_no_scratch(self):
        assert not Filters([SamplingParams(), SamplingParams(top_k=-1)], VOCAB).need_scratch


class TestPenalties:
    def penalized(self, params: SamplingParams, prompt, output, logits) -> torch.Tensor:
        work = logits.clone()
        seen = SeenTokens(prompt, logits.shape[1])
        seen.follow(output)
        apply_penalties(work, [PenalizedRow(0, params, seen.ids, seen.counts, seen.seen)])
        return work

    @given(
        prompt=st.lists(st.integers(0, 19), max_size=8),
        output=st.lists(st.integers(0, 19), max_size=30),
        repetition=st.floats(0.1, 3),
        presence=st.floats(-2, 2),
        frequency=st.floats(-2, 2),
    )
    @settings(max_examples=examples(60), deadline=None)
    def test_written_out(self, prompt, output, repetition, presence, frequency):
        logits = random_logits(len(output), 1, 20)
        expected = logits.clone()
        if prompt or output:
            ids = torch.tensor([prompt + output])
            expected = RepetitionPenaltyLogitsProcessor(repetition)(ids, expected)
        for token, count in Counter(output).items():
            expected[0, token] -= frequency * count + presence
        params = SamplingParams(
            repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
        )
        torch.testing.assert_close(self.penalized(params, prompt, output, logits), expected)

    @given(
        lengths=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), min_size=1, max_size=12)
    )
    @settings(max_examples=examples(60), deadline=None)
    def test_state_follows_any_sequence_of_outputs(self, lengths):
        """Grown, cut back, or with other tokens at the same length: as if counted from nothing."""
        seen = SeenTokens([3, 900], 16)
        for length, variant in lengths:
            output = [(i * (variant + 1)) % 16 for i in range(length)] + [variant + 3] * 2
            seen.follow(output)
            fresh = SeenTokens([3, 900], 16)
            fresh.follow(output)

            def table(s: SeenTokens) -> dict[int, tuple[float, bool]]:
                columns = zip(s.ids.tolist(), s.counts.tolist(), s.seen.tolist(), strict=True)
                return {token: (count, was) for token, count, was in columns if was or count}

            assert table(seen) == table(fresh)

    def test_speculative_rows_of_one_request_each_see_their_own_prefix(self):
        params = SamplingParams(temperature=0, presence_penalty=2.0)
        logits = torch.zeros(3, 6)
        logits[:, 1], logits[:, 4], logits[:, 2] = 1.5, 1.0, 0.5
        outputs = [[], [1], [1, 4]]
        rows = [row(params, position=i, output=o) for i, o in enumerate(outputs)]
        sampler = Sampler(6)
        assert sampler.sample(logits, rows).token_ids == [1, 4, 2]
        # The second draft was rejected: the next step goes on from [1].
        assert sampler.sample(logits[:1], [row(params, position=1, output=[1])]).token_ids == [4]

    def test_forget_drops_the_state(self):
        params = SamplingParams(temperature=0, presence_penalty=2.0)
        logits = torch.tensor([[1.0, 0.5]])
        sampler = Sampler(2)
        assert sampler.sample(logits, [row(params, output=[0])]).token_ids == [1]
        sampler.forget("r")
        sampler.forget("unknown")
        assert not sampler._seen
        assert sampler.sample(logits, [row(params, prompt=[0])]).token_ids == [0]


class TestEdits:
    def test_min_tokens_masks_eos_and_stop_tokens_until_it_is_reached(self):
        logits = torch.zeros(1, 8)
        logits[0, 2], logits[0, 5], logits[0, 6], logits[0, 1] = 9, 8, 7, 1
        for ignore_eos in (False, True):
            params = SamplingParams(
                temperature=0, min_tokens=2, stop_token_ids=(6,), ignore_eos=ignore_eos
            )
            drawn = [sample_one(logits, row(params, output=[1] * n)) for n in range(4)]
            assert drawn == [1, 1, 2, 2]

    def test_logit_bias_adds_forces_and_forbids(self):
        logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])

        def greedy(bias) -> int:
            return sample_one(logits, row(SamplingParams(temperature=0, logit_bias=bias)))

        assert greedy({1: 0.5}) == 0
        assert greedy({1: 1.5}) == 1
        assert greedy({0: -100, 1: -1e30}) == 2
        assert greedy({3: 1e30}) == 3
        sampled = SamplingParams(logit_bias={0: -1e9, 1: -1e9, 2: -1e9})
        assert {sample_one(logits, row(sampled, position=i)) for i in range(20)} == {3}

    def test_bias_cannot_undo_min_tokens(self):
        logits = torch.zeros(1, 8)
        params = SamplingParams(temperature=0, min_tokens=1, logit_bias={2: 100.0})
        assert sample_one(logits, row(params)) not in EOS
        assert sample_one(logits, row(params, output=[1])) == 2

    def test_token_ids_beyond_the_vocabulary_are_refused(self):
        check_token_ids([1], SamplingParams(logit_bias={9: 1.0}, stop_token_ids=(0,)), 10)
        with pytest.raises(InvalidRequestError, match=r"logit_bias .*10.* 0 to 9"):
            check_token_ids([1], SamplingParams(logit_bias={10: 1.0}), 10)
        with pytest.raises(InvalidRequestError, match="stop_token_ids"):
            check_token_ids([1], SamplingParams(stop_token_ids=(-1,)), 10)
