"""The sampler against written-out formulas and its own promises."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling.draw import block_masses, inverse_cdf, row_maxima, uniforms
from engine.sampling.sampler import Sampler
from engine.sampling_params import SamplingParams
from tests.engine.sampling_rows import (
    VOCAB,
    random_logits,
    reference_probs,
    row,
    sample_one,
)
from tests.tiers import examples

any_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 40, 300, 5000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    min_tokens=st.sampled_from([0, 3]),
    logprobs=st.sampled_from([None, 0, 3]),
    logit_bias=st.sampled_from([{}, {3: 4.0, 9: -100.0}]),
)


class TestIndependence:
    @settings(max_examples=examples(40), deadline=None)
    @given(
        params=st.lists(any_params, min_size=2, max_size=12),
        seed=st.integers(0, 10_000),
        coarse=st.booleans(),
        order=st.randoms(use_true_random=False),
    )
    def test_a_row_ignores_its_batch_mates_and_their_order(self, params, seed, coarse, order):
        logits = random_logits(seed, len(params))
        if coarse:  # many ties, as bfloat16 has
            logits = logits.round()
        rows = [
            row(p, seed=seed + i, position=i, prompt=[1, 4, 4], output=[7] * i, request_id=str(i))
            for i, p in enumerate(params)
        ]
        together = Sampler(VOCAB).sample(logits, rows)
        alone = [Sampler(VOCAB).sample(logits[i : i + 1], [r]) for i, r in enumerate(rows)]
        assert together.token_ids == [a.token_ids[0] for a in alone]
        assert together.logprobs == [a.logprobs[0] for a in alone]

        shuffled = list(range(len(rows)))
        order.shuffle(shuffled)
        again = Sampler(VOCAB).sample(logits[shuffled], [rows[i] for i in shuffled])
        assert again.token_ids == [together.token_ids[i] for i in shuffled]
        assert again.logprobs == [together.logprobs[i] for i in shuffled]

    def test_more_rows_than_fit_one_chunk(self, monkeypatch):
        logits = random_logits(0, 9)
        rows = [row(SamplingParams(top_p=0.9, logprobs=2), position=i) for i in range(9)]
        whole = Sampler(VOCAB).sample(logits, rows)
        monkeypatch.setattr("engine.sampling.sampler._CHUNK_ELEMENTS", 4 * 768)
        assert Sampler(VOCAB).sample(logits, rows) == whole

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_logits_are_converted_to_float32_and_left_alone(self, dtype):
        logits = random_logits(1, 4).to(dtype)
        before = logits.clone()
        rows = [
            row(p, position=i, output=[1])
            for i, p in enumerate(
                [
                    SamplingParams(),
                    SamplingParams(temperature=0),
                    SamplingParams(temperature=0, repetition_penalty=1.5),
                    SamplingParams(top_k=7, logprobs=3),
                ]
            )
        ]
        sampler = Sampler(VOCAB)
        assert sampler.sample(logits, rows) == Sampler(VOCAB).sample(logits.float(), rows)
        assert torch.equal(logits, before)


class TestGreedy:
    @given(seed=st.integers(0, 1000), vocab=st.integers(1, 900), levels=st.integers(1, 6))
    @settings(max_examples=examples(60), deadline=None)
    def test_takes_the_lowest_index_of_the_maximum(self, seed, vocab, levels):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randint(levels, (3, vocab), generator=generator).float()
        expected = np.argmax(logits.numpy(), axis=1).tolist()
        assert row_maxima(logits).token_ids.tolist() == expected
        rows = [row(SamplingParams(temperature=0))] * 3
        assert Sampler(vocab).sample(logits, rows).token_ids == expected

    def test_top_k_1_is_greedy_at_any_temperature(self):
        logits = random_logits(3, 50).round()
        greedy = [row(SamplingParams(temperature=0)) for _ in range(50)]
        top_1 = [row(SamplingParams(temperature=5, top_k=1), position=i) for i in range(50)]
        sampler = Sampler(VOCAB)
        assert sampler.sample(logits, top_1).token_ids == sampler.sample(logits, greedy).token_ids

    def test_a_tiny_temperature_does_not_overflow(self):
        logits = random_logits(4) * 1e4
        for temperature in (1e-300, 1e-40, 1e-6, 2e-5):
            params = SamplingParams(temperature=temperature)
            assert sample_one(logits, row(params)) == int(logits.argmax())


class TestDistribution:
    COMBINATIONS = (
        {},
        {"temperature": 0.6},
        {"temperature": 1.8},
        {"top_k": 6},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 0.7, "top_k": 8, "top_p": 0.9},
        {"temperature": 1.3, "min_p": 0.05, "top_p": 0.95},
        {"temperature": 1.2, "min_p": 0.02, "top_k": 10, "top_p": 0.7},
    )

    @pytest.mark.parametrize("values", COMBINATIONS, ids=str)
    def test_chi_square_against_the_exact_probabilities(self, values):
        vocab, draws = 40, 8_000
        params = SamplingParams(**values)
        logits = random_logits(17, 1, vocab, scale=1.5)
        expected = reference_probs(logits[0], params) * draws
        sampler = Sampler(vocab)
        counts: Counter[int] = Counter()
        for start in range(0, draws, 2000):
            rows = [row(params, seed=5, position=start + i) for i in range(2000)]
            counts.update(sampler.sample(logits.expand(2000, vocab), rows).token_ids)
        observed = np.array([counts[i] for i in range(vocab)], dtype=float)
        assert observed[expected == 0].sum() == 0
        likely = expected >= 5
        o = np.append(observed[likely], observed[~likely].sum())
        e = np.append(expected[likely], expected[~likely].sum())
        o, e = o[e > 0], e[e > 0]
        chi2, dof = ((o - e) ** 2 / e).sum(), max(1, len(e) - 1)
        # Wilson-Hilferty: the cube root is nearly normal; 4 standard deviations
        z = ((chi2 / dof) ** (1 / 3) - (1 - 2 / (9 * dof))) / math.sqrt(2 / (9 * dof))
        assert z < 4

    def test_inverse_cdf_is_the_running_sum_in_vocabulary_order(self):
        probs = torch.softmax(random_logits(2, 64, 768), 1)
        probs[:, ::3] = 0
        u = torch.rand(64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        tokens = inverse_cdf(probs, block_masses(probs), u)
        running = probs.double().cumsum(1)
        expected = (running > u[:, None] * running[:, -1:]).int().argmax(1)
        assert torch.equal(tokens, expected)

    @pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
    def test_the_ends_of_the_interval_hit_tokens_with_mass(self, u):
        probs = torch.zeros(3, 512)
        probs[0, 100], probs[1, 511] = 1e-30, 0.3
        probs[2, 255:257] = torch.tensor([0.1, 0.7])
        tokens = inverse_cdf(probs, block_masses(probs), torch.full((3,), u, dtype=torch.float64))
        assert tokens.tolist() == [100, 511, 255 if u == 0 else 256]

    def test_seed_and_position_decide_the_draw(self):
        logits = random_logits(9)
        draw = [
            [sample_one(logits, row(SamplingParams(), seed=s, position=p)) for p in range(30)]
            for s in (1, 1, 2, -1)
        ]
        assert draw[0] == draw[1]
        assert draw[0] != draw[2] != draw[3]
        assert len(set(draw[0])) > 5


class TestUniforms:
    def test_known_answers_of_splitmix64(self):
        """The third and later outputs of the reference stream are jumps of its counter."""

        def splitmix64(state: int) -> tuple[int, int]:
            state = (state + 0x9E3779B97F4A7C15) % 2**64
            z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
            return state, z ^ (z >> 31)

        # First output for state 1234567, from the published test vector of the algorithm.
        assert splitmix64(1234567)[1] == 6457827717110365317
        for seed in (0, 1, -3, 2**63 - 1):
            state = splitmix64(seed % 2**64)[1]
            for position in range(5):
                state, bits = splitmix64(state)
                assert uniforms([seed], [position])[0] == (bits >> 11) / 2**53

    def test_uniform_and_uncorrelated_over_positions_and_seeds(self):
        for u in (uniforms([7] * 40_000, range(40_000)), uniforms(range(40_000), [7] * 40_000)):
            assert u.min() >= 0 and u.max() < 1
            counts = np.histogram(u, 100, (0, 1))[0]
            assert ((counts - 400) ** 2 / 400).sum() < 160  # 99 degrees of freedom, 4 sigma
            assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.02


class TestLogprobs:
    @pytest.mark.parametrize("temperature", [0.0, 1.5])
    def test_equal_log_softmax_of_the_raw_logits_with_ranks(self, temperature):
        logits = random_logits(8, 20)
        params = SamplingParams(
            temperature=temperature, logprobs=4, repetition_penalty=1.4, top_k=50
        )
        rows = [
            row(params, position=i, prompt=[3], output=[4], request_id=str(i)) for i in range(20)
        ]
        sampled = Sampler(VOCAB).sample(logits, rows)
        reference = torch.log_softmax(logits.double(), 1)
        for i, (token, report) in enumerate(zip(sampled.token_ids, sampled.logprobs, strict=True)):
            assert report is not None and report.token_id == token
            assert abs(report.logprob - float(reference[i, token])) < 1e-5
            assert abs(report.logprob - float(torch.log_softmax(logits, 1)[i, token])) < 1e-6
            assert report.rank == int((reference[i] > reference[i, token]).sum()) + 1
            values, ids = reference[i].topk(4)
            assert [t for t, _ in report.alternatives] == ids.tolist()
            assert [v for _, v in report.alternatives] == pytest.approx(values.tolist(), abs=1e-5)

    def test_only_for_rows_that_ask(self):
        logits = random_logits(1, 3)
        counts = (None, 0, 2)
        sampled = Sampler(VOCAB).sample(logits, [row(SamplingParams(logprobs=n)) for n in counts])
        first, second, third = sampled.logprobs
        assert first is None
        assert second is not None and second.alternatives == ()
        assert third is not None and len(third.alternatives) == 2

    def test_a_vocabulary_smaller_than_the_alternatives_asked_for(self):
        (report,) = (
            Sampler(3).sample(torch.zeros(1, 3), [row(SamplingParams(logprobs=20))]).logprobs
        )
        assert report is not None and [t for t, _ in report.alternatives] == [0, 1, 2]

    def test_ties_have_equal_rank_and_ascending_ids(self):
        logits = torch.tensor([[1.0, 2.0, 2.0, 0.0]])
        params = SamplingParams(temperature=0, logprobs=3)
        (report,) = Sampler(4).sample(logits, [row(params)]).logprobs
        assert report is not None and report.rank == 1
        assert [t for t, _ in report.alternatives] == [1, 2, 0]


class TestFailures:
    @pytest.mark.parametrize(
        "params",
        [
            SamplingParams(temperature=0, logprobs=1),
            SamplingParams(top_p=0.9, logprobs=1),
            SamplingParams(temperature=0, repetition_penalty=1.2),
        ],
        ids=["greedy", "sampled", "penalized"],
    )
    def test_a_bad_row_fails_alone(self, params):
        logits = random_logits(6, 5)
        rows = [row(params, position=i, output=[3], request_id=str(i)) for i in range(5)]
        good = Sampler(VOCAB).sample(logits, rows)
        assert min(good.token_ids) >= 0
        logits[0, 300] = torch.nan
        logits[2, 699] = torch.inf
        logits[3] = -torch.inf
        bad = Sampler(VOCAB).sample(logits, rows)
        assert [i for i, token_id in enumerate(bad.token_ids) if token_id < 0] == [0, 2, 3]
        assert [bad.token_ids[i] for i in (0, 2, 3)] == [-1, -1, -1]
        assert [bad.logprobs[i] for i in (0, 2, 3)] == [None] * 3
        for i in (1, 4):
            assert bad.token_ids[i] == good.token_ids[i]
            assert bad.logprobs[i] == good.logprobs[i]

    def test_some_minus_infinities_are_ordinary(self):
        logits = torch.full((1, 10), -torch.inf)
        logits[0, 7] = 0.0
        for params in (SamplingParams(), SamplingParams(temperature=0), SamplingParams(top_p=0.1)):
            assert sample_one(logits, row(params)) == 7

    def test_nothing_left_to_choose_is_a_failure(self):
        logits = torch.full((1, 10), -torch.inf)
        logits[0, 2] = 0.0
        sampled = Sampler(10).sample(logits, [row(SamplingParams(min_tokens=1))])
        assert sampled.token_ids == [-1]

    def test_logits_of_another_shape_are_a_fault_of_the_caller(self):
        with pytest.raises(ValueError, match="logits are"):
            Sampler(10).sample(torch.zeros(2, 10), [row(SamplingParams())])


def test_no_rows():
    assert Sampler(10).sample(torch.zeros(0, 10), []) == ([], [])
