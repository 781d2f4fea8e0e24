"""Code to coloured spans, by Pygments. No Qt; colours are names of the theme."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Token, _TokenType
from pygments.util import ClassNotFound

MAX_HIGHLIGHTED_CHARS = 60_000
"""Longer code stays plain: colouring it again for each new line would be felt."""

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


class CodeSpan(NamedTuple):
    text: str
    color: str  # a name of the theme


@lru_cache(maxsize=64)
def _lexer(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@lru_cache(maxsize=256)
def _color(kind: _TokenType) -> str:
    return next((color for wanted, color in _COLORS if kind in wanted), "code_text")


@lru_cache(maxsize=32)
def highlight(code: str, language: str) -> tuple[tuple[CodeSpan, ...], ...]:
    """The lines of `code`, each as its spans; joined by newlines they are `code` again."""
    lexer = _lexer(language.lower()) if language and len(code) <= MAX_HIGHLIGHTED_CHARS else None
    if lexer is None:
        return tuple((CodeSpan(line, "code_text"),) if line else () for line in code.split("\n"))
    lines: list[list[CodeSpan]] = [[]]
    # get_tokens would change line ends and strip a byte order mark
    for _, kind, value in lexer.get_tokens_unprocessed(code):
        color = _color(kind)
        for number, part in enumerate(value.split("\n")):
            if number:
                lines.append([])
            if part:
                before = lines[-1]
                if before and before[-1].color == color:
                    before[-1] = CodeSpan(before[-1].text + part, color)
                else:
                    before.append(CodeSpan(part, color))
    return tuple(tuple(line) for line in lines)
