"""The Models page over a hub on this machine."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton, QSplitter
from pytestqt.qtbot import QtBot

from app.features.models.deletion import folder_of
from app.features.models.downloads import DownloadQueue, State
from app.features.models.estimate import Estimate, Held, Need
from app.features.models.hub import Hub
from app.features.models.hub_download import ModelDownload
from app.features.models.library import BEFORE, NOTHING_YET
from app.features.models.page import ModelsPage
from app.paths import starter_model
from app.storage.model_sources import (
    ModelSource,
    SourceKind,
    cache_folder,
    folder_sources,
    shape_sources,
    starter_source,
)
from app.storage.trash import Trash
from app.window.settings_store import RecentModel, SettingsStore
from engine.config import EngineConfig
from tests.app.features.models.hub.server import HubServer, Model
from tests.app.features.models.test_open_model import report
from tests.figures import numbers
from widgets.controls.frames import PageFrame

GIB = 2**30


def estimator(config: EngineConfig, in_use: Held) -> Estimate:
    """Everything is a model of 2 GiB in 16 bits, on a machine with 8 GiB free."""
    size = 2 if config.dtype == "float32" else 1
    length = config.max_model_len or 8192
    need = Need(length, "bfloat16", size * 2 * GIB, GIB // 8, length * 65536, 8 * GIB, 16 * GIB,
                8 * GIB)  # fmt: skip
    return Estimate(report(context_length=8192), need, fitting_len=length)


@pytest.fixture
def store(qtbot: QtBot) -> SettingsStore:
    return SettingsStore()


class Opened:
    """What the page asks of the session: `paths` are open, with whatever settings."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def is_open(self, path: str) -> bool:
        return path in self.paths

    def is_open_with(self, path: str, load_format: str, settings: Mapping[str, Any]) -> bool:
        return path in self.paths


@pytest.fixture
def opened() -> list[str]:
    """Paths of models that count as open."""
    return []


@pytest.fixture
def page(
    qtbot: QtBot, hub: Hub, store: SettingsStore, opened: list[str], tmp_path: Path
) -> Iterator[ModelsPage]:
    queue = DownloadQueue(hub, tmp_path / "downloads.json")
    trash = Trash(tmp_path / "trash.json")
    made = ModelsPage(store, queue, trash, hub, session=Opened(opened), estimator=estimator)
    qtbot.addWidget(made)
    made.resize(1000, 640)
    made.show()
    qtbot.waitUntil(lambda: not made.library._task.is_running, timeout=5000)
    yield made
    made.close_down()


def titles(page: ModelsPage) -> list[str]:
    return [source.title for source in page.library.list.sources]


def choose(qtbot: QtBot, page: ModelsPage, source: ModelSource) -> None:
    page.library.list.choose(source)
    qtbot.waitUntil(lambda: page.inspector.can_open, timeout=5000)


def search(qtbot: QtBot, page: ModelsPage, text: str) -> list[ModelSource]:
    page.show_hub()
    page.search.field.setText(text)
    qtbot.keyClick(page.search.field, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: not page.search._task.is_running, timeout=5000)
    return page.search.list.sources


def look(qtbot: QtBot, page: ModelsPage, repo_id: str) -> None:
    """Search for a model of the hub and wait for its buttons."""
    found = search(qtbot, page, repo_id)
    page.search.list.choose(next(s for s in found if s.title == repo_id))
    qtbot.waitUntil(lambda: page.inspector.estimate is not None, timeout=5000)


def download(qtbot: QtBot, page: ModelsPage, repo_id: str = "acme/tiny") -> ModelSource:
    """A model of the hub in the cache, as the list has it."""
    with qtbot.waitSignal(page.queue.finished, timeout=5000):
        page.queue.start(repo_id)
    qtbot.waitUntil(lambda: page.library.snapshot_of(repo_id) is not None, timeout=5000)
    found = page.library.snapshot_of(repo_id)
    assert found is not None
    return found


def own_model(folder: Path) -> Path:
    """A copy of the starter model in a folder of the user's."""
    shutil.copytree(starter_model(), folder)
    return folder


# This machine ------------------------------------------------------------------------------------


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


# The hub -----------------------------------------------------------------------------------------


def test_nothing_is_asked_of_the_hub_before_enter(
    qtbot: QtBot, page: ModelsPage, server: HubServer
) -> None:
    page.show_hub()
    page.search.field.setText("tiny")
    assert page.search.message == BEFORE and server.requests == []
    assert [s.title for s in search(qtbot, page, "tiny")] == ["acme/tiny", "acme/tiny-gguf"]
    assert page.search.status == "2 models for “tiny”"
    assert page.search.list.sources[0].subtitle == "4.50 M parameters · 50 downloads"


