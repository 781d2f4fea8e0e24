"""Chats as files: what was exported comes back exactly, and nothing else comes in."""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PySide6.QtWidgets import QFileDialog
from pytestqt.qtbot import QtBot

from app.features.chat.attachments import fence_for
from app.features.chat.conversation import State
from app.features.chat.figures import Figures
from app.features.chat.file_actions import JSON, MARKDOWN, file_name
from app.features.chat.files import (
    FORMAT,
    Bundle,
    ChatFileError,
    collect,
    dump,
    keep,
    parse,
    with_new_ids,
)
from app.features.chat.markdown import as_markdown, from_markdown
from app.storage import ChatStore, StoredConversation, StoredMessage
from engine.snapshot import RequestTimes, TokenEvent
from tests.app.chat_fixtures import Chat, chat, chat_in
from tests.app.features.chat.test_chat_tokens import ask, replies
from tests.figures import numbers
from tests.tiers import examples

__all__ = ["chat"]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MOMENT = st.floats(0, 2e9)


@st.composite
def moments(draw: st.DrawFn) -> RequestTimes:
    """When tokens came, in whole microseconds since the arrival."""
    came = sorted(draw(st.lists(st.integers(0, 10**9), max_size=5)))
    tokens = tuple(TokenEvent(us / 1e6, draw(st.integers(1, 5))) for us in came)
    scheduled, finished = (draw(st.none() | st.integers(0, 10**9)) for _ in range(2))
    return RequestTimes(
        0.0, None if scheduled is None else scheduled / 1e6, tokens,
        None if finished is None else finished / 1e6,
    )  # fmt: skip


@st.composite
def bundles(draw: st.DrawFn) -> Bundle:
    """Any tree of messages, with all that a message can have."""
    conversation = StoredConversation(
        "c", draw(TEXT), draw(st.booleans()), draw(TEXT),
        draw(st.sampled_from([{}, {"temperature": 0.25, "stop": ["a"]}, {"logprobs": None}])),
        draw(TEXT), draw(MOMENT), draw(MOMENT), is_pinned=draw(st.booleans()),
        is_archived=draw(st.booleans()),
    )  # fmt: skip
    messages: list[StoredMessage] = []
    tokens, times = {}, {}
    for number in range(draw(st.integers(1, 7))):
        parent = draw(st.sampled_from([None, *(m.id for m in messages)]))
        role = draw(st.sampled_from(["user", "assistant"]))
        attachment = st.fixed_dictionaries({"name": TEXT, "text": TEXT})
        messages.append(
            StoredMessage(
                f"m{number}", "c", parent, role, draw(TEXT),
                draw(st.sampled_from([s.value for s in State if not s.is_open])),
                draw(st.integers(0, 9)), draw(MOMENT),
                draw(st.none() | st.just(asdict(Figures(3, 4, 0, "m", ttft_ms=0.1)))),
                draw(st.none() | st.fixed_dictionaries({"cause": TEXT, "remedy": TEXT})),
                tuple(draw(st.lists(attachment, max_size=2))),
            )
        )  # fmt: skip
        if draw(st.booleans()):
            tokens[f"m{number}"] = draw(replies())
        if draw(st.booleans()):
            times[f"m{number}"] = draw(moments())
    return Bundle(conversation, tuple(messages), tokens, times)


@given(made=st.lists(bundles(), max_size=2))
def test_what_is_written_is_read_again(made: list[Bundle]) -> None:
    assert parse(dump(made)) == made


@settings(max_examples=examples(15))
@given(made=bundles())
def test_a_chat_goes_through_file_and_store_and_is_the_same(made: Bundle) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = ChatStore(Path(folder) / "chats.sqlite3")
        try:
            assert keep(store, parse(dump([made]))[0]) == made
            (record,) = store.conversations()
            assert collect(store, record) == made
            again = keep(store, made)  # its ids are taken now: it becomes another chat
            assert again.conversation.id != "c" and len(store.conversations()) == 2
            assert collect(store, record) == made
            shape = [m.parent_id for m in again.messages]
            ids = [m.id for m in again.messages]
            assert [None if p is None else f"m{ids.index(p)}" for p in shape] == [
                m.parent_id for m in made.messages
            ]
        finally:
            store.close()


