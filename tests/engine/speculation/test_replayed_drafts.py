"""Speculation over captured steps, with a stand-in for the device's graphs: the same tokens, and
what is replayed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import EngineConfig, LLMEngine
from engine.batch.batch import Batch
from engine.errors import OutOfMemoryError
from engine.host import kv_cache as cache_building
from engine.runner.cuda_graphs import DRAFT_ROWS, DecodeGraphs, sizes_for
from tests.engine.recorded_graphs import Recording
from tests.engine.speculation.runs import draft_settings, eagle, results
from tests.figures import numbers
from tests.tiers import first_fast, tiered

MakeEngine = Callable[..., LLMEngine]


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[DecodeGraphs, Batch]]:
    """Every batch that was replayed, and of what."""
    batches: list[tuple[DecodeGraphs, Batch]] = []
    plain = DecodeGraphs.execute

    def noted(graphs: DecodeGraphs, batch: Batch, drawn: Any = None, **rest: Any) -> Any:
        batches.append((graphs, batch))
        return plain(graphs, batch, drawn, **rest)

    monkeypatch.setattr(DecodeGraphs, "execute", noted)
    return batches


@pytest.mark.parametrize("k", tiered([1, 4], [4]))
@pytest.mark.parametrize("kv", first_fast(1, ["int8", "auto"]))
def test_replayed_drafts_and_verifications_change_no_token(
    k: int, kv: str, make_engine: MakeEngine, draft_folder: Path, plain: list[Any],
    recording: Recording, replayed: list[tuple[DecodeGraphs, Batch]],
) -> None:  # fmt: skip
    settings = draft_settings(draft_folder, num_speculative_tokens=k, kv_cache_dtype=kv)
    if kv != "auto":
        plain = results(make_engine(kv_cache_dtype=kv, enforce_eager=True))
    engine = make_engine(**settings)
    assert results(engine) == plain
    figures = engine.snapshot().speculation
    assert figures is not None and 0 < figures.accepted < figures.drafted
    widths: dict[bool, list[int]] = {True: [], False: []}
    for graphs, batch in replayed:
        longest = max(batch.query_len(i) for i in range(batch.num_requests))
        widths[graphs is engine.runner.graphs].append(longest)
    assert max(widths[True]) == 1 + k  # drafts are verified
    assert max(widths[False]) <= DRAFT_ROWS  # and drafted
    assert len(widths[False]) > (k - 0.5) * figures.draft_steps  # but for what begins with a prompt


def test_ngrams_are_verified_in_rows(
    make_engine: MakeEngine,
    plain: list[Any],
    recording: Recording,
    replayed: list[tuple[DecodeGraphs, Batch]],
) -> None:
    engine = make_engine(
        speculative_method="ngram", prompt_lookup_min=1, speculative_adaptive=False
    )
    assert results(engine) == plain
    assert any(batch.num_tokens > batch.num_requests for _, batch in replayed)
    assert engine._loop.speculator._costs._replayed.slope is not None
    assert engine._loop.speculator._costs._launched.count == 0


def test_where_launching_is_as_fast_nothing_is_verified_in_rows(
    make_engine: MakeEngine,
    plain: list[Any],
    recording: Recording,
    replayed: list[tuple[DecodeGraphs, Batch]],
) -> None:
    recording.launched_s = recording.replayed_s
    engine = make_engine(
        speculative_method="ngram", prompt_lookup_min=1, speculative_adaptive=False
    )
    assert results(engine) == plain
    assert replayed and all(batch.is_decode for _, batch in replayed)
    costs = engine._loop.speculator._costs  # of those that are launched, and of those that are not
    assert costs._launched.count > 1 and costs._replayed.count > 1


def test_what_is_captured_follows_the_settings(
    make_engine: MakeEngine, draft_folder: Path, recording: Recording
) -> None:
    """Rows for requests and their drafts; of the draft model, two tokens a request."""
    engine = make_engine(max_num_seqs=3)
    assert engine.runner.graphs is not None and engine.runner.graphs.sizes == (1, 2, 3)
    assert "draft" not in engine.model_info.kernels
    engine.reconfigure(**draft_settings(draft_folder, num_speculative_tokens=2))
    assert recording.log.count("reset") == 3
    assert engine.runner.graphs.sizes == (1, 2, 4, 8, 9)
    kernels = engine.model_info.kernels
    assert numbers(kernels["decode"]) == [5, 9, 3]
    assert numbers(kernels["draft"]) == [4, 6, 3]
    engine.reconfigure(num_speculative_tokens=1)  # there is room for it
    assert recording.log.count("reset") == 3
    engine.reconfigure(num_speculative_tokens=4)
    assert recording.log.count("reset") == 3 + 5 + 4
    assert engine.runner.graphs.sizes == sizes_for(15)
    engine.reconfigure(speculative_method="off")
    assert engine.runner.graphs.sizes == (1, 2, 3)
    assert "draft" not in engine.model_info.kernels
    engine.reconfigure(**draft_settings(draft_folder), enforce_eager=True)
    assert engine.runner.graphs is None and not {"decode", "draft"} & set(engine.model_info.kernels)
    before = recording.log.count("reset")
    engine.reconfigure(enforce_eager=False)
    engine.shutdown()
    assert recording.log.count("reset") > before


def test_a_draft_that_cannot_be_captured_is_said_of_the_draft(
    make_engine: MakeEngine, draft_folder: Path, plain: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    captures: list[Recording] = []

    def refuse(index: int) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    def capture_for(device: Any) -> Recording:
        captures.append(Recording(refuse if len(captures) == 1 else lambda index: None))
        return captures[-1]

    monkeypatch.setattr("engine.runner.cuda_graphs.capture_for", capture_for)
    monkeypatch.setattr("engine.host.kv_cache.capture_for", lambda device: True)
    engine = make_engine(**draft_settings(draft_folder))
    assert "decode" in engine.model_info.kernels and "draft" not in engine.model_info.kernels
    (notice,) = engine.model_info.notices
    assert "not permitted" in notice and "draft" in notice
    assert results(engine) == plain


@pytest.mark.parametrize("launched_s", [0.003, 0.0])
def test_a_head_gets_the_hidden_states_of_replayed_steps(
    launched_s: float, make_engine: MakeEngine, head_folder: Path, plain: list[Any],
    recording: Recording, replayed: list[tuple[DecodeGraphs, Batch]],
) -> None:  # fmt: skip
    """The same drafts as from steps that are launched; where verification is not replayed, the
    steps without drafts are."""
    recording.launched_s = launched_s
    settings = eagle(head_folder, num_speculative_tokens=3)
    found = []
    for eager in (True, False):
        engine = make_engine(**settings, enforce_eager=eager)
        assert results(engine) == plain
        figures = engine.snapshot().speculation
        assert figures is not None and 0 < figures.accepted < figures.drafted
        found.append((figures.drafted_per_position, figures.accepted_per_position))
    assert found[0] == found[1]
    assert "draft" not in engine.model_info.kernels
    assert replayed and any(not batch.is_decode for _, batch in replayed) == bool(launched_s)


def test_what_failed_is_gone_before_the_old_is_made_again(
    make_engine: MakeEngine, draft_folder: Path, plain: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A draft whose cache finds no memory: that of the model, which was made before it, and the
    draft's weights must not be in the way of the caches of before."""
    engine = make_engine()
    caches: list[weakref.ref[Any]] = []
    alive: list[int] = []
    make = cache_building.make_backend

    def noted(*args: Any, **more: Any) -> Any:
        alive.append(sum(cache() is not None for cache in caches))
        made = make(*args, **more)
        caches.append(weakref.ref(made))
        return made

    propose = cache_building.make_proposer

    def fails(config: EngineConfig, *rest: Any) -> Any:
        if config.speculative_method == "off":
            return propose(config, *rest)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with monkeypatch.context() as patch:
        patch.setattr(cache_building, "make_backend", noted)
        patch.setattr(cache_building, "make_proposer", fails)
        with pytest.raises(OutOfMemoryError, match=r"KV cache of .* GiB"):
            engine.reconfigure(**draft_settings(draft_folder))
    assert alive == [0, 0]
    assert engine.config.speculative_method == "off"
    assert results(engine) == plain
