"""The models of this machine on their page."""

from __future__ import annotations

import threading
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton, QSplitter
from pytestqt.qtbot import QtBot

from app.features.models.downloads import State
from app.features.models.hub import Hub
from app.features.models.hub_download import ModelDownload
from app.features.models.library import NOTHING_YET
from app.features.models.page import ModelsPage
from app.storage.model_sources import SourceKind, folder_sources, shape_sources, starter_source
from app.window.settings_store import RecentModel, SettingsStore
from tests.app.features.models.hub.page import (
    choose,
    download,
    opened,
    own_model,
    page,
    store,
    titles,
)
from tests.app.features.models.hub.server import HubServer
from widgets.controls.frames import PageFrame

__all__ = ["opened", "page", "store"]


def test_a_new_machine_has_the_starter_and_shapes_and_says_what_to_do(page: ModelsPage) -> None:
    assert titles(page) == ["Demo model", "Qwen3-0.6B", "Llama-3.2-1B", "Llama-3.1-8B"]
    assert page.library.hint == NOTHING_YET
    assert page.detail.primary.isHidden() and page.detail.card.isHidden()
    assert page.detail._nothing.isVisible()


def test_a_chosen_model_shows_what_fits_and_opens_with_what_was_chosen(
    qtbot: QtBot, page: ModelsPage
) -> None:
    choose(qtbot, page, shape_sources()[1])
    qtbot.waitUntil(lambda: not page.detail.fits.isHidden(), timeout=5000)
    assert "FP32: 4.62 GiB · fits" in page.detail.fits.text()
    page.detail.card._dtype.setCurrentText("FP32")
    with qtbot.waitSignal(page.model_chosen, timeout=1000) as opened:
        page.detail.button("Open").click()
    assert opened.args is not None
    assert opened.args[:2] == [shape_sources()[1].path, "dummy"]
    assert opened.args[2] == {"dtype": "float32", "max_model_len": None}


def test_enter_on_the_list_opens(qtbot: QtBot, page: ModelsPage) -> None:
    choose(qtbot, page, starter_source())
    with qtbot.waitSignal(page.model_chosen, timeout=1000):
        qtbot.keyClick(page.library.list, Qt.Key.Key_Return)


def test_the_filter_leaves_what_has_the_word(qtbot: QtBot, page: ModelsPage) -> None:
    page.library.filter.setText("LLAMA")
    assert titles(page) == ["Llama-3.2-1B", "Llama-3.1-8B"]
    page.library.filter.setText("none such")
    assert titles(page) == []


def test_progress_moves_nothing_in_the_list(
    qtbot: QtBot, page: ModelsPage, server: HubServer
) -> None:
    server.faults.hold = threading.Event()
    page.queue.start("acme/tiny")
    page.library.list.setFixedHeight(60)
    bar = page.library.list.verticalScrollBar()
    qtbot.waitUntil(lambda: bar.maximum() > 0, timeout=5000)
    choose(qtbot, page, shape_sources()[2])
    bar.setValue(bar.maximum())
    item = page.library.list.item(1)
    qtbot.waitUntil(lambda: "%" in page.library.list.sources[0].subtitle, timeout=5000)
    assert page.library.list.item(1) is item and bar.value() == bar.maximum()
    assert page.library.list.source == shape_sources()[2]
    page.library.filter.setText("qwen")
    page.library.filter.setText("")
    assert bar.maximum() > 0
    server.faults.hold.set()
    qtbot.waitUntil(lambda: page.queue.get("acme/tiny").state is State.DONE, timeout=5000)  # type: ignore[union-attr]


def test_a_folder_of_models_is_remembered_until_it_is_taken_off(
    qtbot: QtBot, page: ModelsPage, store: SettingsStore, tmp_path: Path
) -> None:
    own_model(tmp_path / "models" / "mine")
    with qtbot.waitSignal(page.library.loaded, timeout=5000):
        page.library.add_folder(str(tmp_path / "models"))
    assert "mine" in titles(page) and store.folders == [str(tmp_path / "models")]
    mine = next(s for s in page.library.list.sources if s.title == "mine")
    assert mine.kind is SourceKind.LOCAL and "MiB" in mine.subtitle
    choose(qtbot, page, mine)
    with qtbot.waitSignal(page.library.loaded, timeout=5000):
        page.detail.button("Remove from list").click()
    assert "mine" not in titles(page) and store.folders == []
    assert page.source is None and page.detail.primary.isHidden()
    assert (tmp_path / "models" / "mine" / "config.json").is_file()


def test_folders_without_models_stay_on_the_list_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = folder_sources([str(tmp_path / "empty"), str(tmp_path / "gone")])
    assert [s.subtitle for s in found] == ["no models", "missing"]
    own_model(tmp_path / "a" / "b")
    twice = folder_sources([str(tmp_path / "a"), str(tmp_path / "a" / "b")])
    assert [s.title for s in twice] == ["b"]


def test_list_and_card_stand_above_each_other_where_it_is_narrow(
    qtbot: QtBot, page: ModelsPage
) -> None:
    split = page.findChild(PageFrame).findChild(QSplitter)
    assert split.orientation() is Qt.Orientation.Horizontal
    page.resize(500, 640)
    assert split.orientation() is Qt.Orientation.Vertical
    choose(qtbot, page, shape_sources()[0])
    assert page.detail.primary.isVisible()
    page.grab()


def test_every_control_has_a_name_for_those_who_cannot_see_it(page: ModelsPage) -> None:
    fields = (
        page.library.filter,
        page.library.list,
        page.search.field,
        page.search.list,
        page.tabs,
    )
    assert all(field.accessibleName() for field in fields)
    assert all(b.text() or b.accessibleName() for b in page.findChildren(QPushButton)
               if b is not page.detail.primary and b is not page.toast._action)  # fmt: skip


def test_models_opened_before_are_listed_once(
    qtbot: QtBot, page: ModelsPage, store: SettingsStore
) -> None:
    source = download(qtbot, page)
    store.remember_model(RecentModel(source.path, "auto", "acme/tiny"))
    page.library.show_sources()
    assert titles(page).count("acme/tiny") == 1


def test_a_cache_made_by_others_is_listed(qtbot: QtBot, page: ModelsPage, hub: Hub) -> None:
    ModelDownload(hub, "acme/tiny").run()
    with qtbot.waitSignal(page.library.loaded, timeout=5000):
        page.library.reload()
    assert "acme/tiny" in titles(page) and page.library.hint == ""
