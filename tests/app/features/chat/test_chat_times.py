"""When the tokens of replies came: kept with the chat, and told after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytestqt.qtbot import QtBot

from app.features.chat.reply_data import pack_times, unpack_times
from app.storage import TIMES
from engine.snapshot import RequestTimes, TokenEvent
from tests.app.chat_fixtures import Chat, chat, chat_in
from widgets.chat.message_view import AssistantMessageView

__all__ = ["chat"]

SECONDS = st.integers(0, 10**9).map(lambda us: us / 1e6)


@given(st.lists(st.tuples(SECONDS, st.integers(1, 9)), max_size=20), st.none() | SECONDS, SECONDS)
def test_what_is_packed_is_unpacked_since_the_arrival(
    rows: list[tuple[float, int]], scheduled: float | None, finished: float
) -> None:
    tokens = tuple(TokenEvent(*row) for row in sorted(rows))
    times = RequestTimes(0.0, scheduled, tokens, finished)
    found = unpack_times(pack_times(times))
    assert [event.num_tokens for event in found.tokens] == [event.num_tokens for event in tokens]
    assert [e.time for e in found.tokens] == pytest.approx([e.time for e in tokens], abs=1e-6)
    assert (found.first_scheduled, found.finished) == (scheduled, finished)


def test_the_clock_of_a_process_that_ended_is_not_kept() -> None:
    times = RequestTimes(5000.0, 5000.25, (TokenEvent(5000.5, 1), TokenEvent(5000.75, 3)), 5000.75)
    expected = RequestTimes(0.0, 0.25, (TokenEvent(0.5, 1), TokenEvent(0.75, 3)), 0.75)
    assert unpack_times(pack_times(times)) == expected


@given(junk=st.binary(max_size=40))
def test_other_bytes_are_refused(junk: bytes) -> None:
    with pytest.raises(ValueError, match="not the times"):
        unpack_times(junk)


def ask(made: Chat) -> str:
    request = made.send("Hello")
    for word in ("a", "b", "c"):
        made.engine.say(word)
    made.engine.finish()
    made.settle()
    return request


def test_the_latency_of_a_reply_opens_after_a_restart(qtbot: QtBot, tmp_path: Path) -> None:
    with chat_in(tmp_path) as made:
        request = ask(made)
        before = made.controller.times.of(request)
        assert before is not None
    with chat_in(tmp_path) as made:
        made.controller.open(made.controller.conversations[0].id)
        made.settle()
        asked: list[tuple[float, float]] = []
        made.page.inspector._steps = lambda start, end: asked.append((start, end)) or ()
        view = made.page.transcript.view(request)
        assert isinstance(view, AssistantMessageView) and view.latency.isVisible()
        made.page.open_inspector()
        panel = made.page.inspector.view.latency
        qtbot.waitUntil(panel.isVisible)  # read in another thread
        assert asked == []  # the steps of this engine are other ones
        shown = panel._latency
        assert shown is not None and len(shown.gaps) == len(before.tokens) - 1
        assert shown.ttft_s == pytest.approx(before.tokens[0].time - before.arrival, abs=2e-6)
        assert all(not gap.steps and (gap.reason is None or gap.is_stored) for gap in shown.gaps)


def test_times_that_cannot_be_read_show_an_error(qtbot: QtBot, chat: Chat) -> None:
    request = ask(chat)
    chat.controller.times._cache.clear()  # as after a restart
    chat.store.save_packed(TIMES, request, lambda: b"damaged").result(5)
    said: list[str] = []
    chat.page.inspector._say = said.append
    chat.page.open_inspector()
    qtbot.waitUntil(lambda: len(said) == 1)
    assert not chat.page.inspector.view.latency.isVisible()
