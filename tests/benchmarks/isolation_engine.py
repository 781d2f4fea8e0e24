"""The engine's thread alone, in a process without Qt: reads one JSON command per line, answers each
with one. Started by isolation."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from app.cli.child import SNAPSHOT_INTERVAL_S
from engine import messages as m
from engine.engine_thread import EngineThread
from engine.snapshot import RequestTimes, StepRecord
from tests.benchmarks.gui_cases import PROMPT, Case, cases, decode_rate
from tests.benchmarks.isolation_steps import step_figures

WAIT_S = 300.0


class Headless:
    """Collects what a watcher would, and draws nothing."""

    def __init__(self, case: Case, num_threads: int | None) -> None:
        self._case = case
        self._loaded, self._ended = threading.Event(), threading.Event()
        self._times: list[RequestTimes] = []
        self._steps: list[StepRecord] = []
        self._wanted = 0
        self.thread = EngineThread(self._on_event, snapshot_interval_s=SNAPSHOT_INTERVAL_S)
        self.thread.start()
        self.thread.submit(m.Load(case.config(num_threads)))
        if not self._loaded.wait(WAIT_S):
            raise SystemExit("the model was not loaded")

    def segment(self, num_chats: int, num_tokens: int | None) -> dict[str, Any]:
        """All conversations answered together, nobody watching."""
        self._times, self._steps, self._wanted = [], [], num_chats
        self._ended.clear()
        params = self._case.params(num_tokens)
        for number in range(num_chats):
            prompt = ({"role": "user", "content": PROMPT},)
            self.thread.submit(m.AddRequest(f"r{number}", prompt, params))
        if not self._ended.wait(WAIT_S):
            raise SystemExit("the replies did not end")
        return {"tokens_per_s": decode_rate(self._times), **step_figures(self._steps, num_chats)}

    def _on_event(self, event: m.Event) -> None:
        match event:
            case m.Loaded():
                self._loaded.set()
            case m.OutputEvent() if event.finish_reason is not None and event.times is not None:
                self._times.append(event.times)
            case m.SnapshotEvent(snapshot):
                self._steps += snapshot.steps
                if self._wanted and len(self._times) == self._wanted and not snapshot.requests:
                    self._ended.set()


def main() -> None:
    given = json.loads(sys.argv[1])
    alone = Headless(cases(quick=False)[given["case"]], given["num_threads"])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        found = alone.segment(command["num_chats"], command["num_tokens"])
        print(json.dumps(found), flush=True)
    alone.thread.stop()


if __name__ == "__main__":
    main()
