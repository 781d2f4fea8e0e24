"""Keys go into the keyring, or are kept for this run alone, and never into a file."""

from __future__ import annotations

from pathlib import Path

import keyring
import keyring.backends.fail
import keyring.errors
import pytest
from pytestqt.qtbot import QtBot

from app.clients.connection import NO_KEYRING, SERVICE, KeyStore
from app.features.serve.connections import KeyCache
from tests.app.features.serve.conftest import MemoryKeyring

WAIT_MS = 10_000


def test_a_key_outlives_the_run(ring: MemoryKeyring) -> None:
    KeyStore().write("server", "sk-1")
    assert ring.kept == {(SERVICE, "server"): "sk-1"}
    again = KeyStore()
    assert again.read("server") == "sk-1" and again.problem == ""
    again.write("server", "")
    assert ring.kept == {} and KeyStore().read("server") == ""
    again.write("nobody", "")  # there was none
    assert again.problem == ""


@pytest.mark.parametrize("where", ["fail", "plain text"])
def test_without_a_safe_keyring_it_lives_as_long_as_the_run(
    where: str, ring: MemoryKeyring, tmp_path: Path
) -> None:
    if where == "fail":
        keyring.set_keyring(keyring.backends.fail.Keyring())
    else:

        class Plain(MemoryKeyring):
            __module__ = "keyrings.alt.file"

        keyring.set_keyring(Plain())
    store = KeyStore()
    store.write("server", "sk-2")
    assert store.read("server") == "sk-2" and store.problem == NO_KEYRING
    assert KeyStore().read("server") == ""
    assert not any("sk-2" in p.read_text("utf-8", "replace") for p in tmp_path.rglob("*.*"))


def test_a_keyring_that_refuses_says_why(
    ring: MemoryKeyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: str) -> None:
        raise keyring.errors.KeyringLocked("it is locked")

    monkeypatch.setattr(ring, "set_password", locked)
    store = KeyStore()
    store.write("server", "sk-3")
    assert store.read("server") == "sk-3" and "it is locked" in store.problem


def test_the_window_does_not_wait_and_the_last_key_wins(qtbot: QtBot, ring: MemoryKeyring) -> None:
    ring.kept[SERVICE, "a"] = "kept"
    keys = KeyCache()
    with qtbot.waitSignal(keys.arrived, timeout=WAIT_MS):
        keys.fetch("a")
        assert not keys.is_known("a") and keys.key("a") == ""
    assert keys.key("a") == "kept"
    for number in range(20):
        keys.put("a", f"key {number}")
    assert keys.key("a") == "key 19"
    qtbot.waitUntil(lambda: ring.kept[SERVICE, "a"] == "key 19", timeout=WAIT_MS)
    qtbot.wait(50)
    assert ring.kept[SERVICE, "a"] == "key 19"


def test_what_is_written_while_it_is_read_is_newer(qtbot: QtBot, ring: MemoryKeyring) -> None:
    ring.kept[SERVICE, "a"] = "old"
    keys = KeyCache()
    with qtbot.waitSignal(keys.arrived, timeout=WAIT_MS):
        keys.fetch("a")
        keys.put("a", "new")
    assert keys.key("a") == "new"
    qtbot.waitUntil(lambda: ring.kept[SERVICE, "a"] == "new", timeout=WAIT_MS)
