"""Encoding for the server: what cannot fit is refused in words, and nothing of it is kept."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.server.engine_client import EngineClient
from app.server.errors import ApiError
from app.server.tokens import TokenizerWorker
from engine import messages as m
from engine.config import Change, EngineConfig
from engine.sampling_params import SamplingParams
from engine.snapshot import ModelInfo
from tests.app.fake_engine import MODEL
from tests.app.server.conftest import Served
from tests.engine.small_tokenizers import CHATML, byte_level, save

PARAMS = SamplingParams()


class Model:
    """As much of a ModelInfo as a tokenizer needs."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_dummy = False


@pytest.fixture
def model(tmp_path: Path) -> Any:
    save(byte_level(), tmp_path, template=CHATML)
    return Model(str(tmp_path))


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def refusal(worker: TokenizerWorker, model: Any, context: int, text: str) -> int:
    prompt: Any = [{"role": "user", "content": text}] if context % 2 else text
    try:
        await worker.encode(model, [prompt], PARAMS, context, "one")
    except ApiError as error:
        return error.status
    raise AssertionError("not refused")


@pytest.mark.parametrize("context", [10, 11, 1000, 1001])
def test_a_refused_text_is_not_kept(model: Any, no_collection: None, context: int) -> None:
    text = "the cache " * 5000
    before = sys.getrefcount(text)

    async def run() -> None:
        worker = TokenizerWorker()
        try:
            await worker.encode(model, ["a"], PARAMS, None, "one")
            assert await refusal(worker, model, context, text) == 400
            for _ in range(300):  # the thread that encoded may hold it for another moment
                if sys.getrefcount(text) == before:
                    break
                await asyncio.sleep(0.01)
            assert sys.getrefcount(text) == before
        finally:
            worker.close()

    asyncio.run(run())


def test_the_tokenizer_goes_with_its_model(model: Any, no_collection: None) -> None:
    async def run() -> None:
        worker = TokenizerWorker()
        try:
            first = await worker.tokenizer(model)
            assert await worker.tokenizer(model) is first
            file = Path(model.path, "tokenizer_config.json")
            file.write_text(file.read_text() + " ")
            other: Any = Model(model.path)
            assert await worker.tokenizer(other) is not first
            del other
            assert worker._tokenizer is None
        finally:
            worker.close()

    asyncio.run(run())


def test_settings_that_change_leave_the_model_and_its_tokenizer() -> None:
    client = EngineClient(lambda command: None)
    plan: Any = None

    def change(model: ModelInfo) -> ModelInfo | None:
        client.on_event(m.Reconfigured(EngineConfig(), Change.LIVE, 0.1, (), model, plan))
        return client.model

    client.on_event(m.Loaded(EngineConfig(), MODEL, plan))
    assert change(replace(MODEL)) is MODEL
    other = replace(MODEL, notices=("smaller cache",))
    assert change(other) is other


def test_an_engine_that_was_left_is_not_stuck() -> None:
    client = EngineClient(lambda command: None)
    client.on_event(m.Stalled("step", 9.0))
    assert client.is_stuck
    client.on_left()
    assert not client.is_stuck


def test_a_folder_without_a_tokenizer_is_503(tmp_path: Path) -> None:
    async def run() -> int:
        worker = TokenizerWorker()
        missing: Any = Model(str(tmp_path))
        try:
            with pytest.raises(ApiError) as caught:
                await worker.encode(missing, ["a"], PARAMS, 10, "one")
            return caught.value.status
        finally:
            worker.close()

    assert asyncio.run(run()) == 503


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_a_prompt_that_cannot_fit_is_refused_with_its_numbers(served: Served, route: str) -> None:
    text = "the scheduler " * 12_000
    body: dict[str, Any] = {"max_tokens": 1}
    if route == "completions":
        body["prompt"] = text
    else:
        body["messages"] = [{"role": "user", "content": text}]
    reply = httpx.post(f"{served.url}/v1/{route}", json=body, timeout=60)
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["code"] == "context_length_exceeded"
    _, config = served.engine_client.serving()
    assert f"{config.max_model_len:,}" in error["message"]
    assert "max_model_len" in error["message"]
