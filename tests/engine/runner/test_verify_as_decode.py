"""Steps that verify drafts, as rows that decode."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.attention.cpu import CPUAttention
from engine.attention.interface import AttentionOptions, LayerSpec
from engine.batch.batch import Batch, Span, pack, pad
from engine.numerics.kv_dtype import parse_kv_dtype
from engine.runner.cuda_graphs import DecodeGraphs
from engine.runner.verify_as_decode import Worth, can_unroll, extra_reads, unroll
from tests.engine.recorded_graphs import Recording
from tests.tiers import examples

BLOCK = 4

requests = st.lists(st.tuples(st.integers(0, 21), st.integers(1, 6)), min_size=1, max_size=5)
"""Of each: tokens before the step, and tokens of the step."""


def step(lengths: list[tuple[int, int]]) -> Batch:
    """All tokens are sampled; every request has blocks of its own, one more than it needs."""
    return pack(
        [
            Span(list(range(count)), start, list(range(8 * i, 8 * i + 8)), count)
            for i, (start, count) in enumerate(lengths)
        ],
        BLOCK,
    )


@given(requests)
def test_every_token_becomes_a_row(lengths: list[tuple[int, int]]) -> None:
    batch = step(lengths)
    rows = unroll(batch)
    assert can_unroll(batch) and rows.is_decode
    for name in ("input_ids", "positions", "slot_mapping", "logits_indices"):
        assert torch.equal(getattr(rows, name), getattr(batch, name))
    assert rows.seq_lens == (rows.positions + 1).tolist()
    for row, table in enumerate(rows.block_tables):
        slot, position = int(rows.slot_mapping[row]), int(rows.positions[row])
        assert table[-1] * BLOCK + position % BLOCK == slot
        assert len(table) == position // BLOCK + 1
    assert extra_reads(batch) == sum(rows.seq_lens) - sum(batch.seq_lens)
    if batch.is_decode:
        assert extra_reads(batch) == 0


def test_prompts_and_filled_up_steps_stay_as_they_are() -> None:
    prompt = pack([Span([1, 2, 3], 0, [0], 1)], BLOCK)
    assert not can_unroll(prompt) and not can_unroll(pad(step([(3, 1)]), 4))
    assert not can_unroll(pack([Span([1, 2], 0, [0], 2), Span([1, 2], 0, [1], 0)], BLOCK))


OPTIONS = [
    AttentionOptions(0.3),
    AttentionOptions(0.3, window=5),
    AttentionOptions(0.3, softcap=2.0, sinks=torch.tensor([0.1, 0.2, 0.3, 0.4])),
]


@pytest.mark.parametrize(
    ("kv", "options"), [("auto", OPTIONS[0]), ("int8", OPTIONS[1]), ("fp8", OPTIONS[2])]
)
@settings(max_examples=examples(25))
@given(lengths=requests, seed=st.integers(0, 99))
def test_rows_compute_what_the_requests_would(
    lengths: list[tuple[int, int]], seed: int, kv: str, options: AttentionOptions
) -> None:
    """Keys and values of the step itself among what its rows read; and what is stored is the
    same."""
    generator = torch.Generator().manual_seed(seed)
    new = lambda *shape: torch.randn(*shape, generator=generator)
    backends = [
        CPUAttention({0: LayerSpec(2, 8, 8)}, 40, BLOCK, torch.float32, kv_dtype=parse_kv_dtype(kv))
        for _ in range(2)
    ]
    past = [(0, start) for start, _ in lengths if start]
    tables = [i for i, (start, _) in enumerate(lengths) if start]
    if past:
        spans = [
            Span([0] * count, 0, list(range(8 * i, 8 * i + 8)), 0)
            for i, (_, count) in zip(tables, past, strict=True)
        ]
        history = pack(spans, BLOCK)
        k, v, q = (new(history.num_tokens, heads, 8) for heads in (2, 2, 4))
        for backend in backends:
            backend.begin_step(history)
            backend.forward(0, q, k, v, options)
    batch = step(lengths)
    k, v, q = (new(batch.num_tokens, heads, 8) for heads in (2, 2, 4))
    found = []
    for backend, own in zip(backends, (batch, unroll(batch)), strict=True):
        backend.begin_step(own)
        found.append(backend.forward(0, q, k, v, options))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)
    for pages in ("keys", "values"):
        mine, theirs = (vars(getattr(b.caches[0], pages)) for b in backends)
        for name, tensor in mine.items():
            if isinstance(tensor, Tensor):
                assert torch.equal(tensor, theirs[name])


# -- when it pays ---------------------------------------------------------------------------


def test_long_sequences_are_not_read_for_every_row() -> None:
    worth = Worth({4: 0.002, 8: 0.0}, token_s=1e-6)
    assert worth.pays(step([(18, 4)]), 4)
    assert not worth.pays(step([(18, 4)]), 8)  # nothing is saved at that size
    long = pack([Span([1, 2, 3], 1000, list(range(300)), 3)], BLOCK)
    assert extra_reads(long) == 1001 + 1002
    assert not worth.pays(long, 4) and Worth({4: 0.0021}, 1e-6).pays(long, 4)


@given(requests, st.integers(0, 60))
def test_what_is_replayed_is_known_before_the_step_is_made(
    lengths: list[tuple[int, int]], microseconds: int
) -> None:
    """From the tokens of each request and its drafts: a draft is read for the row before it."""
    graphs = DecodeGraphs(
        lambda batch: torch.empty(0), CPUAttention({}, 1, BLOCK, torch.float32), BLOCK,
        torch.device("cpu"),
    )  # fmt: skip
    recording = Recording()
    graphs._graphs = {size: recording(lambda: None) for size in (4, 8, 16)}
    graphs.worth = Worth({4: 1e-6 * microseconds, 8: 2e-5}, 1e-6)
    batch = step(lengths)
    extra = sum(start + 1 + j for start, count in lengths for j in range(count - 1))
    assert graphs.replays(batch.num_tokens, extra) == graphs.fits(batch)
    graphs.worth = None
    assert graphs.replays(batch.num_tokens, extra) == graphs.fits(batch)


class Slow(Recording):
    """Whatever reads sequences takes a millisecond more."""

    def __init__(self, backend: CPUAttention) -> None:
        super().__init__()
        self._backend = backend

    def seconds(self, run: object) -> float:
        batch = self._backend._batch
        assert batch is not None
        return super().seconds(run) + (0.001 if any(batch.seq_lens) else 0.0)  # type: ignore[arg-type]


def test_what_is_saved_and_what_is_read_are_measured() -> None:
    backend = CPUAttention({0: LayerSpec(1, 4, 4)}, 20, BLOCK, torch.float32)
    heads = torch.zeros(1, 4)

    def compute(batch: Batch) -> Tensor:
        own = heads.expand(batch.num_tokens, 1, 4).contiguous()
        backend.forward(0, own, own, own, AttentionOptions(1.0))
        return torch.zeros(batch.num_tokens, 5)

    graphs = DecodeGraphs(compute, backend, BLOCK, torch.device("cpu"))
    graphs.capture((1, 2, 8), Slow(backend), num_blocks=6)
    worth = graphs.worth
    assert worth is not None and worth.saved_s == pytest.approx({1: 0.002, 2: 0.002, 8: 0.002})
    assert worth.token_s == pytest.approx(0.001 / (8 * 6 * BLOCK))
    assert graphs.fits(step([(3, 4), (9, 2)])) and not graphs.fits(step([(3, 4), (9, 5)]))
    assert graphs.execute(step([(3, 4), (9, 2)])).shape == (6, 5)
    graphs.capture((1, 2, 8), Recording(launched_s=0.001, replayed_s=0.002), num_blocks=6)
    assert not graphs.fits(step([(3, 4)])) and graphs.fits(step([(3, 1)]))
    graphs.release()
    assert not graphs.fits(step([(3, 1)]))


def test_without_drafts_nothing_is_timed() -> None:
    backend = CPUAttention({0: LayerSpec(1, 4, 4)}, 20, BLOCK, torch.float32)
    graphs = DecodeGraphs(
        lambda batch: torch.zeros(batch.num_tokens, 5), backend, BLOCK, torch.device("cpu")
    )
    graphs.capture((1, 8), Recording())
    assert graphs.worth is None and not graphs.fits(step([(3, 4)]))
