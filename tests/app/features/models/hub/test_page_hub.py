"""Models of a hub: searched, looked at and downloaded on the page."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.features.models.downloads import DownloadQueue
from app.features.models.hub import Hub
from app.features.models.library import BEFORE
from app.features.models.page import ModelsPage
from app.storage.trash import Trash
from app.window.settings_store import SettingsStore
from tests.app.features.models.hub.page import (
    download,
    estimator,
    look,
    opened,
    page,
    search,
    store,
    titles,
)
from tests.app.features.models.hub.server import HubServer, Model
from tests.figures import numbers

__all__ = ["opened", "page", "store"]


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
