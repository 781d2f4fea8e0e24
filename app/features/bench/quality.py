"""The quality that a rung of a ladder loses, over a built-in text. No Qt."""

from __future__ import annotations

from collections.abc import Callable

from app.bench.rungs import Quality
from app.features.quantize.texts import ENGLISH, STARTER, builtin_text
from app.storage.model_sources import is_starter
from engine.config import EngineConfig
from engine.evaluate import EvaluationTask

MAX_TOKENS = 2_000
"""Of the text: enough for the perplexity of a small loss, and short on large models."""


def measure_quality(
    candidate: EngineConfig,
    reference: EngineConfig,
    cancelled: Callable[[], bool] = lambda: False,
) -> Quality | None:
    """Loads both models, one after the other. Raises what `engine.evaluate.run` raises."""
    from engine.evaluate import run

    builtin = builtin_text(STARTER if is_starter(candidate.model) else ENGLISH)
    text = builtin.read()
    task = EvaluationTask(
        candidate, reference=reference, text=text, text_name=builtin.key,
        scored=builtin.scored(text), max_tokens=MAX_TOKENS, num_worst=0,
    )  # fmt: skip
    report = run(task, cancelled=cancelled)
    change, found = report.perplexity_change, report.divergence
    if change is None or found is None or report.text is None:
        return None
    return Quality(change, found.kl.mean, found.top1_agreement, report.text.num_scored)
