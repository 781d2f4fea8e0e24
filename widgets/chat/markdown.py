"""Markdown to lines of styled text: what a document shows, as plain data. No Qt.

    source --markdown-it--> tokens --> Line, Line, Table, Line...

HTML in the source is text. `StreamingMarkdown` takes the source in pieces and parses only from the
last block on: markdown's blocks are decided line by line from the top, so a block is settled once
a later one has begun on a complete line. The one exception, link reference definitions (which
change the text before them), is switched off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from widgets.chat import marks
from widgets.chat.highlight import highlight, segment_ends


class Span(NamedTuple):
    """A run of text. `color` is a name of the theme, "" for that of the line; `tip` explains it."""

    text: str
    bold: bool = False
    italic: bool = False
    strike: bool = False
    code: bool = False
    href: str = ""
    color: str = ""
    tip: str = ""


class Line(NamedTuple):
    """One paragraph of the document.

    kind: "text", "heading", "item" (a list item's first line, its marker in `marker`), "code",
    "rule" or "mark" (see `widgets.chat.marks`). level: of the heading. indent, quote: depth in
    lists and quotes. first: begins its block, so there is space above it. block: for code, the
    number of its block, with `label`. `notes` follow the line and are not part of its text.
    """

    kind: str
    spans: tuple[Span, ...] = ()
    level: int = 0
    indent: int = 0
    quote: int = 0
    marker: str = ""
    first: bool = True
    label: str = ""
    notes: tuple[Span, ...] = ()

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)


class Table(NamedTuple):
    """Rows of cells of spans, the first one the heading; aligns are left, center or right."""

    rows: tuple[tuple[tuple[Span, ...], ...], ...]
    aligns: tuple[str, ...]
    indent: int = 0
    quote: int = 0


Item = Line | Table

_parser = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["table", "strikethrough"])
    .disable(["reference", "html_block", "html_inline"])
)
_URL = re.compile(r"https?://[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]}]")


def parse(source: str) -> list[Item]:
    return [item for block in _blocks(source) for item in block.items]


class _Block(NamedTuple):
    start: int  # line in the source
    items: list[Item]
    is_open_fence: bool = False


def _blocks(source: str) -> list[_Block]:
    found: list[_Block] = []
    tokens: list[Token] = []
    for token in _parser.parse(source):
        tokens.append(token)
        if token.level == 0 and token.nesting <= 0:  # the end of a top-level block
            found.append(_block(tokens))
            tokens = []
    return found


def _block(tokens: list[Token]) -> _Block:
    start, end = tokens[0].map or (0, 0)
    # an opening line, the code, and a closing line where there is one
    num_code_lines = tokens[0].content.count("\n")
    is_open_fence = tokens[0].type == "fence" and end - start == 1 + num_code_lines
    return _Block(start, _Builder().build(tokens), is_open_fence)


@dataclass(slots=True)
class _Builder:
    """Walks the tokens of one block. `lists`: the number of each list's item; None for bullets."""

    items: list[Item] = field(default_factory=list)
    lists: list[int | None] = field(default_factory=list)
    quote: int = 0
    marker: str = ""

    def build(self, tokens: list[Token]) -> list[Item]:
        before, rest = tokens[0], iter(tokens)
        for token in rest:
            if token.type == "table_open":
                self._table(takewhile(lambda inner: inner.type != "table_close", rest))
            elif token.type == "inline":
                self._text(before, token)
            else:
                self._structure(token)
            before = token
        return self.items

    def _structure(self, token: Token) -> None:
        match token.type:
            case "bullet_list_open":
                self.lists.append(None)
            case "ordered_list_open":
                self.lists.append(int(token.attrGet("start") or 1))
            case "bullet_list_close" | "ordered_list_close":
                self.lists.pop()
            case "list_item_open":
                number = self.lists[-1]
                self.marker = "•" if number is None else f"{number}."
                self.lists[-1] = None if number is None else number + 1
            case "list_item_close" if self.marker:
                self._add(Line("text"))  # an empty item still shows its marker
            case "blockquote_open":
                self.quote += 1
            case "blockquote_close":
                self.quote -= 1
            case "fence" | "code_block":
                self._code(token)
            case "hr":
                self._add(Line("rule"))

    def _text(self, opened: Token, inline: Token) -> None:
        level = int(opened.tag[1]) if opened.type == "heading_open" else 0
        kind = "heading" if level else "text"
        found = _spans(inline)
        has_marks = marks.OPEN in inline.content
        for spans, mark in _between_marks(found) if has_marks else [(found, None)]:
            if spans or mark is None:
                self._add(Line(kind, spans, level))
            if mark is not None:
                self.items.append(Line("mark", (mark,), indent=len(self.lists), quote=self.quote))

    def _code(self, token: Token) -> None:
        language = token.info.split()[0] if token.info.split() else ""
        code, found = marks.without(token.content.removesuffix("\n"))
        notes: dict[int, list[Span]] = {}
        for mark in found:
            notes.setdefault(code.count("\n", 0, mark.start), []).append(_note(mark, "   "))
        if self.marker:
            self._add(Line("text"))
        indent, quote = len(self.lists), self.quote
        self.items += [
            Line(
                "code", tuple(Span(text, color=color) for text, color in line),
                indent=indent, quote=quote, first=number == 0, label=language,
                notes=tuple(notes.get(number, ())),
            )
            for number, line in enumerate(highlight(code, language))
        ]  # fmt: skip

    def _table(self, tokens: Iterable[Token]) -> None:
        rows: list[list[tuple[Span, ...]]] = []
        aligns: list[str] = []
        for token in tokens:
            if token.type == "tr_open":
                rows.append([])
            elif token.type in ("th_open", "td_open") and len(rows) == 1:
                style = str(token.attrGet("style") or "")
                aligns.append(style.removeprefix("text-align:") or "left")
            elif token.type == "inline":
                rows[-1].append(_with_notes(_spans(token)))
        cells = tuple(tuple(row) for row in rows)
        if self.marker:
            self._add(Line("text"))
        self.items.append(Table(cells, tuple(aligns), len(self.lists), self.quote))

    def _add(self, line: Line) -> None:
        kind, marker = line.kind, self.marker
        if marker and kind in ("text", "heading"):
            kind, self.marker = "item" if kind == "text" else kind, ""
        else:
            marker = ""
        self.items.append(
            line._replace(kind=kind, marker=marker, indent=len(self.lists), quote=self.quote)
        )


def _spans(inline: Token) -> tuple[Span, ...]:
    found: list[Span] = []
    style = Span("")
    for token in inline.children or ():
        match token.type:
            case "strong_open" | "strong_close":
                style = style._replace(bold=token.nesting > 0)
            case "em_open" | "em_close":
                style = style._replace(italic=token.nesting > 0)
            case "s_open" | "s_close":
                style = style._replace(strike=token.nesting > 0)
            case "link_open":
                style = style._replace(href=str(token.attrGet("href") or ""))
            case "link_close":
                style = style._replace(href="")
            case "code_inline":
                found.append(style._replace(text=token.content, code=True))
            case "softbreak":
                found.append(style._replace(text=" "))
            case "hardbreak":
                found.append(style._replace(text="\u2028"))
            case "image":  # shown as a link: nothing is fetched
                href = str(token.attrGet("src") or "")
                found.append(style._replace(text=token.content or href, href=href))
            case _:
                found += _with_links(style._replace(text=token.content))
    return tuple(_merged(found))


def _between_marks(spans: tuple[Span, ...]) -> Iterator[tuple[tuple[Span, ...], Span | None]]:
    """The spans before each mark, with the mark, then those after the last one, if any (with
    None)."""
    before: list[Span] = []
    has_marks = False
    for span in spans:
        for text, mark in marks.split(span.text):
            if not before and has_marks:
                text = text.lstrip()  # the space between two words: a line begins here
            if text:
                before.append(span._replace(text=text))
            if mark is not None:
                yield tuple(before), _note(mark)
                before, has_marks = [], True
    if before or not has_marks:
        yield tuple(before), None


def _with_notes(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """A mark inside a line, shown inline."""
    found: list[Span] = []
    for span in spans:
        for text, mark in marks.split(span.text):
            found += [span._replace(text=text)] if text else []
            found += [_note(mark, " ⟨", "⟩ ")] if mark is not None else []
    return tuple(found)


def _note(mark: marks.Mark, before: str = "", after: str = "") -> Span:
    return Span(f"{before}{mark.label}{after}", color="accent", tip=mark.tip)


def _with_links(span: Span) -> Iterator[Span]:
    """Turn plain URLs into links."""
    if span.href:
        yield span
        return
    position = 0
    for match in _URL.finditer(span.text):
        yield span._replace(text=span.text[position : match.start()])
        yield span._replace(text=match[0], href=match[0])
        position = match.end()
    yield span._replace(text=span.text[position:])


def _merged(spans: list[Span]) -> Iterator[Span]:
    for style, group in groupby(spans, lambda span: span._replace(text="")):
        text = "".join(span.text for span in group)
        if text:
            yield style._replace(text=text)


class StreamingMarkdown:
    """Parses a growing source. `items` always equal `parse(source)`."""

    def __init__(self) -> None:
        self._settled: list[Item] = []  # what cannot change any more
        self._open = ""  # the source after it, or the opening of a fence and the rest of its code
        self._is_inside_fence = False
        self._tail: list[Item] = []
        self._after_return = False

    @property
    def num_settled(self) -> int:
        """Number of leading items that will not change."""
        return len(self._settled)

    def items_from(self, number: int) -> list[Item]:
        """The items after the first `number`, which is at most `num_settled`."""
        return self._settled[number:] + self._tail

    def append(self, text: str) -> None:
        # the parser sees all line ends as \n, and so must the counting of lines
        after_return, self._after_return = self._after_return, text.endswith("\r")
        if after_return and text.startswith("\n"):
            text = text[1:]
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        # Only complete lines settle anything: "#" begins a heading until it becomes "#1".
        self._open += text
        complete = self._open.rfind("\n") + 1
        if complete and "\n" in text:
            self._settle(self._open[:complete])
        self._tail = self._continued(parse(self._open))

    def _settle(self, source: str) -> None:
        """Settle blocks that cannot change, whatever follows the complete lines of `source`."""
        blocks = _blocks(source)
        if len(blocks) > 1:
            items = [item for block in blocks[:-1] for item in block.items]
            self._settled += self._continued(items)
            self._is_inside_fence = False
            self._open = self._open[_offset(source, blocks[-1].start) :]
        elif blocks and blocks[0].is_open_fence:
            self._settle_code(source, blocks[0])

    def _settle_code(self, source: str, block: _Block) -> None:
        """Settle complete segments of code in an open fence."""
        code = [item.text for item in block.items if isinstance(item, Line)]
        ends = segment_ends(code)
        if ends:
            self._settled += self._continued(block.items[: ends[-1]])
            first = block.start + 1  # the line after the opening one
            opening = self._open[_offset(source, block.start) : _offset(source, first)]
            self._open = opening + self._open[_offset(source, first + ends[-1]) :]
            self._is_inside_fence = True

    def _continued(self, items: list[Item]) -> list[Item]:
        """`items`, the first of which continues a code block."""
        if self._is_inside_fence and isinstance(items[0], Line):
            return [items[0]._replace(first=False), *items[1:]]
        return items


def _offset(source: str, line: int) -> int:
    return sum(len(before) + 1 for before in source.split("\n", line)[:line])
