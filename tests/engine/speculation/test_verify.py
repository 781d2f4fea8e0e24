"""Rejection sampling gives the model's own distribution: proven by walking through every decision
for small vocabularies, and by statistics with penalties and filters."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.sampler import Sampler, SamplingRow
from engine.sampling_params import SamplingParams
from engine.speculation.proposer import Proposal
from engine.speculation.verify import Chance, match, reject, residual, verify


def row_at(position: int, output: Sequence[int] = (), seed: int = 0, **params: Any) -> SamplingRow:
    return SamplingRow("r", SamplingParams(**params), seed, position, [0], list(output))


class AllDecisions(Chance):
    """Takes the decisions that it was given, then the first of every new one, and notes what else
    could have happened with which probability."""

    def __init__(self, decisions: Sequence[int]) -> None:
        self.given = list(decisions)
        self.taken: list[int] = []
        self.options: list[list[float]] = []

    @property
    def probability(self) -> float:
        result = 1.0
        for taken, options in zip(self.taken, self.options, strict=True):
            result *= options[taken]
        return result

    def decide(self, probabilities: list[float]) -> int:
        place = len(self.taken)
        possible = [i for i, p in enumerate(probabilities) if p > 0]
        choice = self.given[place] if place < len(self.given) else possible[0]
        self.taken.append(choice)
        self.options.append(probabilities)
        return choice

    def accepts(self, p: float, q: float, row: SamplingRow) -> bool:
        rate = min(1.0, p / q)
        return self.decide([1 - rate, rate]) == 1

    def draw(self, weights: Tensor, row: SamplingRow, *, is_replacement: bool) -> int:
        return self.decide((weights.double() / weights.double().sum()).tolist())

    def others(self) -> Iterator[list[int]]:
        """Beginnings of the walks that differ from this one in a decision that was not given."""
        for place in range(len(self.given), len(self.taken)):
            for option, probability in enumerate(self.options[place]):
                if probability > 0 and option > self.taken[place]:
                    yield [*self.taken[:place], option]


def table(vocab: int, length: int, seed: int) -> dict[tuple[int, ...], Tensor]:
    """A distribution after every string of fewer than `length` tokens; some tokens impossible."""
    generator = torch.Generator().manual_seed(seed)
    result = {}
    for size in range(length):
        for text in itertools.product(range(vocab), repeat=size):
            weights = torch.rand(vocab, generator=generator) ** 2
            weights[torch.rand(vocab, generator=generator) < 0.2] = 0.0
            if not weights.any():
                weights[0] = 1.0
            result[text] = weights / weights.sum()
    return result


@pytest.mark.parametrize(("vocab", "k"), [(2, 1), (3, 2), (2, 3), (3, 3)])
def test_every_string_has_exactly_the_models_probability(vocab: int, k: int) -> None:
    sampler = Sampler(vocab)
    p, q = table(vocab, k + 1, seed=vocab + k), table(vocab, k + 1, seed=99)
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for drafts in itertools.product(range(vocab), repeat=k):
        drawn = 1.0
        for i in range(k):
            drawn *= float(q[drafts[:i]][drafts[i]])
        if drawn == 0.0:
            continue
        rows = [row_at(i) for i in range(k + 1)]
        logits = torch.stack([p[drafts[:i]].log() for i in range(k + 1)])
        q_rows = [torch.zeros(logits.shape[1]).scatter_(
            0, torch.arange(vocab), q[drafts[:i]]) for i in range(k)]  # fmt: skip
        proposal = Proposal(drafts, torch.stack(q_rows))
        waiting: list[list[int]] = [[]]
        while waiting:
            chance = AllDecisions(waiting.pop())
            emitted = tuple(reject(sampler, logits, rows, proposal, chance).token_ids)
            waiting += chance.others()
            for rest in itertools.product(range(vocab), repeat=k + 1 - len(emitted)):
                text, own = emitted + rest, drawn * chance.probability
                for i in range(len(emitted), k + 1):
                    own *= float(p[text[:i]][text[i]])
                found[text] += own
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-5)
    for text in itertools.product(range(vocab), repeat=k + 1):
        wanted = 1.0
        for i in range(k + 1):
            wanted *= float(p[text[:i]][text[i]])
        assert found[text] == pytest.approx(wanted, abs=1e-5), text


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.7},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "top_k": 4},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 0.9, "presence_penalty": 1.0, "frequency_penalty": 0.5, "top_p": 0.9},
        {"temperature": 1.1, "repetition_penalty": 1.5, "logit_bias": {2: 1.5}, "top_k": 5},
    ],
)
def test_sampled_drafts_keep_the_distribution(params: dict[str, Any]) -> None:
    """Two drafts of another model, many times: the first two tokens are distributed as the model
    alone would draw them (chi-square, 99.9 %)."""
    vocab, runs = 8, 2000
    generator = torch.Generator().manual_seed(1)
    p_logits = torch.randn(vocab + 1, vocab, generator=generator) * 1.5
    q_logits = p_logits + torch.randn(vocab + 1, vocab, generator=generator)
    target, draft = Sampler(vocab), Sampler(vocab)
    counts: Counter[tuple[int, int]] = Counter()
    accepted = 0
    for seed in range(runs):
        drafts: list[int] = []
        parts = []
        for position in range(2):
            logits = q_logits[drafts[-1] if drafts else vocab].unsqueeze(0)
            row = row_at(1 + position, drafts, seed, **params)
            tokens, probabilities = draft.draw_from(logits, [row])
            drafts += tokens
            parts.append(probabilities)
        rows = [row_at(1 + i, drafts[:i], seed, **params) for i in range(3)]
        logits = p_logits[[vocab, *drafts]]
        proposal = Proposal(tuple(drafts), torch.cat(parts))
        tokens = reject(target, logits, rows, proposal).token_ids
        accepted += len(tokens) - 1
        if len(tokens) == 1:
            row = row_at(2, tokens, seed + runs, **params)
            tokens += target.draw_from(p_logits[tokens], [row])[0]
        counts[tokens[0], tokens[1]] += 1
        target.forget("r")
        draft.forget("r")
    assert accepted > 0.4 * runs
    _assert_distributed(counts, target, p_logits, params, runs)


def _assert_distributed(
    counts: Counter[tuple[int, int]],
    sampler: Sampler,
    p_logits: Tensor,
    params: dict[str, Any],
    runs: int,
) -> None:
    vocab = sampler.vocab_size
    first = sampler.distributions(p_logits[vocab:], [row_at(1, (), **params)])[0]
    statistic, freedom, rest_seen, rest_wanted = 0.0, -1, 0.0, 0.0
    for a in range(vocab):
        sampler.forget("r")
        second = sampler.distributions(p_logits[a : a + 1], [row_at(2, [a], **params)])[0]
        for b in range(vocab):
            wanted = runs * float(first[a]) * float(second[b])
            seen = counts[a, b]
            if wanted == 0:
                assert seen == 0
            elif wanted < 5:  # too few for the test's assumptions: together
                rest_seen, rest_wanted = rest_seen + seen, rest_wanted + wanted
            else:
                statistic += (seen - wanted) ** 2 / wanted
                freedom += 1
    if rest_wanted > 0:
        statistic += (rest_seen - rest_wanted) ** 2 / rest_wanted
        freedom += 1
    # 99.9 % quantile (Wilson and Hilferty 1931)
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert statistic < limit


def test_a_draft_that_is_sure_is_verified_by_its_own_sample() -> None:
    sampler = Sampler(4)
    logits = torch.tensor([[0.0, 9, 0, 0], [0, 0, 9, 0], [0, 0, 0, 9]])
    rows = [row_at(i, temperature=0.0) for i in range(3)]
    for drafts, expected in (((1, 2), [1, 2, 3]), ((1, 0), [1, 2]), ((3, 2), [1])):
        (found,) = verify(sampler, logits, [rows], [Proposal(drafts)])
        assert found.token_ids == expected


def test_requests_of_both_kinds_are_verified_together() -> None:
    sampler = Sampler(4)
    logits = torch.tensor([[0.0, 9, 0, 0], [0, 0, 9, 0]]).repeat(3, 1)
    q = torch.zeros(1, 4)
    q[0, 1] = 1.0
    greedy = [row_at(i, temperature=0.0, logprobs=0) for i in range(2)]
    random = [row_at(i, temperature=0.1, logprobs=1) for i in range(2)]
    rows = [greedy, random, greedy]
    found = verify(sampler, logits, rows, [Proposal((1,)), Proposal((1,), q), Proposal((0,))])
    assert [f.token_ids for f in found] == [[1, 2], [1, 2], [1]]
    assert [len(f.logprobs) for f in found] == [2, 2, 1]
    assert all(entry is not None for f in found for entry in f.logprobs)


def test_bad_logits_end_the_run_where_they_are() -> None:
    sampler = Sampler(4)
    logits = torch.tensor([[0.0, 9, 0, 0], [torch.nan] * 4, [0, 0, 0, 9]])
    greedy = [row_at(i, temperature=0.0) for i in range(3)]
    random = [row_at(i) for i in range(3)]
    q = torch.full((2, 4), 0.25)
    assert verify(sampler, logits, [greedy], [Proposal((1, 2))])[0].token_ids == [1]
    assert len(verify(sampler, logits, [random], [Proposal((1, 2), q)])[0].token_ids) == 1
    assert verify(sampler, logits[1:2], [greedy[:1]], [Proposal()])[0].token_ids == []


def test_matching() -> None:
    assert match([5, 6, 7], [5, 6]) == 3
    assert match([5, 9, 7], [5, 6]) == 2
    assert match([-1, 9, 7], [5, 6]) == 0


def test_what_is_left_of_equal_distributions_is_the_distribution() -> None:
    p = torch.tensor([0.25, 0.75])
    assert torch.equal(residual(p, p), p)
    assert torch.equal(residual(p, torch.tensor([1.0])), torch.tensor([0.0, 0.75]))
