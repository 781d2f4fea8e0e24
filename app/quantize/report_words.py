"""What is said of a report around its figures. No Qt."""

from __future__ import annotations

from datetime import datetime

from app.models.sources import is_starter, model_title
from app.quality.metrics import Form, text_of
from app.quality.texts import BUILTIN_TEXTS
from app.quantize.time_words import elapsed
from engine.evaluation.report import EvaluationReport, ModelFacts


def when(report: EvaluationReport) -> str:
    """ "21 Nov 2026, 13:04" in the user's time."""
    try:
        return datetime.fromisoformat(report.created).astimezone().strftime("%d %b %Y, %H:%M")
    except ValueError:
        return report.created


def subtitle(report: EvaluationReport) -> str:
    """Against what, on what, when."""
    parts = []
    if report.reference is not None:
        parts.append(f"against {side(report.reference)}")
    if report.text is not None:
        cut = " (a part)" if report.text.is_cut else ""
        parts.append(f"{text_title(report.text.name)}: {report.text.num_scored:,} tokens{cut}")
    parts += [when(report), f"took {elapsed(report.duration_s)}"]
    return " · ".join(parts)


def side(facts: ModelFacts) -> str:
    """ "Qwen3-0.6B, bfloat16, KV int8": how the weights are held, else the dtype."""
    parts = [facts_name(facts), facts.quantization or facts.dtype]
    kv = facts.config.get("kv_cache_dtype")
    if kv not in (None, "", "auto"):
        parts.append(f"KV {kv}")
    return ", ".join(parts)


def facts_name(facts: ModelFacts) -> str:
    """The starter model's folder tells nobody what it is."""
    return model_title(facts.path) if is_starter(facts.path) else facts.name


def text_title(name: str) -> str:
    """A text of the program by its title, others by their file's name."""
    return next((text.title for text in BUILTIN_TEXTS if text.key == name), name or "text")


def list_line(report: EvaluationReport) -> str:
    """One line for a list."""
    parts = [when(report)]
    if report.divergence is not None:
        parts.append(f"KL {text_of(Form.SMALL, report.divergence.kl.mean)}")
    elif report.candidate_loss is not None:
        parts.append(f"perplexity {report.candidate_loss.perplexity:.3f}")
    return " · ".join(parts)
