"""A report as the text that the command line prints."""

from __future__ import annotations

import math
from collections.abc import Sequence

from app.quality.compare import facts_title, title_of
from app.quality.metrics import METRICS, Form, text_of
from engine.evaluation.report import AnswerPair, EvaluationReport, WorstToken

SHOWN_WORST = 5
SHOWN_ANSWERS = 5
_LONGEST = 48


def report_text(report: EvaluationReport) -> str:
    """Heading, figures side by side, the worst tokens, and the first answers that differ."""
    parts = [heading(report), figures(report)]
    if report.worst:
        parts.append(worst_tokens(report.worst[:SHOWN_WORST]))
    if report.answers is not None:
        parts.append(differences(report))
    return "\n\n".join(parts)


def heading(report: EvaluationReport) -> str:
    lines = [title_of(report)]
    if report.reference is not None:
        lines[0] += f" against {facts_title(report.reference)}"
    if report.text is not None:
        t = report.text
        windows = "1 window" if t.num_windows == 1 else f"{t.num_windows:,} windows"
        lines.append(
            f"{t.name or 'text'}: {t.num_scored:,} of {t.num_tokens:,} tokens scored in "
            f"{windows} of {t.context_length:,}, one every {t.stride:,}"
        )
    return "\n".join(lines)


def figures(report: EvaluationReport) -> str:
    """One line for each metric that the report has; two columns where there is a reference."""
    has_reference = report.reference is not None
    rows = [["", "Reference", "Model"] if has_reference else ["", "Model"]]
    for metric in METRICS:
        value, reference = metric.value(report), metric.reference(report)
        if value is None:
            continue
        cells = [metric.label, text_of(metric.form, value)]
        if has_reference:
            shown = "" if reference is None else text_of(metric.form, reference)
            cells.insert(1, shown)
        rows.append(cells)
    ratio = report.weights_ratio
    if ratio is not None and ratio != 1.0:
        rows.append(["Weights, of the reference's", "", text_of(Form.SHARE, ratio)])
    return aligned(rows)


def worst_tokens(worst: Sequence[WorstToken]) -> str:
    rows = [["Worst tokens", "KL", "p, reference", "p, model", "Reference says", "Model says"]]
    rows += [
        [
            f"…{_tail(w.before)}[{_one_line(w.token)}]",
            text_of(Form.SMALL, w.kl),
            _percent(w.reference_logprob),
            _percent(w.candidate_logprob),
            _one_line(w.reference_top[0].token),
            _one_line(w.candidate_top[0].token),
        ]
        for w in worst
    ]
    return aligned(rows)


def differences(report: EvaluationReport) -> str:
    answers = report.answers
    assert answers is not None
    lines = [f"{answers.num_identical} of {len(answers.pairs)} answers are identical"]
    differing = [pair for pair in answers.pairs if not pair.is_identical]
    for pair in differing[:SHOWN_ANSWERS]:
        lines += _difference(pair)
    left = len(differing) - SHOWN_ANSWERS
    if left > 0:
        lines.append(f"and {left} more, which --json lists")
    return "\n".join(lines)


def _difference(pair: AnswerPair) -> list[str]:
    difference = pair.difference
    assert difference is not None
    return [
        f"line {pair.line}, after {difference.token_index} tokens: "
        f"…{_tail(difference.text_before)}",
        f"  reference  {_head(difference.reference)}",
        f"  model      {_head(difference.candidate)}",
    ]


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns with the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("   ".join(cells).rstrip())
    return "\n".join(lines)


def _percent(logprob: float) -> str:
    share = math.exp(logprob)
    return f"{share:.1%}" if share >= 0.001 else f"{share:.0e}"


def _one_line(text: str) -> str:
    return text.replace("\n", "⏎").replace("\t", "⇥").replace("\r", "")


def _tail(text: str) -> str:
    return _one_line(text)[-_LONGEST // 2 :]


def _head(text: str) -> str:
    shown = _one_line(text)
    if not shown:
        return "(ends)"
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"
