"""Live figures of a polled server: over which time they are."""

from __future__ import annotations

import time
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.clients import look
from app.clients.look import NOT_TOLD, LiveFigures, figures_of, scrape_before
from app.clients.metric_names import VLLM, Figure, Latency
from app.clients.metrics import Scrape
from app.clients.metrics_page import Exposition
from app.clients.target import ServerType, TargetError
from app.features.serve.connections import POLL_MS
from engine.telemetry.metrics import HistogramSnapshot
from tests.app.clients.conftest import PAGES, ScriptedServer
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


def test_every_figure_of_a_recorded_page_is_shown() -> None:
    """vLLM after 55 requests; without speculative decoding it reports no drafts."""
    page = Exposition((PAGES / "vllm_0.32_details.txt").read_text())
    values, latencies = page.read(VLLM)
    before = Scrape(0.0, dict.fromkeys(values, 0.0), {
        name: HistogramSnapshot(one.buckets, (0,) * len(one.cumulative), 0.0)
        for name, one in latencies.items()
    })  # fmt: skip
    now = Scrape(10.0, values, latencies)
    times = (Latency.QUEUE, Latency.PREFILL, Latency.DECODE)
    assert [latencies[one].count for one in times] == [55, 55, 55]
    figures = figures_of(before, before, now, 0.0)
    assert (figures.hit_rate, figures.preemptions, figures.acceptance_rate) == (0.0, 0.0, None)
    shown = figures.texts()
    assert shown["acceptance"] == NOT_TOLD and NOT_TOLD not in (shown["queue"], shown["decode"])
    sums = [latencies[one].sum / 55 for one in times]
    assert [figures.queue_mean, figures.prefill_mean, figures.decode_mean] == pytest.approx(sums)


def test_drafts_and_preemptions_are_of_the_span() -> None:
    counts = {Figure.DRAFTED: 10.0, Figure.ACCEPTED: 5.0, Figure.PREEMPTIONS: 3.0}
    later = {Figure.DRAFTED: 30.0, Figure.ACCEPTED: 20.0, Figure.PREEMPTIONS: 7.0}
    first, now = Scrape(0.0, counts, {}), Scrape(1.0, later, {})
    figures = figures_of(first, first, now, 0.0)
    assert (figures.acceptance_rate, figures.preemptions) == (0.75, 4)
    assert figures_of(now, now, now, 0.0).texts()["acceptance"] == "–"


def test_metrics_that_hang_are_told_from_a_server_that_does(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "LOOK_TIMEOUT_S", 0.2)
    server.replica().answers["/metrics"] = lambda exchange: time.sleep(0.5)
    looker = look.Looker(server.target, ServerType.VLLM, 1.0, 1.0)
    with pytest.raises(TargetError, match="/metrics"):
        looker.look()
    server.answers["/v1/models"] = lambda exchange: time.sleep(0.5)
    with pytest.raises(TargetError) as found:
        looker.look()
    assert "/metrics" not in found.value.cause
    looker.close()
