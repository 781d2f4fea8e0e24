"""Clients: streams over HTTP, and attached windows without Qt that come and go."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable

import httpx

from app.clients.attached import RemoteEngine
from app.clients.target import Event, LinkChanged, LinkState, Target
from engine import messages as m
from engine.sampling_params import SamplingParams
from tests.soak.ledger import Ask, Ledger

ABORTED = 0.15
"""Share of the requests that their client leaves."""
REPLY_S = 300.0
PER_WINDOW = 4
"""Requests of a window, together."""


def run_http(url: str, ledger: Ledger, asks: list[Ask], seed: int) -> None:
    """Ask one after the other until it is over."""
    chance = random.Random(seed)
    with httpx.Client(timeout=REPLY_S, trust_env=False) as client:
        while not ledger.is_over.is_set():
            with ledger.asking() as changes:
                if ledger.is_over.is_set():
                    return
                try:
                    _stream(client, url, ledger, chance, chance.choice(asks), changes)
                except httpx.HTTPError as error:
                    ledger.fault(f"connection: {error!r}")


def _stream(
    client: httpx.Client, url: str, ledger: Ledger, chance: random.Random, ask: Ask, changes: int
) -> None:
    body = {"model": "soak", "stream": True, "prompt": ask.prompt, "seed": ask.seed,
            "max_tokens": ask.max_tokens, "temperature": ask.temperature}  # fmt: skip
    left = chance.randrange(1, 6) if chance.random() < ABORTED else None
    text, reason = "", None
    with client.stream("POST", f"{url}/v1/completions", json=body) as response:
        if response.status_code != 200:
            content = response.read().decode()
            if response.status_code in (429, 503):
                ledger.refused()
                time.sleep(0.2)
            else:
                ledger.failed(content, changes)
            return
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                ledger.failed(event["error"]["message"], changes)
                return
            for choice in event["choices"]:
                text += choice["text"]
                reason = choice["finish_reason"] or reason
            if left is not None:
                left -= 1
                if left <= 0 and reason is None:
                    ledger.aborted()
                    return
    if reason is None:
        ledger.fault("a stream ended without a finish reason")
    else:
        ledger.finished(ask, text, reason, changes)


class Window:
    """What an attached window hears; it waits for what it asked."""

    def __init__(self, url: str) -> None:
        self._lock = threading.Condition()
        self._events: list[Event] = []
        self.engine = RemoteEngine(self._on_event, Target(url))
        self.engine.start()

    def _on_event(self, event: Event) -> None:
        with self._lock:
            if not isinstance(event, m.SnapshotEvent):
                self._events.append(event)
            self._lock.notify_all()

    def wait(self, when: Callable[[list[Event]], bool], seconds: float = REPLY_S) -> bool:
        with self._lock:
            return self._lock.wait_for(lambda: when(self._events), seconds)

    def wait_live(self) -> bool:
        return self.wait(lambda events: any(
            isinstance(e, LinkChanged) and e.state is LinkState.LIVE for e in events))  # fmt: skip

    def of(self, request_id: str) -> list[m.OutputEvent | m.RequestFailed]:
        with self._lock:
            return [e for e in self._events if isinstance(e, (m.OutputEvent, m.RequestFailed))
                    and e.request_id == request_id]  # fmt: skip

    def clear(self) -> None:
        with self._lock:
            self._events.clear()

    def last(self, kind: type) -> Event | None:
        with self._lock:
            return next((e for e in reversed(self._events) if isinstance(e, kind)), None)

    def close(self) -> bool:
        return self.engine.stop()


def run_windows(url: str, ledger: Ledger, asks: list[Ask], seed: int) -> None:
    """Attach, ask, detach, until it is over."""
    chance = random.Random(seed)
    number = 0
    while not ledger.is_over.is_set():
        with ledger.asking() as changes:
            if ledger.is_over.is_set():
                return
            number += 1
            window = Window(url)
            try:
                if window.wait_live():
                    _ask(window, ledger, chance, asks, f"w{seed}-{number}", changes)
                else:
                    ledger.fault("a window could not attach")
            finally:
                if not window.close():
                    ledger.fault("a window did not close")


def _ask(
    window: Window, ledger: Ledger, chance: random.Random, asks: list[Ask], name: str, changes: int
) -> None:
    asked = {f"{name}-{n}": chance.choice(asks) for n in range(PER_WINDOW)}
    for request_id, ask in asked.items():
        params = SamplingParams(
            temperature=ask.temperature, seed=ask.seed, max_tokens=ask.max_tokens
        )
        window.engine.submit(m.AddRequest(request_id, ask.prompt, params))
    left = {request_id for request_id in asked if chance.random() < ABORTED}
    for request_id in left:
        window.engine.submit(m.Abort(request_id))
    for request_id, ask in asked.items():
        if not window.wait(lambda _, one=request_id: _has_ended(window, one)):
            ledger.fault(f"no end of {request_id} within {REPLY_S:.0f} s")
            continue
        events = window.of(request_id)
        last = events[-1]
        if isinstance(last, m.RequestFailed):
            ledger.failed(str(last.error), changes)
        elif request_id in left and last.finish_reason == "abort":
            ledger.aborted()
        elif last.error is not None:
            ledger.failed(str(last.error), changes)
        else:
            text = "".join(e.text for e in events if isinstance(e, m.OutputEvent))
            ledger.finished(ask, text, str(last.finish_reason), changes)


def _has_ended(window: Window, request_id: str) -> bool:
    return any(
        isinstance(event, m.RequestFailed) or event.finish_reason is not None
        for event in window.of(request_id)
    )
