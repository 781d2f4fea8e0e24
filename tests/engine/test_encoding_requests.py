"""The engine's thread does not wait for the process that encodes a prompt."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from engine import EngineConfig, SamplingParams
from engine.engine_thread import EngineThread
from engine.messages import (
    Abort,
    AddRequest,
    CountTokens,
    EngineCrashed,
    Load,
    Loaded,
    OutputEvent,
    RequestFailed,
    TokensCounted,
    Unload,
    Unloaded,
)
from engine.snapshot import FinishReason
from engine.text import work
from engine.text.tokenizer import CheckpointTokenizer
from tests.engine import tiny_models
from tests.engine.thread_events import Recorder, finished

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
PROMPT = tuple(tiny_models.make_prompts((12,))[0])
ENDLESS = "{% for i in range(99999) %}" * 4 + "{% endfor %}" * 4
CHAT = ({"role": "user", "content": "hi"},)


@pytest.fixture
def endless(config: EngineConfig, tmp_path: Path) -> EngineConfig:
    """A model whose chat template does not end."""
    folder = Path(shutil.copytree(config.model, tmp_path / "endless"))
    (folder / "chat_template.jinja").write_text(ENDLESS)
    return config.replace(model=str(folder))


def ended(events: Recorder, request_id: str) -> FinishReason | None:
    return events.wait(OutputEvent, finished(request_id)).finish_reason


def test_others_run_while_a_prompt_is_encoded(
    events: Recorder, thread: EngineThread, endless: EngineConfig
) -> None:
    thread.submit(Load(endless))
    events.wait(Loaded)
    thread.submit(AddRequest("slow", CHAT, GREEDY))
    thread.submit(AddRequest("ids", PROMPT, GREEDY))
    thread.submit(AddRequest("text", "t1 t2 t3", GREEDY))
    thread.submit(CountTokens("count", "t1 t2"))
    assert ended(events, "ids") is ended(events, "text") is FinishReason.LENGTH
    assert events.wait(TokensCounted).num_tokens == 2
    thread.submit(AddRequest("slow", PROMPT, GREEDY))  # its name is taken
    assert "slow" in events.wait(RequestFailed).error.cause
    thread.submit(Abort("slow"))
    assert ended(events, "slow") is FinishReason.ABORT
    thread.submit(AddRequest("slow", PROMPT, GREEDY))
    events.wait(OutputEvent, lambda e: e.request_id == "slow" and e.finish_reason is not None
                and e.finish_reason is not FinishReason.ABORT)  # fmt: skip
    assert not events.of(EngineCrashed)


def test_clients_take_turns_at_the_tokenizer(
    events: Recorder, thread: EngineThread, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[str] = []
    plain = CheckpointTokenizer.submit

    def submit(self: CheckpointTokenizer, work: Any, client: str = "") -> Any:
        clients.append(client)
        return plain(self, work, client)

    thread.submit(Load(config))
    events.wait(Loaded)
    monkeypatch.setattr(CheckpointTokenizer, "submit", submit)
    for client in ("one", "other"):
        thread.submit(AddRequest(client, "t1 t2", GREEDY, client=client))
        thread.submit(CountTokens(client, "t1 t2", client))
        ended(events, client)
    events.wait(TokensCounted, lambda event: event.key == "other")
    assert clients[0::2] == ["one", "other"] and len(set(clients)) == 4


def test_unloading_ends_what_is_being_encoded(
    events: Recorder, thread: EngineThread, endless: EngineConfig
) -> None:
    thread.submit(Load(endless))
    thread.submit(AddRequest("slow", CHAT, GREEDY))
    events.wait(Loaded)
    began = time.monotonic()
    thread.submit(Unload())
    assert ended(events, "slow") is FinishReason.ABORT
    events.wait(Unloaded)
    assert time.monotonic() - began < 10


def test_a_template_that_does_not_end_is_an_error_of_its_request(
    events: Recorder, thread: EngineThread, endless: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "_OWN_S", 2.0)
    thread.submit(Load(endless))
    thread.submit(AddRequest("slow", CHAT, GREEDY))
    failed = events.wait(RequestFailed)
    assert failed.request_id == "slow" and failed.error.remedy
    thread.submit(AddRequest("text", "t1 t2 t3", GREEDY))
    assert ended(events, "text") is FinishReason.LENGTH
    assert not events.of(EngineCrashed)