@given(junk=st.text(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
).map(json.dumps))  # fmt: skip
def test_other_files_are_refused_in_words(junk: str) -> None:
    with pytest.raises(ChatFileError) as refused:
        parse(junk)
    assert refused.value.info().cause and "Nothing was imported" in refused.value.info().remedy


GOOD = Bundle(
    StoredConversation("c", "Title"),
    (
        StoredMessage("m1", "c", None, "user", "Hello"),
        StoredMessage("m2", "c", "m1", "assistant", "<think>so</think>Hi `x`", figures=None),
        StoredMessage("m3", "c", "m1", "assistant", "Hey", shown=1),
    ),
)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("version",), 3, "version 3;"),
        (("chats", 0, "messages", 0, "times"), {"version": 9}, "times of version 9"),
        (
            ("chats", 0, "messages", 0, "times"),
            {"version": 1, "scheduled": 0, "finished": None, "gaps": [1], "counts": ["a"]},
            "they are whole numbers",
        ),
        (("chats",), "none", '"chats"'),
        (("chats", 0, "title"), 3, 'Chat 1 .*"title" is 3'),
        (("chats", 0, "sampling"), {"temperature": -1}, "temperature is -1"),
        (("chats", 0, "messages"), [], "Chat 1 .*messages"),
        (("chats", 0, "messages", 1, "role"), "robot", "Chat 1, message 2"),
        (("chats", 0, "messages", 1, "parent_id"), "m9", "Chat 1, message 2"),
        (("chats", 0, "messages", 2, "id"), "m1", "Chat 1, message 3"),
        (("chats", 0, "messages", 0, "attachments"), [{"name": "a"}], "Chat 1, message 1"),
        (("chats", 0, "messages", 0, "tokens"), {"version": 1}, "'texts'"),
        (("chats", 0, "messages", 0, "colour"), "red", "colour"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(path: tuple, value: object, said: str) -> None:
    whole = json.loads(dump([GOOD]))
    place = whole
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ChatFileError, match=said):
        parse(json.dumps(whole))


@pytest.mark.parametrize(
    "path",
    [
        ("created",), ("title",), ("sampling", "temperature"), ("messages", 0, "shown"),
        ("messages", 0, "figures", "ttft_ms"), ("messages", 0, "passages", 0, "start"),
        ("messages", 0, "tokens", "logprobs", 0), ("messages", 0, "times", "gaps", 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("num_digits", [400, 5000])
def test_an_integer_of_too_many_digits_is_refused_wherever_it_is(
    path: tuple, num_digits: int
) -> None:
    value: object = "LONG"
    for step in reversed(path):
        value = [value] if step == 0 else {step: value}
    assert isinstance(value, dict)
    chat = {"id": "c", "title": "t", "messages": [], **value}
    text = json.dumps({"format": FORMAT, "version": 2, "chats": [chat]})
    with pytest.raises(ChatFileError, match=f"{num_digits:,} digits; the limit is 20"):
        parse(text.replace('"LONG"', "9" * num_digits))


def stored_in_any_order(folder: Path, order: list[int]) -> tuple[ChatStore, StoredConversation]:
    """A chain of messages, stored in this order; message 0 has an unknown parent."""
    store = ChatStore(folder / "chats.sqlite3")
    chat = StoredConversation("c", "Title", created=1.0, updated=1.0)
    chain = [StoredMessage(f"m{n}", "c", f"m{n - 1}", "user", f"text {n}") for n in order]
    store.add_messages(chat, *chain).result(60)
    return store, chat


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 3, 0, 1]])
def test_a_chat_whose_messages_are_stored_before_their_parents_can_be_imported(
    tmp_path: Path, order: list[int]
) -> None:
    store, chat = stored_in_any_order(tmp_path, order)
    with closing(store):
        (bundle,) = parse(dump([collect(store, chat)]))
    assert sorted(m.id for m in bundle.messages) == ["m0", "m1", "m2", "m3"]
    known: set[str | None] = {None}
    for message in bundle.messages:
        assert message.parent_id in known
        known.add(message.id)


