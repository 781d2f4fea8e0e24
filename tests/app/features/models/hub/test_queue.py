"""The queue of downloads, against a hub on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pytestqt.qtbot import QtBot

from app.features.models.downloads import (
    Download,
    DownloadQueue,
    State,
    actions,
    figures_text,
    how_far,
    state_text,
    subtitle,
)
from app.features.models.hub import Hub
from app.features.models.hub_download import Progress
from engine.errors import ErrorInfo
from tests.app.features.models.hub.conftest import tiny_files
from tests.app.features.models.hub.server import HubServer, Model


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "downloads.json"


@pytest.fixture
def queue(qtbot: QtBot, hub: Hub, file: Path) -> Iterator[DownloadQueue]:
    made = DownloadQueue(hub, file)
    yield made
    made.close()


def state(queue: DownloadQueue, repo_id: str) -> State | None:
    download = queue.get(repo_id)
    return download.state if download is not None else None


def half(qtbot: QtBot, queue: DownloadQueue, server: HubServer) -> None:
    """Start acme/tiny and hold it when half of its weights are there."""
    server.faults.hold = threading.Event()
    queue.start("acme/tiny")
    qtbot.waitUntil(lambda: _progress(queue).done > 140_000, timeout=5000)


def let_go(server: HubServer) -> None:
    assert server.faults.hold is not None
    server.faults.hold.set()
    server.faults.hold = None


def _progress(queue: DownloadQueue) -> Progress:
    download = queue.get("acme/tiny")
    assert download is not None
    return download.progress


def test_a_download_runs_to_its_end_and_says_where_it_is(
    qtbot: QtBot, queue: DownloadQueue, hub: Hub
) -> None:
    with qtbot.waitSignal(queue.finished, timeout=5000) as done:
        queue.start("acme/tiny")
        assert state(queue, "acme/tiny") is State.RUNNING
    assert done.args is not None and Path(done.args[1], "config.json").is_file()
    assert state(queue, "acme/tiny") is State.DONE
    with qtbot.waitSignal(queue.gone, timeout=1000):
        queue.dismiss("acme/tiny")


def test_pause_keeps_and_resume_goes_on(
    qtbot: QtBot, queue: DownloadQueue, server: HubServer
) -> None:
    half(qtbot, queue, server)
    queue.pause("acme/tiny")
    assert state(queue, "acme/tiny") is State.PAUSING
    let_go(server)
    qtbot.waitUntil(lambda: state(queue, "acme/tiny") is State.PAUSED, timeout=5000)
    with qtbot.waitSignal(queue.finished, timeout=5000):
        queue.start("acme/tiny")
    assert len(server.ranges()) == 1


def test_cancel_removes_what_has_arrived(
    qtbot: QtBot, queue: DownloadQueue, server: HubServer, hub: Hub, file: Path
) -> None:
    half(qtbot, queue, server)
    with qtbot.waitSignal(queue.gone, timeout=5000):
        queue.cancel("acme/tiny")
        let_go(server)
    assert not (hub.cache_dir / "models--acme--tiny").exists()
    assert file.read_text() == "{}"


def test_stopped_before_it_began_is_stopped(
    qtbot: QtBot, queue: DownloadQueue, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_paused, details = threading.Event(), Hub.details

    def late(hub: Hub, repo_id: str) -> Any:
        was_paused.wait(120)
        return details(hub, repo_id)

    monkeypatch.setattr(Hub, "details", late)
    queue.start("acme/tiny")
    queue.pause("acme/tiny")
    was_paused.set()
    qtbot.waitUntil(lambda: state(queue, "acme/tiny") is State.PAUSED, timeout=5000)
    assert server.ranges() == [] and _progress(queue).done == 0
    with qtbot.waitSignal(queue.gone, timeout=5000):
        queue.cancel("acme/tiny")
        queue.cancel("acme/tiny")  # pressed twice: nothing happens


def test_nothing_begins_after_the_end(
    qtbot: QtBot, queue: DownloadQueue, server: HubServer
) -> None:
    server.models["acme/two"] = Model("acme/two", tiny_files())
    half(qtbot, queue, server)
    queue.start("acme/two")
    queue.close()
    let_go(server)
    qtbot.waitUntil(lambda: state(queue, "acme/tiny") is State.PAUSED, timeout=5000)
    assert state(queue, "acme/two") is State.WAITING


def test_they_run_one_after_the_other(
    qtbot: QtBot, queue: DownloadQueue, server: HubServer
) -> None:
    server.models["acme/two"] = Model("acme/two", tiny_files())
    half(qtbot, queue, server)
    queue.start("acme/two")
    queue.start("acme/tiny")  # pressed twice: nothing happens
    assert state(queue, "acme/two") is State.WAITING
    queue.pause("acme/two")
    assert state(queue, "acme/two") is State.PAUSED
    queue.start("acme/two")
    let_go(server)
    qtbot.waitUntil(lambda: state(queue, "acme/two") is State.DONE, timeout=8000)


def test_the_next_run_remembers_what_is_not_finished(
    qtbot: QtBot, queue: DownloadQueue, server: HubServer, hub: Hub, file: Path
) -> None:
    half(qtbot, queue, server)
    queue.close()
    let_go(server)
    with closing(DownloadQueue(hub, file)) as again:
        known = again.get("acme/tiny")
        assert known is not None and known.state is State.PAUSED and known.progress.done > 140_000
        qtbot.waitUntil(lambda: state(queue, "acme/tiny") is State.PAUSED, timeout=5000)
        with qtbot.waitSignal(again.finished, timeout=5000):
            again.start("acme/tiny")
        assert DownloadQueue(hub, file).get("acme/tiny") is None


def test_a_failure_stays_with_its_cause_until_it_is_resumed(
    qtbot: QtBot, queue: DownloadQueue, server: HubServer
) -> None:
    server.faults.corrupt = {"model.safetensors"}
    queue.start("acme/tiny")
    qtbot.waitUntil(lambda: state(queue, "acme/tiny") is State.FAILED, timeout=5000)
    download = queue.get("acme/tiny")
    assert download is not None and "checksum" in state_text(download)
    assert [text for text, _ in actions(queue, download)] == ["Resume", "Cancel"]
    with qtbot.waitSignal(queue.finished, timeout=5000):
        queue.start("acme/tiny")


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a/b": 3}', '{"a/b": ["x", 2]}'])
def test_a_damaged_memory_is_none(qtbot: QtBot, hub: Hub, file: Path, text: str) -> None:
    file.write_text(text)
    assert list(DownloadQueue(hub, file)) == []


# In words ----------------------------------------------------------------------------------------


def test_figures_leave_out_what_is_not_known() -> None:
    assert figures_text(Progress()) == ""
    assert figures_text(Progress(2**20, 2**30)) == "1.00 MiB of 1.00 GiB"
    known = Progress(2**29, 2**30, 2**20 * 10.0)
    assert figures_text(known) == "512 MiB of 1.00 GiB · 10.0 MiB/s · 51 s left"
    assert figures_text(Progress(2**30, 2**30, 5.0)) == "1.00 GiB"


def test_a_download_in_words(qtbot: QtBot, queue: DownloadQueue) -> None:
    running = Download("a/b", State.RUNNING, Progress(1, 4, 0.0, "checking what is there"))
    assert state_text(running) == "checking what is there"
    assert how_far(Download("a/b", State.PAUSED, Progress(1, 4, 2.0))) == "1 B of 4 B"
    assert subtitle(running) == "downloading · 25 %"
    failed = Download("a/b", State.FAILED, error=ErrorInfo("It broke.", "Mend it."))
    assert state_text(failed) == "It broke. Mend it."
    assert actions(queue, Download("a/b", State.CANCELLING)) == ()
