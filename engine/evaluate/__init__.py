"""Measures the quality of a precision: a model against a reference, on a text and on prompts.

    from engine.config import EngineConfig
    from engine.evaluate import EvaluationTask, plain, run, to_json

    candidate = EngineConfig(model="path", dtype="bfloat16")
    task = EvaluationTask(candidate, reference=plain(candidate, dtype="float32"), text=text)
    report = run(task, progress=lambda stage, done, total: ..., cancelled=lambda: False)
    report.candidate_loss.perplexity, report.divergence.kl.p99, report.worst[0].token
    to_json(report)                          and `from_json` back; equal to the report

`run` loads both models, one after the other; all else here is plain data without torch. A smaller
max_num_batched_tokens reacts to `cancelled` sooner, and is slower.

task, windows, report      what is measured, how the text is cut, and the result
side, head, reading        one model, its output head, and its pass over the text
scoring, answers, evaluate     figures, generated replies, and the run
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from engine.evaluate.report import EvaluationReport, ReportError, from_json, to_json
from engine.evaluate.task import (
    PROMPT_LINES,
    RAW_PROMPTS,
    EvaluationCancelled,
    EvaluationTask,
    PromptLine,
    TextError,
    plain,
    read_prompts,
    read_text,
    unit_of,
)

if TYPE_CHECKING:
    from engine.evaluate.evaluate import run

__all__ = [
    "PROMPT_LINES", "RAW_PROMPTS", "EvaluationCancelled", "EvaluationReport", "EvaluationTask",
    "PromptLine", "ReportError", "TextError", "from_json", "plain", "read_prompts", "read_text",
    "run", "to_json", "unit_of",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("engine.evaluate.evaluate").run
