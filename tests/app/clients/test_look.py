"""Live figures of a polled server: over which time they are."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.clients.look import LiveFigures, figures_of, scrape_before
from app.clients.metric_names import Figure
from app.clients.metrics import Scrape
from app.features.serve.connections import POLL_MS
from widgets.live.metric_store import RATE_S

EVERY_S = POLL_MS / 1e3


def scrape(at: float, tokens: float) -> Scrape:
    return Scrape(at, {Figure.GENERATION_TOKENS: tokens}, {})


@given(st.lists(st.floats(-0.1, 0.1), min_size=8, max_size=30))
def test_a_rate_is_over_the_time_of_the_header(jitter: list[float]) -> None:
    """So that an engine that has two cards has one figure."""
    past = [scrape(n * EVERY_S + late, 0.0) for n, late in enumerate(jitter)]
    before = scrape_before(past, RATE_S)
    assert past[-1].time - before.time == pytest.approx(RATE_S, abs=0.3)


@given(st.lists(st.integers(0, 2000), min_size=3, max_size=12))
def test_a_rate_is_of_the_tokens_of_that_time(counts: list[int]) -> None:
    past = [scrape(n * EVERY_S, total) for n, total in enumerate(accumulate(counts))]
    before = scrape_before(past, RATE_S)
    figures = figures_of(before, past[0], past[-1], 0.0)
    assert figures.tokens_per_s == pytest.approx(sum(counts[-2:]) / RATE_S)


def test_the_first_poll_has_no_rate() -> None:
    only = scrape(5.0, 100.0)
    figures = figures_of(scrape_before([only], RATE_S), only, only, 0.0)
    assert figures.texts()["tokens"] == "–"


@given(st.floats(0, 1))
def test_a_share_is_whole_percent_as_in_the_header(usage: float) -> None:
    assert LiveFigures(kv_usage=usage).texts()["kv"] == f"{100 * usage:.0f} %"
