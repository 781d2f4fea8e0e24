"""Qt formats for lines and spans of markdown, from the theme."""

from __future__ import annotations

from functools import cache

from PySide6.QtGui import (
    QBrush,
    QFont,
    QTextBlockFormat,
    QTextCharFormat,
    QTextFormat,
    QTextFrameFormat,
    QTextLength,
    QTextOption,
    QTextTableFormat,
)

from widgets.chat.markdown import Item, Line, Span, Table
from widgets.theme.fonts import text_scale
from widgets.theme.theme import SPACE_1, SPACE_2, SPACE_3, SPACE_4, Theme, mono_font, ui_font

INDENT = 24
"""Indent of a list level in pixels."""
QUOTE_INDENT = SPACE_4
CODE_PADDING = SPACE_3
CODE_HEADER = 28
"""Pixels of the strip above code, with language and copy button."""
_LINE_HEIGHT = 118  # percent of the font's own
_CODE_LINE_HEIGHT = 112


def block_format(line: Line, before: Item | None) -> QTextBlockFormat:
    made = QTextBlockFormat()
    left = left_margin(line)
    made.setTopMargin(_space_above(line, before))
    height = _CODE_LINE_HEIGHT if line.kind == "code" else _LINE_HEIGHT
    made.setLineHeight(height, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
    match line.kind:
        case "plain":
            made.setTopMargin(0 if before is None else 2)
        case "code":
            left += CODE_PADDING
            made.setRightMargin(CODE_PADDING)
        case "mark":
            made.setTopMargin(SPACE_1 if before is not None else 0)
        case "rule":
            made.setLineHeight(1, QTextBlockFormat.LineHeightTypes.FixedHeight.value)
        case "item" | "heading" if line.marker:
            made.setTextIndent(-INDENT)
            made.setTabPositions([QTextOption.Tab(float(INDENT), QTextOption.TabType.LeftTab)])
    made.setLeftMargin(left)
    return made


def left_margin(item: Item) -> int:
    return item.quote * QUOTE_INDENT + item.indent * INDENT


def _space_above(item: Item, before: Item | None) -> int:
    if before is None:
        return _code_header(item)
    space = SPACE_2
    if isinstance(item, Line):
        if item.kind == "code" and not item.first:
            return 0
        if isinstance(before, Line) and before.kind == "mark":
            return SPACE_1 + _code_header(item)
        if item.kind == "rule":
            space = SPACE_3
        elif item.kind == "heading":
            space = SPACE_4 if item.level <= 2 else SPACE_3
        elif item.kind == "item" and isinstance(before, Line) and before.indent:
            space = SPACE_1
    if isinstance(before, Line) and before.kind == "code":
        space += CODE_PADDING
    if isinstance(before, Line) and before.kind == "rule":
        space = SPACE_3
    return space + _code_header(item)


def _code_header(item: Item) -> int:
    is_code = isinstance(item, Line) and item.kind == "code"
    return CODE_HEADER + SPACE_1 if is_code else 0


def gap_format() -> QTextBlockFormat:
    """Format of the empty paragraph that Qt requires before and after a table."""
    made = QTextBlockFormat()
    made.setLineHeight(1, QTextBlockFormat.LineHeightTypes.FixedHeight.value)
    return made


def table_format(table: Table, before: Item | None, colors: Theme) -> QTextTableFormat:
    made = QTextTableFormat()
    made.setBorderCollapse(True)
    made.setBorder(1)
    made.setBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
    made.setBorderBrush(QBrush(colors.color("border")))
    made.setCellPadding(5)
    made.setCellSpacing(0)
    made.setHeaderRowCount(1)
    made.setTopMargin(_space_above(table, before))
    made.setBottomMargin(SPACE_2)
    made.setLeftMargin(left_margin(table))
    made.setWidth(QTextLength(QTextLength.Type.VariableLength, 0))
    return made


def _font(kind: str, level: int, span: Span) -> QFont:
    if span.code or kind == "code":
        font = mono_font("small" if kind == "code" else "body")
        font.setPointSizeF(font.pointSizeF() * (1.06 if kind == "code" else 0.94))
    elif kind == "mark":
        font = ui_font("small")
    elif kind == "heading":
        font = ui_font("large" if level == 1 else "body", QFont.Weight.DemiBold)
        if level == 2:
            font.setPointSizeF(font.pointSizeF() * 1.15)
    else:
        font = ui_font("body")
    if span.bold:
        font.setWeight(QFont.Weight.Bold if kind == "heading" else QFont.Weight.DemiBold)
    font.setItalic(span.italic)
    return font


def char_format(
    span: Span, kind: str, level: int, is_quoted: bool, colors: Theme
) -> QTextCharFormat:
    """The format of `span._replace(text="")` in a line of `kind`."""
    return _char_format(span, kind, level, is_quoted, colors, text_scale())


@cache
def _char_format(
    span: Span, kind: str, level: int, is_quoted: bool, colors: Theme, scale: float
) -> QTextCharFormat:
    """`scale`: the text size, which the cached fonts depend on."""
    made = QTextCharFormat()
    made.setFont(_font(kind, level, span))
    color = span.color or ("text_muted" if is_quoted else "text")
    if span.code:
        made.setBackground(QBrush(colors.color("code_background")))
        color = "code_text"
    if span.href:
        color = "accent"
        made.setAnchor(True)
        made.setAnchorHref(span.href)
        made.setFontUnderline(True)
        made.setProperty(QTextFormat.Property.TextToolTip, span.href)
    if span.tip:
        made.setToolTip(span.tip)
    made.setForeground(QBrush(colors.color(color)))
    made.setFontStrikeOut(span.strike)
    return made


def line_formats(line: Line, colors: Theme) -> list[tuple[str, QTextCharFormat]]:
    """(text, format) of the runs of a line, its list marker first."""
    quoted = line.quote > 0
    muted = char_format(Span("", color="text_muted"), "text", 0, quoted, colors)
    marker = [(line.marker + "\t", muted)] if line.marker else []
    return marker + [
        (span.text, char_format(span._replace(text=""), line.kind, line.level, quoted, colors))
        for span in (*line.spans, *line.notes)
    ]


def plain_format(line: Line, colors: Theme) -> QTextCharFormat:
    """Format of an empty line, whose font determines its height."""
    return char_format(Span(""), line.kind, line.level, False, colors)
