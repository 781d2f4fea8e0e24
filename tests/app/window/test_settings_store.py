"""What the window remembers, and that a damaged file costs nothing but the memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PySide6.QtCore import QByteArray
from pytestqt.qtbot import QtBot

from app.features.models.session import config_from_arguments
from app.paths import settings_file
from app.window.notices import Notice
from app.window.settings_store import MAX_RECENT, RecentModel, SettingsStore, chosen_settings
from app.window.settings_watch import SettingsWatch
from engine.config import EngineConfig
from engine.errors import ConfigError
from tests.app.storage.damage import full_disk


@pytest.fixture
def store(qtbot: QtBot) -> SettingsStore:
    return SettingsStore()


def test_values_come_back_in_another_run(store: SettingsStore) -> None:
    store.theme = "dark"
    store.geometry = QByteArray(b"\x00\x01geometry")
    store.set_flag("sidebar", False)
    store.remember_model(RecentModel("/a", "dummy", "A", {"max_num_seqs": 4, "seed": 2**62}))
    store.folders = ["/models", "/other models"]
    store.sync()
    again = SettingsStore()
    assert again.folders == ["/models", "/other models"]
    assert again.theme == "dark"
    assert again.geometry == QByteArray(b"\x00\x01geometry")
    assert again.flag("sidebar", True) is False
    assert again.recent == [RecentModel("/a", "dummy", "A", {"max_num_seqs": 4, "seed": 2**62})]


def test_recent_models_are_few_newest_first_and_once_each(store: SettingsStore) -> None:
    for number in range(MAX_RECENT + 5):
        store.remember_model(RecentModel(f"/m{number}"))
    store.remember_model(RecentModel("/m9", settings={"block_size": 8}))
    paths = [model.path for model in store.recent]
    assert paths[0] == "/m9" and len(paths) == MAX_RECENT == len(set(paths))
    assert store.settings_of("/m9", "auto") == {"block_size": 8}
    assert store.settings_of("/m9", "dummy") == {}


def test_a_damaged_file_gives_the_defaults(qtbot: QtBot) -> None:
    settings_file().write_text("[look]\ntheme=purple\n[models]\nrecent=[{\n", encoding="utf-8")
    store = SettingsStore()
    assert store.theme == "system" and store.recent == [] and store.geometry.isEmpty()


@pytest.mark.parametrize(
    ("text", "rates"),
    [('{"int8": 2.5}', {"int8": 2.5}), ('{"int8": 0}', {}), ('{"int8": -1.0}', {}), ("[", {})],
)
def test_quantization_rates_can_be_divided_by(
    store: SettingsStore, text: str, rates: dict[str, float]
) -> None:
    store.set_text("quantize/rates", text)
    assert store.quantize_rates == rates


def test_settings_that_this_version_refuses_are_left_out() -> None:
    known = RecentModel("/m", settings={"block_size": -3, "gone": 1, "max_num_seqs": 5})
    config = known.config()
    assert config.block_size == 16 and config.max_num_seqs == 5
    assert chosen_settings(config) == {"max_num_seqs": 5}


def test_what_is_opened_at_the_start(store: SettingsStore, tmp_path: Path) -> None:
    first = config_from_arguments(store, "/starter", {})
    assert first == EngineConfig(model="/starter")
    store.remember_model(RecentModel(str(tmp_path), settings={"max_num_seqs": 5}))
    store.remember_model(RecentModel("/is/gone"))
    last = config_from_arguments(store, "/starter", {"block_size": 8})
    assert (last.model, last.max_num_seqs, last.block_size) == (str(tmp_path), 5, 8)
    named = config_from_arguments(store, "/starter", {"model": "/x", "load_format": "dummy"})
    assert (named.model, named.load_format, named.max_num_seqs) == ("/x", "dummy", 16)
    with pytest.raises(ConfigError):
        config_from_arguments(store, "/starter", {"block_size": 0})


@pytest.mark.parametrize("place", ["folder", "link to a device", "fifo", "large"])
def test_what_is_no_settings_file_is_kept_aside(qtbot: QtBot, tmp_path: Path, place: str) -> None:
    file = tmp_path / "settings.ini"
    match place:
        case "folder":
            file.mkdir()
        case "link to a device":
            file.symlink_to("/dev/null")
        case "fifo":
            os.mkfifo(file)
        case "large":
            file.touch()
            os.truncate(file, 2**40)
    store = SettingsStore(file)
    store.theme = "dark"
    store.sync()
    assert file.is_file() and not file.is_symlink()
    assert str(file) in store.problem
    assert os.path.lexists(tmp_path / "settings.damaged-1.ini")
    assert SettingsStore(file).theme == "dark"


def test_a_file_that_cannot_be_written_is_named_once(qtbot: QtBot, tmp_path: Path) -> None:
    path = tmp_path / "window.ini"
    store, shown = SettingsStore(path), list[Notice]()
    watch = SettingsWatch(store, shown.append)
    store.sync()
    watch.look()
    assert shown == [] and store.unwritten is None
    before = path.read_bytes()
    with full_disk():
        store.set_text("x", "y" * 100)
        store.sync()
        watch.look()
    (notice,) = shown
    assert str(path) in notice.cause and path.read_bytes() == before
    assert notice.remedy
    assert not watch._timer.isActive()
