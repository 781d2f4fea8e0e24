"""Evaluation reports as text, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path

from app.storage.json_file import write_whole
from app.storage.report_metrics import (
    NOTHING,
    Form,
    MetricRow,
    cautions,
    facts_title,
    metric_rows,
    text_of,
    title_of,
)
from engine.evaluate.report import AnswerPair, EvaluationReport, ReportError, WorstToken, to_json

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
        lines[0] += f" vs. {facts_title(report.reference)}"
    if report.text is not None:
        t = report.text
        windows = "1 window" if t.num_windows == 1 else f"{t.num_windows:,} windows"
        lines.append(
            f"{t.name or 'text'}: {t.num_scored:,} of {t.num_tokens:,} tokens scored, "
            f"{windows} × {t.context_length:,} tokens, stride {t.stride:,}"
        )
    return "\n".join(lines)


def figures(report: EvaluationReport) -> str:
    """One line per metric of the report; two columns if there is a reference."""
    has_reference = report.reference is not None
    rows = [["", "Reference", "Model"] if has_reference else ["", "Model"]]
    for row in metric_rows([report], with_reference=has_reference):
        shown = ("" if v is None else text_of(row.metric.form, v) for v in row.values)
        rows.append([row.metric.label, *shown])
    ratio = report.weights_ratio
    if ratio is not None and ratio != 1.0:
        rows.append(["Size vs. reference", "", text_of(Form.SHARE, ratio)])
    return aligned(rows)


def worst_tokens(worst: Sequence[WorstToken]) -> str:
    rows = [["Worst tokens", "KL", "p (ref.)", "p (model)", "Top-1 (ref.)", "Top-1 (model)"]]
    rows += [
        [
            f"…{_tail(w.before)}[{one_line(w.token)}]",
            text_of(Form.SMALL, w.kl),
            _percent(w.reference_logprob),
            _percent(w.candidate_logprob),
            one_line(w.reference_top[0].token),
            one_line(w.candidate_top[0].token),
        ]
        for w in worst
    ]
    return aligned(rows)


def differences(report: EvaluationReport) -> str:
    answers = report.answers
    assert answers is not None
    lines = [f"{answers.num_identical} of {len(answers.pairs)} answers identical"]
    differing = [pair for pair in answers.pairs if not pair.is_identical]
    for pair in differing[:SHOWN_ANSWERS]:
        lines += _difference(pair)
    left = len(differing) - SHOWN_ANSWERS
    if left > 0:
        lines.append(f"and {left} more (see --json)")
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


def one_line(text: str) -> str:
    return text.replace("\n", "⏎").replace("\t", "⇥").replace("\r", "")


def _tail(text: str) -> str:
    return one_line(text)[-_LONGEST // 2 :]


def _head(text: str) -> str:
    shown = one_line(text)
    if not shown:
        return "(ends)"
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


SUFFIXES = {".json": "JSON", ".csv": "CSV", ".md": "Markdown"}


def export(reports: Sequence[EvaluationReport], file: Path) -> None:
    """Write one or more reports to `file` in the format of its extension. Raises ReportError for
    another extension or a failed write; then an existing file is unchanged."""
    forms = {".json": as_json, ".csv": as_csv, ".md": as_markdown}
    form = forms.get(file.suffix.lower())
    if form is None:
        raise ReportError(
            f"{file.name} must end in one of {', '.join(SUFFIXES)}.", "Change the file extension."
        )
    write_report(file, form(reports))


def as_json(reports: Sequence[EvaluationReport]) -> str:
    """One report as an object, which `from_json` reads; several as a list of them."""
    stored = [to_json(report) for report in reports]
    return json.dumps(stored[0] if len(stored) == 1 else stored, indent=2) + "\n"


def as_csv(reports: Sequence[EvaluationReport]) -> str:
    """One line per metric, one column per model; plain numbers, fractions from 0 to 1. A single
    report has a column for its reference too."""
    titles, rows = _table(reports)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["metric", "unit", *titles])
    for row in rows:
        shown = ("" if value is None else value for value in row.values)
        writer.writerow([row.metric.key, row.metric.unit, *shown])
    return out.getvalue()


def as_markdown(reports: Sequence[EvaluationReport]) -> str:
    """A table of the figures; of a single report also the worst tokens and the answers."""
    titles, rows = _table(reports)
    lines = ["# Evaluation", "", *_what_was_read(reports), ""]
    lines += _row(["", *titles]), _row(["---", *["---:"] * len(titles)])
    for row in rows:
        shown = ("" if v is None else text_of(row.metric.form, v) for v in row.values)
        lines.append(_row([row.metric.label, *shown]))
    if len(reports) == 1:
        lines += _worst(reports[0].worst)
        if reports[0].answers is not None:
            lines += _answers(reports[0].answers.pairs)
    else:
        lines += [line for caution in cautions(reports) for line in ("", f"Note: {caution}")]
    return "\n".join(lines) + "\n"


def write_report(file: Path, text: str) -> None:
    """Raises ReportError; then an existing file is unchanged."""
    try:
        write_whole(file, text)
    except OSError as error:
        raise ReportError(
            f"{file} was not written: {error.strerror or error}.",
            "Check the folder's permissions and the disk's free space.",
        ) from error


def _table(reports: Sequence[EvaluationReport]) -> tuple[list[str], tuple[MetricRow, ...]]:
    """Titles and values; a single report has its reference in the first column."""
    reference = reports[0].reference if len(reports) == 1 else None
    titles = [f"{facts_title(reference)} (reference)"] if reference is not None else []
    rows = metric_rows(reports, with_reference=reference is not None)
    return [*titles, *map(title_of, reports)], rows


def _what_was_read(reports: Sequence[EvaluationReport]) -> list[str]:
    texts = dict.fromkeys(
        f"{t.name or 'text'}: {t.num_scored:,} of {t.num_tokens:,} tokens scored, "
        f"context {t.context_length:,}, stride {t.stride:,}, sha256 {t.sha256[:12]}"
        for report in reports
        if (t := report.text) is not None
    )
    return [f"- {text}" for text in texts] or ["- no text scored"]


def _worst(worst: Sequence[WorstToken]) -> list[str]:
    if not worst:
        return []
    lines = ["", "## Worst tokens", ""]
    head = ["Text", "KL", "log p, reference", "log p, model", "Top-1 (ref.)", "Top-1 (model)"]
    lines += _row(head), _row(["---", "---:", "---:", "---:", "---", "---"])
    for w in worst:
        tops = [top[0].token if top else NOTHING for top in (w.reference_top, w.candidate_top)]
        logprobs = [f"{w.reference_logprob:.3f}", f"{w.candidate_logprob:.3f}"]
        text = f"{w.before}⟦{w.token}⟧{w.after}"
        lines.append(_row([text, f"{w.kl:.4g}", *logprobs, *tops]))
    return lines


def _answers(pairs: Sequence[AnswerPair]) -> list[str]:
    same = sum(pair.is_identical for pair in pairs)
    lines = ["", "## Answers", "", f"{same} of {len(pairs)} are identical.", ""]
    lines += _row(["Line", "Prompt", "Reference", "Model", "First difference"]), _row(["---"] * 5)
    for pair in pairs:
        place = NOTHING if pair.difference is None else f"token {pair.difference.token_index}"
        lines.append(_row([str(pair.line), pair.prompt, pair.reference, pair.candidate, place]))
    return lines


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    """On one line, with Markdown and HTML characters escaped."""
    for raw, written in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("`", "\\`"), ("*", "\\*")):
        text = text.replace(raw, written)
    return text.replace("\r", "").replace("\n", "⏎")
