"""Rejection sampling gives the model's own distribution: proven by walking through all random
numbers for small vocabularies, and by statistics with penalties and filters."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.sampling.sampler import Sampler, SamplingRow
from engine.sampling_params import SamplingParams
from engine.speculation.proposer import Proposal
from engine.speculation.verify import Drafted, Numbers, match, reject, residual
from tests.engine.speculation.one_by_one import verify


def row_at(position: int, output: Sequence[int] = (), seed: int = 0, **params: Any) -> SamplingRow:
    return SamplingRow("r", SamplingParams(**params), seed, position, [0], list(output))


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


class Cell(NamedTuple):
    """A box of the random numbers [0, 1) of a request's rows, in all of which the same should come
    out: what its drafts are, its share of all that may happen, and its two corners, each a number
    per row with which drafts stand and one with which tokens are drawn."""

    drafts: tuple[int, ...]
    share: float
    corners: tuple[tuple[list[float], list[float]], ...]


INSIDE = 1e-6
"""How far in their box the corners lie: further than the rounding of p and q moves its sides."""


def cells(p: Sequence[Tensor], q: Sequence[Tensor], drafts: tuple[int, ...]) -> Iterator[Cell]:
    """All boxes of one string of drafts, from the formulas: row by row the draft stands below
    min(1, p / q), or else max(p - q, 0) cuts the numbers for drawing into one interval a token."""
    drawn = math.prod(float(q[i][draft]) for i, draft in enumerate(drafts))
    standing: list[tuple[float, float]] = []
    for i in range(len(drafts) + 1):
        rest = p[i].double()
        refused: list[tuple[float, float]] = []
        if i < len(drafts):
            rate = min(1.0, float(p[i][drafts[i]]) / float(q[i][drafts[i]]))
            refused = [(rate, 1.0)]
            rest = (rest - q[i].double()).clamp(min=0.0)
        if rest.any():
            ends = (rest / rest.sum()).cumsum(0).tolist()
            for interval in itertools.pairwise([0.0, *ends]):
                box = [*standing, *refused, interval]
                sides = [high - low for low, high in box]
                if min(sides) > 3 * INSIDE:
                    corners = _corners(box, i, len(drafts) + 1)
                    yield Cell(drafts, drawn * math.prod(sides), corners)
        if refused:
            standing.append((0.0, refused[0][0]))


def _corners(
    box: list[tuple[float, float]], end: int, num_rows: int
) -> tuple[tuple[list[float], list[float]], ...]:
    """Of a box whose last side is for the token that row `end` draws, the others for the drafts.
    The numbers that do not matter are any."""
    found = []
    for corner in ([low + INSIDE for low, _ in box], [high - INSIDE for _, high in box]):
        accept, draw = [0.3] * num_rows, [0.7] * num_rows
        accept[: len(box) - 1], draw[end] = corner[:-1], corner[-1]
        found.append((accept, draw))
    return tuple(found)


@pytest.mark.parametrize("chunk_rows", [1, 10, 10_000])
@pytest.mark.parametrize(("vocab", "k"), [(2, 1), (3, 2), (2, 3), (3, 3)])
def test_every_string_has_exactly_the_models_probability(
    vocab: int, k: int, chunk_rows: int
) -> None:
    """The random numbers of k drafts are a cube, cut into boxes. What comes out in two opposite
    corners of a box comes out in all of it, for more drafts stand the smaller the number, and
    tokens are drawn in the order of the vocabulary. All corners are verified as one step."""
    p, q = table(vocab, k + 1, seed=vocab + k), table(vocab, k + 1, seed=99)
    every: list[Cell] = []
    for drafts in itertools.product(range(vocab), repeat=k):
        if all(q[drafts[:i]][drafts[i]] > 0 for i in range(k)):
            prefixes = [drafts[:i] for i in range(k + 1)]
            every += cells([p[t] for t in prefixes], [q[t] for t in prefixes[:k]], drafts)
    assert sum(cell.share for cell in every) == pytest.approx(1.0, abs=1e-5)

    found: dict[tuple[int, ...], float] = defaultdict(float)
    for cell, outcomes in zip(every, verified(every, p, q, chunk_rows), strict=True):
        assert len(set(outcomes)) == 1, cell
        emitted = outcomes[0]
        for rest in itertools.product(range(vocab), repeat=k + 1 - len(emitted)):
            text, own = emitted + rest, cell.share
            for i in range(len(emitted), k + 1):
                own *= float(p[text[:i]][text[i]])
            found[text] += own
    for text in itertools.product(range(vocab), repeat=k + 1):
        wanted = math.prod(float(p[text[:i]][text[i]]) for i in range(k + 1))
        assert found[text] == pytest.approx(wanted, abs=1e-5), text


def verified(
    every: Sequence[Cell],
    p: dict[tuple[int, ...], Tensor],
    q: dict[tuple[int, ...], Tensor],
    chunk_rows: int,
) -> list[list[tuple[int, ...]]]:
    """What comes out at the corners of each cell; every corner is a request of one step."""
    sampler = Sampler(len(p[()]))
    sampler.chunk_rows = chunk_rows
    drafted: list[Drafted] = []
    chances: dict[str, tuple[list[float], list[float]]] = {}
    logits: list[Tensor] = []
    for cell in every:
        for corner in cell.corners:
            prefixes = [cell.drafts[:i] for i in range(len(cell.drafts) + 1)]
            name = str(len(drafted))
            rows = [row_at(i)._replace(request_id=name) for i in range(len(prefixes))]
            places = range(len(logits), len(logits) + len(rows))
            proposal = Proposal(cell.drafts, tuple(q[prefix] for prefix in prefixes[:-1]))
            drafted.append(Drafted(places, rows, proposal))
            logits += [p[prefix].log() for prefix in prefixes]
            chances[name] = corner

    def numbers(chunk: Sequence[Drafted]) -> Numbers:
        own = [chances[request.rows[0].request_id] for request in chunk]
        return Numbers(*(np.concatenate(values) for values in zip(*own, strict=True)))

    parts = reject(sampler, torch.stack(logits), drafted, numbers)
    assert [place for places, _ in parts for place in places] == list(range(len(logits)))
    outcomes = torch.cat([token_ids for _, token_ids in parts]).view(len(drafted), -1).tolist()
    found = [
        tuple(outcome[: match(outcome, request.proposal.token_ids)])
        for outcome, request in zip(outcomes, drafted, strict=True)
    ]
    return [found[i : i + 2] for i in range(0, len(found), 2)]


@pytest.mark.slow
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
            parts += probabilities
        rows = [row_at(1 + i, drafts[:i], seed, **params) for i in range(3)]
        logits = p_logits[[vocab, *drafts]]
        (found,) = verify(target, logits, [rows], [Proposal(tuple(drafts), tuple(parts))])
        tokens = found.token_ids
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
    q = (torch.tensor([0.0, 1, 0, 0]),)
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
    q = (torch.full((4,), 0.25),) * 2
    assert verify(sampler, logits, [greedy], [Proposal((1, 2))])[0].token_ids == [1]
    assert len(verify(sampler, logits, [random], [Proposal((1, 2), q)])[0].token_ids) == 1
    assert verify(sampler, logits[1:2], [greedy[:1]], [Proposal()])[0].token_ids == []


def test_matching() -> None:
    assert match([5, 6, 7], [5, 6]) == 3
    assert match([5, 9, 7], [5, 6]) == 2
    assert match([-1, 9, 7], [5, 6]) == 0


def test_what_is_left_of_equal_distributions_is_the_distribution() -> None:
    p = torch.tensor([[0.25, 0.75], [0.25, 0.75], [0.75, 0.25]])
    q = torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.0, 0.0]])
    assert torch.equal(residual(p, q), torch.tensor([[0.25, 0.75], [0.0, 0.25], [0.75, 0.25]]))


def test_a_draft_knows_fewer_or_more_tokens() -> None:
    p = torch.tensor([[0.25, 0.75]])
    assert torch.equal(residual(p, torch.tensor([[1.0]])), torch.tensor([[0.0, 0.75]]))
    assert torch.equal(residual(p, torch.tensor([[0.0, 0.5, 0.5]])), torch.tensor([[0.25, 0.25]]))
