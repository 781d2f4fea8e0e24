"""What a user may read, found among the strings of the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.structure.source import Source

AVOID = (
    r"knobs?", r"few bits", r"go(?:es)? on", r"(?:stand|stood)s?", r"gives? way", r"not to be had",
    r"(?:nothing|could|can) (?:to )?win", r"whoever", r"tells", r"told", r"holds? still",
    r"desks?", r"takes? turns", r"wants?", r"of (?:its|their|your) own", r"anew",
    r"what came of", r"(?:no|some|any|every)body", r"by itself", r"keepers?", r"teach(?:es)?",
    r"give[ns]? (?:itself )?up", r"gives? back", r"lookahead", r"divided models?", r"made good",
    r"wherever",
)  # fmt: skip
"""Words that plain English of the field has others for."""

NO_SENTENCE = re.compile(
    r"^\s*(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|PRAGMA|BEGIN|COMMIT|ROLLBACK|WITH \w+ AS"
    r"|FROM|WHERE|ORDER BY|SET|LIMIT|AND|LEFT JOIN|VACUUM|REPLACE)\b"  # SQL
    r"|^(?:[\w.]+ IS NULL|\w+ MATCH \?|\w+\([\w.]+, \?\)|\{\} = excluded\.\{\})$"  # parts of SQL
    r"|^\w+_\w+(?: [|+] \w+_\w+)+$"  # sums of metrics of a server, and other names of them
    r"|^HTTP/1\.1 |^%\(asctime\)s "  # the head of a response, the form of a line of the log
    r"|^\s*<\S|</\w+>"  # HTML
    r"|[\w-]+:\s*[^;]+;\s*[\w-]*(?::|\}|$)|^\s*Q\w+[ ,:\[].*\{|url\("  # CSS and style sheets
    r"|\(\?|\\[bdsSwW]|\[\^|\.\*"  # regular expressions
    r"|\{%|<\||^\s*(?:-{1,2}\w|#include|import |from \w+ import)"  # templates, options, code
    r"|^\w+(?:, \w+)*, \w+_\w+(?:, \w+)*$"  # names of columns
    r"|^\w+(?:\[.*\])?(?: \| None)?$"  # types
)
NO_WORDS = re.compile(r"%[-#0 +]*[\d.*]*[a-zA-Z]|\{\}")
"""Codes of printf and strftime, and what takes the place of a value in an f-string."""
OF_PROGRAMMERS = ("ValueError", "TypeError", "RuntimeError", "KeyError", "AssertionError",
                  "NotImplementedError", "AttributeError", "IndexError")  # fmt: skip
UNREAD_CALLS = {"compile", "getLogger", "split", "cast", "TypeVar", "execute", "executemany",
                "executescript", "debug", "setStyleSheet", "setProperty",
                "setFamilies"}  # fmt: skip
UNREAD_NAMES = {"_PALETTE": "roles of Qt's palette", "Part": "names in messages and recordings"}
"""Assigned names and classes, and what their strings are."""


class Sentence(NamedTuple):
    place: str
    text: str


def looks_read(text: str) -> bool:
    """Whether a string looks like a sentence or a label: words with a space between, no code."""
    words = NO_WORDS.sub("", text).strip()
    return " " in text.strip() and bool(re.search("[A-Za-z]{2}", words)) and (
        not NO_SENTENCE.search(text)
    )  # fmt: skip


def strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of the strings that may be shown: no docstrings, no types, no keys of a look-up,
    no patterns, and no errors or assertions that only a programmer sees. A value in an f-string is
    {}."""
    if isinstance(node, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
        yield node.lineno, "".join(map(str, parts))
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield from strings(part.value)
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring, of a function or of a name
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        called = node.func.id if isinstance(node.func, ast.Name) else called
        if called in (*UNREAD_CALLS, *OF_PROGRAMMERS):
            return
    if isinstance(node, ast.Assert):
        return
    if isinstance(node, ast.Compare) and "_families" in ast.unparse(node.comparators[0]):
        return  # whether a font is installed
    if isinstance(node, ast.ClassDef) and node.name in UNREAD_NAMES:
        return
    if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in UNREAD_NAMES:
        return
    skipped = ("annotation", "returns", "slice")
    for field, value in ast.iter_fields(node):
        if field not in skipped:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from strings(child)


def sentences(source: Source) -> list[Sentence]:
    """What a user may read, in the order of the files: see `strings` and `looks_read`."""
    return [
        Sentence(f"{path}:{line}", " ".join(text.split()))
        for path, tree in source.trees.items()
        for line, text in strings(tree)
        if looks_read(text)
    ]


def avoided(found: list[Sentence]) -> dict[str, list[Sentence]]:
    """The sentences with each of the words to avoid, in any case."""
    patterns = {words: re.compile(rf"\b(?:{words})\b", re.IGNORECASE) for words in AVOID}
    return {words: [s for s in found if p.search(s.text)] for words, p in patterns.items()}
