"""The reply inspector: its figures are those of the reply's record, live and afterwards."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytestqt.qtbot import QtBot

from app.features.chat.conversation import State
from app.features.chat.inspection import BlockHistory, OwnBlocks, Phases, Prompt
from app.features.chat.inspector import NEVER_ANY, NOT_OF_SESSION
from app.features.chat.inspector_view import NOT_REPORTED, OWN_QUEUE, SERVED_QUEUE, PhaseTable
from app.main.application import Application
from engine.messages import OutputEvent
from engine.sampling_params import SamplingParams
from engine.snapshot import (
    BlockSnapshot,
    EngineSnapshot,
    FinishReason,
    LastBlocks,
    RequestTimes,
    TokenEvent,
)
from engine.units import NOTHING, duration_text
from tests.app.chat_fixtures import chat_in
from tests.app.fakes import Script
from tests.app.features.chat.test_continuation import cut
from tests.app.window_fixtures import application, ask, reply, script, wait_idle
from tests.figures import numbers
from tests.widgets import synthetic
from widgets.latency.reply import ReplyLatency

__all__ = ["application", "script"]  # fixtures

OPENS = "/models/tiny"
STEPS = st.lists(st.floats(0.001, 10.0), min_size=4, max_size=20)


@given(STEPS)
def test_phases_add_up_to_the_end_to_end_latency(steps: list[float]) -> None:
    moments = np.cumsum(steps).tolist()
    arrival, scheduled, *tokens, finished = moments
    times = RequestTimes(
        arrival, scheduled, tuple(TokenEvent(moment, 1) for moment in tokens), finished
    )
    phases = Phases.of(times, now=finished + 1.0)
    assert phases.ttft == pytest.approx(times.ttft_s) and phases.e2e == times.e2e_s
    assert phases.queue is not None and phases.prefill is not None and phases.decode is not None
    last = finished - tokens[-1]
    assert phases.queue + phases.prefill + phases.decode + last == pytest.approx(phases.e2e)


@given(st.integers(0, 3), st.floats(0.1, 9.0))
def test_phases_that_are_not_there_yet_are_none(stage: int, waited: float) -> None:
    tokens = (TokenEvent(3.0, 1),) if stage == 3 else ()
    phases = Phases.of(RequestTimes(1.0, 2.0 if stage else None, tokens), now=3.0 + waited)
    assert phases.e2e == pytest.approx(2.0 + waited)
    assert [one is None for one in phases[:3]] == [False, not stage, stage < 3]


def test_the_parts_of_a_ttft_that_a_server_does_not_report_have_no_figures(qtbot: QtBot) -> None:
    tokens = (TokenEvent(3.0, 1), TokenEvent(3.5, 1))
    phases = Phases.of(RequestTimes(1.0, None, tokens, 3.6), now=9.0)
    assert phases == (None, None, 0.5, pytest.approx(2.6), 2.0)
    table = PhaseTable()
    qtbot.addWidget(table)
    table.show_phases(phases, Prompt(17, 0, is_served=True))
    assert [one.text() == NOTHING for one in table.values] == [True, True, False, False]
    assert table.details[0].text() == NOT_REPORTED
    assert table.details[1].text() == f"{NOT_REPORTED}, 17 tokens"
    traced = Phases.of(RequestTimes(1.0, 1.5, tokens, 3.6), now=9.0)
    table.show_phases(traced, Prompt(17, 0, is_served=True))
    assert table.details[0].text() == SERVED_QUEUE
    table.show_phases(traced, Prompt(17, 0))
    assert table.details[0].text() == OWN_QUEUE


def blocks_of(tables: dict[str, list[int]], num_blocks: int = 16) -> BlockSnapshot:
    count, owner = np.zeros(num_blocks, np.int32), np.full(num_blocks, -1, np.int32)
    for place, table in enumerate(tables.values()):
        count[table] += 1
        owner[table] = place
    full = np.full(num_blocks, 4, np.int32)
    hashed = np.zeros(num_blocks, np.bool_)
    return BlockSnapshot(4, tuple(tables), owner, count, full, hashed,
                         tuple(map(tuple, tables.values())))  # fmt: skip


TABLES = st.dictionaries(
    st.sampled_from("abcd"), st.lists(st.integers(0, 15), unique=True, min_size=1), max_size=4
)


@given(st.lists(TABLES, min_size=1))
def test_the_last_blocks_of_a_request_are_kept(history: list[dict[str, list[int]]]) -> None:
    kept, expected = BlockHistory(lambda name: name != "d"), dict[str, OwnBlocks]()
    empty = synthetic.snapshot(1.0)
    for tables in history:
        blocks = blocks_of(tables)
        kept.take(dataclasses.replace(empty, blocks=blocks))
        expected |= {name: OwnBlocks.of(blocks, name) for name in tables}
    if "d" not in tables:
        assert kept.of("d") is None  # no reply
        expected.pop("d", None)
    for name, blocks in expected.items():
        found = kept.of(name)
        assert found is not None
        assert (found.num_blocks, found.num_shared) == (blocks.num_blocks, blocks.num_shared)


def test_blocks_come_with_the_end_whatever_the_snapshots_say() -> None:
    def end(time: float, num_tokens: int) -> OutputEvent:
        blocks = LastBlocks(4, num_tokens, (1,) * -(-num_tokens // 4))
        return OutputEvent("a", "", (), time, 1, 9, 0, blocks=blocks)

    def snapshot(time: float, **tables: list[int]) -> EngineSnapshot:
        return dataclasses.replace(synthetic.snapshot(1.0), time=time, blocks=blocks_of(tables))

    def count() -> int:
        found = history.of("a")
        assert found is not None and found.fill.sum() <= 4 * found.num_blocks
        return found.num_blocks

    history = BlockHistory(lambda name: True)
    assert history.end(end(1.0, 14)) and count() == 4  # between two snapshots
    for late in (snapshot(0.9, a=[1, 2]), snapshot(1.1)):  # the first is from before the end
        history.take(late)
        assert count() == 4
    history.take(snapshot(2.0, a=[1, 2, 3, 4, 5]))  # continued
    assert count() == 5
    assert history.end(end(2.1, 25)) and count() == 7
    history.take(snapshot(2.2, b=[1]))
    assert count() == 7
    assert not history.end(dataclasses.replace(end(3.0, 1), blocks=None)) and count() == 7


def test_the_figures_are_those_of_the_reply(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    script.step_s, script.replies = 0.02, 500
    page, chat = application.pages.chat_page, application.pages.chat
    application.window.resize(1600, 1000)
    ask(application, "hello", max_tokens=500)
    view = page.inspector.view
    assert view.isVisible() and view.no_times.isHidden()  # they may come
    assert view.drafts.isHidden()  # no token has come that could have been drafted
    qtbot.waitUntil(lambda: view.blocks.note.text().startswith("2 blocks"))  # while it runs
    chat.stop()
    wait_idle(qtbot, application)
    message = reply(application)
    times, figures = chat.times.of(message.id), message.figures
    assert times is not None and figures is not None and figures.ttft_ms is not None
    values = [value.text() for value in view.phases.values]
    qtbot.waitUntil(lambda: view.phases.values[3].text() == duration_text(times.e2e_s))
    values = [value.text() for value in view.phases.values]
    assert values[0] == duration_text(times.queue_s)
    assert view.phases.details[3].text() == f"TTFT {duration_text(figures.ttft_ms / 1e3)}"
    shown = view.latency._latency
    assert shown is not None and len(shown.gaps) == len(times.tokens) - 1
    stored = figures.num_context_tokens - 1  # the last token is never stored
    size = application.bridge.config.block_size if application.bridge.config else 0
    assert numbers(view.blocks.note.text())[:2] == [-(-stored // size), size]


@pytest.mark.slow
def test_the_latency_of_a_long_reply_follows(
    qtbot: QtBot, application: Application, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It continues what was shown while it was generated; that of one before comes from another
    thread."""
    monkeypatch.setattr("app.features.chat.inspector.AT_ONCE", 5)
    script.step_s, script.replies = 0.02, 40
    page, chat = application.pages.chat_page, application.pages.chat
    inspector, ended = page.inspector, []
    application.window.resize(1600, 1000)

    def is_whole(shown: ReplyLatency | None, message_id: str) -> bool:
        times = chat.times.of(message_id)
        assert times is not None
        if shown is None or shown.request_id != message_id:
            return False
        return len(shown.gaps) == len(times.tokens) - 1

    view = inspector.view.latency
    ask(application, "hello", max_tokens=40)
    for words in ("again", ""):
        wait_idle(qtbot, application)
        ended.append(reply(application).id)
        assert inspector.chosen == ended[-1]
        qtbot.waitUntil(lambda: view.isVisible() and is_whole(view._latency, ended[-1]))
        if words:
            page.composer.set_text(words)
            page.composer.send()

    inspector.choose(ended[0])
    qtbot.waitUntil(lambda: view.isVisible() and is_whole(view._latency, ended[0]))


