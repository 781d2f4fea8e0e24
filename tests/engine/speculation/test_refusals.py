"""Draft models and settings that are refused, with the numbers, and replies that go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import EngineConfig, LLMEngine
from engine.errors import ConfigError, DraftModelError, OutOfMemoryError
from tests.engine import tiny_models
from tests.engine.speculation.runs import GREEDY, LENGTH, PROMPTS, draft_settings, results
from tests.figures import numbers

MakeEngine = Callable[..., LLMEngine]


def refused(engine: LLMEngine, **changes: Any) -> ConfigError:
    before = engine.config
    request_id = engine.add_request(PROMPTS[0], GREEDY)
    engine.step()
    with pytest.raises((ConfigError, OutOfMemoryError)) as caught:
        engine.reconfigure(**changes)
    assert engine.config == before
    tokens = [e.token_ids for e in _rest(engine) if e.request_id == request_id]
    assert sum(map(len, tokens)) == LENGTH - 1  # the conversation goes on
    return caught.value


def _rest(engine: LLMEngine) -> list[Any]:
    events = []
    while engine.has_unfinished:
        events += engine.step()
    return events


def test_a_draft_of_another_vocabulary_is_refused(make_engine: MakeEngine, tmp_path: Path) -> None:
    other = tiny_models.make_model("llama", vocab_size=150)
    other.save_pretrained(tmp_path)
    tiny_models.save_tokenizer(tmp_path, 150)
    error = refused(make_engine(), **draft_settings(tmp_path))
    assert isinstance(error, DraftModelError)
    assert {150, 199} <= set(numbers(error.cause))


def test_padding_of_the_vocabulary_may_differ(
    make_engine: MakeEngine, tmp_path: Path, plain: list[Any]
) -> None:
    padded = tiny_models.save(tiny_models.make_model("llama", vocab_size=256), tmp_path)
    with pytest.raises(DraftModelError, match="parameters"):  # padding made it the larger one
        make_engine(**draft_settings(padded))
    smaller = tiny_models.make_model("llama", vocab_size=256, num_hidden_layers=1)
    engine = make_engine(**draft_settings(tiny_models.save(smaller, tmp_path)))
    assert results(engine) == plain


def test_a_draft_larger_than_its_model_is_refused(make_engine: MakeEngine, tmp_path: Path) -> None:
    large = tiny_models.save(tiny_models.make_model("llama", num_hidden_layers=3), tmp_path)
    engine = make_engine()
    error = refused(engine, **draft_settings(large))
    cause = error.cause.replace(large.name, "").replace(Path(engine.config.model).name, "")
    draft, target = numbers(cause)  # folders' names may have digits
    assert draft > target and "smaller" in error.remedy


def test_a_missing_draft_is_refused(make_engine: MakeEngine, tmp_path: Path) -> None:
    with pytest.raises(DraftModelError, match="needs a draft model"):
        make_engine(speculative_method="draft_model")
    engine = make_engine()
    with pytest.raises(Exception, match=str(tmp_path / "nothing")):
        engine.reconfigure(**draft_settings(tmp_path / "nothing"))


def test_a_draft_that_does_not_fit_is_refused(make_engine: MakeEngine, draft_folder: Path) -> None:
    engine = make_engine(kv_cache_memory_bytes=2**14, block_size=16)
    error = refused(engine, **draft_settings(draft_folder, kv_cache_memory_bytes=2**10))
    assert "smaller than one block" in error.cause


@pytest.mark.parametrize("k", [-1, 17])
def test_impossible_numbers_of_drafts(k: int) -> None:
    with pytest.raises(ConfigError, match="num_speculative_tokens"):
        EngineConfig(num_speculative_tokens=k)
    assert EngineConfig(num_speculative_tokens=0).num_speculative_tokens == 0
