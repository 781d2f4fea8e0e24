"""Models are deleted on the page, and taken back."""

from __future__ import annotations

import shutil
from pathlib import Path

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.features.models.deletion import folder_of
from app.features.models.hub import Hub
from app.features.models.page import ModelsPage
from app.paths import starter_model
from app.storage.model_sources import (
    ModelSource,
    SourceKind,
    cache_folder,
    shape_sources,
    starter_source,
)
from app.storage.trash import Trash
from tests.app.features.models.hub.page import (
    choose,
    download,
    opened,
    own_model,
    page,
    store,
    titles,
)

__all__ = ["opened", "page", "store"]


def test_a_deleted_model_can_be_taken_back(qtbot: QtBot, page: ModelsPage) -> None:
    source = download(qtbot, page)
    choose(qtbot, page, source)
    with qtbot.waitSignal(page.library.loaded, timeout=5000):
        page.detail.button("Delete").click()
    assert "acme/tiny" not in titles(page) and "acme/tiny" in page.toast.text()
    assert page.detail.primary.isHidden() and not Path(source.path).exists()
    with qtbot.waitSignal(page.library.loaded, timeout=5000):
        page.toast.act()
    assert "acme/tiny" in titles(page) and Path(source.path, "config.json").is_file()


def test_a_deleted_model_is_gone_when_the_message_is(
    qtbot: QtBot, page: ModelsPage, hub: Hub
) -> None:
    choose(qtbot, page, download(qtbot, page))
    page.detail.button("Delete").click()
    assert len(list(hub.cache_dir.glob(".inferdeck-deleted-*"))) == 1
    page.toast.dismiss()
    qtbot.waitUntil(lambda: not list(hub.cache_dir.glob(".inferdeck-deleted-*")), timeout=5000)
    assert not (hub.cache_dir / "models--acme--tiny").exists()


def test_the_delete_key_deletes_what_can_be_deleted(qtbot: QtBot, page: ModelsPage) -> None:
    source = download(qtbot, page)
    page.activateWindow()
    page.library.list.setFocus()
    qtbot.waitUntil(page.library.list.hasFocus, timeout=5000)
    choose(qtbot, page, starter_source())
    qtbot.keyClick(page.library.list, Qt.Key.Key_Delete)
    assert page.toast.text() == "" and starter_model().is_dir()
    choose(qtbot, page, source)
    qtbot.keyClick(page.library.list, Qt.Key.Key_Delete)
    assert source.title in page.toast.text() and not Path(source.path).exists()


def test_leaving_the_program_ends_the_undo(
    qtbot: QtBot, page: ModelsPage, hub: Hub, tmp_path: Path
) -> None:
    choose(qtbot, page, download(qtbot, page))
    page.detail.button("Delete").click()
    page.close_down()
    assert not list(hub.cache_dir.glob(".inferdeck-deleted-*"))


def test_the_next_start_removes_what_is_left(
    qtbot: QtBot, page: ModelsPage, hub: Hub, tmp_path: Path
) -> None:
    Trash(tmp_path / "trash.json").put(own_model(tmp_path / "died" / "mine"))
    page.start()
    qtbot.waitUntil(lambda: not list((tmp_path / "died").iterdir()), timeout=5000)


def test_the_model_that_is_open_is_not_deleted(
    qtbot: QtBot, page: ModelsPage, opened: list[str]
) -> None:
    source = download(qtbot, page)
    choose(qtbot, page, source)
    opened.append(source.path)
    page.detail.button("Delete").click()
    assert source.title in page.detail.message and Path(source.path).exists()


def test_a_folder_that_holds_more_than_a_model_is_left_alone(
    qtbot: QtBot, page: ModelsPage, tmp_path: Path
) -> None:
    mine = own_model(tmp_path / "mine")
    (mine / "thesis.txt").write_text("years of work")
    with qtbot.waitSignal(page.library.loaded, timeout=5000):
        page.library.add_folder(str(mine))
    choose(qtbot, page, next(s for s in page.library.list.sources if s.title == "mine"))
    page.detail.button("Delete").click()
    assert "thesis.txt" in page.detail.message and (mine / "config.json").is_file()
    (mine / "thesis.txt").unlink()
    page.detail.button("Delete").click()
    assert not mine.exists() and "mine" in page.toast.text()


def test_a_model_that_went_away_by_itself_is_not_shown_any_more(
    qtbot: QtBot, page: ModelsPage, hub: Hub
) -> None:
    choose(qtbot, page, download(qtbot, page))
    page.library.filter.setText("tin")  # a filter hides nothing from the card
    with qtbot.waitSignal(page.library.loaded, timeout=5000):
        page.library.reload()
    assert page.source is not None
    shutil.rmtree(hub.cache_dir)
    with qtbot.waitSignal(page.library.loaded, timeout=5000):
        page.library.reload()
    assert page.source is None


def test_what_comes_with_the_program_cannot_be_deleted(tmp_path: Path) -> None:
    assert folder_of(starter_source()) is None
    assert all(folder_of(shape) is None for shape in shape_sources())
    gone = ModelSource(SourceKind.RECENT, str(tmp_path / "gone"), "gone")
    assert folder_of(gone) is None
    snapshot = tmp_path / "models--a--b" / "snapshots" / "1234"
    snapshot.mkdir(parents=True)
    cached = ModelSource(SourceKind.RECENT, str(snapshot), "a/b")
    assert folder_of(cached) == tmp_path / "models--a--b" == cache_folder(str(snapshot))
