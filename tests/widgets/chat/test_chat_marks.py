"""Marks in a reply: they come out of markdown where they went in, and break nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pytestqt.qtbot import QtBot

from widgets.chat.markdown import Item, Line, StreamingMarkdown, Table, parse
from widgets.chat.marks import CLOSE, OPEN, with_marks, without
from widgets.chat.message_view import AssistantMessageView
from widgets.chat.records import MessageRecord

SOURCES = (
    "Hello there world, it goes on.\n\nAnother *paragraph* with `code`.\n",
    "# A heading\n\n- one item\n- two items\n  1. nested\n\n> quoted text\n> goes on\n",
    "Before\n\n```python\na = 1\nb = 2\n```\n\nAfter\n",
    "| a | b |\n|---|---|\n| c | d |\n\ntext\n\n---\n\nend\n",
    "<think>\nso it is\n</think>\nThe answer is 42.\n",
)
MARK = ("int8 weights from here", "because")


def kinds(items: list[Item]) -> list[str]:
    return [item.kind if isinstance(item, Line) else "table" for item in items]


def all_text(items: list[Item]) -> str:
    """Without marks, and without spaces, which may fall away where a line is cut."""
    parts = []
    for item in items:
        if isinstance(item, Table):
            spans = [span for row in item.rows for cell in row for span in cell]
            parts += [span.text for span in spans if not span.tip]
        elif item.kind != "mark":
            parts.append(item.marker + item.text)
    return "".join("".join(parts).split())


@given(st.sampled_from(SOURCES), st.integers(0, 120))
def test_a_mark_changes_nothing_but_where_it_stands(source: str, start: int) -> None:
    marked = with_marks(source, [(start, *MARK)])
    items, plain = parse(marked), parse(source)
    assert all_text(items) == all_text(plain)
    assert kinds(items).count("code") == kinds(plain).count("code")
    assert kinds(items).count("table") == kinds(plain).count("table")
    shown = str(items)
    assert OPEN not in shown and CLOSE not in shown
    assert (MARK[0] in shown) == (marked != source)
    kept, marks = without(marked)
    assert kept == source and len(marks) == (marked != source)


@given(st.sampled_from(SOURCES), st.integers(0, 120), st.integers(1, 9))
def test_a_growing_source_with_a_mark_is_what_the_whole_one_is(
    source: str, start: int, size: int
) -> None:
    marked = with_marks(source, [(start, *MARK)])
    stream = StreamingMarkdown()
    for place in range(0, len(marked), size):
        stream.append(marked[place : place + size])
    assert stream.items_from(0) == parse(marked)


def test_a_mark_after_which_nothing_stands_is_not_shown() -> None:
    assert with_marks("all there is", [(12, *MARK)]) == "all there is"
    assert with_marks("all there is\n\n", [(12, *MARK)]) == "all there is\n\n"


def test_code_is_copied_without_the_note_beside_it() -> None:
    source = SOURCES[2]
    items = parse(with_marks(source, [(source.index("b = 2"), *MARK)]))
    code = [item for item in items if isinstance(item, Line) and item.kind == "code"]
    assert [line.text for line in code] == ["a = 1", "b = 2"]
    assert [bool(line.notes) for line in code] == [False, True]


def test_a_reply_is_marked_while_it_streams_and_copied_with_a_note(qtbot: QtBot) -> None:
    record = MessageRecord("m", False, "one two ", is_open=True)
    view = AssistantMessageView(record)
    qtbot.addWidget(view)
    view.resize(500, 300)
    view.show()
    view.show_record(record._replace(marks=((8, *MARK),), note="Written in two."))
    assert MARK[0] not in view.text.toPlainText()
    view.append("three four")
    view.text.render_now()
    lines = view.text.toPlainText().split("\n")
    assert [line.strip() for line in lines] == ["one two", MARK[0], "three four"]
    view.show_record(view.record._replace(is_open=False))
    assert view.copied() == "one two three four\n\n[Written in two.]"
    view.grab()
