"""The installed documentation. Imports no Qt."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from app.paths import docs_dir

NAMES = ("features", "command-line", "formats", "gpu", "remote", "benchmarks")
"""In reading order."""


class Document(NamedTuple):
    """A file of markdown: a heading, then a line that sums it up, then the text."""

    name: str
    title: str
    summary: str
    text: str
    path: Path


def documents() -> list[Document]:
    return [read(name) for name in NAMES]


def read(name: str) -> Document:
    path = docs_dir() / f"{name}.md"
    text = path.read_text(encoding="utf-8")
    title, _, summary = text.splitlines()[:3]
    return Document(name, title.removeprefix("# "), summary, text, path)
