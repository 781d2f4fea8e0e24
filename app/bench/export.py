"""Files of a result: one self-contained HTML page, JSON, CSV. No Qt: the picture is drawn by
`app.features.bench`."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.storage.report_export import write_report
from engine.evaluate.report import ReportError

SUFFIXES = {".html": "HTML page", ".json": "JSON", ".csv": "CSV", ".png": "PNG image"}
_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2em;color-scheme:light dark}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "td,th{padding:.3em .8em;text-align:right;border-bottom:1px solid #8886}"
    "td.text{text-align:left}text{fill:currentColor;font-size:12px}"
)


def html_page(
    title: str, about: str, answer: str, chart: str, rows: Sequence[Sequence[str]],
    data: Mapping[str, Any],
) -> str:  # fmt: skip
    """`chart`: an SVG element; the first row has the heads of the table; `data`: embedded as
    JSON. A last column that is headed by nothing is text."""
    esc = html.escape
    heads, *others = rows
    head = "".join(f"<th>{esc(text)}</th>" for text in heads)
    kinds = ["" if head else " class=text" for head in heads]
    body = "".join(
        "<tr>"
        + "".join(f"<td{k}>{esc(cell)}</td>" for k, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in others
    )
    stored = json.dumps(data).replace("</", "<\\/")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{esc(title)}</title><style>"
        f"{_STYLE}</style><h1>{esc(title)}</h1><p>{esc(about)}</p><p><b>{esc(answer)}</b></p>"
        f"{chart}<table><tr>{head}</tr>{body}</table>"
        f'<script type="application/json" id="data">{stored}</script></html>\n'
    )


def write(file: Path, forms: Mapping[str, Callable[[], str]]) -> None:
    """Write `file` in the format of its extension, one of `forms`. Raises ReportError; then an
    existing file is unchanged."""
    form = forms.get(file.suffix.lower())
    if form is None:
        raise ReportError(
            f"{file.name} must end in one of {', '.join(forms)}.", "Change the file extension."
        )
    write_report(file, form())