def test_no_hits_and_no_hub_say_what_to_do(
    qtbot: QtBot, page: ModelsPage, server: HubServer
) -> None:
    search(qtbot, page, "none such")
    assert "“none such”" in page.search.message and "owner/name" in page.search.message
    server.faults.status = 503
    search(qtbot, page, "tiny")
    assert 503 in numbers(page.search.message)
    server.faults.status = 0
    assert search(qtbot, page, "tiny") and page.search.message == ""


def test_a_thousand_hits_are_listed_and_said(
    qtbot: QtBot, page: ModelsPage, server: HubServer
) -> None:
    for number in range(1100):
        server.models[f"many/m{number}"] = Model(f"many/m{number}", {}, downloads=number)
    found = search(qtbot, page, "many")
    assert len(found) == 1000 and found[0].title == "many/m1099"
    assert numbers(page.search.status) == [1000]


def test_what_a_model_needs_is_known_before_it_is_downloaded(
    qtbot: QtBot, page: ModelsPage, hub: Hub, server: HubServer
) -> None:
    look(qtbot, page, "acme/tiny")
    assert "4 files" in page.detail.message and "1 .gguf" in page.detail.message
    assert "License: apache-2.0" in page.detail.message and " free)" in page.detail.message
    assert page.detail.primary.text().startswith("Download (")
    assert page.detail.card.fact("On disk") == "293 KiB"
    assert not hub.cache_dir.exists() and server.ranges() == []


def test_a_model_of_the_hub_is_downloaded_and_opened(qtbot: QtBot, page: ModelsPage) -> None:
    look(qtbot, page, "acme/tiny")
    with qtbot.waitSignal(page.queue.finished, timeout=5000):
        page.detail.primary.click()
    qtbot.waitUntil(lambda: page.detail.primary.text() == "Open", timeout=5000)
    assert page.search.list.sources[0].subtitle.startswith("downloaded · ")
    with qtbot.waitSignal(page.model_chosen, timeout=1000) as opened:
        page.detail.primary.click()
    assert opened.args is not None and Path(opened.args[0], "config.json").is_file()
    assert opened.args[1] == "auto"


def test_a_newer_version_on_the_hub_is_offered(
    qtbot: QtBot, page: ModelsPage, server: HubServer
) -> None:
    download(qtbot, page)
    server.models["acme/tiny"].files["model.safetensors"] = b"new" * 40_000
    look(qtbot, page, "acme/tiny")
    assert page.detail.primary.text().startswith("Update (")


def test_a_download_is_paused_and_cancelled_from_its_card(
    qtbot: QtBot, page: ModelsPage, server: HubServer
) -> None:
    look(qtbot, page, "acme/tiny")
    server.faults.hold = threading.Event()
    page.detail.primary.click()
    qtbot.waitUntil(lambda: "KiB of" in page.detail.message, timeout=5000)
    page.detail.button("Pause").click()
    server.faults.hold.set()
    server.faults.hold = None
    qtbot.waitUntil(lambda: page.detail.primary.text() == "Resume", timeout=5000)
    assert titles(page)[0] == "acme/tiny"
    with qtbot.waitSignal(page.queue.gone, timeout=5000):
        page.detail.button("Cancel").click()
    assert page.detail.primary.text().startswith("Download (")


@pytest.mark.parametrize(
    ("repo_id", "cause", "remedy"),
    [("acme/gated", "is gated", "hf auth login"), ("acme/tiny-gguf", "GGUF", "base_model")],
)
def test_what_cannot_be_had_says_why_in_its_place(
    qtbot: QtBot, page: ModelsPage, repo_id: str, cause: str, remedy: str
) -> None:
    search(qtbot, page, repo_id)
    page.search.list.choose(page.search.list.sources[0])
    qtbot.waitUntil(lambda: page.hub_model.error is not None, timeout=5000)
    assert cause in page.detail.card.verdict and remedy in page.detail.message


def test_downloads_of_an_earlier_run_wait_in_the_list(
    qtbot: QtBot, hub: Hub, store: SettingsStore, tmp_path: Path
) -> None:
    (tmp_path / "downloads.json").write_text('{"acme/tiny": [100000, 400000]}')
    queue = DownloadQueue(hub, tmp_path / "downloads.json")
    page = ModelsPage(store, queue, Trash(tmp_path / "t.json"), hub, estimator=estimator)
    qtbot.addWidget(page)
    with ExitStack() as end:
        end.callback(page.close_down)
        page.show()
        first = page.library.list.sources[0]
        assert (first.title, first.subtitle) == ("acme/tiny", "paused · 25 %")
        page.library.list.choose(first)
        qtbot.waitUntil(lambda: page.inspector.estimate is not None, timeout=5000)
        with qtbot.waitSignal(queue.finished, timeout=5000):
            page.detail.button("Resume").click()
        qtbot.waitUntil(lambda: "Hugging Face cache" in _headings(page), timeout=5000)


def _headings(page: ModelsPage) -> list[str]:
    items = [page.library.list.item(row) for row in range(page.library.list.count())]
    return [item.text() for item in items]


# Deleting ----------------------------------------------------------------------------------------


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
