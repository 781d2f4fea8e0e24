"""No two commands ever have the same keys, whatever is chosen; what is chosen is kept. No Qt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.storage.json_file import NotWrittenError
from app.window.keymap import KeyMap, objection

DEFAULTS = {"a": "Ctrl+A", "b": "Ctrl+B", "c": "", "d": "Ctrl+D"}
COMMANDS, KEYS = st.sampled_from([*DEFAULTS]), st.sampled_from(["", *"ABDE"])
STEPS = st.one_of(
    st.tuples(st.just("bind"), COMMANDS, KEYS.map(lambda key: key and f"Ctrl+{key}")),
    st.tuples(st.just("reset"), COMMANDS),
    st.tuples(st.just("reset_all")),
)


def made(file: Path | None = None) -> KeyMap:
    keymap = KeyMap(file)
    keymap.declare(DEFAULTS)
    return keymap


def all_keys(keymap: KeyMap) -> dict[str, str]:
    return {command: keymap.keys(command) for command in keymap}


@given(st.lists(STEPS, max_size=12))
def test_keys_run_one_command_and_do_what_was_asked(steps: list[tuple[str, ...]]) -> None:
    keymap = made()
    for name, *rest in steps:
        getattr(keymap, name)(*rest)
        given_keys = [keys for keys in all_keys(keymap).values() if keys]
        assert len(given_keys) == len(set(given_keys))
        if name == "bind":
            assert keymap.keys(rest[0]) == rest[1]
        elif name == "reset":
            assert keymap.keys(rest[0]) == DEFAULTS[rest[0]]
        else:
            assert all_keys(keymap) == DEFAULTS and not keymap.num_changed


def test_who_loses_its_keys_has_none_and_gets_them_back() -> None:
    keymap = made()
    assert keymap.owner("Ctrl+B") == "b"
    keymap.bind("a", "Ctrl+B")
    assert all_keys(keymap) == {"a": "Ctrl+B", "b": "", "c": "", "d": "Ctrl+D"}
    assert keymap.is_changed("b") and keymap.num_changed == 2 and not keymap.owner("Ctrl+A")
    keymap.reset("b")  # takes them back; the other falls back to what it came with
    assert all_keys(keymap) == DEFAULTS


def test_the_choice_is_kept_also_of_commands_that_are_not_there_now(tmp_path: Path) -> None:
    file = tmp_path / "shortcuts.json"
    keymap = made(file)
    keymap.declare({"layout.mine": ""})
    keymap.bind("layout.mine", "Ctrl+M")
    again = made(file)
    again.bind("a", "F5")
    again.reset_all()
    assert json.loads(file.read_text())["shortcuts"] == {"layout.mine": "Ctrl+M"}
    again.declare({"layout.mine": ""})
    assert again.keys("layout.mine") == "Ctrl+M"
    again.withdraw("layout.mine")
    assert json.loads(file.read_text()) == {"version": 1, "shortcuts": {}}


def test_a_new_default_does_not_take_what_the_user_gave_away(tmp_path: Path) -> None:
    file = tmp_path / "shortcuts.json"
    file.write_text('{"version": 1, "shortcuts": {"c": "Ctrl+D", "b": "Ctrl+D"}}')
    keymap = made(file)
    assert all_keys(keymap) == {"a": "Ctrl+A", "b": "", "c": "Ctrl+D", "d": ""}


@pytest.mark.parametrize(
    "text", ["{", '{"version": 2, "shortcuts": {}}', '{"version": 1, "shortcuts": {"a": 3}}']
)
def test_a_file_that_cannot_be_read_is_kept_aside(tmp_path: Path, text: str) -> None:
    file = tmp_path / "shortcuts.json"
    file.write_text(text)
    keymap = made(file)
    assert all_keys(keymap) == DEFAULTS and "shortcuts.damaged-1.json" in keymap.problem
    keymap.bind("a", "F5")
    assert (tmp_path / "shortcuts.damaged-1.json").read_text() == text


def test_where_nothing_can_be_written_it_holds_for_this_run(tmp_path: Path) -> None:
    keymap = made(tmp_path / "gone" / "shortcuts.json")
    with pytest.raises(NotWrittenError, match="shortcuts"):
        keymap.bind("a", "F5")
    assert keymap.keys("a") == "F5"


@pytest.mark.parametrize("keys", ["A", "Shift+A", "Ctrl+C", "Return", "+", "Space", "Shift++"])
def test_keys_that_writing_needs_are_not_given_away(keys: str) -> None:
    assert keys in objection(keys)


@pytest.mark.parametrize("keys", ["Ctrl+O", "F5", "Esc", "Shift+F3", "Ctrl++", "Alt+C", "Meta+K"])
def test_other_keys_are(keys: str) -> None:
    assert objection(keys) == ""
