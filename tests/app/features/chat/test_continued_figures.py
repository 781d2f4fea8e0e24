"""A continued reply has the same figures beside it, in its inspector and in the table of requests.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytestqt.qtbot import QtBot

from app.clients.target import Continues
from app.features.chat.conversation import Message, State
from app.features.chat.figures import Figures, decode_text, joined
from app.features.chat.open_reply import Earlier, Progress
from app.features.chat.reply_data import continued
from app.features.compare.replies import Reply
from app.main.application import Application
from engine.messages import OutputEvent
from engine.snapshot import FinishReason, RequestTimes, TokenEvent
from engine.units import duration_text
from tests.app.fakes import FakeEngineThread, Script
from tests.app.window_fixtures import application, ask, reply, wait_idle
from widgets.requests.model import RequestRecord, mean_gap_s

__all__ = ["application"]  # fixtures

OPENS = "/models/tiny"
FIRST = 6
"""Tokens before the reply is continued."""


@pytest.fixture
def script() -> Script:
    return Script(step_s=0.01, replies=400)


@pytest.fixture(autouse=True)
def continues_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEngineThread, "continues", Continues.TEXT, raising=False)


def row_of(application: Application, message: Message) -> RequestRecord:
    model = application.views.requests.model
    row = model.row_of(message.id)
    assert row is not None
    return model.records[row]


def write(qtbot: QtBot, application: Application, message: Message, num_tokens: int) -> None:
    """Let the open reply grow by so many tokens, and stop it."""
    chat = application.pages.chat

    def has_written() -> bool:
        progress = chat.generation.progress(message.id)
        return progress is not None and progress.num_tokens >= num_tokens

    qtbot.waitUntil(has_written, timeout=8000)
    chat.stop()
    wait_idle(qtbot, application)
    qtbot.waitUntil(lambda: not row_of(application, message).is_active, timeout=8000)


def check_same(application: Application, message: Message) -> None:
    """Line, inspector, table of requests and breakdown."""
    views, figures = application.views, message.figures
    assert figures is not None and figures.ttft_ms is not None and figures.itl_ms is not None
    row = row_of(application, message)
    assert row.ttft_s is not None and row.itl_s is not None and row.queue_s is not None
    assert 1e3 * row.ttft_s == pytest.approx(figures.ttft_ms, abs=2e-3)
    assert 1e3 * row.itl_s == pytest.approx(figures.itl_ms, abs=2e-3)
    assert row.num_output == figures.num_tokens
    assert (row.num_prompt, row.num_cached) == (
        figures.num_prompt_tokens, figures.num_cached_tokens
    )  # fmt: skip
    inspector = application.pages.chat_page.inspector
    values, details = inspector.view.phases.values, inspector.view.phases.details
    ttft = duration_text(row.ttft_s)
    assert ttft in details[-1].text() and values[0].text() == duration_text(row.queue_s)
    views.show_latency_of(message.id)
    shown, beside = views.latency.view._latency, inspector.view.latency._latency
    views.latency.hide()
    assert shown is not None and beside is not None
    assert shown.ttft_s == pytest.approx(row.ttft_s, abs=2e-6)
    assert [gap.seconds for gap in shown.gaps] == [gap.seconds for gap in beside.gaps]
    assert shown.causes == beside.causes


@pytest.mark.slow
def test_a_continued_reply_has_the_figures_of_the_whole_everywhere(
    qtbot: QtBot, application: Application
) -> None:
    application.window.resize(1600, 1000)
    ask(application, "hello", max_tokens=400)
    message = reply(application)
    write(qtbot, application, message, FIRST)
    check_same(application, message)
    before, first_row = message.figures, row_of(application, message)
    application.pages.chat.continuation.start()
    qtbot.waitUntil(lambda: row_of(application, message).is_active, timeout=8000)  # runs again
    write(qtbot, application, message, 2 * FIRST)
    assert before is not None and message.figures is not None
    assert message.state is State.STOPPED
    assert message.figures.num_continued_tokens == before.num_tokens
    assert row_of(application, message).ttft_s == pytest.approx(first_row.ttft_s, abs=2e-6)
    check_same(application, message)


GAPS = st.lists(st.tuples(st.floats(1e-3, 2.0), st.integers(1, 4)), min_size=1, max_size=8)


def times_of(gaps: list[tuple[float, int]]) -> RequestTimes:
    time, events = 5.0, []
    for gap, count in gaps:
        time += gap
        events.append(TokenEvent(time, count))
    return RequestTimes(5.0, 5.0, tuple(events), time)


@given(GAPS, GAPS)
def test_the_wait_for_a_continuation_is_no_time_between_tokens(
    first: list[tuple[float, int]], second: list[tuple[float, int]]
) -> None:
    whole, parts = continued(times_of(first), times_of(second), 9), (first, second)
    expected = [g / n for part in parts for g, n in part[1:] for _ in range(n)]
    assert len(whole.itl_s) == len(expected)
    if expected:
        assert fmean(whole.itl_s) == pytest.approx(fmean(expected))


@given(GAPS)
def test_a_reply_that_was_cut_before_its_first_token_has_the_ttft_of_the_second_part(
    gaps: list[tuple[float, int]],
) -> None:
    empty, second = RequestTimes(5.0, None, (), 6.0), times_of(gaps)
    figures = Figures(0, 9, 0)
    after = replace(figures, num_tokens=second.num_output_tokens)
    whole = continued(empty, second, 9)
    found = joined(Earlier(0, figures, empty, True), after, whole)
    assert second.ttft_s is not None and found.ttft_ms is not None and whole.ttft_s is not None
    assert found.ttft_ms == 1e3 * whole.ttft_s
    assert found.ttft_ms == pytest.approx(1e3 * second.ttft_s)
    assert found.queue_ms == pytest.approx(1e3 * (second.queue_s or 0.0))


@given(GAPS)
def test_the_decode_rate_has_one_definition(gaps: list[tuple[float, int]]) -> None:
    """Beside a reply, in its progress, in a broadcast and in the table of requests: tokens after
    the first event over the time since then, while it is written and at its end."""
    times = times_of(gaps)
    count = times.num_output_tokens
    progress, written = Progress(), Reply("r")
    for event in times.tokens:
        output = OutputEvent("r", "", tuple(range(event.num_tokens)), event.time, 0, 5, 0)
        progress.add(output)
        written.add(output, "m")
    end = OutputEvent("r", "", (), times.tokens[-1].time, 0, 5, 0,
                      finish_reason=FinishReason.STOP, times=times)  # fmt: skip
    shown = Figures.of(end, count, "m").tokens_per_s
    live = progress.itl_s, mean_gap_s(times, count)
    if len(gaps) == 1:
        assert (shown, written.tokens_per_s, *live) == (None, None, None, None)
        return
    rate = (count - gaps[0][1]) / (times.tokens[-1].time - times.tokens[0].time)
    expected = pytest.approx(rate)
    assert shown == expected and written.tokens_per_s == expected
    assert [1 / gap for gap in live if gap] == [expected, expected]
    written.add(end, "m")
    assert written.tokens_per_s == expected and decode_text(rate) in written.summary