@pytest.mark.slow
def test_a_reply_keeps_its_figures_while_its_times_are_read(
    qtbot: QtBot, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspector, held = application.pages.chat_page.inspector, []
    view = inspector.view
    application.window.resize(1600, 1000)
    ask(application, "hello")
    wait_idle(qtbot, application)
    qtbot.waitUntil(view.latency.isVisible)
    figures = [value.text() for value in view.phases.values]
    monkeypatch.setattr(application.pages.chat.times, "read", lambda *given: held.append(given))
    inspector.refresh()  # as at the end of a reply
    assert held and view.latency.isVisible()
    assert [value.text() for value in view.phases.values] == figures
    application.pages.chat_page.new_chat()
    ask(application, "hello again")
    assert not view.latency.isVisible()
    wait_idle(qtbot, application)


def test_it_follows_the_last_reply_until_another_is_chosen(
    qtbot: QtBot, application: Application
) -> None:
    page, inspector = application.pages.chat_page, application.pages.chat_page.inspector
    application.window.resize(1600, 1000)
    ask(application, "one")
    wait_idle(qtbot, application)
    first = reply(application).id
    assert inspector.chosen == first
    page.composer.set_text("two")
    page.composer.send()
    wait_idle(qtbot, application)
    assert inspector.chosen == reply(application).id != first
    page.transcript.requests.pressed.emit(first)
    assert inspector.chosen == first
    application.window.commands.run("chat.latency")  # of the last one, by its key
    assert inspector.chosen == reply(application).id and page.panes.shown.inspector
    page.transcript.requests.latency.emit(first)
    assert inspector.chosen == first and page.panes.shown.inspector
    page.transcript.requests.latency.emit(first)
    assert not page.panes.shown.inspector
    this = page.controller.current.id
    page.new_chat()
    assert inspector.chosen == ""
    page.controller.open(this)
    assert inspector.chosen == first  # until another one begins
    page.composer.set_text("three")
    page.composer.send()
    wait_idle(qtbot, application)
    assert inspector.chosen == reply(application).id


def test_the_latency_of_an_end_does_not_replace_that_of_a_continued_reply(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.features.chat.inspector.AT_ONCE", 0)
    with chat_in(tmp_path) as made:
        inspector, explained = made.page.inspector, []
        explaining = inspector._explaining
        monkeypatch.setattr(explaining, "run", lambda *given: explained.append(given))
        cut(made, FinishReason.ABORT, "one", " two")
        work, done, _ = explained[-1]
        made.controller.continuation.start()
        made.settle()
        events = tuple(TokenEvent(time, 1) for time in (101.0, 101.1, 101.2, 101.3))
        running = dataclasses.replace(
            synthetic.requests(1, 0)[0],
            request_id=inspector.chosen, times=RequestTimes(100.0, 100.5, events),
        )  # fmt: skip
        inspector.take(dataclasses.replace(synthetic.snapshot(101.3), requests=(running,)))
        inspector._refresh_live()
        shown = inspector.view.latency._latency
        assert shown is not None and len(shown.gaps) == 3
        done(work())  # late
        assert inspector.view.latency._latency is shown
        made.engine.finish()


@pytest.mark.slow
def test_a_reply_that_ends_behind_another_page_is_shown_on_return(
    qtbot: QtBot, application: Application, script: Script
) -> None:
    script.step_s, script.replies = 0.02, 500
    page, window = application.pages.chat_page, application.window
    window.resize(1600, 1000)
    ask(application, "hello", max_tokens=500)
    view = page.inspector.view
    qtbot.waitUntil(lambda: view.blocks.note.text().startswith("2 blocks"))
    window.show_page(1)
    assert not view.isVisible()
    progress = application.pages.chat.generation.progress(reply(application).id)
    assert progress is not None
    then = progress.num_tokens
    qtbot.waitUntil(lambda: progress.num_tokens > then + 20)
    application.pages.chat.stop()
    wait_idle(qtbot, application)
    window.show_page(0)
    times = application.pages.chat.times.of(reply(application).id)
    assert times is not None
    assert view.phases.values[3].text() == duration_text(times.e2e_s)


def test_why_a_reply_has_no_blocks_is_said(application: Application, qtbot: QtBot) -> None:
    page = application.pages.chat_page
    application.window.resize(1600, 1000)
    ask(application, "hello", max_tokens=2)
    wait_idle(qtbot, application)
    shown = page.inspector.view.blocks._none
    page.inspector._blocks._kept.clear()  # as if no snapshot had shown it
    page.inspector._blocks._last = None
    page.inspector.refresh()
    assert shown.isVisible() and shown.text() == NEVER_ANY
    made = SamplingParams(max_tokens=2)
    page.controller.keep_exchange("hi", "there", State.COMPLETE, made, None, None)
    assert shown.isVisible() and shown.text() == NOT_OF_SESSION


def test_what_is_shown_is_remembered(qtbot: QtBot, application: Application) -> None:
    page = application.pages.chat_page
    application.window.resize(1600, 1000)
    qtbot.waitUntil(lambda: page.panes.shown.inspector)
    page.close_inspector()
    assert not application.settings.flag("reply-inspector", True)
