"""Measures what a precision costs: a model against a reference, on a text and on prompts.

    from engine.config import EngineConfig
    from engine.evaluation import EvaluationTask, plain, run, to_json

    candidate = EngineConfig(model="path", dtype="bfloat16")
    task = EvaluationTask(candidate, reference=plain(candidate, dtype="float32"), text=text)
    report = run(task, progress=lambda stage, done, total: ..., cancelled=lambda: False)
    report.candidate_loss.perplexity, report.divergence.kl.p99, report.worst[0].token
    to_json(report)                          and `from_json` back; equal to the report

`run` loads both models itself, one after the other, in whatever thread it is called; all else here
is plain data that imports no torch. A smaller max_num_batched_tokens makes it heed `cancelled`
sooner, and costs speed. See `report` for what is measured, `windows` for how a text is
cut, `stages` for progress and stopping, `texts` for reading files.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from engine.evaluation.report import EvaluationReport
from engine.evaluation.serial import ReportError, from_json, to_json
from engine.evaluation.stages import EvaluationCancelled, unit_of
from engine.evaluation.task import EvaluationTask, plain
from engine.evaluation.texts import PROMPT_LINES, PromptLine, TextError, read_prompts, read_text

if TYPE_CHECKING:
    from engine.evaluation.evaluate import run

__all__ = [
    "PROMPT_LINES", "EvaluationCancelled", "EvaluationReport", "EvaluationTask", "PromptLine",
    "ReportError", "TextError", "from_json", "plain", "read_prompts", "read_text", "run", "to_json",
    "unit_of",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("engine.evaluation.evaluate").run
