"""Every case by kind."""

from __future__ import annotations

from collections.abc import Iterator

from tests.corpus import (
    commandlines,
    configs,
    files,
    headers,
    quantized,
    storage,
    templates,
    tokenizers,
)
from tests.corpus.case import Case

KINDS = ("folder", "quantized", "command", "storage")


def all_cases() -> list[Case]:
    """Raises ValueError where two have the same key."""
    found = list(_all())
    if len({(case.kind, case.key) for case in found}) < len(found):
        raise ValueError("two cases have the same key")
    return found


def _all() -> Iterator[Case]:
    yield from headers.cases()
    yield from configs.cases()
    yield from files.cases()
    yield from tokenizers.cases()
    yield from templates.cases()
    yield from quantized.cases()
    yield from commandlines.cases()
    yield from storage.cases()
