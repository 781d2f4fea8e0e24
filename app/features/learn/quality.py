"""The evaluation of a lesson: the open model against its precision before, in a sentence. No Qt.

It is a run like those of the Runs page: same code, same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.features.quantize.evaluation import (
    CANDIDATE_SETTINGS,
    REFERENCE_SETTINGS,
    EvaluationPlan,
    ModelChoice,
)
from app.features.quantize.texts import ENGLISH, STARTER, TextChoice
from app.features.quantize.work import Outcome
from app.features.runs.verdicts import TARGET
from app.storage.model_sources import is_starter
from engine.config import SETTINGS, EngineConfig
from engine.units import change_text, counted, percent_text

MAX_TOKENS = 2_000
"""Of the text: enough for the top-1 agreement to about 0.5 %, and short on large models."""


def plan_of(config: EngineConfig, before: Mapping[str, Any]) -> EvaluationPlan:
    """The model of `config` against itself with the choices from before the lesson."""
    chosen = {
        name: getattr(config, name)
        for name in CANDIDATE_SETTINGS
        if getattr(config, name) != SETTINGS[name].default
    }
    text = TextChoice(STARTER if is_starter(config.model) else ENGLISH)
    candidate = ModelChoice(config.model, chosen)
    reference = ModelChoice("", {n: v for n, v in before.items() if n in REFERENCE_SETTINGS})
    return EvaluationPlan(candidate, reference, text, max_tokens=MAX_TOKENS, measure_speed=False)


def quality_text(outcome: Outcome) -> str:
    """ "Cost: top-1 agreement 91.4 % (target 99 %), perplexity +3.1 %, over 1,204 tokens." """
    if outcome.error is not None:
        error = outcome.error
        return f"Quality not measured: {error.cause} {error.remedy}".rstrip()
    report = outcome.result
    if report is None:
        return "Quality not measured: the evaluation was cancelled."
    if report.divergence is None or report.text is None:
        return "Quality not measured: both precisions are identical."
    share = 100 * report.divergence.top1_agreement
    return (
        f"Cost: top-1 agreement {share:.1f} % (target {percent_text(TARGET)}), perplexity "
        f"{change_text(report.perplexity_change)}, over {counted(report.text.num_scored, 'token')}."
    )
