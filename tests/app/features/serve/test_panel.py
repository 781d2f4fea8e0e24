"""Connections in the window: written, tested, kept, deleted and brought back, and watched."""

from __future__ import annotations

import socket

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.clients.connection import SERVICE
from app.clients.target import LinkState, ServerType
from app.features.serve.connections_panel import MOVED
from app.features.serve.page import OTHERS, ServerPage
from app.main.application import Application
from tests.app.features.serve.conftest import KEY, Elsewhere, MemoryKeyring
from tests.app.window_fixtures import application, script

__all__ = ["application", "script"]
WAIT_MS = 20_000


@pytest.fixture
def page(application: Application, ring: MemoryKeyring) -> ServerPage:
    page = application.pages.server
    page.show_tab(OTHERS)
    return page


def write(page: ServerPage, name: str, url: str, key: str = "") -> None:
    form = page.connections.form
    form.name.setText(name)
    form.url.setText(url)
    form.key.setText(key)
    form.edited.emit()


def wait_for_result(qtbot: QtBot, page: ServerPage) -> str:
    form = page.connections.form
    qtbot.waitUntil(lambda: form.test.isEnabled() and bool(form.result.text()), timeout=WAIT_MS)
    return form.result.text()


@pytest.mark.slow
def test_the_keyboard_stays_on_the_button_that_asks(
    qtbot: QtBot, application: Application, page: ServerPage, elsewhere: Elsewhere
) -> None:
    application.window.show_page(application.window.stack.indexOf(page))
    application.window.activateWindow()
    form = page.connections.form
    write(page, "lab", elsewhere.url + "/v1", KEY)
    form.test.setFocus()
    qtbot.keyClick(form.test, Qt.Key.Key_Space)
    focused = QApplication.focusWidget()
    assert focused is not None and not form.test.isEnabled()
    qtbot.keyClick(focused, Qt.Key.Key_Space)
    wait_for_result(qtbot, page)
    assert form.test.hasFocus() and page.store.connections == []


def test_it_is_tested_kept_watched_and_restored(
    qtbot: QtBot, application: Application, page: ServerPage, elsewhere: Elsewhere,
    ring: MemoryKeyring,
) -> None:  # fmt: skip
    assert not page.cards.empty.isHidden()
    write(page, "lab", elsewhere.url + "/v1", KEY)
    page.connections.test()
    assert "Inferdeck" in wait_for_result(qtbot, page)
    assert "far" in page.connections.form.details.text()
    assert [page.connections.form.model.itemText(0)] == ["far"]
    page.connections.form.save.click()
    kept = page.store.connections[0]
    assert (kept.name, kept.server_type) == ("lab", ServerType.INFERDECK)
    qtbot.waitUntil(lambda: ring.kept == {(SERVICE, kept.key_name): KEY}, timeout=WAIT_MS)
    assert not page.connections.form.save.isEnabled()

    card = page.cards.cards[kept.id]
    qtbot.waitUntil(lambda: card.watcher.state is LinkState.LIVE, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: card.figures.value("running") == "0", timeout=WAIT_MS)
    assert card.figures.value("kv") == "0 %"
    page.show_tab(0)
    qtbot.waitUntil(lambda: not card.watcher.is_on, timeout=WAIT_MS)
    page.show_tab(OTHERS)
    card.watch.setChecked(True)
    page.show_tab(0)
    assert card.watcher.is_on and page.store.connections[0].is_watched

    application.settings.sync()
    assert KEY not in application.settings.path.read_text(encoding="utf-8")
    assert application.settings.connections == page.store.connections


