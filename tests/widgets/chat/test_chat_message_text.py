"""The document of a message: streamed it is what it is when set whole; only its end changes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QGuiApplication, QTextCursor, QTextDocument, QWheelEvent
from PySide6.QtWidgets import QApplication, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from tests.widgets.chat.test_chat_markdown import PIECES
from widgets.chat.document import MarkdownDocument
from widgets.chat.markdown import Line, parse
from widgets.chat.message_text import MessageText
from widgets.theme.theme import apply_theme, theme

SOURCE = """# Title

Text with **bold** and `code`.

- one
- two

```python
x = 1

y = 2
```

| a | b |
|---|--:|
| 1 | 2 |

> quote

---

End.
"""


def layout_of(document: QTextDocument) -> list[tuple]:
    """Every paragraph: its text, its formats and where it lies."""
    found = []
    block = document.begin()
    while block.isValid():
        fragments = []
        iterator = block.begin()
        while not iterator.atEnd():
            fragment = iterator.fragment()
            style = fragment.charFormat()
            color = style.foreground().color().name()
            fragments.append((fragment.text(), style.font().toString(), color, style.anchorHref()))
            iterator += 1
        style = block.blockFormat()
        where = document.documentLayout().blockBoundingRect(block).toRect()
        found.append(
            (fragments, style.leftMargin(), style.topMargin(), style.lineHeight(), where.getRect())
        )
        block = block.next()
    return found


def document_of(source: str) -> tuple[MarkdownDocument, QTextDocument]:
    document = QTextDocument()
    document.setTextWidth(500)
    written = MarkdownDocument(document)
    written.set_items(parse(source))
    return written, document


@settings(max_examples=60)
@given(st.lists(st.lists(PIECES, max_size=8).map("".join), max_size=5))
def test_a_document_that_was_changed_is_the_one_written_anew(
    qapp: object, sources: list[str]
) -> None:
    document = QTextDocument()
    document.setTextWidth(500)
    written = MarkdownDocument(document)
    for source in sources:
        written.set_items(parse(source))
        assert layout_of(document) == layout_of(document_of(source)[1]), source


def test_a_streamed_document_is_the_one_written_at_once(qtbot: QtBot) -> None:
    text, whole = MessageText(), MessageText()
    for widget in (text, whole):
        qtbot.addWidget(widget)
        widget.resize(500, 100)
    for character in SOURCE:
        text.append(character)
        text.render_now()
    whole.set_markdown(SOURCE)
    assert layout_of(text.document()) == layout_of(whole.document())
    assert text.height() == whole.height()
    assert [g.kind for g in text._written.groups] == ["code", "quote", "rule"]


def test_only_the_end_is_written_again(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    text = MessageText()
    qtbot.addWidget(text)
    text.set_markdown("paragraph\n\n" * 200 + "last")
    written: list[object] = []
    write = MarkdownDocument._write
    monkeypatch.setattr(
        MarkdownDocument,
        "_write",
        lambda self, cursor, item, colors: (
            written.append(item),
            write(self, cursor, item, colors),
        ),
    )
    text.append(" word")
    text.render_now()
    assert [item.text for item in written if isinstance(item, Line)] == ["last word"]


def test_a_selection_survives_streaming(qtbot: QtBot) -> None:
    text = MessageText()
    qtbot.addWidget(text)
    text.set_markdown("first paragraph\n\nsecond")
    cursor = text.textCursor()
    cursor.setPosition(0)
    cursor.setPosition(5, QTextCursor.MoveMode.KeepAnchor)
    text.setTextCursor(cursor)
    text.append(" goes on\n\nthird")
    text.render_now()
    assert text.textCursor().selectedText() == "first"
    text.selectAll()
    text.copy()
    copied = QGuiApplication.clipboard().mimeData()
    assert copied.text() == "first paragraph\nsecond goes on\nthird"
    assert copied.formats() == ["text/plain"]


def test_a_program_whose_text_is_on_the_clipboard_ends_without_a_fault() -> None:
    code = """
