"""Engines compared on the Bench page: ours and the scripted vLLM, which is started for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.bench.engines import AWAY, OWN
from app.features.bench.page import BenchPage
from app.features.serve import bench_targets
from app.features.serve.page import ServerPage
from app.managed.launch import Launch
from app.managed.process import State
from engine.errors import ErrorInfo
from tests.app.features.bench.bench_fixtures import page, wait_end
from tests.app.features.serve.conftest import MemoryKeyring, ring
from tests.app.managed.conftest import make_environment
from tests.app.parts import Parts, parts
from tests.app.window_fixtures import script, usual_text

__all__ = ["page", "parts", "ring", "script", "usual_text"]
OPENS = "/models/tiny"
WAIT_MS = 30_000


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(interpreter=str(make_environment(tmp_path / "venv")), model="/models/starter")


@pytest.fixture
def server(parts: Parts, ring: MemoryKeyring) -> ServerPage:
    return parts.server


def compare(qtbot: QtBot, page: BenchPage, *names: str) -> list[str]:
    """Run it to its end; the errors of the points."""
    box, line = page.form.axes[0]
    box.setCurrentIndex(box.findData("engine"))
    line.setText("; ".join(names))
    page.form.press_run()
    wait_end(qtbot, page)
    result = page.bench.result
    return [] if result is None else [point.error for point in result.points]


def test_a_managed_engine_is_started_measured_and_stopped(
    qtbot: QtBot, page: BenchPage, server: ServerPage, launch: Launch
) -> None:
    known = server.engines.add("vLLM, scripted", launch).id
    box, line = page.form.axes[0]
    box.setCurrentIndex(box.findData("engine"))
    assert line.text().split("; ") == [OWN, "vLLM, scripted"]
    assert compare(qtbot, page, OWN, "vLLM, scripted") == ["", ""]
    result = page.bench.result
    assert result is not None and all(point.is_measured for point in result.points)
    assert not any(curve.is_line for curve in page.results.plot.curves)
    table = page.results.model
    texts = [[table.index(row, column).data() for column in range(2)] for row in range(3)]
    assert [row[0] for row in texts] == [OWN, "vLLM, scripted", "change"]
    assert texts[2][1].endswith("%") or texts[2][1].endswith("×")
    assert not page.results.bar.apply.isEnabled()  # another engine has no settings of ours
    qtbot.waitUntil(lambda: not server.engines.is_running(known), timeout=WAIT_MS)
    assert not server.switch.is_elsewhere and server.engines.status(known).error is None


@pytest.mark.slow
def test_an_engine_that_runs_already_goes_on(
    qtbot: QtBot, page: BenchPage, server: ServerPage, launch: Launch
) -> None:
    known = server.engines.add("vLLM", launch).id
    server.engines.run(known)
    qtbot.waitUntil(lambda: server.engines.is_ready(known), timeout=WAIT_MS)
    assert compare(qtbot, page, "vLLM", OWN) == ["", ""]
    assert server.engines.is_ready(known) and not server.engines.is_used(known)


@pytest.mark.slow
def test_an_engine_that_stops_is_started_once_it_has_ended(
    qtbot: QtBot, page: BenchPage, server: ServerPage, launch: Launch
) -> None:
    known = server.engines.add("vLLM", launch).id
    server.engines.run(known)
    qtbot.waitUntil(lambda: server.engines.is_ready(known), timeout=WAIT_MS)
    server.engines.stop(known)
    assert server.engines.status(known).state is State.STOPPING
    assert compare(qtbot, page, "vLLM") == [""]


def test_why_an_engine_does_not_start_is_the_error_of_its_row(
    qtbot: QtBot, page: BenchPage, server: ServerPage, launch: Launch
) -> None:
    failing = Launch(interpreter=launch.interpreter, model="x",
                     environment={"SCRIPTED_FAIL": "unknown_model"})  # fmt: skip
    server.engines.add("vLLM", failing)
    first, second = compare(qtbot, page, OWN, "vLLM")
    assert not first and "does not support this model" in second


@pytest.mark.slow
def test_the_first_is_stopped_where_memory_is_for_one(
    qtbot: QtBot, page: BenchPage, server: ServerPage, launch: Launch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(bench_targets, "has_room_beside", lambda pid: False)
    known = [server.engines.add(name, launch).id for name in ("A", "B")]
    at_once: list[int] = []
    running = lambda: sum(map(server.engines.is_running, known))
    server.engines.changed.connect(lambda _: at_once.append(running()))
    assert compare(qtbot, page, "A", "B") == ["", ""]
    qtbot.waitUntil(lambda: not running(), timeout=WAIT_MS)
    assert max(at_once) == 1


def test_an_unknown_engine_is_refused_before(
    qtbot: QtBot, page: BenchPage, server: ServerPage
) -> None:
    compare(qtbot, page, OWN, "nobody")
    assert page.bench.problem is not None and "nobody" in page.bench.problem.cause


@pytest.mark.slow
def test_ours_has_no_model_while_the_window_uses_another(
    qtbot: QtBot, page: BenchPage, server: ServerPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(page.bench._bridge), "is_remote", property(lambda bridge: True))
    assert OWN not in page.bench.engine_names()
    assert compare(qtbot, page, OWN, "nobody") == []
    assert page.bench.problem == ErrorInfo(*AWAY)


@pytest.mark.slow
def test_cancel_ends_the_wait_for_an_engine(
    qtbot: QtBot, page: BenchPage, server: ServerPage, launch: Launch
) -> None:
    slow = Launch(interpreter=launch.interpreter, model="x", environment={"SCRIPTED_STEP": "30"})
    known = server.engines.add("vLLM", slow).id
    box, line = page.form.axes[0]
    box.setCurrentIndex(box.findData("engine"))
    line.setText("vLLM")
    page.form.press_run()
    qtbot.waitUntil(lambda: server.engines.is_running(known), timeout=WAIT_MS)
    page.bench.cancel()
    wait_end(qtbot, page)
    qtbot.waitUntil(lambda: not server.engines.is_running(known), timeout=WAIT_MS)