def test_what_goes_wrong_is_said_with_a_remedy(
    qtbot: QtBot, page: ServerPage, elsewhere: Elsewhere
) -> None:
    form = page.connections.form
    write(page, "lab", elsewhere.url, "wrong")
    page.connections.test()
    assert "key" in wait_for_result(qtbot, page).lower() and form.details.text()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
    write(page, "lab", f"http://127.0.0.1:{port}")
    page.connections.test()
    assert "refused" in wait_for_result(qtbot, page)
    write(page, "lab", "")
    page.connections.test()
    assert form.fields["base_url"][0].note
    write(page, "", elsewhere.url, KEY)
    page.connections.save()  # the host is its name, then
    assert page.store.connections[0].name == elsewhere.url.removeprefix("http://")
    wait_for_result(qtbot, page)
    page.connections.begin()
    write(page, page.store.connections[0].name.upper(), elsewhere.url)
    page.connections.save()
    assert len(page.store.connections) == 1 and form.fields["name"][0].note


def test_a_key_in_the_address_is_moved(qtbot: QtBot, page: ServerPage) -> None:
    form = page.connections.form
    write(page, "lab", "http://me:secret@lab:8000")
    page.connections.save()
    assert not page.store.connections
    assert (form.url.text(), form.key.text()) == ("http://lab:8000", "secret")
    assert form.fields["key"][0].note == MOVED


@pytest.mark.slow
def test_a_deleted_one_comes_back_with_its_key(
    qtbot: QtBot, page: ServerPage, elsewhere: Elsewhere, ring: MemoryKeyring
) -> None:
    for name in ("one", "two", "three"):
        page.connections.begin()
        write(page, name, elsewhere.url, KEY)
        page.connections.save()
        wait_for_result(qtbot, page)
    second = page.store.connections[1]
    page.connections.choose(second.id)
    page.connections.delete()
    assert [one.name for one in page.store.connections] == ["one", "three"]
    assert second.id not in page.cards.cards
    page.toast.act()
    assert [one.name for one in page.store.connections] == ["one", "two", "three"]
    assert page.connections.form.key.text() == KEY
    page.connections.delete()
    page.toast.dismiss()  # nobody brought it back
    gone = (SERVICE, second.key_name)
    qtbot.waitUntil(lambda: gone not in ring.kept and len(ring.kept) == 2, timeout=WAIT_MS)


def test_a_server_that_goes_away_is_seen_and_its_figures_stay(
    qtbot: QtBot, page: ServerPage, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.features.serve.connections.POLL_MS", 100)
    write(page, "lab", elsewhere.url, KEY)
    page.connections.test()
    wait_for_result(qtbot, page)
    page.connections.save()
    card = page.cards.cards[page.store.connections[0].id]
    qtbot.waitUntil(lambda: card.watcher.figures is not None, timeout=WAIT_MS)
    elsewhere.close()
    qtbot.waitUntil(lambda: card.watcher.state is LinkState.RECONNECTING, timeout=WAIT_MS)
    assert card.state.text() and card.figures.value("running") == "0"


@pytest.mark.slow
def test_one_that_was_down_is_recognised_when_it_comes_up(
    qtbot: QtBot, page: ServerPage, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.features.serve.connections.POLL_MS", 50)
    port = int(elsewhere.url.rsplit(":", 1)[1])
    elsewhere.server.stop()
    write(page, "lab", elsewhere.url, KEY)
    page.connections.save()
    wait_for_result(qtbot, page)
    made = page.store.connections[0]
    assert made.server_type is None
    card = page.cards.cards[made.id]
    qtbot.waitUntil(lambda: "refused" in card.state.text(), timeout=WAIT_MS)
    form = page.connections.form
    assert "refused" in form.result.text()
    again = Elsewhere(port=port)
    try:
        qtbot.waitUntil(
            lambda: page.store.connections[0].server_type is ServerType.INFERDECK, timeout=WAIT_MS
        )
        fresh = page.cards.cards[made.id]
        qtbot.waitUntil(lambda: fresh.watcher.state is LinkState.LIVE, timeout=WAIT_MS)
        assert not form.result.text() and not form.details.text()
    finally:
        again.close()
