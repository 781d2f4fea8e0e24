"""Rejection sampling of a whole step gives each request the tokens that it gets alone, a draft at a
time; whatever the requests beside it, their parameters, and how many are worked on at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.sampling.draw import RowLogprobs
from engine.sampling.sampler import Sampler, SamplingRow
from engine.sampling_params import SamplingParams
from engine.speculation.proposer import NOTHING, Proposal
from engine.speculation.verify import Verification
from tests.engine.speculation.one_by_one import reject_one, verify

VOCAB = 300

params_drawn_at_random = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.8, 1.5]),
    top_p=st.sampled_from([1.0, 0.95, 0.5]),
    top_k=st.sampled_from([0, 0, 20]),
    min_p=st.sampled_from([0.0, 0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.4]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.8]),
    logit_bias=st.sampled_from([{}, {7: 3.0}]),
    min_tokens=st.sampled_from([0, 5]),
    max_tokens=st.just(16),
    stop_token_ids=st.sampled_from([(), (3, 4, 5)]),
    logprobs=st.sampled_from([None, None, 0, 2]),
)


class Case(NamedTuple):
    """A request: its rows, their logits [R, VOCAB], and what was drafted for it."""

    rows: list[SamplingRow]
    logits: Tensor
    proposal: Proposal


@st.composite
def cases(draw: st.DrawFn, width: int, name: str) -> Case:
    """Drafts of a model that is near or far from the model, or the same; q[width] each. One row's
    logits may be bad."""
    count, seed = draw(st.integers(1, 5)), draw(st.integers(0, 2**64 - 1))
    distance = draw(st.sampled_from([0.0, 0.0, 0.3, 2.0]))
    params = draw(params_drawn_at_random)
    generator = torch.Generator().manual_seed(seed % 2**62)
    logits = torch.randn(count + 1, VOCAB, generator=generator) * 3
    rows: list[SamplingRow] = []
    drafts: list[int] = []
    q: list[Tensor] = []
    draft_model = Sampler(VOCAB)
    for i in range(count + 1):
        rows.append(SamplingRow(name, params, seed, 9 + i, [1, 2, 3], [4, 5, *drafts], frozenset()))
        if i < count:
            noise = torch.randn(1, VOCAB, generator=generator) * distance
            (token,), (given_,) = draft_model.draw_from(
                logits[i : i + 1] + noise, [rows[-1]._replace(seed=seed + 1)]
            )
            drafts.append(token if token < width else 0)
            q.append(_of_width(given_, width))
    for bad in draw(st.sets(st.integers(0, count), max_size=1)):
        logits[bad] = draw(st.sampled_from([torch.nan, torch.inf, -torch.inf]))
    return Case(rows, logits, Proposal(tuple(drafts), tuple(q)))


def _of_width(q: Tensor, width: int) -> Tensor:
    """q with fewer tokens, or with more that are as improbable as can be."""
    result = torch.zeros(width)
    result[: len(q)] = q[:width]
    return result


@st.composite
def steps(draw: st.DrawFn) -> list[Case]:
    """Requests of one step; some of them without drafts, or with drafts that are certain."""
    width = draw(st.sampled_from([VOCAB, 512, 700, 260]))
    kinds = draw(st.lists(st.sampled_from(["random", "random", "certain", "none"]), min_size=1,
                          max_size=6))  # fmt: skip
    result = []
    for i, kind in enumerate(kinds):
        case = draw(cases(width, f"r{i}"))
        if kind == "certain":
            case = case._replace(proposal=Proposal(case.proposal.token_ids))
        if kind == "none":
            case = Case(case.rows[:1], case.logits[:1], NOTHING)
        result.append(case)
    return result


@settings(deadline=None)
@given(steps(), st.sampled_from([1, 3, 7, 1000]))
def test_the_tokens_are_those_of_each_request_alone(step: list[Case], chunk_rows: int) -> None:
    sampler = Sampler(VOCAB)
    sampler.chunk_rows = chunk_rows
    logits = torch.cat([case.logits for case in step])
    before = logits.clone()
    found = verify(sampler, logits, [c.rows for c in step], [c.proposal for c in step])
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())
    for case, verified in zip(step, found, strict=True):
        if case.proposal.probabilities:
            wanted = reject_one(Sampler(VOCAB), case.logits, case.rows, case.proposal)
        else:
            sampled = Sampler(VOCAB).sample(case.logits, case.rows).token_ids
            wanted = sampled[: _count(sampled, case.proposal.token_ids)]
        assert verified.token_ids == wanted
        assert len(verified.logprobs) == len(wanted)
        for row, one, token_id, entry in zip(
            case.rows, case.logits, verified.token_ids, verified.logprobs, strict=False
        ):
            _check_report(row, one, token_id, entry)


def _count(sampled: Sequence[int], drafts: Sequence[int]) -> int:
    """Of tokens that were sampled, those that count: the first that differs is the last."""
    count = 0
    while count < len(drafts) and sampled[count] == drafts[count] >= 0:
        count += 1
    return count + (sampled[count] >= 0)


def _check_report(
    row: SamplingRow, logits: Tensor, token_id: int, entry: RowLogprobs | None
) -> None:
    if row.params.logprobs is None:
        assert entry is None
        return
    assert entry is not None and entry.token_id == token_id
    logprobs = logits.log_softmax(0)
    assert entry.logprob == pytest.approx(float(logprobs[token_id]), abs=1e-5)
    assert entry.rank == 1 + int((logits > logits[token_id]).sum())
    assert [i for i, _ in entry.alternatives] == logits.topk(row.params.logprobs).indices.tolist()


def test_rounding_that_leaves_nothing_ends_a_request_with_a_token_of_the_model() -> None:
    """q is p, a little larger everywhere: the refused draft may come again, and nothing after."""
    rows = [SamplingRow("r", SamplingParams(), 0, 0, [0], [0] * i) for i in range(3)]
    logits = torch.tensor([[0.0, -torch.inf, -torch.inf]]).repeat(3, 1)
    q = torch.tensor([2.0**60, 0, 0])
    (found,) = verify(Sampler(3), logits, [rows], [Proposal((0, 0), (q, q))])
    assert found.token_ids == [0]


def test_a_step_without_rows_gives_nothing() -> None:
    verification = Verification(Sampler(VOCAB), torch.empty(0, VOCAB), [], [])
    assert verification.drawn is None and verification.read() == []
    assert verification.device_s is None


def test_memory_is_bounded_by_the_chunk() -> None:
    """Buffers are as large as for the rows that are worked on at once, not for all of a step."""
    sampler = Sampler(VOCAB)
    sampler.chunk_rows = 6
    params = SamplingParams(top_p=0.9)
    rows = [[SamplingRow(f"r{i}", params, i, j, [0], [0] * j) for j in range(3)] for i in range(20)]
    q = torch.full((VOCAB,), 1 / VOCAB)
    verify(sampler, torch.randn(60, VOCAB), rows, [Proposal((1, 2), (q, q))] * 20)
    assert [len(buffer) for buffer in sampler._buffers] == [6, 6, 6]