def test_markdown_has_the_branch_on_the_screen() -> None:
    shown = replace(GOOD, messages=(*GOOD.messages[:2], replace(GOOD.messages[2], shown=0)))
    text = as_markdown(shown)
    assert text.startswith("# Title\n\nLast used ")
    assert numbers(text.split("\n\n")[1])[5:] == [1]  # behind the time: the other branches
    assert (
        "<!-- inferdeck: user -->\n## You\n\nHello\n\n<!-- inferdeck: reply -->\n## Reply" in text
    )
    assert "<details><summary>Reasoning</summary>\n\nso" in text
    assert text.endswith("Hi `x`\n") and "Hey" not in text
    given_file = replace(GOOD.messages[0], attachments=({"name": "a.md", "text": "```x```"},))
    text = as_markdown(replace(GOOD, messages=(given_file, *GOOD.messages[1:])))
    assert "Attached: a.md\n\n````\n```x```\n````" in text
    assert fence_for("a") == "```"


SPOKEN = st.text(st.sampled_from("ab #`\n*<>!-:\\"), min_size=1, max_size=40).map(str.strip)
WORDS = SPOKEN.filter(bool) | st.just("<!-- inferdeck: user -->\n## You\n\nno message of its own")


@given(st.lists(st.tuples(WORDS, WORDS, WORDS | st.just(""), WORDS), min_size=1, max_size=4), WORDS)
def test_markdown_is_read_again(said: list[tuple[str, str, str, str]], system: str) -> None:
    messages: list[StoredMessage] = []
    for number, (asked, answer, thought, file) in enumerate(said):
        text = f"<think>\n{thought}\n</think>\n\n{answer}" if thought else answer
        parent = messages[-1].id if messages else None
        given_file = {"name": "a b.md", "text": file + "\n"}
        messages += [
            StoredMessage(f"u{number}", "c", parent, "user", asked, attachments=(given_file,)),
            StoredMessage(f"r{number}", "c", f"u{number}", "assistant", text),
        ]
    chat = StoredConversation("c", "A title", system_prompt=system, updated=1_790_000_040.0)
    read = from_markdown(as_markdown(Bundle(chat, tuple(messages))))
    assert [(m.role, m.text, m.attachments) for m in read.messages] == [
        (m.role, m.text, m.attachments) for m in messages
    ]
    assert read.conversation.title == "A title" and read.conversation.system_prompt == system
    assert read.conversation.updated == chat.updated
    parents = [m.parent_id for m in read.messages]
    assert parents == [None, *(m.id for m in read.messages[:-1])]


def test_markdown_of_others_is_no_chat() -> None:
    for text in ("", "# Title\n\n## You\n\nHello\n", "<!-- inferdeck: text -->\nHello"):
        with pytest.raises(ChatFileError, match="messages"):
            from_markdown(text)


def test_names_of_files() -> None:
    assert file_name('What is "a/b": x?') == "What is a b x"
    assert file_name("...") == "chat"


def test_new_ids_keep_the_tree() -> None:
    renamed = with_new_ids(GOOD)
    assert renamed.messages[1].parent_id == renamed.messages[0].id
    assert {m.conversation_id for m in renamed.messages} == {renamed.conversation.id}


