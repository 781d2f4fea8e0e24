"""Answers of two models side by side, and their speed."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from engine.evaluate import EvaluationTask, PromptLine, TextError, run
from engine.evaluate.answers import MOST_ROUNDS, ROUNDS
from tests.engine import tiny_models
from tests.engine.evaluate.tiny_evaluations import config_of


def test_answers_side_by_side(
    tiny_model: Any, tiny_folder: Path, other_model: Any, other_folder: Path
) -> None:
    prompts = [f"t{3 + i} t{10 + i} t{40 + 2 * i}" for i in range(6)]
    report = run(
        EvaluationTask(
            config_of(other_folder),
            reference=config_of(tiny_folder),
            prompts=tuple(PromptLine(2 * i + 1, p, 12) for i, p in enumerate(prompts)),
            prompts_name="prompts.jsonl",
        )
    )
    answers = report.answers
    assert answers is not None
    assert report.text is report.divergence is None
    assert [pair.line for pair in answers.pairs] == [1, 3, 5, 7, 9, 11]
    shares = []
    for prompt, pair in zip(prompts, answers.pairs, strict=True):
        ids = [int(word[1:]) for word in prompt.split()]
        expected, found = (
            until_end(tiny_models.reference(m, ids, 12).token_ids)
            for m in (tiny_model, other_model)
        )
        assert pair.prompt == prompt
        assert (pair.num_reference_tokens, pair.num_candidate_tokens) == (
            len(expected), len(found)
        )  # fmt: skip
        assert pair.is_identical == (expected == found)
        if pair.difference is None:
            shares.append(1.0)
            continue
        index = pair.difference.token_index
        assert expected[:index] == found[:index]
        assert expected[index : index + 1] != found[index : index + 1]
        assert pair.difference.text_before == " ".join(f"t{i}" for i in expected[:index])
        assert pair.difference.candidate.split()[:1] == [f"t{i}" for i in found[index:][:1]]
        shares.append(index / len(expected))
    assert answers.num_identical + len(shares) > 0 and min(shares) < 1.0
    assert answers.identical_share == answers.num_identical / 6
    assert answers.mean_equal_share == pytest.approx(sum(shares) / 6)


def until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(2) + 1] if 2 in ids else ids


def test_a_prompt_that_does_not_fit_is_named(tiny_folder: Path) -> None:
    config = config_of(tiny_folder)
    long = PromptLine(4, " ".join(["t5"] * 300))
    task = EvaluationTask(config, reference=config, prompts=(PromptLine(1, "t5"), long))
    with pytest.raises(TextError, match=r"line 4.*300 tokens"):
        run(task)


def test_a_window_full_of_prompt_leaves_room_for_the_answer(tiny_folder: Path) -> None:
    config = config_of(tiny_folder)
    prompt = PromptLine(1, " ".join(["t5"] * 64), 30)
    report = run(EvaluationTask(config, reference=config, prompts=(prompt,), context_length=64))
    assert report.answers is not None
    assert report.answers.pairs[0].num_candidate_tokens > 0


@pytest.mark.slow
def test_speed_and_sizes(tiny_folder: Path) -> None:
    reference = config_of(tiny_folder)
    task = EvaluationTask(
        reference.replace(dtype="float16"), reference=reference, measure_speed=True,
        context_length=64,
    )  # fmt: skip
    report = run(task)
    assert report.reference is not None
    assert report.weights_ratio == pytest.approx(0.5, abs=0.02)
    assert report.candidate.kv_bytes_per_token == report.reference.kv_bytes_per_token / 2 == 256
    for facts in (report.candidate, report.reference):
        assert facts.speed is not None
        assert min(facts.speed.prefill, facts.speed.decode) > 0
        assert facts.speed.prefill_tokens + facts.speed.decode_tokens < 64
        for value, samples in (
            (facts.speed.prefill, facts.speed.prefill_samples),
            (facts.speed.decode, facts.speed.decode_samples),
        ):
            assert len(samples) == facts.speed.rounds and ROUNDS <= len(samples) <= MOST_ROUNDS
            assert value == statistics.median(samples)
