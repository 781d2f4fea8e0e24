"""Markdown of a reply: nothing of it is interpreted as HTML, and streaming changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from widgets.chat.highlight import highlight
from widgets.chat.markdown import Line, Span, StreamingMarkdown, Table, parse

PIECES = st.sampled_from(
    [
        "# ", "## Title", "#", "\n", "\n\n", "- ", "* ", "+ x", "1. ", "1", "2) b", "> ", ">",
        "```", "```python\n", "~~~", "    ", "  ", "\t", "`", "**", "*", "_", "~~",
        "[a](http://x.y)", "[a]: ", "http://x.y/z?a=1.", "| a | b |", "|---|--:|", "| 1 | 2 |",
        "---", "===", "--", "<b>", "</b>", "<!--", "-->", "<div>", "&amp;", "&lt;", "\\",
        "text ", "def f():", "x = 1", "\r", "![i](u)", "é", "\u00a0", "\0",
    ]
)  # fmt: skip


@settings(max_examples=examples(100))
@given(st.lists(PIECES, max_size=24))
def test_streamed_in_pieces_is_the_whole(pieces: list[str]) -> None:
    streaming = StreamingMarkdown()
    source = ""
    for piece in pieces:
        streaming.append(piece)
        source += piece
        assert streaming.items_from(0) == parse(source), source


@settings(max_examples=examples(60))
@given(st.lists(PIECES, max_size=20).map("".join))
def test_streamed_by_characters_is_the_whole(source: str) -> None:
    streaming = StreamingMarkdown()
    for character in source:
        streaming.append(character)
    assert streaming.items_from(0) == parse(source)


def test_html_is_text() -> None:
    (line,) = parse("a <b onclick=x>bold</b> <script>alert(1)</script>")
    assert isinstance(line, Line)
    assert line.text == "a <b onclick=x>bold</b> <script>alert(1)</script>"
    assert all(not span.bold for span in line.spans)
    (block,) = parse("<div>\n<img src=x>\n</div>")
    assert isinstance(block, Line) and block.text == "<div> <img src=x> </div>"
    assert parse("&lt;b&gt;")[0].text == "<b>"  # type: ignore[union-attr]


def test_inline_styles() -> None:
    (line,) = parse("plain **bold *both*** `code` ~~gone~~ [link](https://a.b) https://c.d/e.")
    assert isinstance(line, Line)
    styles = {span.text: span for span in line.spans}
    assert styles["bold "].bold and not styles["bold "].italic
    assert styles["both"].bold and styles["both"].italic
    assert styles["code"].code and styles["gone"].strike
    assert styles["link"].href == "https://a.b"
    assert styles["https://c.d/e"].href == "https://c.d/e" and styles["."].href == ""


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd"]
)
def test_dangerous_addresses_are_no_links(address: str) -> None:
    (line,) = parse(f"[press]({address})")
    assert isinstance(line, Line) and not any(span.href for span in line.spans)


def test_an_unfinished_fence_is_code() -> None:
    items = parse("before\n\n```python\ndef f():\n    return 1")
    assert [item.kind for item in items if isinstance(item, Line)] == ["text", "code", "code"]
    assert items[1] == Line(
        "code",
        (
            Span("def", color="code_keyword"),
            Span(" ", color="code_text"),
            Span("f", color="code_function"),
            Span("():", color="code_text"),
        ),
        label="python",
    )
    assert items[2].first is False  # type: ignore[union-attr]


def test_lists_quotes_rules_and_headings() -> None:
    items = parse("# T\n\n3. a\n   - b\n4. c\n\n   more\n\n> q\n\n---")
    lines = [(i.kind, i.marker, i.indent, i.quote, i.level) for i in items if isinstance(i, Line)]
    assert lines == [
        ("heading", "", 0, 0, 1),
        ("item", "3.", 1, 0, 0),
        ("item", "•", 2, 0, 0),
        ("item", "4.", 1, 0, 0),
        ("text", "", 1, 0, 0),
        ("text", "", 0, 1, 0),
        ("rule", "", 0, 0, 0),
    ]


def test_tables() -> None:
    (table,) = parse("| a | b |\n|:--|--:|\n| 1 | **2** |")
    assert isinstance(table, Table)
    assert table.aligns == ("left", "right")
    assert table.rows[1] == ((Span("1"),), (Span("2", bold=True),))


@given(
    st.text(max_size=200), st.sampled_from(["python", "c++", "json", "nothing", "", "html", "sh"])
)
def test_highlighting_keeps_every_character(code: str, language: str) -> None:
    lines = highlight(code, language)
    assert "\n".join("".join(text for text, _ in line) for line in lines) == code


LINES = st.sampled_from(
    ["x = 1\n", "\n", "    y\n", '"""\n', "def f():\n", "  ```\n", "# c\n", "text", "``\n", "~~~\n"]
)


@settings(max_examples=examples(40))
@given(st.sampled_from(["```python\n", "  ```\n", "~~~~ js\n", "> ```\n"]), st.data())
def test_long_code_is_settled_by_segments_and_stays_the_whole(
    opening: str, data: st.DataObject
) -> None:
    body = data.draw(st.lists(LINES, min_size=30, max_size=150))
    ending = data.draw(st.sampled_from(["", "```\n", "```\n\nafter\n\n- list", "~~~~\nend\n"]))
    source = opening + "".join(body) + ending
    streaming = StreamingMarkdown()
    position = 0
    while position < len(source):
        size = data.draw(st.integers(1, 60))
        streaming.append(source[position : position + size])
        position += size
    assert streaming.items_from(0) == parse(source)


def test_open_code_is_settled() -> None:
    streaming = StreamingMarkdown()
    streaming.append("```python\n" + "    x = 1\n" * 500)
    assert 440 < streaming.num_settled < 500
    assert len(streaming.items_from(0)) == 500
    streaming.append("```\n\nText.\n\nMore.\n")
    assert streaming.num_settled == 501
