"""Text may rest in the engine client until the window would paint it; what is waited for goes at
once, and takes what rests along."""

from __future__ import annotations

import asyncio
from typing import Any

from app.server.engine_client import EngineClient
from engine import messages as m
from engine.errors import ErrorInfo
from engine.snapshot import FinishReason

LONG_S = 3600.0


def output(number: int, **more: Any) -> m.OutputEvent:
    return m.OutputEvent("r", f"t{number}", (number,), 0.0, number, 1, 0, **more)


def handed_on(pace_s: float, *events: m.Event) -> list[m.Event]:
    """What the loop heard by the time at which it has nothing left to do at once."""

    async def run() -> list[m.Event]:
        heard: list[m.Event] = []
        engine_client = EngineClient(lambda command: None, pace_s=pace_s)
        engine_client.listener = heard.append
        engine_client.attach(asyncio.get_running_loop())
        for event in events:
            engine_client.on_event(event)
        for _ in range(3):
            await asyncio.sleep(0)
        found = list(heard)
        engine_client.detach()
        return found

    return asyncio.run(run())


def test_without_a_pace_everything_goes_at_once() -> None:
    given = [output(1, is_first=True), output(2), output(3)]
    assert handed_on(0.0, *given) == given


def test_text_after_the_first_rests() -> None:
    assert handed_on(LONG_S, output(2), output(3)) == []


def test_what_is_waited_for_takes_along_what_rests() -> None:
    ends = output(4, finish_reason=FinishReason.STOP)
    failed = m.RequestFailed("s", ErrorInfo("no"))
    for urgent in (output(1, is_first=True), ends, failed, m.Unloaded()):
        assert handed_on(LONG_S, output(2), output(3), urgent) == [output(2), output(3), urgent]


def test_what_rests_goes_when_its_time_has_come() -> None:
    async def run() -> list[m.Event]:
        heard: list[m.Event] = []
        engine_client = EngineClient(lambda command: None, pace_s=0.01)
        engine_client.listener = heard.append
        engine_client.attach(asyncio.get_running_loop())
        for number in (2, 3):
            engine_client.on_event(output(number))
        deadline = asyncio.get_running_loop().time() + 20
        while len(heard) < 2 and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)
        engine_client.detach()
        return heard

    assert asyncio.run(run()) == [output(2), output(3)]


def test_a_load_that_failed_is_heard_also_where_the_model_before_serves_on() -> None:
    failed = m.LoadFailed(ErrorInfo("no such folder"), serving="/models/tiny")
    assert handed_on(0.0, failed) == [failed]
