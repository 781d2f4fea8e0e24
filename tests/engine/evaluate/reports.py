"""A report with every part, for tests of what is done with reports."""

from __future__ import annotations

from typing import Any

from engine.evaluate.report import (
    Alternative,
    AnswerPair,
    Answers,
    Difference,
    Divergence,
    EvaluationReport,
    Loss,
    ModelFacts,
    Similarity,
    Speed,
    Spread,
    TextFacts,
    WorstToken,
)


def make_facts(dtype: str, weights: int, **changes: Any) -> ModelFacts:
    values: dict[str, Any] = {
        "name": "small", "path": "/models/small", "architecture": "LlamaForCausalLM",
        "dtype": dtype, "num_parameters": 1000, "weights_bytes": weights,
        "kv_bytes_per_token": weights / 8, "config": {"dtype": dtype, "seed": 0},
        "notices": ("a notice",), "speed": Speed(1000.0, 50.5, 512, 32, 3),
    }  # fmt: skip
    return ModelFacts(**{**values, **changes})


def make_report(**changes: Any) -> EvaluationReport:
    worst = WorstToken(
        7, 42, " cat", "the | small\n", " sat", 0.5, -1.25, -2.0,
        (Alternative(42, " cat", -1.25),), (Alternative(3, " dog", -0.5),),
    )  # fmt: skip
    pairs = (
        AnswerPair(1, "Hi", "Hello there", "Hello you", 2, 2,
                   Difference(1, "Hello", " there", " you")),
        AnswerPair(4, "1+1", "2", "2", 1, 1),
    )  # fmt: skip
    values: dict[str, Any] = {
        "created": "2026-01-02T03:04:05+00:00",
        "duration_s": 12.5,
        "candidate": make_facts("bfloat16", 2000),
        "reference": make_facts("float32", 4000),
        "text": TextFacts("story.txt", "ab" * 32, 4001, 4000, 16000, 3, 2048, 2047),
        "candidate_loss": Loss(2.02, 7.5, 0.75),
        "reference_loss": Loss(2.0, 7.25, 0.74),
        "divergence": Divergence(
            Spread(0.01, 0.005, 0.02, 0.1, 0.5, 4000),
            0.97,
            Similarity(0.9991, 0.99, 0.95, 4000),
            0.03,
        ),
        "worst": (worst,),
        "answers": Answers("prompts.jsonl", pairs, 0.5, 0.75),
        "notices": ("few tokens",),
        "machine": {"cpu": "a processor", "gpus": []},
    }
    return EvaluationReport(**{**values, **changes})
