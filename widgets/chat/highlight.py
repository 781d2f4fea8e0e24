"""Syntax highlighting by Pygments. No Qt; colours are names of the theme."""

from __future__ import annotations

from functools import lru_cache
from threading import Lock

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Token, _TokenType
from pygments.util import ClassNotFound

SEGMENT_LINES, LONGEST_SEGMENT = 16, 48
"""Code is highlighted in independent segments, so that a new line in a long listing costs one
segment. A segment ends before an unindented line after an empty one, where hardly any language has
an open string or comment, or when it is too long."""
LONGEST_LINE = 5_000
"""Longer lines (minified code) stay plain."""

_COLORS: tuple[tuple[_TokenType, str], ...] = (
    (Token.Comment, "code_comment"),
    (Token.Literal.String.Doc, "code_comment"),
    (Token.Keyword, "code_keyword"),
    (Token.Operator.Word, "code_keyword"),
    (Token.Name.Function, "code_function"),
    (Token.Name.Class, "code_function"),
    (Token.Name.Decorator, "code_function"),
    (Token.Name.Builtin, "code_name"),
    (Token.Name.Tag, "code_keyword"),
    (Token.Name.Attribute, "code_name"),
    (Token.Name.Exception, "code_name"),
    (Token.Literal.String, "code_string"),
    (Token.Literal.Number, "code_number"),
    (Token.Generic.Inserted, "code_string"),
    (Token.Generic.Deleted, "code_number"),
    (Token.Generic.Heading, "code_function"),
    (Token.Generic.Subheading, "code_function"),
)


CodeSpan = tuple[str, str]
"""A text and the name of its theme colour."""


_making = Lock()
"""Two threads that make one lexer would mix its rules."""


def prepare(language: str = "python") -> None:
    """Make a lexer, from any thread: it takes 50 ms for Python."""
    _lexer(language)


def _lexer(language: str) -> Lexer | None:
    with _making:
        return _made_lexer(language)


@lru_cache(maxsize=64)
def _made_lexer(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@lru_cache(maxsize=256)
def _color(kind: _TokenType) -> str:
    return next((color for wanted, color in _COLORS if kind in wanted), "code_text")


def highlight(code: str, language: str) -> list[tuple[CodeSpan, ...]]:
    """The spans of each line of `code`; they preserve its text."""
    lines = code.split("\n")
    found: list[tuple[CodeSpan, ...]] = []
    start = 0
    for end in [*segment_ends(lines), len(lines)]:
        found += _highlight_segment("\n".join(lines[start:end]), language.lower())
        start = end
    return found


def segment_ends(lines: list[str]) -> list[int]:
    """Line numbers at which new segments begin. Whether one begins at a line depends only on the
    text up to it."""
    ends: list[int] = []
    start = 0
    for number, line in enumerate(lines):
        length = number - start
        is_fresh = number > 0 and not lines[number - 1].strip() and line[:1].strip() != ""
        if length >= LONGEST_SEGMENT or (length >= SEGMENT_LINES and is_fresh):
            ends.append(number)
            start = number
    return ends


@lru_cache(maxsize=64)
def _highlight_segment(code: str, language: str) -> tuple[tuple[CodeSpan, ...], ...]:
    lexer = _lexer(language) if language else None
    if lexer is None or max(map(len, code.split("\n"))) > LONGEST_LINE:
        return tuple(((line, "code_text"),) if line else () for line in code.split("\n"))
    lines: list[list[CodeSpan]] = [[]]
    # get_tokens would change line ends and strip a byte order mark
    for _, kind, value in lexer.get_tokens_unprocessed(code):
        color = _color(kind)
        for number, part in enumerate(value.split("\n")):
            if number:
                lines.append([])
            if part:
                before = lines[-1]
                if before and before[-1][1] == color:
                    part = before.pop()[0] + part
                before.append((part, color))
    return tuple(tuple(line) for line in lines)
