"""Two saves of the same thing under way together: the later one decides, whichever ends first."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from pytestqt.qtbot import QtBot

from app.features.chat.conversation import Conversation
from app.features.chat.saving import Saver
from app.storage import ChatStore, StorageError


class Disk:
    """Saves end when the test says so. `saved`: the content of each save, in order."""

    def __init__(self) -> None:
        self.saved: list[str] = []
        self.futures: list[Future[None]] = []

    def save(self, content: str) -> Future[None]:
        self.saved.append(content)
        self.futures.append(Future())
        return self.futures[-1]

    def end(self, number: int, fails: bool) -> None:
        if fails:
            self.futures[number].set_exception(StorageError("no room"))
        else:
            self.futures[number].set_result(None)


@pytest.fixture
def store(tmp_path):
    store = ChatStore(tmp_path / "chats.sqlite3")
    yield store
    store.close()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("first_fails", [False, True])
@pytest.mark.parametrize("later_fails", [False, True])
def test_the_later_save_is_repeated_where_it_failed_and_the_earlier_one_never(
    qtbot: QtBot, store: ChatStore, order: tuple[int, int], first_fails: bool, later_fails: bool
) -> None:
    saver, disk = Saver(store), Disk()
    saver.submit("key", lambda: disk.save("old"))
    saver.submit("key", lambda: disk.save("new"))
    for number in order:
        disk.end(number, (first_fails, later_fails)[number])
    qtbot.wait(10)  # results arrive through the event loop
    saver.save()
    assert disk.saved == ["old", "new", *["new"] * later_fails]
    saver.close()


def test_a_chat_is_unsaved_until_its_latest_version_is_saved(
    qtbot: QtBot, store: ChatStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver, disk, chat = Saver(store), Disk(), Conversation()
    monkeypatch.setattr(store, "save_conversation", lambda record: disk.save(record.title))
    for chat.title in ("old", "new"):
        saver.save_now(chat)
    disk.end(0, fails=False)
    qtbot.wait(10)
    assert saver.unsaved == [chat]
    disk.end(1, fails=False)
    qtbot.wait(10)
    assert saver.unsaved == [] and disk.saved == ["old", "new"]
    saver.close()
