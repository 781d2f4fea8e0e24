"""Settings change while requests run: none is lost, and a failure leads back."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import Change
from engine.errors import ConfigError, OutOfMemoryError
from tests.engine import tiny_models
from tests.engine.test_llm_engine import GREEDY, MakeEngine, drain
from tests.engine.tiny_models import reference
from tests.tiers import first_fast


@pytest.mark.parametrize(
    ("changes", "change"),
    first_fast(2, [
        ({"max_num_seqs": 2, "max_num_batched_tokens": 8}, Change.LIVE),
        ({"block_size": 5}, Change.CACHE_REBUILD),
        ({"kv_cache_memory_bytes": 2**18}, Change.CACHE_REBUILD),
        ({"num_threads": 2}, Change.RELOAD),
        ({"max_num_seqs": 16}, None),
    ]),
)
def test_requests_in_flight_survive_a_change(
    make_engine: MakeEngine, tiny_model: Any, changes: dict[str, Any], change: Change | None
) -> None:
    engine = make_engine()
    prompts = tiny_models.make_prompts((20, 7, 31))
    ids = [engine.add_request(prompt, GREEDY) for prompt in prompts]
    events = [event for _ in range(4) for event in engine.step()]
    assert engine.reconfigure(**changes) is change
    while engine.has_unfinished:
        events += engine.step()
        engine.check_integrity()
    for request_id, prompt in zip(ids, prompts, strict=True):
        tokens = [t for e in events if e.request_id == request_id for t in e.token_ids]
        assert tokens == reference(tiny_model, prompt, 12).token_ids


def test_a_request_survives_a_reload_at_another_precision(make_engine: MakeEngine) -> None:
    engine = make_engine()
    request_id = engine.add_request(tiny_models.make_prompts((20,))[0], GREEDY)
    engine.step()
    assert engine.reconfigure(dtype="bfloat16") is Change.RELOAD
    assert engine.model_info.dtype == "bfloat16"
    assert sum(len(e.token_ids) for e in drain(engine)[request_id]) == 11


def test_a_change_that_fails_leaves_everything_as_it_was(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    before, prompt = engine.config, tiny_models.make_prompts((20,))[0]
    wanted = engine.generate([prompt], GREEDY)[0].token_ids
    request_id = engine.add_request(prompt, GREEDY)
    events = engine.step()
    with pytest.raises(OutOfMemoryError, match="GiB"):
        engine.reconfigure(kv_cache_memory_bytes=2**50)
    with pytest.raises(ConfigError, match=r"\b21 tokens"):
        engine.reconfigure(kv_cache_memory_bytes=engine.plan.bytes_per_block)
    with pytest.raises(ConfigError, match="Unknown setting: speed"):
        engine.reconfigure(speed="fast")

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OutOfMemoryError("No memory.", "Buy some.")

    with monkeypatch.context() as patch:
        patch.setattr(
            "engine.host.model_host.build_caches", _failing_once("engine.host.model_host", patch)
        )
        with pytest.raises(OutOfMemoryError):
            engine.reconfigure(block_size=4)
    assert engine.config == before
    while engine.has_unfinished:
        events += engine.step()
        engine.check_integrity()
    assert [t for e in events if e.request_id == request_id for t in e.token_ids] == wanted


def _failing_once(module: str, patch: pytest.MonkeyPatch) -> Any:
    import importlib

    real, calls = importlib.import_module(module).build_caches, []

    def build_caches(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise OutOfMemoryError("No memory.", "Buy some.")
        return real(*args)

    return build_caches
