"""A profile of a served engine's steps: what is profiled, what is refused, and what ends it."""

from __future__ import annotations

import gzip
import json

import pytest

from engine.config import EngineConfig
from engine.engine_thread import EngineThread
from engine.messages import (
    AddRequest,
    Load,
    Loaded,
    OutputEvent,
    ProfileSteps,
    Reconfigure,
    Reconfigured,
    StepsProfiled,
)
from engine.sampling_params import SamplingParams
from engine.snapshot.profile import DECODE, PREFILL
from tests.engine.thread_events import Recorder

LONG = SamplingParams(max_tokens=200, ignore_eos=True, temperature=0.0)


@pytest.fixture
def loaded(thread: EngineThread, events: Recorder, config: EngineConfig) -> EngineThread:
    events.pause_s = 0.01  # the replies last as long as a test needs them
    thread.submit(Load(config))
    events.wait(Loaded)
    return thread


def test_without_a_model_or_a_request_it_says_so(
    thread: EngineThread, events: Recorder, config: EngineConfig
) -> None:
    thread.submit(ProfileSteps(2))
    assert "No model" in events.wait(StepsProfiled).why_not
    thread.submit(Load(config))
    events.wait(Loaded)
    thread.submit(ProfileSteps(2))
    assert events.wait(StepsProfiled, lambda event: "idle" in event.why_not).profiles == ()


def test_the_running_steps_are_profiled(loaded: EngineThread, events: Recorder) -> None:
    loaded.submit(AddRequest("a", tuple(range(3, 23)), LONG))
    events.wait(OutputEvent)
    loaded.submit(ProfileSteps(4))
    found = events.wait(StepsProfiled)
    assert not found.why_not
    assert sum(one.num_steps for one in found.profiles) == 4
    assert {one.kind for one in found.profiles} <= {PREFILL, DECODE}
    trace = json.loads(gzip.decompress(found.trace))
    assert any("attention" in event.get("name", "") for event in trace["traceEvents"])


def test_fewer_steps_where_the_requests_end(loaded: EngineThread, events: Recorder) -> None:
    few = SamplingParams(max_tokens=30, ignore_eos=True, temperature=0.0)
    loaded.submit(AddRequest("a", tuple(range(3, 23)), few))
    events.wait(OutputEvent)
    loaded.submit(ProfileSteps(1000))
    found = events.wait(StepsProfiled)
    assert 0 < sum(one.num_steps for one in found.profiles) < 30


def test_a_change_of_settings_ends_it(loaded: EngineThread, events: Recorder) -> None:
    loaded.submit(AddRequest("a", tuple(range(3, 23)), LONG))
    events.wait(OutputEvent)
    loaded.submit(ProfileSteps(1000))
    loaded.submit(ProfileSteps(1))
    assert events.wait(StepsProfiled, lambda event: "running" in event.why_not)
    loaded.submit(Reconfigure({"block_size": 4}))
    events.wait(Reconfigured)
    events.wait(StepsProfiled, lambda event: "running" not in event.why_not)
    loaded.submit(ProfileSteps(2))  # nothing of the first is left
    events.wait(StepsProfiled, lambda event: sum(o.num_steps for o in event.profiles) == 2)