from PySide6.QtWidgets import QApplication
from widgets.chat.message_text import MessageText
app = QApplication([])
text = MessageText()
text.set_markdown("a *word*")
text.selectAll()
text.copy()
print(app.clipboard().text())
"""
    done = subprocess.run(  # destroyed last of all, when there is no interpreter any more
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "a word\n"), done.stderr


def test_the_height_fits_the_width(qtbot: QtBot) -> None:
    text = MessageText()
    host = QWidget()
    qtbot.addWidget(host)
    column = QVBoxLayout(host)
    column.addWidget(text)
    column.addStretch(1)
    text.set_markdown("many words " * 60 + "x" * 400)
    host.resize(700, 400)
    host.show()
    wide = text.height()
    host.resize(300, 400)
    qtbot.waitUntil(lambda: text.height() > wide)
    assert text.document().idealWidth() <= text.viewport().width()  # long words are broken


def test_a_caret_stands_at_the_end_while_more_is_to_come(qtbot: QtBot) -> None:
    text = MessageText()
    qtbot.addWidget(text)
    text.resize(400, 50)
    text.set_caret(True)
    assert text._caret_rect().x() == 0
    text.append("Some words")
    text.render_now()
    caret = text._caret_rect()
    assert 40 < caret.x() < 200
    with_caret = text.grab().toImage()
    ink = with_caret.pixelColor(int(caret.x()) + 1, int(caret.center().y()))
    assert ink.name() == theme().text
    text.set_caret(False)
    assert text.grab().toImage() != with_caret


def test_code_has_a_header_with_its_language(qtbot: QtBot) -> None:
    text = MessageText()
    qtbot.addWidget(text)
    text.resize(400, 50)
    text.set_markdown("```rust\nfn main() {}\n```\n\n```\nplain\n```")
    assert [h.language.text() for h in text._headers] == ["rust", "text"]
    assert [h.code() for h in text._headers] == ["fn main() {}", "plain"]
    assert text._headers[1].y() > text._headers[0].y() + text._headers[0].height()
    text.set_markdown("no code")
    assert text._headers == []


def headers_of(text: MessageText) -> list[tuple]:
    return [(h.language.text(), h.code(), h.geometry().getRect()) for h in text._headers]


def test_headers_stand_where_they_belong_however_the_text_came(qtbot: QtBot) -> None:
    source = "\n\n".join([SOURCE, "> quoted\n> ```c\n> int x;\n> ```", SOURCE, "*more*"] * 3)
    whole, pieces = MessageText(), MessageText()
    for text in (whole, pieces):
        qtbot.addWidget(text)
        text.resize(400, 50)
    whole.set_markdown(source)
    for start in range(0, len(source), 7):
        pieces.append(source[start : start + 7])
        pieces.render_now()
    assert len(whole._headers) == 9
    assert headers_of(pieces) == headers_of(whole)
    for text in (whole, pieces):
        text.resize(300, text.height())
    assert headers_of(pieces) == headers_of(whole)
    assert pieces.grab().toImage() == whole.grab().toImage()
    end = [group for group in whole._written.groups if group.last > len(whole._written.items) - 8]
    top = whole._written.rect(end[0]).top()
    assert whole._groups_down_to(top)[-len(end) :] == end
    assert len(whole._groups_down_to(top)) < len(whole._written.groups) // 2


def test_a_new_theme_recolours_what_is_written(qtbot: QtBot, qapp: QApplication) -> None:
    text = MessageText()
    qtbot.addWidget(text)
    text.set_markdown("plain `code`")

    def color() -> str:
        block = text.document().begin()
        return block.begin().fragment().charFormat().foreground().color().name()

    apply_theme(qapp, "light")
    light = theme().text
    assert color() == light
    apply_theme(qapp, "dark")
    assert color() == theme().text != light
    apply_theme(qapp, "light")


def test_links_are_announced_and_never_followed(qtbot: QtBot) -> None:
    text = MessageText()
    qtbot.addWidget(text)
    text.set_markdown("[a](https://a.b)")
    with qtbot.waitSignal(text.link_activated) as link:
        text.anchorClicked.emit("https://a.b")
    assert link.args == ["https://a.b"]
    assert text.toPlainText() == "a"


def test_the_wheel_scrolls_what_is_around(qtbot: QtBot) -> None:
    text = MessageText()
    qtbot.addWidget(text)
    event = QWheelEvent(
        QPointF(5, 5), QPointF(5, 5), QPoint(0, 0), QPoint(0, -120), Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    assert event.type() == QEvent.Type.Wheel
    text.wheelEvent(event)
    assert not event.isAccepted()
