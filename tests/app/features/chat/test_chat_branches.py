"""Editing and writing again never destroy: every branch is kept, seen in the overview, reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.features.chat.conversation import Conversation, Role, connected
from app.features.chat.labels import branch_records
from app.storage import StoredMessage
from tests.app.chat_fixtures import Chat, chat
from widgets.chat.branch_popover import EMPTY, HINT
from widgets.chat.records import BranchRecord

__all__ = ["chat"]


def all_of(records: tuple[BranchRecord, ...]) -> Iterator[BranchRecord]:
    for record in records:
        yield record
        yield from all_of(record.branches)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Grown as the page grows them: by sending, editing, writing again, changing versions."""
    made = Conversation()
    for _ in range(draw(st.integers(0, 14))):
        messages = list(made.messages.values())
        action = draw(st.sampled_from(["send", "edit", "again", "show"]))
        chosen = draw(st.sampled_from(messages)) if messages else None
        if action == "send" or chosen is None:
            last = made.last
            user = made.add(Role.USER, last.id if last else None, "question")
            made.add(Role.ASSISTANT, user.id, "reply")
        elif action == "show":
            made.show(chosen)
        elif chosen.role is Role.USER:
            user = made.add(Role.USER, chosen.parent_id, "edited")
            made.add(Role.ASSISTANT, user.id, "reply")
        else:
            made.add(Role.ASSISTANT, chosen.parent_id, "other reply")
    return made


@given(made=conversations())
def test_every_message_is_in_one_branch_and_every_branch_can_be_reached(
    made: Conversation,
) -> None:
    records = branch_records(made)
    branches = list(all_of(records))
    assert sum(branch.num_messages for branch in branches) == len(made.messages)
    shown = {message.id for message in made.path()}
    for branch in branches:
        assert branch.is_shown == (branch.message_id in shown)
        assert len(branch.branches) != 1
        assert [b.version for b in branch.branches] == list(range(1, len(branch.branches) + 1))
    before = set(made.messages)
    for branch in branches:
        made.show(made.messages[branch.end_id])
        path = [message.id for message in made.path()]
        assert branch.message_id in path and path[-1] == branch.end_id
    assert set(made.messages) == before


def three_branches(chat: Chat) -> None:
    """A first exchange, then a second that was edited, then its reply written again."""
    chat.ask("One", "1")
    chat.ask("Two", "2")
    chat.ask("Three", "3")
    second = chat.controller.current.path()[2]
    chat.controller.edit(second.id, "Zwei")
    chat.settle()
    chat.engine.finish("zwei")
    chat.settle()
    chat.controller.regenerate()
    chat.settle()
    chat.engine.finish("ZWEI")
    chat.settle()


@given(made=conversations(), random=st.randoms(use_true_random=False))
def test_the_order_in_which_messages_were_stored_changes_no_branch(
    made: Conversation, random: Random
) -> None:
    records = [message.record() for message in made.messages.values()]
    assert connected(records) == records
    families: dict[str | None, list[StoredMessage]] = {}
    for record in records:
        families.setdefault(record.parent_id, []).append(record)
    mixed = []  # versions stay in order, parents may come after their children
    while families:
        parent = random.choice(list(families))
        mixed.append(families[parent].pop(0))
        if not families[parent]:
            del families[parent]
    again = Conversation(id=made.id)
    again.load(mixed)
    ids = list(again.messages)
    assert all(m.parent_id is None or m.parent_id in ids[:place]
               for place, m in enumerate(again.messages.values()))  # fmt: skip
    assert branch_records(again) == branch_records(made)


def test_a_child_stays_with_its_parent_although_that_has_lost_its_own() -> None:
    parents = {"first": None, "child": "orphan", "orphan": "lost", "a": "b", "b": "a"}
    placed = connected(StoredMessage(i, "c", p, "user", i) for i, p in parents.items())
    found = {record.id: record.parent_id for record in placed}
    assert found == {"first": None, "orphan": "first", "child": "orphan", "a": "orphan", "b": "a"}
    assert list(found) == ["first", "orphan", "child", "a", "b"]


def test_what_followed_an_edited_message_is_kept_and_shown_again(chat: Chat) -> None:
    three_branches(chat)
    assert chat.texts == ["One", "1", "Zwei", "ZWEI"]
    chat.page.transcript.views[2].versions._before.click()
    assert chat.texts == ["One", "1", "Two", "2", "Three", "3"]
    chat.page.transcript.views[2].versions._after.click()
    assert chat.texts == ["One", "1", "Zwei", "ZWEI"]
    chat.page.step_version(-1)
    assert chat.texts == ["One", "1", "Zwei", "zwei"]


def test_the_overview_names_all_branches_and_goes_to_one(
    chat: Chat, qtbot: QtBot, tmp_path: Path
) -> None:
    three_branches(chat)
    chat.page.transcript.views[-1].versions._label.click()
    popover = chat.page.branches
    assert popover.isVisible() and popover.note.text() == HINT
    root = popover.tree.topLevelItem(0)
    assert root is not None
    rows = [root, *(root.child(n) for n in range(root.childCount()))]
    rows += [rows[2].child(n) for n in range(rows[2].childCount())]
    assert [[row.text(column) for column in range(3)] for row in rows] == [
        ["You: One", "", "2"],
        ["You: Two", "1 / 2", "4"],
        ["You: Zwei", "2 / 2", "1"],
        ["Reply: zwei", "1 / 2", "1"],
        ["Reply: ZWEI", "2 / 2", "1"],
    ]
    assert popover.tree.currentItem() is rows[4]
    popover.tree.setCurrentItem(rows[1])
    qtbot.keyClick(popover.tree, Qt.Key.Key_Return)
    assert popover.isHidden() and chat.texts == ["One", "1", "Two", "2", "Three", "3"]
    chat.settle()
    kept = chat.controller.current.id
    chat.controller.new_conversation()
    chat.controller._loaded.clear()
    chat.controller.open(kept)
    assert chat.texts == ["One", "1", "Two", "2", "Three", "3"]


def test_without_branches_the_overview_says_how_they_come(chat: Chat) -> None:
    chat.ask("One", "1")
    chat.page.open_branches()
    assert chat.page.branches.note.text() == EMPTY and chat.page.branches.tree.isHidden()
    chat.page.new_chat()
    assert chat.page.branches.isHidden()
