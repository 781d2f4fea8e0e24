"""The thread: commands in, events out, and it survives whatever the engine does."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from engine import EngineConfig, SamplingParams
from engine.config import Change
from engine.engine_thread import EngineThread
from engine.errors import OutOfMemoryError
from engine.llm_engine import LLMEngine
from engine.messages import (
    Abort,
    AddRequest,
    CountTokens,
    EngineCrashed,
    Load,
    Loaded,
    LoadFailed,
    LoadProgress,
    MeasurePeaks,
    OutputEvent,
    PeaksMeasured,
    Reconfigure,
    Reconfigured,
    ReconfigureFailed,
    RequestFailed,
    SnapshotEvent,
    TokensCounted,
    Unload,
    Unloaded,
)
from engine.snapshot import FinishReason
from tests.engine import tiny_models
from tests.engine.thread_events import Recorder, finished, tokens

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPT = tuple(tiny_models.make_prompts((12,))[0])


def test_counts_the_tokens_of_a_text(
    events: Recorder, thread: EngineThread, config: EngineConfig
) -> None:
    thread.submit(CountTokens("before", "t1 t2"))
    assert events.wait(TokensCounted).num_tokens is None  # no model knows yet
    thread.submit(Load(config))
    for key, text in (("none", ""), ("three", "t1 t2 t3")):
        thread.submit(CountTokens(key, text))
    assert events.wait(TokensCounted, lambda e: e.key == "none").num_tokens == 0
    assert events.wait(TokensCounted, lambda e: e.key == "three").num_tokens == 3


def test_idle_time_is_used_until_a_command_comes(
    events: Recorder, thread: EngineThread, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[bool] = []
    enough = threading.Event()

    def used(self: LLMEngine) -> bool:
        assert not self.has_unfinished
        turns.append(True)
        if len(turns) >= 3:
            enough.set()
        return len(turns) != 7

    monkeypatch.setattr(LLMEngine, "use_idle_time", used)
    thread.submit(Load(config))
    assert enough.wait(60), "more to do, and no command"
    for key in ("one", "two"):
        thread.submit(CountTokens(key, "t1 t2 t3"))
        assert events.wait(TokensCounted, lambda e, key=key: e.key == key).num_tokens == 3
    thread.submit(AddRequest("a", PROMPT, GREEDY))
    events.wait(OutputEvent, finished("a"))
    assert len(tokens(events, "a")) == 8


def test_an_output_goes_on_from_given_tokens(
    events: Recorder, thread: EngineThread, config: EngineConfig
) -> None:
    thread.submit(Load(config))
    thread.submit(AddRequest("whole", PROMPT, GREEDY))
    events.wait(OutputEvent, finished("whole"))
    whole = tokens(events, "whole")
    thread.submit(AddRequest("rest", PROMPT, GREEDY, tuple(whole[:3])))
    events.wait(OutputEvent, finished("rest"))
    assert tokens(events, "rest") == whole[3:]
    thread.submit(AddRequest("wrong", PROMPT, GREEDY, (10**6,)))
    assert "token ids from" in events.wait(RequestFailed).error.cause


def test_loads_serves_and_shows_itself(
    events: Recorder, thread: EngineThread, config: EngineConfig, tiny_model: Any
) -> None:
    thread.submit(Load(config))
    thread.submit(AddRequest("a", PROMPT, GREEDY))
    thread.submit(AddRequest("b", PROMPT[:5], GREEDY))
    for request_id, prompt in (("a", PROMPT), ("b", PROMPT[:5])):
        last = events.wait(OutputEvent, finished(request_id))
        assert last.finish_reason is FinishReason.LENGTH and last.times is not None
        wanted = tiny_models.reference(tiny_model, prompt, 8).token_ids
        assert tokens(events, request_id) == wanted
    assert events.of(LoadProgress)
    loaded = events.wait(Loaded)
    assert loaded.config.max_model_len == 256 and loaded.plan.num_blocks > 0
    idle = events.wait(
        SnapshotEvent, lambda e: e.snapshot.counters.finished == {"length": 2}
    ).snapshot
    assert idle.num_running == 0
    shown = [s.index for e in events.of(SnapshotEvent) for s in e.snapshot.steps]
    assert shown == sorted(set(shown)) == list(range(len(shown))), "each step is shown once"


def test_settings_change_in_mid_reply(
    events: Recorder, thread: EngineThread, config: EngineConfig, tiny_model: Any
) -> None:
    long = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    thread.submit(Load(config))
    thread.submit(AddRequest("a", PROMPT, long))
    events.wait(OutputEvent)
    thread.submit(Reconfigure({"max_num_seqs": 2}))
    thread.submit(Reconfigure({"block_size": 4}))
    thread.submit(Reconfigure({"num_threads": 2}))
    thread.submit(Reconfigure({"kv_cache_memory_bytes": 2**50}))
    events.wait(OutputEvent, finished("a"))
    failed = events.wait(ReconfigureFailed)
    assert [e.change for e in events.of(Reconfigured)] == [
        Change.LIVE,
        Change.CACHE_REBUILD,
        Change.RELOAD,
    ]
    assert failed.config.block_size == 4 and "GiB" in failed.error.cause
    wanted = tiny_models.reference(tiny_model, PROMPT, 60).token_ids
    assert tokens(events, "a") == wanted


def test_abort_unload_and_what_is_refused(
    events: Recorder, thread: EngineThread, config: EngineConfig
) -> None:
    thread.submit(AddRequest("early", PROMPT, GREEDY))
    assert "No model" in events.wait(RequestFailed).error.cause
    thread.submit(Load(config))
    thread.submit(AddRequest("empty", (), GREEDY))
    assert events.wait(RequestFailed, lambda e: e.request_id == "empty").error.remedy
    endless = SamplingParams(temperature=0, ignore_eos=True)
    events.pause_s = 0.1
    thread.submit(AddRequest("a", PROMPT, endless))
    events.wait(OutputEvent)
    thread.submit(Abort("a"))
    thread.submit(Abort("unknown"))
    assert events.wait(OutputEvent, finished("a")).finish_reason is FinishReason.ABORT
    thread.submit(AddRequest("b", PROMPT, endless))
    events.wait(OutputEvent, lambda e: e.request_id == "b")
    thread.submit(Unload())
    events.wait(Unloaded)
    assert events.wait(OutputEvent, finished("b")).finish_reason is FinishReason.ABORT


def test_a_model_that_cannot_be_opened_leaves_the_one_before_serving(
    events: Recorder, thread: EngineThread, config: EngineConfig, tmp_path: Path
) -> None:
    thread.submit(Load(config))
    endless = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    thread.submit(AddRequest("a", PROMPT, endless))
    events.wait(OutputEvent)
    thread.submit(Load(config.replace(model=str(tmp_path))))
    assert events.wait(LoadFailed).serving == config.model
    assert events.wait(OutputEvent, finished("a")).finish_reason is FinishReason.LENGTH


def test_requests_end_with_the_name_of_the_model_that_replaces_theirs(
    events: Recorder, thread: EngineThread, config: EngineConfig, tmp_path: Path
) -> None:
    shutil.copytree(config.model, tmp_path / "the-next")
    thread.submit(Load(config))
    endless = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    events.pause_s = 0.1
    thread.submit(AddRequest("a", PROMPT, endless))
    events.wait(OutputEvent)
    thread.submit(Load(config.replace(model=str(tmp_path / "the-next"))))
    last = events.wait(OutputEvent, finished("a"))
    assert last.finish_reason is FinishReason.ERROR and last.error is not None
    assert "the-next" in last.error.cause and str(tmp_path) not in last.error.cause
    assert events.wait(RequestFailed, lambda e: e.request_id == "a").error == last.error


def test_tokens_of_one_model_never_go_to_another(
    events: Recorder, thread: EngineThread, config: EngineConfig, tmp_path: Path
) -> None:
    """The next model is being loaded when they come."""
    shutil.copytree(config.model, tmp_path / "the-next")
    thread.submit(Load(config))
    events.wait(Loaded)
    thread.submit(AddRequest("a", PROMPT, GREEDY, model=config.model))
    events.wait(OutputEvent, finished("a"))
    thread.submit(Load(config.replace(model=str(tmp_path / "the-next"))))
    thread.submit(AddRequest("b", PROMPT, GREEDY, model=config.model))
    thread.submit(AddRequest("c", PROMPT, GREEDY, model=str(tmp_path / "the-next")))
    events.wait(OutputEvent, finished("c"))
    error = events.wait(RequestFailed, lambda e: e.request_id == "b").error
    assert "the-next" in error.cause and error.remedy
    assert tokens(events, "b") == []


def test_a_draft_that_does_not_fit_is_left_out_with_the_reason(
    events: Recorder, thread: EngineThread, config: EngineConfig, tmp_path: Path
) -> None:
    wanted = config.replace(
        speculative_method="draft_model", speculative_model=str(tmp_path / "gone")
    )
    thread.submit(Load(wanted))
    loaded = events.wait(Loaded)
    assert loaded.config.speculative_method == "off"
    assert loaded.without_draft is not None
    assert "draft model" in loaded.without_draft.cause
    thread.submit(AddRequest("a", PROMPT, GREEDY))
    assert events.wait(OutputEvent, finished("a")).finish_reason is FinishReason.LENGTH
    thread.submit(Reconfigure({"speculative_method": "ngram", "prompt_lookup_min": 1}))
    events.wait(Reconfigured)
    thread.submit(AddRequest("b", PROMPT, GREEDY))
    events.wait(OutputEvent, finished("b"))
    assert tokens(events, "a") == tokens(events, "b")


def test_cancelling_a_load_brings_the_model_before_back(
    events: Recorder, config: EngineConfig
) -> None:
    begun, gate = threading.Event(), threading.Event()

    def factory(config: EngineConfig, progress: Any, cancelled: Any) -> LLMEngine:
        if config.max_num_seqs == 3:
            begun.set()
            gate.wait(120)
        return LLMEngine(config, progress, cancelled)

    thread = EngineThread(events, factory=factory)
    thread.start()
    try:
        thread.submit(Load(config))
        events.wait(Loaded)
        thread.submit(Load(config.replace(max_num_seqs=3)))
        assert begun.wait(120)
        thread.cancel_load()
        gate.set()
        failed = events.wait(LoadFailed)
        assert failed.cancelled and failed.serving == config.model
        thread.submit(AddRequest("a", PROMPT, GREEDY))
        events.wait(OutputEvent, finished("a"))
    finally:
        assert thread.stop(120)


def test_a_crash_is_a_message_and_a_new_load_serves_again(
    events: Recorder, config: EngineConfig
) -> None:
    engines: list[LLMEngine] = []

    def factory(config: EngineConfig, progress: Any, cancelled: Any) -> LLMEngine:
        engines.append(LLMEngine(config, progress, cancelled))
        return engines[-1]

    thread = EngineThread(events, factory=factory)
    thread.start()
    try:
        thread.submit(Load(config))
        events.wait(Loaded)

        def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("a kernel failed")

        engines[0]._host.runner.execute = broken  # type: ignore[method-assign]
        thread.submit(AddRequest("a", PROMPT, GREEDY))
        crash = events.wait(EngineCrashed)
        assert "a kernel failed" in crash.error.cause and "Traceback" in crash.traceback
        thread.submit(Load(config))
        thread.submit(AddRequest("b", PROMPT, GREEDY))
        events.wait(OutputEvent, finished("b"))
    finally:
        assert thread.stop(120)


def test_a_crash_within_a_crash_does_not_end_the_thread(
    events: Recorder, config: EngineConfig
) -> None:
    engines: list[LLMEngine] = []

    def factory(config: EngineConfig, progress: Any, cancelled: Any) -> LLMEngine:
        engines.append(LLMEngine(config, progress, cancelled))
        return engines[-1]

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a kernel failed")

    thread = EngineThread(events, factory=factory)
    thread.start()
    try:
        thread.submit(Load(config))
        events.wait(Loaded)
        engines[0]._host.runner.execute = broken  # type: ignore[method-assign]
        engines[0].shutdown = broken  # type: ignore[method-assign]
        thread.submit(AddRequest("a", PROMPT, GREEDY))
        events.wait(EngineCrashed)
        thread.submit(Load(config))
        thread.submit(AddRequest("b", PROMPT, GREEDY))
        events.wait(OutputEvent, finished("b"))
    finally:
        assert thread.stop(120)


def test_when_the_model_before_is_gone_too_both_causes_are_said(
    events: Recorder, config: EngineConfig
) -> None:
    loads: list[EngineConfig] = []

    def factory(config: EngineConfig, progress: Any, cancelled: Any) -> LLMEngine:
        loads.append(config)
        if len(loads) > 1:
            raise OutOfMemoryError(f"load {len(loads)}: 9 GiB of 3 GiB.", "Close something.")
        return LLMEngine(config, progress, cancelled)

    thread = EngineThread(events, factory=factory)
    thread.start()
    try:
        thread.submit(Load(config))
        events.wait(Loaded)
        thread.submit(Load(config))
        failed = events.wait(LoadFailed)
        assert failed.serving is None and failed.error.cause == "load 2: 9 GiB of 3 GiB."
        assert "load 3: 9 GiB of 3 GiB." in failed.error.remedy
        thread.submit(AddRequest("a", PROMPT, GREEDY))
        assert events.wait(RequestFailed).error.cause == "No model is loaded."
        assert not events.of(EngineCrashed)
    finally:
        assert thread.stop(120)


def test_peaks_are_measured_while_the_engine_rests_and_never_beside_a_step(
    events: Recorder, thread: EngineThread, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.hardware.peaks.SUM_BYTES", 2**20)
    monkeypatch.setattr("engine.hardware.peaks.LEAST_SUM_BYTES", 2**20)
    thread.submit(MeasurePeaks())
    assert "No model" in events.wait(PeaksMeasured).why_not
    thread.submit(Load(config))
    events.pause_s = 0.5  # it is busy for a while
    thread.submit(AddRequest("a", PROMPT, GREEDY))
    events.wait(OutputEvent)
    thread.submit(MeasurePeaks())
    assert events.wait(PeaksMeasured, lambda e: "busy" in e.why_not).peaks is None
    events.pause_s = 0.0
    events.wait(OutputEvent, finished("a"))
    thread.submit(MeasurePeaks())
    peaks = events.wait(PeaksMeasured, lambda e: e.peaks is not None).peaks
    assert peaks is not None and (peaks.dtype, peaks.num_threads) == ("float32", 1)
    assert peaks.read_bytes_per_s > 1e6 and peaks.flops_per_s > 1e6
