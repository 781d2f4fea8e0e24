"""What cannot be measured, and what fails on the way, is said with cause and remedy."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, InferdeckError, OutOfMemoryError
from engine.evaluate import EvaluationTask, PromptLine, TextError, run
from engine.evaluate.head import Head
from tests.engine import tiny_models
from tests.engine.evaluate.tiny_evaluations import config_of


def test_tokenizers_that_differ_are_refused_with_numbers(
    tiny_folder: Path, tiny_model: Any, text: str, tmp_path: Path
) -> None:
    for vocab_size, words in ((150, "199 tokens .*150"), (199, "1 of 199 tokens")):
        folder = tmp_path / str(vocab_size)
        tiny_model.save_pretrained(folder)
        tiny_models.save_tokenizer(folder, vocab_size)
        if vocab_size == 199:
            file = folder / "tokenizer.json"
            file.write_text(file.read_text().replace('"t77"', '"cat"'))
        with pytest.raises(ConfigError, match=words):
            run(EvaluationTask(config_of(folder), reference=config_of(tiny_folder), text=text))


def test_texts_that_are_cut_differently_are_refused(
    tiny_folder: Path, tiny_model: Any, text: str, tmp_path: Path
) -> None:
    """Equal vocabularies are not equal tokenizers."""
    tiny_model.save_pretrained(tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": " t7 "}
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match=r"150 tokens .*299 .*first 1 "):
        run(EvaluationTask(config_of(tmp_path), reference=config_of(tiny_folder), text=text))


def test_padded_vocabularies_are_refused(tiny_folder: Path, text: str, tmp_path: Path) -> None:
    folder = tiny_models.save(tiny_models.make_model("llama", vocab_size=208), tmp_path)
    with pytest.raises(ConfigError, match=r"199 .*208 "):
        run(EvaluationTask(config_of(folder), reference=config_of(tiny_folder), text=text))


@pytest.mark.parametrize(
    ("changes", "error", "cause"),
    [
        ({"text": "t5 t6"}, TextError, "1 tokens"),
        ({"context_length": 257}, ConfigError, "2 to 256"),
        ({"context_length": 32, "stride": 32}, ConfigError, "stride: 32"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_loading(
    changes: dict[str, Any], error: type[InferdeckError], cause: str, tiny_folder: Path, text: str
) -> None:
    stages: list[str] = []
    with pytest.raises(error, match=cause):
        run(
            EvaluationTask(config_of(tiny_folder), **{"text": text, **changes}),
            lambda stage, done, total: stages.append(stage),
        )
    assert stages == []


def test_a_cache_too_small_for_a_window_is_refused(tiny_folder: Path, text: str) -> None:
    config = config_of(tiny_folder, kv_cache_memory_bytes=32 * 512)
    with pytest.raises(ConfigError, match=r"128 tokens.* 32"):
        run(EvaluationTask(config, text=text, context_length=128))
    assert run(EvaluationTask(config, text=text, context_length=32)).text is not None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "evaluate"),
        ({"prompts": (PromptLine(1, "a"),)}, "reference"),
        ({"text": "a", "max_tokens": 0}, "max_tokens: 0"),
        ({"text": "a", "num_worst": -1}, "num_worst: -1"),
        ({"text": "abc", "scored": ((0, 2), (1, 3))}, "The 2 "),
        ({"text": "abc", "scored": ((1, 4),)}, "3 characters"),
    ],
)
def test_a_task_without_sense_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EvaluationTask(EngineConfig(), **values)


def test_running_out_of_memory_is_told(
    tiny_folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = EvaluationTask(config_of(tiny_folder), text=text)
    original = Head.logits
    for error in (
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ):

        def fail(head: Head, states: torch.Tensor, error: Exception = error) -> torch.Tensor:
            if len(states) > 1:
                raise error
            return original(head, states)

        with monkeypatch.context() as patch:
            patch.setattr(Head, "logits", fail)
            with pytest.raises(OutOfMemoryError, match="Out of memory") as told:
                run(task)
        assert "context length" in told.value.remedy
    assert run(task).candidate_loss is not None  # and the next one finds all in order


def test_a_full_disk_is_told(tiny_folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Full())
    config = config_of(tiny_folder)
    with pytest.raises(InferdeckError, match="No space left") as told:
        run(EvaluationTask(config, reference=config, text=text))
    assert "TMPDIR" in told.value.remedy


def test_damaged_weights_are_told(tiny_model: Any, text: str, tmp_path: Path) -> None:
    import copy

    model = copy.deepcopy(tiny_model)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    folder = tiny_models.save(model, tmp_path)
    with pytest.raises(InferdeckError, match="NaN"):
        run(EvaluationTask(config_of(folder), text=text))
