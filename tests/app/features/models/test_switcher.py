"""The model switcher below the open model's name: recent models, opened with their settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.features.models.switcher import CANCEL, FOLDER, PAGE, TYPED
from app.main.application import Application
from tests.app.fakes import Script
from tests.app.window_fixtures import application, open_model, script

__all__ = ["application", "script"]  # fixtures


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    made = [tmp_path / name for name in ("first", "second")]
    for path in made:
        path.mkdir()
    return [str(path) for path in made]


def open_both(qtbot: QtBot, application: Application, paths: list[str]) -> None:
    for path in paths:
        open_model(qtbot, application, path)


def test_recent_models_with_size_precision_and_time(
    qtbot: QtBot, application: Application, paths: list[str]
) -> None:
    open_both(qtbot, application, paths)
    *models, folder, page = application.switcher.choices()
    assert [entry.text for entry in models] == ["second", "first"]
    assert [entry.is_checked for entry in models] == [True, False]
    assert all("MiB · FP32" in entry.where and ":" in entry.shortcut for entry in models)
    assert (folder.id, page.id) == (FOLDER, PAGE)
    Path(paths[0]).rmdir()
    assert not application.switcher.choices()[1].is_enabled


def test_typing_and_enter_open_a_model_with_its_last_settings(
    qtbot: QtBot, application: Application, paths: list[str]
) -> None:
    open_model(qtbot, application, paths[0])
    application.session.remember_settings({"max_num_seqs": 3})
    open_model(qtbot, application, paths[1])
    switcher = application.switcher
    application.window.commands.run("model.open")
    assert switcher.isVisible() and switcher.field.hasFocus
    qtbot.keyClicks(switcher.field, "first")
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        qtbot.keyClick(switcher.field, Qt.Key.Key_Return)
    config = application.bridge.config
    assert config is not None and (config.model, config.max_num_seqs) == (paths[0], 3)
    assert switcher.isHidden()


@pytest.mark.slow
@pytest.mark.parametrize("has_model", (True, False))
def test_a_typed_path_opens_a_folder(
    qtbot: QtBot, application: Application, tmp_path: Path, has_model: bool
) -> None:
    folder, switcher = tmp_path / "my models" / "one", application.switcher
    folder.mkdir(parents=True)
    if has_model:
        (folder / "config.json").write_text("{}", encoding="utf-8")
    application.window.commands.run("model.open")
    switcher.field.setText(f"{folder}-missing")
    assert [switcher.model.entry(0).id, switcher.model.entry(0).is_enabled] == [
        f"{TYPED}{folder}-missing", False,
    ]  # fmt: skip
    switcher.field.setText(f"{folder}/")
    if has_model:
        with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
            qtbot.keyClick(switcher.field, Qt.Key.Key_Return)
        config = application.bridge.config
        assert config is not None and config.model == str(folder)
    else:
        qtbot.keyClick(switcher.field, Qt.Key.Key_Return)
        assert application.window.page.name == "Models"
        source = application.pages.models.source
        assert source is not None and source.path == str(folder)


@pytest.mark.slow
def test_the_open_model_is_not_loaded_again(
    qtbot: QtBot, application: Application, paths: list[str]
) -> None:
    open_model(qtbot, application, paths[0])
    application.window.show_page_named("Models")
    assert application.notices.notice("loaded") is None
    loaded: list[object] = []
    application.bridge.loaded.connect(loaded.append)
    application.session.open(paths[0])
    qtbot.wait(20)
    assert not loaded and application.window.page.name == "Chat"
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        application.session.open(paths[0], settings={"max_num_seqs": 2})


@pytest.mark.slow
def test_a_load_from_another_page_leaves_it_in_its_place(
    qtbot: QtBot, application: Application, paths: list[str]
) -> None:
    """A notice would move it under a click; the history has the way to the chat."""
    application.window.show_page_named("Server")
    open_model(qtbot, application, paths[0])
    assert application.notices.notice("loaded") is None
    assert application.window.page.name == "Server"
    notice = next(r.notice for r in application.history.records if r.notice.key == "loaded")
    dict(notice.actions)["Chat"]()
    assert application.window.page.name == "Chat"


def test_a_load_is_cancelled_in_the_list(
    qtbot: QtBot, application: Application, paths: list[str], script: Script
) -> None:
    script.load_step_s = 0.2
    application.session.open(paths[0])
    assert application.switcher.choices()[0].id == CANCEL
    with qtbot.waitSignal(application.bridge.load_failed, timeout=5000):
        application.switcher.chosen.emit(CANCEL)
    assert application.switcher.choices()[0].id != CANCEL
