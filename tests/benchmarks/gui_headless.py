"""The engine alone, in a process without Qt: reads one JSON command per line, answers each with
one. Started by gui_overhead."""

from __future__ import annotations

import json
import sys
from typing import Any

from engine import LLMEngine
from engine.snapshot import RequestTimes
from tests.benchmarks.gui_cases import PROMPT, Case, cases, decode_rate, engine_factory


def segment(engine: LLMEngine, case: Case, num_tokens: int | None) -> dict[str, Any]:
    """One segment: all conversations answered together, nobody watching."""
    times: list[RequestTimes] = []
    for _ in range(case.num_chats):
        engine.add_request([{"role": "user", "content": PROMPT}], case.params(num_tokens))
    while engine.has_unfinished:
        times += [
            event.times
            for event in engine.step()
            if event.finish_reason is not None and event.times is not None
        ]
    return {"tokens_per_s": decode_rate(times)}


def main() -> None:
    given = json.loads(sys.argv[1])
    case = cases(quick=given["quick"])[given["case"]]
    engine = engine_factory(case)(case.config(given["num_threads"]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(segment(engine, case, command["num_tokens"])), flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
