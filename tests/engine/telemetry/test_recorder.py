"""Latency samples are of requests that serve a user."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling_params import SamplingParams
from engine.scheduling.request import Request
from engine.snapshot import BACKGROUND
from engine.telemetry.recorder import Recorder


@pytest.mark.parametrize("prefix", ["", BACKGROUND])
@given(counts=st.lists(st.integers(1, 4), max_size=9))
def test_background_requests_are_not_sampled(prefix: str, counts: list[int]) -> None:
    recorder = Recorder()
    request = Request(f"{prefix}r", [1], SamplingParams(), 0, 0.0, 99, 0, frozenset())
    for at, count in enumerate(counts, start=1):
        recorder.tokens(request, count, float(at))
    is_sampled = not prefix
    assert len(recorder.ttft) == (is_sampled and bool(counts))
    assert len(recorder.itl) == is_sampled * sum(counts[1:])
    assert [event.num_tokens for event in request.token_events] == counts
