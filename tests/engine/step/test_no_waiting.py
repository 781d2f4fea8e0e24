"""A step is launched without looking at anything that the device computes.

On the meta device there is nothing to look at: whoever tries fails. That no operation
takes tensors of two devices is checked too, for on a GPU that would be a copy that the host waits
for. (Indexing with a list of Python's is one that cannot be seen here.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.attention.interface import NAME, AttentionOptions, register
from engine.batch.batch import Batch, Span, pack
from engine.batch.transfer import Download
from engine.runner.cuda_graphs import DecodeGraphs
from engine.runner.model_runner import ModelRunner
from engine.sampling.sampler import UNREAD, Sampler, SamplingRow
from engine.sampling_params import SamplingParams
from engine.speculation.proposer import Proposal
from engine.speculation.verify import Verification
from tests.engine import tiny_models
from tests.engine.recorded_graphs import Recording
from tests.engine.step.test_async_step import any_params
from tests.tiers import first_fast

META = torch.device("meta")
_COPIES = {"aten::copy_", "aten::_to_copy", "aten::to"}
_READS = {"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::masked_select"}


class NothingIsRead(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, kwargs = func._schema.name, kwargs or {}
        assert name not in _READS, name
        named = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | kwargs
        leaves = tree_leaves([args, kwargs])
        devices = {leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)}
        if named.get("device") is not None:
            devices.add(torch.device(named["device"]).type)
        if len(devices) > 1:
            assert name in _COPIES and named.get("non_blocking"), f"{name} between {devices}"
        with self:  # what it is made of, which inference mode hides
            parts = func.decompose(*args, **kwargs)
        return func(*args, **kwargs) if parts is NotImplemented else parts


def rows_of(params: Sequence[SamplingParams], last: tuple[int, ...] = ()) -> list[SamplingRow]:
    return [
        SamplingRow(f"r{i}", p, i, 9, [1, 2, 3], [4, 5, 4, *last], frozenset({2}))
        for i, p in enumerate(params)
    ]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(any_params, min_size=1, max_size=6), st.booleans())
def test_the_sampler_looks_at_nothing(params: list[SamplingParams], ahead: bool) -> None:
    sampler = Sampler(700, META)
    logits = torch.empty(len(params), 700, device=META, dtype=torch.bfloat16)
    unread = torch.empty(len(params), dtype=torch.int64, device=META) if ahead else None
    rows = rows_of(params, (UNREAD,) if ahead else ())
    with NothingIsRead():
        drawn = sampler.launch(logits, rows, unread)
    assert drawn.token_ids.shape == (len(params),) and drawn.token_ids.device == META


def test_the_check_finds_who_looks() -> None:
    x = torch.empty(3, 4, device=META)
    for read in (
        lambda: x.amax(1).tolist(),
        lambda: bool((x > 0).any()),
        lambda: x + torch.ones(4),
        lambda: x[x > 0],
        lambda: torch.ones(3).to(META),
    ):
        with pytest.raises((AssertionError, RuntimeError, NotImplementedError)), NothingIsRead():
            read()


def test_drafts_that_are_matched_are_launched_without_looking() -> None:
    params = [SamplingParams(temperature=0.0), SamplingParams(seed=1, top_p=0.9, logprobs=2)]
    rows = [[row] * 3 for row in rows_of(params)]
    logits = torch.empty(6, 300, device=META)
    with NothingIsRead():
        Verification(Sampler(300, META), logits, rows, [Proposal((5, 6))] * 2)


class Reads(Download):
    """Gives ones for what is on the meta device, and counts who waits for them."""

    count = 0

    def read(self) -> list[list[Any]]:
        Reads.count += 1
        return [torch.ones(tensor.shape, dtype=tensor.dtype).tolist() for tensor in self._host]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(any_params, st.integers(0, 4)), min_size=1, max_size=8))
def test_a_step_with_drafts_of_both_kinds_waits_once(
    requests: list[tuple[SamplingParams, int]],
) -> None:
    """Drafts for each request, drawn at random where they would be; in several chunks."""
    sampler = Sampler(300, META)
    sampler.chunk_rows = 6
    q = torch.empty(256, device=META)
    rows, proposals = [], []
    for row, (_, count) in zip(rows_of([p for p, _ in requests]), requests, strict=True):
        rows.append([row] * (count + 1))
        drawn_from = (q,) * count if row.is_rejection_sampled else ()
        proposals.append(Proposal((1,) * count, drawn_from))
    num_rows = sum(map(len, rows))
    logits = torch.empty(num_rows, 300, device=META, dtype=torch.bfloat16)
    with pytest.MonkeyPatch.context() as patch, NothingIsRead():
        patch.setattr("engine.sampling.sampler.Download", Reads)
        patch.setattr(Reads, "count", 0)
        verification = Verification(sampler, logits, rows, proposals)
        assert Reads.count == 0
        found = verification.read()
        assert Reads.count == 1
    assert verification.drawn is not None and verification.drawn.token_ids.shape == (num_rows,)
    assert [len(f.token_ids) for f in found] == [len(own) for own in rows]


class Attends:
    """An attention backend without a cache."""

    nbytes = 0

    def begin_step(self, batch: Batch) -> None:
        assert batch.input_ids.device == META

    def forward(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        return q.new_zeros(q.shape[0], q.shape[1], v.shape[2])

    def clear_blocks(self, blocks: list[int]) -> None: ...


@pytest.mark.parametrize("family", first_fast(2, ["llama", "gpt2", "qwen3_moe", "gpt_oss"]))
def test_a_step_is_launched_without_looking(family: str) -> None:
    """A prompt and a decoding request; then decoding alone, captured, with tokens that only the
    device knows."""
    register()
    name, own = tiny_models.FAMILIES[family]
    config = getattr(transformers, name)(**{**tiny_models._SMALL, **own})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=NAME)
    runner = ModelRunner(model.eval().bfloat16(), Attends(), META)
    sampler = Sampler(tiny_models.VOCAB_SIZE, META)
    params = [SamplingParams(temperature=0.0), SamplingParams(top_p=0.9, repetition_penalty=1.2)]
    mixed = pack([Span([1, 2, 3], 0, [0], 1), Span([4], 7, [1], 1)], 8)
    decode = pack([Span([0], 3, [0], 1), Span([0], 8, [1, 2], 1)], 8)
    with NothingIsRead():
        drawn = sampler.launch(runner.execute(mixed), rows_of(params)).token_ids
        logits = runner.execute(decode, drawn)
        sampler.launch(logits, rows_of(params, (UNREAD,)), drawn)
        runner.graphs = DecodeGraphs(runner._compute, runner.backend, 8, META)
        runner.graphs.capture([1, 3], Recording())
        logits = runner.execute(decode, drawn)
    assert not runner.graphs.problem and runner.graphs.sizes == (1, 3)
    assert logits.shape == (2, tiny_models.VOCAB_SIZE) and logits.device == META
