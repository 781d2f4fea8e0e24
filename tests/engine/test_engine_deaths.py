"""Whatever is raised on the engine's thread is an event, and the next command is served."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers

from engine import EngineConfig, SamplingParams
from engine.engine_thread import EngineThread
from engine.errors import OutOfMemoryError
from engine.llm_engine import LLMEngine
from engine.messages import (
    AddRequest,
    CountTokens,
    EngineCrashed,
    Event,
    InspectBlock,
    Load,
    Loaded,
    LoadFailed,
    OutputEvent,
    Reconfigure,
    Reconfigured,
    ReconfigureFailed,
    RequestFailed,
    SnapshotEvent,
    TokensCounted,
    Unload,
)
from tests.engine import tiny_models
from tests.engine.thread_events import Recorder, finished, tokens
from tests.panics import DEATHS, EACH, Panic

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
PROMPT = tuple(tiny_models.make_prompts((12,))[0])

REQUEST = AddRequest("faulty", PROMPT, GREEDY)
# the call that fails, the command that makes it, and which errors are answered in place
POINTS: dict[str, tuple[str, Any, dict[str, type]]] = {
    "add": ("add_request", REQUEST, {"panic": RequestFailed, "memory": RequestFailed}),
    "step": ("step", REQUEST, {}),
    "count": (
        "count_tokens", CountTokens("faulty", "t1"),
        {"panic": TokensCounted, "memory": TokensCounted},
    ),
    "inspect": ("inspect_block", InspectBlock(0), {}),
    "snapshot": ("snapshot", REQUEST, {}),
    "reconfigure": ("reconfigure", Reconfigure({"max_num_seqs": 2}), {}),
}  # fmt: skip


def serves(events: Recorder, thread: EngineThread, tiny_model: Any, name: str = "after") -> None:
    thread.submit(AddRequest(name, PROMPT, GREEDY))
    events.wait(OutputEvent, finished(name), timeout_s=20)
    assert tokens(events, name) == tiny_models.reference(tiny_model, PROMPT, 4).token_ids


@pytest.mark.parametrize("error", EACH)
@pytest.mark.parametrize("point", POINTS)
def test_every_error_is_answered_and_the_thread_serves_on(
    point: str, error: str, events: Recorder, thread: EngineThread, config: EngineConfig,
    tiny_model: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    method, command, in_place = POINTS[point]
    thread.submit(Load(config))
    events.wait(Loaded)
    events.wait(SnapshotEvent)

    def faulty(*_: Any, **__: Any) -> Any:
        monkeypatch.undo()
        raise DEATHS[error]()

    monkeypatch.setattr(LLMEngine, method, faulty)
    thread.submit(command)
    answer: Any = events.wait(in_place.get(error, EngineCrashed), timeout_s=20)
    if isinstance(answer, (RequestFailed, EngineCrashed)):
        assert answer.error.cause and answer.error.remedy
    if isinstance(answer, EngineCrashed):
        thread.submit(Load(config))
    serves(events, thread, tiny_model)
    assert len(events.of(EngineCrashed)) == (error not in in_place)


@pytest.mark.parametrize("error", EACH)
def test_a_load_that_dies_is_answered_and_the_next_one_serves(
    error: str, events: Recorder, config: EngineConfig, tiny_model: Any
) -> None:
    loads: list[EngineConfig] = []

    def factory(config: EngineConfig, progress: Any, cancelled: Any) -> LLMEngine:
        loads.append(config)
        if len(loads) == 2:
            raise DEATHS[error]()
        return LLMEngine(config, progress, cancelled)

    thread = EngineThread(events, factory=factory)
    thread.start()
    try:
        thread.submit(Load(config))
        events.wait(Loaded)
        thread.submit(Load(config))
        if error not in ("exit", "interrupt"):  # the previous one serves again
            assert events.wait(LoadFailed, timeout_s=20).serving == config.model
        else:
            events.wait(EngineCrashed, timeout_s=20)
            thread.submit(Load(config))
        serves(events, thread, tiny_model)
    finally:
        assert thread.stop(120)


@pytest.mark.parametrize("error", EACH)
@pytest.mark.parametrize("kind", [Loaded, OutputEvent, SnapshotEvent, EngineCrashed])
def test_a_listener_that_fails_does_not_end_the_thread(
    kind: type[Event], error: str, events: Recorder, config: EngineConfig, tiny_model: Any
) -> None:
    hurts = threading.Event()
    hurts.set()

    def on_event(event: Event) -> None:
        if isinstance(event, kind) and hurts.is_set():
            hurts.clear()
            raise DEATHS[error]()
        events(event)

    thread = EngineThread(on_event, snapshot_interval_s=0.01)
    thread.start()
    try:
        thread.submit(Load(config))
        if kind is EngineCrashed:
            thread.submit(InspectBlock("no block"))  # type: ignore[arg-type]
        thread.submit(AddRequest("during", PROMPT, GREEDY))
        if kind is not EngineCrashed:
            events.wait(EngineCrashed, timeout_s=20)
        thread.submit(Load(config))
        serves(events, thread, tiny_model)
        assert not hurts.is_set()
    finally:
        assert thread.stop(120)


def test_shutdown_that_dies_still_frees_the_thread(
    events: Recorder, thread: EngineThread, config: EngineConfig, tiny_model: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    thread.submit(Load(config))
    events.wait(Loaded)

    def faulty(self: LLMEngine) -> None:
        monkeypatch.undo()
        raise Panic("inside the allocator")

    monkeypatch.setattr(LLMEngine, "shutdown", faulty)
    thread.submit(Unload())
    thread.submit(Load(config))
    events.wait(Loaded, lambda loaded: loaded is not events.of(Loaded)[0])
    serves(events, thread, tiny_model)


def test_a_panic_of_the_tokenizer_fails_the_request_alone(
    events: Recorder, thread: EngineThread, config: EngineConfig, tiny_model: Any, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(config.model, tmp_path / "hostile"))
    file = folder / "tokenizer.json"
    hostile = pre_tokenizers.Split(Regex("(a|a|b|aa)+c"), "isolated")
    whole = json.loads(file.read_text())
    split = json.loads(hostile.__getstate__())
    blanks = whole["pre_tokenizer"]
    whole["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [blanks, split]}
    file.write_text(json.dumps(whole))
    thread.submit(Load(config.replace(model=str(folder))))
    thread.submit(AddRequest("long", PROMPT, SamplingParams(temperature=0, max_tokens=50)))
    thread.submit(AddRequest("bad", "a" * 129, GREEDY))
    thread.submit(CountTokens("bad", "a" * 129))
    failed = events.wait(RequestFailed)
    assert failed.request_id == "bad" and failed.error.cause and failed.error.remedy
    assert events.wait(TokensCounted).num_tokens is None
    events.wait(OutputEvent, finished("long"))
    serves(events, thread, tiny_model)
    assert not events.of(EngineCrashed)


class Cancels:
    """Blocks the loads and reloads of an engine in progress until told, by their num_threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        self.seen: dict[int, bool] = {}
        plain = LLMEngine.reconfigure

        def reconfigure(engine: LLMEngine, progress: Any, cancelled: Any, **changes: Any) -> Any:
            self.begun.set()
            assert self.gate.wait(20)
            self.seen[changes["max_num_seqs"]] = cancelled()
            return plain(engine, progress, cancelled, **changes)

        monkeypatch.setattr(LLMEngine, "reconfigure", reconfigure)