def transfer(qtbot: QtBot, chat: Chat, dialog: QFileDialog | None, path: Path) -> None:
    """Choose `path` in the dialog and wait for the end."""
    assert dialog is not None and dialog.isVisible()
    actions = chat.page.transfer
    ended: list[object] = []
    actions.done.connect(ended.append)
    actions.failed.connect(ended.append)
    dialog.fileSelected.emit(str(path))
    dialog.done(0)
    qtbot.waitUntil(lambda: bool(ended), timeout=5000)
    actions.done.disconnect(ended.append)
    actions.failed.disconnect(ended.append)


@pytest.mark.slow
def test_all_chats_move_to_another_machine(chat: Chat, qtbot: QtBot, tmp_path: Path) -> None:
    reply = ask(chat)
    chat.controller.regenerate()
    chat.settle()
    chat.engine.finish("Gamma")
    chat.settle()
    chat.page.new_chat()
    chat.ask("Archived one", "yes")
    chat.page.toggle_archived()
    chat.settle()
    file = tmp_path / "all.json"
    transfer(qtbot, chat, chat.page.transfer.export_all(), file)
    assert "2 chats" in chat.page.toast.text() and "all.json" in chat.page.toast.text()
    with chat_in(tmp_path / "other") as other:
        transfer(qtbot, other, other.page.transfer.import_some(), file)
        assert "2 chats" in other.page.toast.text()
        assert other.titles == ["Name one"] and len(other.controller.archived) == 1
        assert other.texts == ["Name one", "Gamma"]
        other.page.step_version(-1)
        assert other.texts == ["Name one", "Alpha beta"] and other.controller.tokens.has(reply)
        transfer(qtbot, other, other.page.transfer.import_some(), file)
        assert other.titles == ["Name one", "Name one"]  # beside, not over, what is there


def test_one_chat_as_markdown(chat: Chat, qtbot: QtBot, tmp_path: Path) -> None:
    chat.ask("Question: one?", "An *answer*")
    dialog = chat.page.transfer.export_one(chat.controller.current.id)
    assert dialog is not None and dialog.nameFilters() == [JSON, MARKDOWN]
    dialog.filterSelected.emit(MARKDOWN)
    assert dialog.defaultSuffix() == "md"
    transfer(qtbot, chat, dialog, tmp_path / "one.md")
    text = (tmp_path / "one.md").read_text(encoding="utf-8")
    assert (
        "## You\n\nQuestion: one?" in text and "## Qwen3-0.6B\n" in text and "An *answer*" in text
    )
    transfer(qtbot, chat, chat.page.transfer.import_some(), tmp_path / "one.md")
    assert chat.titles == ["Question: one?"] * 2
    assert chat.texts == ["Question: one?", "An answer"]  # as it is rendered


def test_a_strange_file_is_refused_and_nothing_is_lost(
    chat: Chat, qtbot: QtBot, tmp_path: Path
) -> None:
    chat.ask("One", "1")
    file = tmp_path / "strange.json"
    file.write_bytes(b"\xff\xfe\x00")
    transfer(qtbot, chat, chat.page.transfer.import_some(), file)
    assert "UTF-8" in chat.page.transfer_notice.text()
    file.write_text('{"messages": []}', encoding="utf-8")
    transfer(qtbot, chat, chat.page.transfer.import_some(), file)
    assert '"inferdeck-chats"' in chat.page.transfer_notice.text()
    assert chat.titles == ["One"] and chat.texts == ["One", "1"]
    transfer(
        qtbot, chat, chat.page.transfer.export_one(chat.controller.current.id),
        tmp_path / "no" / "such" / "folder.json",
    )  # fmt: skip
    assert "folder.json" in chat.page.transfer_notice.text()
    chat.page.transfer_notice._action.click()
    assert chat.page.transfer_notice.isHidden()


def test_a_file_of_version_1_is_read() -> None:
    assert parse(dump([GOOD]).replace('"version": 2', '"version": 1')) == [GOOD]
