"""Unbroken chats, recordings and settings, and what opens them. Each prints what it found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.storage import ChatStore

CHATS, RECORDING = "chats.sqlite3", "one.inferdeck-flight"
NUM_CHATS, NUM_FRAMES = 40, 30


# The controls ---------------------------------------------------------------------------------


def make_chats(folder: Path) -> None:
    from app.storage import ChatStore, StoredConversation, StoredMessage

    store = ChatStore(folder / CHATS)
    for number in range(NUM_CHATS):
        chat = StoredConversation(f"c{number}", f"chat {number}", created=1.0, updated=number)
        ask = StoredMessage(f"a{number}", chat.id, None, "user", "question " * 200)
        reply = StoredMessage(f"b{number}", chat.id, ask.id, "assistant", f"answer {number} " * 200)
        store.add_messages(chat, ask, reply).result()
    store.save_preset("mine", {"temperature": 0.5}).result()
    store.close()
    answer = [[f"chat {n}", 2] for n in reversed(range(NUM_CHATS))]
    (folder / "expected.json").write_text(json.dumps(answer))


def make_recording(folder: Path) -> None:
    from app.features.recording import file
    from app.wire.recording import Frame
    from engine import messages as m
    from engine.config import EngineConfig
    from tests.widgets import synthetic

    loaded = m.Loaded(EngineConfig(model="/m"), synthetic.MODEL, synthetic.PLAN)
    frames = [Frame(0.5, loaded)]
    for number in range(1, NUM_FRAMES):
        event = m.SnapshotEvent(synthetic.snapshot(float(number), num_running=3, num_used=9))
        frames.append(Frame(float(number), event))
    parts = [file.pack(frames[i : i + 10]) for i in range(0, NUM_FRAMES, 10)]
    file.write(folder / RECORDING, {"created": "2026-01-01T00:00:00"}, parts)
    (folder / "expected.json").write_text(json.dumps([f.time for f in frames]))


def make_settings(folder: Path) -> None:
    from app.storage.profiles import Profile, ProfileStore
    from app.window.keymap import KeyMap
    from app.window.layouts import CHAT, Layout, LayoutStore
    from app.window.settings_store import RecentModel, SettingsStore

    store = SettingsStore(folder / "window.ini")
    store.layout = "mine"
    store.remember_model(RecentModel("/models/a", settings={"max_num_seqs": 4}))
    store.sync()
    ProfileStore(folder / "profiles.json").save(Profile("one", {"max_num_seqs": 4}))
    keys = KeyMap(folder / "shortcuts.json")
    keys.declare({"chat.new": "Ctrl+N"})
    keys.bind("chat.new", "Ctrl+Shift+N")
    LayoutStore(folder / "layouts.json").save(Layout("mine", CHAT, "Chat"))
    (folder / "expected.json").write_text(json.dumps(["mine", 1, 1, "Ctrl+Shift+N", 1]))


# What opens them ------------------------------------------------------------------------------


def open_chats(folder: Path) -> int:
    """As the window does, with a new chat that is read again."""
    from app.storage import StorageError, open_store

    store = open_store(folder / CHATS)
    try:
        found = _use(store)
        if store.recovery is not None:
            store.recovery.ended.result()
            found = _use(store)
        if store.problem is not None:
            return _told(store.problem.cause, store.problem.remedy)
        print(json.dumps({"answer": found}))
        return 0
    except StorageError as error:
        return _told(error.cause, error.remedy)
    finally:
        store.close()


def _use(store: ChatStore) -> list[list[Any]]:
    """Title and number of messages of each chat. Raises StorageError."""
    from app.storage import StoredConversation, StoredMessage

    found = [[c.title, len(store.messages(c.id))] for c in store.conversations()]
    store.search("answer")
    store.presets()
    store.unsent()
    chat = StoredConversation("new", "new", updated=1e9)
    store.add_messages(chat, StoredMessage("n", "new", None, "user", "hi")).result()
    assert "new" in [c.id for c in store.conversations()]
    return found


def open_recording(folder: Path) -> int:
    """A part that is shown is told as such."""
    from app.features.recording import file
    from engine.errors import InferdeckError

    try:
        found = file.read(folder / RECORDING)
    except InferdeckError as error:
        return _told(error.cause, error.remedy)
    if found.notice:
        return _told(f"{RECORDING}: {found.notice}", "The rest is shown.")
    print(json.dumps({"answer": [frame.time for frame in found.frames]}))
    return 0


def open_settings(folder: Path) -> int:
    """Everything that the window reads at its start."""
    from app.window.layouts import LayoutStore
    from app.window.settings_store import SettingsStore

    store = SettingsStore(folder / "window.ini")
    profiles, keys = store.profiles, store.keymap
    layouts = LayoutStore(folder / "layouts.json")
    keys.declare({"chat.new": "Ctrl+N"})
    recent = [model.config() for model in store.recent]
    store.theme, store.geometry, store.docks_of("Chat"), store.folders
    store.load_choice, store.serving, store.connections, store.switch_times  # noqa: B018
    problems = [text for text in (store.problem, profiles.problem, keys.problem, layouts.problem)
                if text]  # fmt: skip
    if problems:
        return _told(*problems, "The defaults are used.")
    own = [store.layout, len(recent), len(profiles.profiles), keys.keys("chat.new"),
           len(layouts.own)]  # fmt: skip
    print(json.dumps({"answer": own}))
    return 0


def _told(*lines: str) -> int:
    print("\n".join(lines), file=sys.stderr)
    return 1
