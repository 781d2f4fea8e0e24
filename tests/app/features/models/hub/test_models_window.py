"""Models page, downloads and first-run page in the real window, over a scripted engine thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QLabel, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from app.features.models.fit import MachineFacts
from app.features.models.source_list import OPEN
from app.features.models.torch_build import TorchBuild, advice
from app.features.models.welcome import WelcomePage
from app.main.application import Application
from app.paths import starter_model
from app.storage.model_sources import starter_source
from app.window.progress import MAX_ROWS, Work, WorkArea
from tests.app.fakes import FakeEngineThread, Script
from tests.app.features.models.hub.server import HubServer
from tests.app.features.models.hub.test_fit import halves
from tests.app.window_fixtures import next_run
from tests.figures import numbers
from tests.tiers import first_fast
from widgets.controls.buttons import CopyButton
from widgets.controls.layouts import STRETCH, vbox


@pytest.fixture
def application(
    qapp: QApplication,
    qtbot: QtBot,
    server: HubServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Application]:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("app.main.application.estimate", halves)
    made = Application(qapp, lambda on_event: FakeEngineThread(on_event, Script()))
    made.gpu.watch.start = lambda: None  # type: ignore[method-assign]
    made.show()
    yield made
    made.shutdown()


def page_name(application: Application) -> str:
    return application.window.pages[application.window.page_index].name


# The page in the window --------------------------------------------------------------------------


@pytest.mark.slow
def test_the_hub_is_one_command_away(qtbot: QtBot, application: Application) -> None:
    assert page_name(application) == "Chat"
    application.window.commands.run("models.hub")
    assert page_name(application) == "Models"
    models = application.pages.models
    assert models.search.isVisible() and models.search.field.hasFocus()


@pytest.mark.slow
def test_the_list_says_which_model_is_open(qtbot: QtBot, application: Application) -> None:
    shown = application.pages.models.library.list

    def told() -> list[str]:
        items = [shown.item(row) for row in range(shown.count())]
        words = [item.data(Qt.ItemDataRole.AccessibleTextRole) or "" for item in items]
        return [text for text in words if OPEN in text]

    assert told() == []
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        application.session.open(str(starter_model()))
    qtbot.waitUntil(lambda: told() == [f"Demo model, {OPEN}, {starter_source().subtitle}"])
    application.pages.models.library.show_sources()
    assert len(told()) == 1
    application.window.commands.run("model.unload")
    qtbot.waitUntil(lambda: told() == [])


@pytest.mark.slow
def test_opening_from_the_page_is_opening_as_from_the_dialog(
    qtbot: QtBot, application: Application
) -> None:
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000) as loaded:
        application.pages.models.model_chosen.emit("/models/tiny", "auto", {"max_num_seqs": 4})
    assert loaded.args is not None and loaded.args[0].config.max_num_seqs == 4
    assert application.settings.recent[0].path == "/models/tiny"


def test_a_download_is_seen_on_every_page_and_can_be_stopped_there(
    qtbot: QtBot, application: Application, server: HubServer
) -> None:
    server.faults.hold = threading.Event()
    application.pages.models.queue.start("acme/tiny")
    work = application.work
    assert page_name(application) == "Chat" and work.isVisible()
    qtbot.waitUntil(lambda: "KiB of" in work.works[0].figures, timeout=5000)
    assert [b.accessibleName() for b in work.row("acme/tiny").buttons] == [
        "Pause: acme/tiny", "Cancel: acme/tiny",
    ]  # fmt: skip
    work.row("acme/tiny").buttons[1].click()
    server.faults.hold.set()
    qtbot.waitUntil(lambda: work.works == [] and work.isHidden(), timeout=5000)


def test_a_download_that_is_done_is_opened_from_there(
    qtbot: QtBot, application: Application
) -> None:
    with qtbot.waitSignal(application.pages.models.queue.finished, timeout=5000):
        application.pages.models.queue.start("acme/tiny")
    row = application.work.row("acme/tiny")
    assert [b.text() for b in row.buttons] == ["Open", "Close"]
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000) as loaded:
        row.buttons[0].click()
    assert loaded.args is not None and "models--acme--tiny" in loaded.args[0].config.model
    assert application.work.works == []


@pytest.mark.slow
def test_leaving_in_the_middle_of_a_download_keeps_it(
    qapp: QApplication, qtbot: QtBot, application: Application, server: HubServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    server.faults.hold = hold = threading.Event()
    queue = application.pages.models.queue
    queue.start("acme/tiny")
    qtbot.waitUntil(lambda: queue.get("acme/tiny").progress.done > 100_000, timeout=5000)  # type: ignore[union-attr]
    close = queue.close

    def close_and_let_go() -> None:
        close()
        hold.set()  # not before: what is left comes at once

    monkeypatch.setattr(queue, "close", close_and_let_go)
    application.shutdown()
    assert hold.is_set()
    with next_run(qapp) as again:
        known = again.pages.models.queue.get("acme/tiny")
        assert known is not None and known.state == "paused" and known.progress.done > 100_000
        assert again.work.works == []  # it waits on the page


# The area of long work ---------------------------------------------------------------------------


def test_work_that_has_no_measure_moves_and_rests_when_it_ends(qtbot: QtBot) -> None:
    area = WorkArea()
    qtbot.addWidget(area)
    assert area.isHidden()
    area.show_work(Work("a", "Quantizing", "layer 3", fraction=None))
    row = area.row("a")
    assert row._bar.maximum() == 0 and not area.isHidden()
    area.show_work(Work("a", "Quantizing", "layer 4", "4 of 28", fraction=0.25))
    assert area.row("a") is row and row._bar.value() == 250
    assert row.work is not None and row.work.text == "Quantizing, layer 4, 4 of 28"
    area.end("a")
    assert area.isHidden() and area.works == []


def test_a_cause_is_read_whole(qtbot: QtBot) -> None:
    area = WorkArea()
    qtbot.addWidget(area)
    area.resize(300, 200)
    cause = "model.safetensors is damaged. " * 5
    area.show_work(Work("a", "acme/tiny", cause, "1 of 2", 0.5, moving=False, tone="error"))
    row = area.row("a")
    assert row._error.text() == cause and row._stage.text() == "" and row._bar.isHidden()
    area.show_work(Work("a", "acme/tiny", "downloading", "1 of 2", 0.5))
    assert row._error.isHidden() and not row._bar.isHidden()


def test_a_low_window_shows_one_and_counts_the_others(qtbot: QtBot) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    area = WorkArea()
    vbox(area, STRETCH, of=window)
    for number in range(MAX_ROWS):
        area.show_work(Work(f"{number}", f"work {number}"))
    window.show()
    for height, count in ((300, 1), (1600, MAX_ROWS)):
        window.resize(height, height)
        shown = lambda: sum(not area.row(f"{number}").isHidden() for number in range(MAX_ROWS))
        qtbot.waitUntil(lambda: shown() == count)  # noqa: B023
        assert area._more.isVisible() == (count < MAX_ROWS)


def test_a_finished_job_folds_and_a_failed_one_stays(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.window.progress.FOLD_MS", 20)
    area = WorkArea()
    qtbot.addWidget(area)
    area.show_work(Work("runs", "AWQ", is_done=False))
    area.show_work(Work("failed", "org/model", "no space", moving=False, tone="error"))
    area.show_work(Work("done", "org/other", "done", moving=False, is_done=True))
    area.show_work(Work("again", "org/third", "done", moving=False, is_done=True))
    area.show_work(Work("again", "org/third", "downloading"))
    qtbot.waitUntil(lambda: len(area.works) < 4)
    assert [work.key for work in area.works] == ["runs", "failed", "again"]


def test_those_that_have_no_room_are_named_by_their_pages(qtbot: QtBot) -> None:
    area = WorkArea()
    qtbot.addWidget(area)
    area.resize(800, 120)
    pages = ("Models", "Models", "Runs", "Models", "")
    for number, page in enumerate(pages):
        area.show_work(Work(f"{number}", f"work {number}", page=page))
    text = area._more.text()
    assert text.startswith("4 ") and text.count("Models") == text.count("Runs") == 1
    assert "work 4" in text and "work 3" not in text


def test_many_at_once_are_counted(qtbot: QtBot) -> None:
    area = WorkArea()
    qtbot.addWidget(area)
    area.resize(800, 1600)
    for number in range(MAX_ROWS + 2):
        area.show_work(Work(f"{number}", f"work {number}"))
    shown = [not area.row(f"{number}").isHidden() for number in range(MAX_ROWS + 2)]
    assert shown.count(True) == MAX_ROWS and area._more.text().startswith("2 ")
    area.end("0")
    area.end("no such")
    assert not area.row(f"{MAX_ROWS}").isHidden()


# The first run -----------------------------------------------------------------------------------


def test_the_first_start_welcomes_once(
    qapp: QApplication, qtbot: QtBot, application: Application
) -> None:
    place = application.pages.models_place
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        application.start({})
    assert place.currentWidget() is place.welcome and page_name(application) == "Models"
    qtbot.waitUntil(lambda: not place.welcome.fits.isHidden(), timeout=20000)
    rows = [line.partition(": ") for line in place.welcome.fits.text().splitlines()]
    (verdict,) = [text for name, _, text in rows if name == "Qwen3-0.6B, BF16"]
    assert numbers(verdict)[0] == 4.14 and len(numbers(verdict)) > 1  # the tokens that fit
    assert any("GiB free of" in label.text() for label in place.welcome.findChildren(QLabel))
    _button(place.welcome, "Chat").click()
    assert page_name(application) == "Chat" and place.currentWidget() is place.page
    application.window.commands.run("help.welcome")
    assert place.currentWidget() is place.welcome and page_name(application) == "Models"
    application.shutdown()
    with next_run(qapp) as again:
        again.startup.welcome()
        assert again.pages.models_place.currentWidget() is again.pages.models_place.page


def test_tab_leads_through_the_ways_to_start_first(qtbot: QtBot) -> None:
    page = WelcomePage(lambda: 0, halves, lambda: MachineFacts((), None))
    qtbot.addWidget(page)
    order, widget = [], page.nextInFocusChain()
    while widget is not page:
        order += [widget.text()] if isinstance(widget, QPushButton) else []
        widget = widget.nextInFocusChain()
    texts = [text for text in order if text != "Copy command"]  # only with advice
    assert (texts[0], texts[-1]) == ("Chat", "Show models") and len(texts) == 6


@pytest.mark.slow
def test_who_names_a_model_is_not_welcomed(qtbot: QtBot, application: Application) -> None:
    with qtbot.waitSignal(application.bridge.loaded, timeout=5000):
        application.start({"model": "/models/tiny"})
    assert page_name(application) == "Chat"


@pytest.mark.parametrize(
    ("text", "field"), first_fast(1, [("Find model", "search"), ("Choose size", "library")])
)
def test_each_way_leads_where_it_says(
    qtbot: QtBot, application: Application, text: str, field: str
) -> None:
    place = application.pages.models_place
    place.show_welcome()
    _button(place.welcome, text).click()
    assert place.currentWidget() is place.page and getattr(place.page, field).isVisible()
    if text == "Choose size":
        assert place.page.source is not None and place.page.source.title == "Qwen3-0.6B"


def test_a_gpu_that_cannot_be_used_is_said_with_a_command_to_copy(qtbot: QtBot) -> None:
    found = advice(("NVIDIA H200",), TorchBuild("2.13.0+cpu", ""))
    page = WelcomePage(lambda: 0, halves, lambda: MachineFacts((("CPU", "x"),), found))
    qtbot.addWidget(page)
    page.resize(900, 600)
    page.show()
    qtbot.waitUntil(page.advice.isVisible, timeout=5000)
    assert found is not None and page.advice.command == found.command
    page.advice.findChild(CopyButton).click()
    assert QGuiApplication.clipboard().text() == found.command
    qtbot.waitUntil(lambda: not page.fits.isHidden(), timeout=5000)
    page.resize(500, 600)  # one column
    page.grab()


def _button(page: WelcomePage, text: str) -> QPushButton:
    return next(b for b in page.findChildren(QPushButton) if b.text() == text)