def test_a_cancel_belongs_to_the_commands_before_it(
    events: Recorder, thread: EngineThread, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancels = Cancels(monkeypatch)
    thread.submit(Load(config))
    thread.submit(Reconfigure({"max_num_seqs": 2}))
    assert cancels.begun.wait(120)
    thread.submit(Reconfigure({"max_num_seqs": 3}))
    thread.cancel_load()
    thread.submit(Reconfigure({"max_num_seqs": 4}))
    cancels.gate.set()
    events.wait(Reconfigured, lambda event: event.config.max_num_seqs == 4)
    assert cancels.seen == {2: True, 3: True, 4: False}


def test_memory_that_runs_out_while_settings_change_leaves_the_previous_ones(
    events: Recorder, thread: EngineThread, config: EngineConfig, tiny_model: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def faulty(*_: Any, **__: Any) -> Any:
        monkeypatch.undo()
        raise OutOfMemoryError("9 GiB of 3 GiB.", "Close something.")

    thread.submit(Load(config))
    events.wait(Loaded)
    monkeypatch.setattr("engine.host.model_host.build_caches", faulty)
    thread.submit(Reconfigure({"block_size": 4}))
    assert events.wait(ReconfigureFailed).config.block_size == config.block_size
    serves(events, thread, tiny_model)


@pytest.mark.parametrize("change", [{"block_size": 4}, {"dtype": "bfloat16"}], ids=str)
def test_a_change_that_cannot_be_undone_is_a_crash_with_both_causes(
    change: dict[str, Any], events: Recorder, thread: EngineThread, config: EngineConfig,
    tiny_model: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    needs = iter((9, 7))

    def faulty(*_: Any, **__: Any) -> Any:
        raise OutOfMemoryError(f"{next(needs)} GiB of 3 GiB.", "Close something.")

    thread.submit(Load(config))
    events.wait(Loaded)
    for name in ("build_caches", "build"):
        monkeypatch.setattr(f"engine.host.model_host.{name}", faulty)
    thread.submit(Reconfigure(change))
    crashed = events.wait(EngineCrashed)
    assert crashed.error.kind == "EngineLostError"
    assert "9 GiB" in crashed.error.cause and "7 GiB" in crashed.error.cause
    assert not events.of(ReconfigureFailed)
    monkeypatch.undo()
    thread.submit(Load(config))
    serves(events, thread, tiny_model)
