"""Chats and files, saved when a fault strikes: what was acknowledged is there afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.storage import ChatStore, StorageError, StoredConversation, StoredMessage
from engine.errors import InferdeckError
from tests.faults.bench import WAIT_S, nothing_left
from tests.faults.fault import Fault

NUM_MESSAGES = 6
CHAT = StoredConversation("chat", "chat", created=1.0, updated=1.0)


def killed(work: Callable[[Callable[[str], None]], object]) -> list[str]:
    """Run `work` in a process that dies of it; what it acknowledged until then."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            os.close(reading)
            work(lambda name: os.write(writing, f"{name}\n".encode()) and None)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read().split()
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "the point was not reached"
    return said


def message(number: int) -> StoredMessage:
    return StoredMessage(f"m{number}", CHAT.id, None, "user", f"text {number} " * 50)


def chats(fault: Fault, folder: Path) -> None:
    """Messages are saved one after the other. A failed one is told, and saved when asked again."""
    file = folder / "chats.sqlite3"
    if fault.kind == "kill":
        acknowledged = killed(lambda note: _save_all(file, fault, note))
    else:
        acknowledged = []
        _save_all(file, fault, acknowledged.append)
        assert fault.hits, "the point was not reached"
    store = ChatStore(file)
    try:
        assert store.problem is None, f"{store.problem}"
        found = {stored.id: stored.text for stored in store.messages(CHAT.id)}
        lost = [name for name in acknowledged if name not in found]
        assert not lost, f"acknowledged and lost: {lost}"
        if fault.kind != "kill":
            assert len(acknowledged) == NUM_MESSAGES, f"saved only {acknowledged}"
        store.save_message(message(99)).result(WAIT_S)
        assert "m99" in {stored.id for stored in store.messages(CHAT.id)}
    finally:
        store.close()
    nothing_left()


def _save_all(file: Path, fault: Fault, acknowledge: Callable[[str], None]) -> None:
    store = ChatStore(file)
    store.add_messages(CHAT).result(WAIT_S)
    fault.arm()
    for number in range(NUM_MESSAGES):
        sent = message(number)
        try:
            store.save_message(sent).result(WAIT_S)
        except StorageError as error:
            fault.check_words(error.info())
            store.save_message(sent).result(WAIT_S)  # as the window's saver does
        acknowledge(sent.id)
    store.close()


def opened(fault: Fault, folder: Path) -> None:
    """A file of chats is opened: the error is told, and the file is unchanged."""
    from app.storage import open_store

    file = folder / "chats.sqlite3"
    store = ChatStore(file)
    store.add_messages(CHAT, message(0)).result(WAIT_S)
    store.close()
    if fault.kind == "kill":

        def die(note: Callable[[str], None]) -> None:
            fault.arm()
            open_store(file)

        killed(die)
    else:
        fault.arm()
        try:
            store = open_store(file)
            if store.recovery is not None:
                store.recovery.ended.result(WAIT_S)
            if store.problem is not None:
                fault.check_words(store.problem)
            assert [m.id for m in store.messages(CHAT.id)] == ["m0"], "chats are not shown"
            store.close()
        except StorageError as error:
            fault.check_words(error.info())
        except BaseException as error:
            assert fault.kind in ("exception", "panic"), f"raised {error!r}"
        assert fault.hits, "the point was not reached"
    store = open_store(file)
    assert store.problem is None and [m.id for m in store.messages(CHAT.id)] == ["m0"]
    store.close()
    nothing_left()


def _layouts(folder: Path) -> tuple[Callable[[int], object], Callable[[], Any]]:
    from app.window.layouts import CHAT as BASE
    from app.window.layouts import Layout, LayoutStore

    def save(number: int) -> object:
        return LayoutStore(folder / "layouts.json").save(Layout(f"mine {number}", BASE, "Chat"))

    def read() -> set[str]:
        store = LayoutStore(folder / "layouts.json")
        assert not store.problem, store.problem
        return {f"{n}" for n in range(9) if store.find(f"mine {n}") is not None}

    return save, read


def _profiles(folder: Path) -> tuple[Callable[[int], object], Callable[[], Any]]:
    from app.storage.profiles import Profile, ProfileStore

    def save(number: int) -> object:
        return ProfileStore(folder / "profiles.json").save(Profile(f"{number}", {"seed": number}))

    def read() -> set[str]:
        store = ProfileStore(folder / "profiles.json")
        return {f"{n}" for n in range(9) if store.find(f"{n}") is not None}

    return save, read


def _keys(folder: Path) -> tuple[Callable[[int], object], Callable[[], Any]]:
    from app.window.keymap import KeyMap

    def keymap() -> KeyMap:
        keys = KeyMap(folder / "shortcuts.json")
        keys.declare({f"{n}": "" for n in range(9)})
        return keys

    def save(number: int) -> object:
        return keymap().bind(f"{number}", f"Ctrl+Shift+F{number}")

    def read() -> set[str]:
        keys = keymap()
        return {f"{n}" for n in range(9) if keys.keys(f"{n}")}

    return save, read


def _reports(folder: Path) -> tuple[Callable[[int], object], Callable[[], Any]]:
    from app.storage.report_store import ReportStore
    from tests.engine.evaluate.reports import make_report

    store = ReportStore(folder / "evaluations")

    def save(number: int) -> object:
        return store.add(make_report(), f"{number}")

    def read() -> set[str]:
        shelf = store.list()
        assert not shelf.problems, shelf.problems
        return {stored.name for stored in shelf.reports}

    return save, read


FILES = {"layouts": _layouts, "profiles": _profiles, "keys": _keys, "reports": _reports}


def file(fault: Fault, folder: Path) -> None:
    """A file is written: it has what it had, or all of the new; the next write succeeds."""
    own = folder / "files"
    own.mkdir()
    save, read = FILES[fault.point.options](own)
    save(1)
    assert read() == {"1"}

    def fail(note: Callable[[str], None]) -> None:
        fault.arm()
        save(2)
        note("2")

    if fault.kind == "kill":
        assert killed(fail) == []
    else:
        try:
            fail(lambda name: None)
        except InferdeckError as error:
            fault.check_words(error.info())
        except BaseException as error:
            is_system = fault.point.target.startswith("os:")
            assert not (is_system and fault.kind == "disk-full"), f"a full disk as {error!r}"
        assert fault.hits, "the point was not reached"
    assert {"1"} <= read() <= {"1", "2"}, f"read {read()}"
    save(3)
    assert {"1", "3"} <= read() <= {"1", "2", "3"}, f"read {read()}"
    left = [path.name for path in own.rglob("*.part")]
    assert fault.kind == "kill" or not left, f"left behind: {left}"
    modes = {oct(path.stat().st_mode & 0o077) for path in own.rglob("*.json")}
    assert modes == {"0o0"}, f"readable by others: {modes}"
