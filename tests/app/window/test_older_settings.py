"""Settings, layouts, keys and connections that version 0.1 saved are in force."""

from __future__ import annotations

import json
from pathlib import Path

from pytestqt.qtbot import QtBot

from app import paths
from app.clients.target import ServerType
from app.features.serve.connections import KeyCache
from app.features.serve.controller import KEY as SERVER_KEY
from app.window.keymap import KeyMap
from app.window.layouts import LayoutStore
from app.window.settings_store import LoadChoice, SettingsStore
from engine.config import EngineConfig
from tests.app.features.serve.conftest import MemoryKeyring, ring
from tests.app.older_files import CHOSEN, older

__all__ = ["older", "ring"]


def test_the_settings_of_the_program_are_those_that_were_chosen(older: Path) -> None:
    store = SettingsStore()
    assert store.problem == ""
    assert {name: store.preferences.get(name) for name in (
        "theme", "text_size", "chart_span", "open_at_start", "single_instance", "engine_place",
        "serve_at_start", "confirm_links", "confirm_leave", "model_folders", "notice_seconds",
        "notices_kept", "log_level", "log_size",
    )} == {
        "theme": "dark", "text_size": 110, "chart_span": 300, "open_at_start": "none",
        "single_instance": False, "engine_place": "process", "serve_at_start": True,
        "confirm_links": False, "confirm_leave": False,
        "model_folders": ("/models", "/more models, größer"), "notice_seconds": 30,
        "notices_kept": 500, "log_level": "warning", "log_size": 5,
    }  # fmt: skip
    assert store.load_choice == LoadChoice("voice-bot", "shared", 32, 2.5, True)
    assert store.quantize_rates == {"rtn": 1.5e6, "gptq": 2.5e5}
    assert store.switch_times == {
        "load /models/tiny|auto|int4/64/none/auto": 3.25, "/models/tiny|auto|int8/-/none/auto": 1.5
    }  # fmt: skip
    assert not store.flag("chat-list", True) and store.flag("welcomed", False)
    assert store.layout == "On stage" and store.flag("layout-text", False)
    assert store.dock_height_of("Chat") == 333 and store.dock_height_of("Tune") is None
    assert not store.docks_of("Chat").isEmpty() and not store.geometry.isEmpty()


def test_the_last_models_are_there_with_the_settings_that_were_chosen(older: Path) -> None:
    tiny, random, third = SettingsStore().recent
    assert [one.path for one in (tiny, random, third)] == [
        "/models/tiny", "/models/random", "/models/third"
    ]  # fmt: skip
    assert (tiny.title, random.load_format) == ("tiny", "dummy")
    assert tiny.settings == CHOSEN and third.settings == {}
    assert random.settings == {"seed": 7, "block_size": 32}
    assert tiny.config() == EngineConfig(model="/models/tiny", **CHOSEN)  # none is refused


def test_what_the_server_was_started_with_is_there(older: Path) -> None:
    choice = SettingsStore().serving
    assert (choice.is_public, choice.port, choice.model_name) == (True, 8123, "house model")
    assert choice.origins == ("http://localhost:3000", "https://example.invalid")
    assert (choice.max_queued, choice.max_connections) == (64, 32)
    assert (choice.max_output_tokens, choice.max_body_mib) == (2048, 16)
    assert not choice.allows_control


def test_profiles_are_there_and_keep_what_is_not_known(older: Path) -> None:
    store = SettingsStore().profiles
    assert store.problem == ""
    empty, later, many = store.profiles
    assert (empty.name, dict(empty.settings)) == ("Empty", {})
    assert later.name == "From a later version"
    assert later.settings == {"block_size": 32, "batching": "static"}
    assert later.unknown == {"setting_of_later": 3}
    assert many.name == "many & at once" and many.settings == CHOSEN


def test_layouts_are_there(older: Path) -> None:
    store = LayoutStore(paths.config_dir() / "layouts.json")
    assert store.problem == ""
    night, stage = store.own
    assert (night.name, night.base, night.page, night.text_size) == (
        "Night shift", "Tuning", "Tune", None
    )  # fmt: skip
    assert (stage.name, stage.base, stage.page, stage.text_size) == (
        "On stage", "Presentation", "Chat", 130
    )  # fmt: skip
    assert set(night.states) == {"Tune", "Server"} and set(stage.states) == {"Chat", "Tune"}
    assert all(len(state) > 100 for one in store.own for state in one.states.values())


def test_keys_are_bound_as_they_were(older: Path) -> None:
    file = paths.config_dir() / "shortcuts.json"
    keymap = KeyMap(file)
    keymap.declare({
        "model.open": "Ctrl+O", "model.unload": "", "chat.list": "Ctrl+B", "dock.log": "",
        "tune.load": "F8", "app.quit": "Ctrl+Q", "layout.own.on stage": "", "chat.new": "Ctrl+N",
    })  # fmt: skip
    assert keymap.problem == ""
    assert {command: keymap.keys(command) for command in keymap} == {
        "model.open": "", "model.unload": "Ctrl+O", "chat.list": "Ctrl+Alt+L", "dock.log": "F8",
        "tune.load": "", "app.quit": "", "layout.own.on stage": "Ctrl+Alt+9",
        "chat.new": "Ctrl+N",
    }  # fmt: skip
    keymap.bind("chat.new", "Ctrl+Alt+N")  # a command that this run does not have keeps its keys
    kept = json.loads(file.read_text(encoding="utf-8"))["shortcuts"]
    assert kept["plugin.of_another_run"] == "Ctrl+Alt+F9"


def test_connections_are_there_and_their_keys_are_found_in_the_keyring(
    qtbot: QtBot, older: Path, ring: MemoryKeyring
) -> None:
    entries = json.loads((older / "keyring.json").read_text(encoding="utf-8"))
    ring.kept.update({(entry["service"], entry["user"]): entry["key"] for entry in entries})
    found = {one.name: one for one in SettingsStore().connections}
    told = {
        name: (one.base_url, one.server_type, one.version, one.model) for name, one in found.items()
    }
    assert told == {
        "Big box": ("http://box.invalid:8000", ServerType.INFERDECK, "0.1.0", ""),
        "Rack vLLM": ("https://rack.invalid/v1", ServerType.VLLM, "0.11.0", "qwen3-32b"),
        "Laptop": ("http://127.0.0.1:9", ServerType.LLAMA_CPP, "b4000", ""),
        "Gateway": ("https://gateway.invalid/openai", ServerType.OPENAI, "", "gpt-x"),
        "Never reached": ("http://new.invalid:1234", None, "", ""),
    }
    assert [name for name, one in found.items() if one.is_watched] == ["Laptop"]
    keys = KeyCache()
    names = {name: one.key_name for name, one in found.items()} | {"": SERVER_KEY}
    for name in names.values():
        keys.fetch(name)
    qtbot.waitUntil(lambda: all(map(keys.is_known, names.values())))
    assert {name: keys.key(key_name) for name, key_name in names.items()} == {
        "Big box": "sk-box", "Rack vLLM": "sk-rack", "Laptop": "", "Gateway": "sk-gateway",
        "Never reached": "", "": "sk-of-the-server",
    }  # fmt: skip
